"""Positions of readers without a group, committed every few seconds, exactly, and never in the way of reading."""

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
from headrace.client.fetch import position_commits
from headrace.client.fetch.position_commits import UNCHANGED_INTERVALS, PositionCommits
from headrace.v1 import cluster_pb2, groups_pb2, groups_pb2_grpc
from headrace.wire.columns import encode_batch
from headrace.wire.errors import (
    GroupNotEmptyError,
    InternalError,
    InvalidRequestError,
    MetastoreUnavailableError,
    Outcome,
    UnknownTopicError,
    to_detail,
)

P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
IDS = {"clicks": b"c" * 16}
WAIT = 20


class Coordinator:
    """Runs the operations of one `PositionCommits`."""

    def __init__(self):
        self.commits = PositionCommits(build(ReaderConfig, {"commit_group": "scan"}))
        self.sent = []
        self.failure = None
        self.refused = {}

    def __call__(self, step):
        if step.method == "GetMetadata":
            return cluster_pb2.GetMetadataResponse(coordinators=["c:1"])
        assert (step.service, step.method) == ("groups", "CommitOffsets")
        self.sent.append(step.request)
        if self.failure is not None:
            raise self.failure
        response = groups_pb2.CommitOffsetsResponse(topics=step.request.topics)
        for topic in response.topics:
            for each in topic.partitions:
                if each.partition in self.refused:
                    each.error.CopyFrom(to_detail(self.refused[each.partition]))
        return response

    def commit(self, positions):
        execute(self.commits.commit(positions, IDS), self)
        return len(self.sent)


def test_a_commit_has_all_that_moved_without_membership():
    """With the ids of the topics, which tell a topic from a later one of its name."""
    coordinator = Coordinator()
    coordinator.commit({P0: 5, P1: 0})
    (request,) = coordinator.sent
    assert (request.group_id, request.member_id, request.HasField("expected_group_epoch")) == ("scan", b"", False)
    (topic,) = request.topics
    assert (topic.name, topic.topic_id) == ("clicks", IDS["clicks"])
    assert [(each.partition, each.offset, each.leader_epoch) for each in topic.partitions] == [(0, 5, -1), (1, 0, -1)]
    coordinator.commit({P0: 5, P1: 3})
    assert [(each.partition, each.offset) for each in coordinator.sent[1].topics[0].partitions] == [(1, 3)]


def test_unchanged_positions_are_committed_seldom_and_moved_ones_at_once():
    """Often enough not to expire; without an assignment there is no commit."""
    coordinator = Coordinator()
    assert coordinator.commit({}) == 0
    counts = [coordinator.commit({P0: 5}) for _ in range(2 * UNCHANGED_INTERVALS)]
    assert counts == [1] * UNCHANGED_INTERVALS + [2] * UNCHANGED_INTERVALS
    assert coordinator.commit({P0: 6}) == 3


@pytest.mark.parametrize("error", [GroupNotEmptyError("scan has members"), InvalidRequestError("too many partitions")])
def test_a_group_that_refuses_for_good_is_given_up(caplog, monkeypatch, error):
    """With one warning that says which."""
    coordinator = Coordinator()
    fail_with(monkeypatch, coordinator, error)
    coordinator.commit({P0: 5})
    assert coordinator.commits.is_over
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"positions are not committed to group 'scan': {error}"
    ]


def test_a_failed_commit_is_replaced_by_the_next(caplog, monkeypatch):
    """One warning, however long it lasts, and one more after a success."""
    coordinator = Coordinator()
    fail_with(monkeypatch, coordinator, MetastoreUnavailableError("etcd is away", outcome=Outcome.UNKNOWN))
    for _ in range(3):
        coordinator.commit({P0: 5})
    assert (len(coordinator.sent), coordinator.commits.is_over, warnings(caplog)) == (3, False, 1)
    coordinator.failure = None
    coordinator.commit({P0: 5})
    fail_with(monkeypatch, coordinator, InternalError("no"))
    coordinator.commit({P0: 6})
    assert warnings(caplog) == 2


def test_a_refused_partition_is_tried_again_and_holds_up_no_other(caplog):
    """As of a topic that the coordinator does not know yet."""
    coordinator = Coordinator()
    coordinator.refused = {0: UnknownTopicError("there is no topic named 'clicks'")}
    for _ in range(2):
        coordinator.commit({P0: 5, P1: 5})
    assert [[each.partition for each in request.topics[0].partitions] for request in coordinator.sent] == [[0, 1], [0]]
    assert (coordinator.commits.is_over, warnings(caplog)) == (False, 1)


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


def test_a_closed_reader_commits_nothing():
    """The steps end with the reader."""
    coordinator = Coordinator()
    coordinator.failure = ClosedError("Reader")
    with pytest.raises(ClosedError):
        coordinator.commit({P0: 5})


@pytest.mark.parametrize("name", ["a b", "..", "x" * 250, "späße"])
def test_a_name_that_is_none_is_refused(name):
    """As a group's id is."""
    with pytest.raises(ConfigError, match="commit_group"):
        headrace.Reader("clicks", commit_group=name)


def test_a_consumer_of_a_group_commits_its_own_offsets():
    """Both together would be two truths."""
    with pytest.raises(ConfigError, match="without a group"):
        headrace.Consumer("clicks", group_id="g", commit_group="scan")


class Receiver(groups_pb2_grpc.GroupServiceServicer):
    """A coordinator that keeps what is committed, and may hang."""

    def __init__(self):
        self.changed = threading.Condition()
        self.committed = []
        self.hangs = threading.Event()
        self.hangs.set()
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        groups_pb2_grpc.add_GroupServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def CommitOffsets(self, request, context):
        moved = {(topic.name, each.partition): each.offset for topic in request.topics for each in topic.partitions}
        with self.changed:
            self.committed.append({**(self.committed[-1] if self.committed else {}), **moved})
            self.changed.notify_all()
        assert self.hangs.wait(WAIT)
        return groups_pb2.CommitOffsetsResponse(topics=request.topics)

    def wait_for(self, positions):
        with self.changed:
            assert self.changed.wait_for(lambda: positions in self.committed, WAIT), self.committed

    def stop(self):
        self.hangs.set()
        self._server.stop(0).wait()


@pytest.fixture
def clicks(fake_cluster, monkeypatch):
    """Two partitions, three batches of ten records in the first; commits follow each other at once."""
    monkeypatch.setattr("headrace.client.fetch.position_commits.INTERVAL_S", 0.01)
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
    return {"bootstrap_servers": clicks.address, "fetch_max_wait_ms": 50, "commit_group": "scan"}


def test_a_consumer_commits_its_positions(clicks, receiver):
    """At its start, and periodically while it reads."""
    with headrace.Consumer("clicks", auto_offset_reset="earliest", **settings(clicks)) as consumer:
        receiver.wait_for({("clicks", 0): 0, ("clicks", 1): 0})
        assert [len(consumer.poll(WAIT, max_records=5)) for _ in range(3)] == [5, 5, 5]
        receiver.wait_for({("clicks", 0): 15, ("clicks", 1): 0})
        consumer.seek(P0, 3)
        receiver.wait_for({("clicks", 0): 3, ("clicks", 1): 0})


def test_within_a_batch_it_is_exact(clicks, receiver):
    """While a loop handles one record the committed position is exact, not the batch's first offset."""
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


def test_a_reader_commits_its_positions(clicks, receiver):
    """Up to its end."""
    with headrace.Reader("clicks", **settings(clicks)) as reader:
        assert len(reader.read()) == 30
        receiver.wait_for({("clicks", 0): 30, ("clicks", 1): 0})


def test_asyncio_readers_commit_their_positions(clicks, receiver):
    """The same, in tasks of the loop, which end with the reader."""

    async def read():
        async with headrace.aio.Reader("clicks", **settings(clicks)) as reader:
            assert len(await reader.read()) == 30
            await asyncio.to_thread(receiver.wait_for, {("clicks", 0): 30, ("clicks", 1): 0})
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    assert asyncio.run(read()) == []


def test_a_coordinator_that_hangs_holds_up_no_record_and_no_close(clicks, receiver):
    """The reader reads to its end and closes while the first commit is in flight."""
    receiver.hangs.clear()
    with headrace.Reader("clicks", **settings(clicks)) as reader:
        receiver.wait_for({("clicks", 0): 0, ("clicks", 1): 0})
        assert len(reader.read()) == 30
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("headrace-reader")]


def test_a_close_waits_for_no_commit(clicks, receiver, monkeypatch):
    """What waits for the time of the next commit ends with the reader."""
    monkeypatch.setattr("headrace.client.fetch.position_commits.INTERVAL_S", 3_600)
    pause = threading.Event()
    with headrace.Reader("clicks", **settings(clicks)) as reader:
        receiver.wait_for({("clicks", 0): 0, ("clicks", 1): 0})
        background = reader._core.fetcher.background
        while not all(task.deadline for task in list(background._tasks)):
            pause.wait(0.001)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("headrace-reader")]


def test_an_unexpected_error_ends_the_commits_alone(clicks, receiver, monkeypatch):
    """It is logged; the reader reads to its end, blocking and asyncio."""

    def commit(self, positions, topic_ids):
        raise RuntimeError("boom")
        yield

    logged = threading.Semaphore(0)
    monkeypatch.setattr(PositionCommits, "commit", commit)
    monkeypatch.setattr(position_commits.log, "exception", lambda *_: logged.release())
    with headrace.Reader("clicks", **settings(clicks)) as reader:
        assert len(reader.read()) == 30
        assert logged.acquire(timeout=WAIT)

    async def read():
        async with headrace.aio.Reader("clicks", **settings(clicks)) as reader:
            records = await reader.read()
            assert await asyncio.to_thread(logged.acquire, timeout=WAIT)
            return len(records)

    assert asyncio.run(read()) == 30


def test_without_a_group_id_nothing_is_committed(clicks, receiver):
    """No thread, no call."""
    quiet = {**settings(clicks), "commit_group": ""}
    with headrace.Reader("clicks", **quiet) as reader:
        assert len(reader.read()) == 30
    assert receiver.committed == []
