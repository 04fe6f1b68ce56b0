"""Readers without a group that say where they are: every few seconds, exactly, and never in the way of reading."""

import asyncio
import logging
import threading
from concurrent import futures

import grpc
import headrace
import headrace.aio
import pytest
from headrace import TopicPartition
from headrace.client.base.config import ReaderConfig, build
from headrace.client.base.errors import ClosedError, ConfigError
from headrace.client.base.operations import execute
from headrace.client.fetch.position_reports import EXPIRE_MS, UNCHANGED_INTERVALS, PositionReports
from headrace.v1 import cluster_pb2, groups_pb2, groups_pb2_grpc
from headrace.wire.columns import encode_batch
from headrace.wire.errors import ConflictError, InternalError, InvalidRequestError, MetastoreUnavailableError, Outcome

P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
IDS = {"clicks": b"c" * 16}
WAIT = 20


class Coordinator:
    """Runs the operations of one `PositionReports`."""

    def __init__(self):
        self.reports = PositionReports(build(ReaderConfig, {"report_positions_as": "scan"}))
        self.sent = []
        self.failure = None

    def __call__(self, step):
        if step.method == "GetMetadata":
            return cluster_pb2.GetMetadataResponse(coordinators=["c:1"])
        assert (step.service, step.method) == ("groups", "ReportPositions")
        self.sent.append(step.request)
        if self.failure is not None:
            raise self.failure
        return groups_pb2.ReportPositionsResponse()

    def look(self, positions):
        execute(self.reports.look(positions, IDS), self)
        return len(self.sent)


def test_a_report_says_everything_at_once_and_how_long_it_holds():
    """All partitions with the ids of their topics, which tell a topic from a later one of its name."""
    coordinator = Coordinator()
    coordinator.look({P0: 5, P1: 0})
    (request,) = coordinator.sent
    assert (request.reader_id, request.expire_ms) == ("scan", EXPIRE_MS)
    (topic,) = request.topics
    assert (topic.name, topic.topic_id) == ("clicks", IDS["clicks"])
    assert [(each.partition, each.offset) for each in topic.partitions] == [(0, 5), (1, 0)]


def test_what_stands_still_is_reported_seldom_and_what_moves_at_once():
    """Often enough not to be forgotten; nothing is assigned, nothing is said."""
    coordinator = Coordinator()
    assert coordinator.look({}) == 0
    counts = [coordinator.look({P0: 5}) for _ in range(2 * UNCHANGED_INTERVALS)]
    assert counts == [1] * UNCHANGED_INTERVALS + [2] * UNCHANGED_INTERVALS
    assert coordinator.look({P0: 6}) == 3


@pytest.mark.parametrize("error", [ConflictError("scan is a group"), InvalidRequestError("too many partitions")])
def test_a_name_that_cannot_be_used_is_given_up(caplog, monkeypatch, error):
    """With one warning that says which."""
    coordinator = Coordinator()
    fail_with(monkeypatch, coordinator, error)
    coordinator.look({P0: 5})
    assert coordinator.reports.is_over
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"positions are not reported as 'scan': {error}"
    ]


def test_what_fails_is_not_made_good_but_tried_at_the_next_look(caplog, monkeypatch):
    """One warning, however long it lasts, and one more after it has worked."""
    coordinator = Coordinator()
    fail_with(monkeypatch, coordinator, MetastoreUnavailableError("etcd is away", outcome=Outcome.UNKNOWN))
    for _ in range(3):
        coordinator.look({P0: 5})
    assert (len(coordinator.sent), coordinator.reports.is_over, warnings(caplog)) == (3, False, 1)
    coordinator.failure = None
    coordinator.look({P0: 5})
    fail_with(monkeypatch, coordinator, InternalError("no"))
    coordinator.look({P0: 6})
    assert warnings(caplog) == 2


def fail_with(monkeypatch, coordinator, error):
    """Let the coordinator's answer be a typed error."""
    from headrace.client.net import bootstrap_client

    class Failure(grpc.RpcError):
        def code(self):
            return grpc.StatusCode.FAILED_PRECONDITION

    coordinator.failure = Failure()
    monkeypatch.setattr(bootstrap_client, "from_rpc_error", lambda failure: error)
    monkeypatch.setattr(bootstrap_client, "_try_elsewhere", lambda *arguments: False)


def warnings(caplog):
    return sum(record.levelno >= logging.WARNING for record in caplog.records)


def test_a_reader_that_is_closed_reports_nothing():
    """The steps end with the reader."""
    coordinator = Coordinator()
    coordinator.failure = ClosedError("Reader")
    with pytest.raises(ClosedError):
        coordinator.look({P0: 5})


@pytest.mark.parametrize("name", ["a b", "..", "x" * 250, "späße"])
def test_a_name_that_is_none_is_refused(name):
    """As a group's id is."""
    with pytest.raises(ConfigError, match="report_positions_as"):
        headrace.Reader("clicks", report_positions_as=name)


def test_a_consumer_of_a_group_has_its_offsets_in_place_of_reports():
    """Both together would be two truths."""
    with pytest.raises(ConfigError, match="without a group"):
        headrace.Consumer("clicks", group_id="g", report_positions_as="scan")


class Receiver(groups_pb2_grpc.GroupServiceServicer):
    """A coordinator that keeps what is reported, and may hang or refuse."""

    def __init__(self):
        self.changed = threading.Condition()
        self.reported = []
        self.hangs = threading.Event()
        self.hangs.set()
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        groups_pb2_grpc.add_GroupServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def ReportPositions(self, request, context):
        with self.changed:
            self.reported.append(
                {(topic.name, each.partition): each.offset for topic in request.topics for each in topic.partitions}
            )
            self.changed.notify_all()
        assert self.hangs.wait(WAIT)
        return groups_pb2.ReportPositionsResponse()

    def wait_for(self, positions):
        with self.changed:
            assert self.changed.wait_for(lambda: positions in self.reported, WAIT), self.reported

    def stop(self):
        self.hangs.set()
        self._server.stop(0).wait()


@pytest.fixture
def clicks(fake_cluster, monkeypatch):
    """Two partitions, three batches of ten records in the first; looks follow each other at once."""
    monkeypatch.setattr("headrace.client.fetch.fetching.INTERVAL_S", 0.01)
    monkeypatch.setattr("headrace.client.fetch.fetching_async.INTERVAL_S", 0.01)
    fake_cluster.create_topic("clicks", 2)
    for _ in range(3):
        fake_cluster.append("clicks", encode_batch([b"v"] * 10, base_timestamp_ms=1_000))
    return fake_cluster


@pytest.fixture
def receiver(clicks):
    made = Receiver()
    clicks.coordinators = [made.address]
    try:
        yield made
    finally:
        made.stop()


def settings(clicks):
    return {"bootstrap_servers": clicks.address, "fetch_max_wait_ms": 50, "report_positions_as": "scan"}


def test_a_consumer_says_where_it_is(clicks, receiver):
    """At its start, and as it goes on."""
    with headrace.Consumer("clicks", auto_offset_reset="earliest", **settings(clicks)) as consumer:
        receiver.wait_for({("clicks", 0): 0, ("clicks", 1): 0})
        assert [len(consumer.poll(WAIT, max_records=5)) for _ in range(3)] == [5, 5, 5]
        receiver.wait_for({("clicks", 0): 15, ("clicks", 1): 0})
        consumer.seek(P0, 3)
        receiver.wait_for({("clicks", 0): 3, ("clicks", 1): 0})


def test_within_a_batch_it_is_exact(clicks, receiver):
    """A loop that stands at a record for long is not said to be at the batch's beginning."""
    with headrace.Consumer("clicks", auto_offset_reset="earliest", **settings(clicks)) as consumer:
        for record in consumer:
            if record.offset == 14:
                break
        receiver.wait_for({("clicks", 0): 15, ("clicks", 1): 0})
        records = iter(consumer)
        next(records)
        receiver.wait_for({("clicks", 0): 16, ("clicks", 1): 0})
        consumer.seek(P0, 2)
        receiver.wait_for({("clicks", 0): 2, ("clicks", 1): 0})


def test_a_reader_says_where_it_is(clicks, receiver):
    """Up to its end."""
    with headrace.Reader("clicks", **settings(clicks)) as reader:
        assert len(reader.read()) == 30
        receiver.wait_for({("clicks", 0): 30, ("clicks", 1): 0})


def test_asyncio_readers_say_where_they_are(clicks, receiver):
    """The same, in tasks of the loop, which end with the reader."""

    async def read():
        async with headrace.aio.Reader("clicks", **settings(clicks)) as reader:
            assert len(await reader.read()) == 30
            await asyncio.to_thread(receiver.wait_for, {("clicks", 0): 30, ("clicks", 1): 0})
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    assert asyncio.run(read()) == []


def test_a_coordinator_that_hangs_holds_up_no_record_and_no_close(clicks, receiver):
    """Reading goes on and ends, and so does the reader, while the first report is still out."""
    receiver.hangs.clear()
    with headrace.Reader("clicks", **settings(clicks)) as reader:
        receiver.wait_for({("clicks", 0): 0, ("clicks", 1): 0})
        assert len(reader.read()) == 30
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-reader"]


def test_a_close_waits_for_no_look(clicks, receiver, monkeypatch):
    """The thread that waits for the time of the next report ends with the reader."""
    monkeypatch.setattr("headrace.client.fetch.fetching.INTERVAL_S", 3_600)
    pause = threading.Event()
    with headrace.Reader("clicks", **settings(clicks)) as reader:
        receiver.wait_for({("clicks", 0): 0, ("clicks", 1): 0})
        while not reader._fetcher._report_due._waiters:
            pause.wait(0.001)
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-reader"]


def test_an_error_that_nobody_foresaw_ends_the_reports_alone(clicks, receiver, monkeypatch, caplog):
    """It is logged; the reader reads to its end, blocking and asyncio."""

    def look(self, positions, topic_ids):
        raise RuntimeError("boom")
        yield

    monkeypatch.setattr(PositionReports, "look", look)
    with headrace.Reader("clicks", **settings(clicks)) as reader:
        assert len(reader.read()) == 30

    async def read():
        async with headrace.aio.Reader("clicks", **settings(clicks)) as reader:
            return len(await reader.read())

    assert asyncio.run(read()) == 30
    assert sum("are not reported any more" in record.getMessage() for record in caplog.records) == 2


def test_without_a_name_nothing_is_reported(clicks, receiver):
    """No thread, no call."""
    quiet = {**settings(clicks), "report_positions_as": ""}
    with headrace.Reader("clicks", **quiet) as reader:
        assert len(reader.read()) == 30
    assert receiver.reported == []
