"""Retries of a table's calls: what is told of a write when its time is up."""

from types import SimpleNamespace

import grpc
import pytest
from headrace.client.base.config import TableConfig, build
from headrace.client.base.operations import Call, Pause
from headrace.client.table import table_operations
from headrace.client.table.rows import column_slice
from headrace.client.table.table_operations import (
    KEYS_AT_ONCE,
    MAX_KEYS,
    ReadFrom,
    TableOperations,
    key_parts,
    scan_range,
)
from headrace.v1 import cluster_pb2, tables_pb2
from headrace.wire.errors import (
    BatchTooLargeError,
    FencedBrokerError,
    InvalidRequestError,
    NotLeaderError,
    OffsetNotAvailableError,
    Outcome,
    TimedOutError,
    UnknownPartitionError,
    UnknownProducerError,
    UnknownTopicIdError,
    to_status_bytes,
)
from headrace.wire.partitioning import partition_for_key
from headrace_server.methods import METHODS

from tests.fakes.failed_call import FailedCallError


def metadata(places):
    response = cluster_pb2.GetMetadataResponse(cluster_id="c", revision=1)
    for broker_id, place in enumerate(places, start=1):
        data_center, _, rack = place.rpartition("/")
        response.brokers.add(broker_id=broker_id, address=f"b{broker_id}:1", data_center=data_center, rack=rack)
    topic = response.topics.add(name="users", topic_id=bytes(16))
    topic.partitions.add(partition=0, leader_id=1, leader_epoch=1, in_sync_replicas=range(1, len(places) + 1))
    return response


class Servers:
    """Bootstrap servers, and brokers that answer a call each as a test says."""

    def __init__(self, monkeypatch, brokers=("", ""), **settings):
        self.now = 1_000.0
        monkeypatch.setattr(table_operations, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.brokers = brokers
        config = build(TableConfig, {"bootstrap_servers": "b1:1", "request_timeout_ms": 5_000, **settings})
        self.ids = iter(range(7, 100))
        self.calls = []
        self.operations = TableOperations("users", config, self)

    def metadata(self, request, timeout):
        yield from ()
        return metadata(self.brokers)

    def coordinator(self, method, request, timeout):
        yield from ()
        return cluster_pb2.InitProducerIdResponse(producer_id=next(self.ids), producer_epoch=0)

    def run(self, operation, *answers):
        """Run an operation; each call takes a second."""
        left = list(answers)
        try:
            step = next(operation)
            while True:
                if isinstance(step, Pause):
                    self.now += step.seconds
                    step = operation.send(None)
                    continue
                assert isinstance(step, Call)
                self.calls.append((step.address, type(step.request).FromString(step.request.SerializeToString())))
                self.now += 1
                answer = left.pop(0)
                step = operation.throw(failed(answer)) if isinstance(answer, Exception) else operation.send(answer)
        except StopIteration as done:
            return done.value


def failed(error):
    call = FailedCallError(grpc.StatusCode.UNAVAILABLE, "refused")
    call.trailing_metadata = lambda: (("grpc-status-details-bin", to_status_bytes(error)),)
    return call


@pytest.fixture
def servers(monkeypatch):
    return Servers(monkeypatch)


def write(servers, **fields):
    return servers.operations.write("k", {"a": "1"}, if_version=None, ttl_ms=0, **{"timeout": None, **fields})


APPLIED = tables_pb2.WriteRowResponse(applied=True, version=4, records=1)
FENCED = FencedBrokerError("no lease", outcome=Outcome.NOT_APPLIED)
LATE = TimedOutError("no acknowledgement", outcome=Outcome.UNKNOWN, retriable=True)


def test_a_write_in_doubt_is_told_so_whatever_came_first_or_last(servers):
    """The error that is told is the first, which says more than a timeout; its outcome is that of all tries."""
    with pytest.raises(FencedBrokerError) as told:
        servers.run(write(servers, timeout=2.0), FENCED, LATE)
    assert told.value.outcome is Outcome.UNKNOWN
    with pytest.raises(InvalidRequestError) as told:
        servers.run(write(servers), LATE, InvalidRequestError("no"))
    assert told.value.outcome is Outcome.UNKNOWN
    with pytest.raises(FencedBrokerError) as told:
        servers.run(write(servers, timeout=2.0), FENCED, FENCED)
    assert told.value.outcome is Outcome.NOT_APPLIED


def test_a_call_is_not_sent_to_a_table_that_was_made_anew_with_other_partitions(servers, monkeypatch):
    """Its row would be in another partition there than the call says; the next call knows the number."""
    anew = metadata(servers.brokers)
    anew.topics[0].topic_id = b"n" * 16
    anew.topics[0].partitions.add(partition=1, leader_id=1, leader_epoch=1, in_sync_replicas=[1])
    looks = iter((metadata(servers.brokers), anew))

    def look(request, timeout):
        yield from ()
        return next(looks)

    monkeypatch.setattr(servers, "metadata", look)
    with pytest.raises(UnknownTopicIdError):
        servers.run(write(servers), UnknownTopicIdError("no topic has this id"), APPLIED)
    servers.run(write(servers), APPLIED)
    assert [request.table.topic_id for _, request in servers.calls] == [bytes(16), b"n" * 16]
    assert [request.partition for _, request in servers.calls] == [0, partition_for_key(b"k", 2)]


def test_a_write_in_doubt_is_told_so_if_the_metadata_cannot_be_read_again(servers, monkeypatch):
    """A write that may have been applied is not reported as one that was not: seed 10052 with a table."""
    looks = []

    def first_two(request, timeout):
        yield from ()
        looks.append(timeout)
        if len(looks) > 2:
            raise TimedOutError("no metadata", outcome=Outcome.NOT_APPLIED, retriable=True)
        return metadata(servers.brokers)

    monkeypatch.setattr(servers, "metadata", first_two)
    with pytest.raises(NotLeaderError) as told:
        servers.run(write(servers, timeout=4.5), LATE, NotLeaderError("moved", outcome=Outcome.NOT_APPLIED))
    assert len(looks) == 3
    assert told.value.outcome is Outcome.UNKNOWN


def test_a_write_keeps_its_sequence_until_it_is_answered(servers):
    assert servers.run(write(servers), LATE, NotLeaderError("moved"), APPLIED) == 4
    said = {request.producer.SerializeToString() for _, request in servers.calls}
    assert len(said) == 1
    servers.calls.clear()
    servers.run(write(servers), APPLIED)
    [(_, request)] = servers.calls
    assert (request.producer.producer_id, request.producer.base_sequence) == (7, 1)


def test_a_producer_whose_write_is_in_doubt_is_not_used_again(servers):
    with pytest.raises(TimedOutError):
        servers.run(write(servers, timeout=1.0), LATE)
    servers.calls.clear()
    servers.run(write(servers), APPLIED)
    assert [request.producer.producer_id for _, request in servers.calls] == [8]


def test_a_producer_that_a_leader_has_forgotten_is_replaced(servers):
    servers.run(write(servers), APPLIED)
    servers.calls.clear()
    assert servers.run(write(servers), UnknownProducerError("who?"), APPLIED) == 4
    assert [(each.producer.producer_id, each.producer.base_sequence) for _, each in servers.calls] == [(7, 1), (8, 0)]
    with pytest.raises(UnknownProducerError) as told:
        servers.run(write(servers), LATE, UnknownProducerError("who?"))
    assert told.value.outcome is Outcome.UNKNOWN


def read_rows(servers, keys, consistency):
    columns, deadline = column_slice(None, None, None, None), servers.operations.deadline(None)
    return servers.operations.get_rows(0, keys, columns, ReadFrom(consistency), deadline)


@pytest.mark.parametrize("consistency", ["leader", "replica"])
@pytest.mark.parametrize("partition", [-1, 1])
def test_a_partition_that_the_table_does_not_have_is_told_at_once(servers, consistency, partition):
    """A table keeps its number of partitions."""
    before, deadline = servers.now, servers.operations.deadline(None)
    with pytest.raises(UnknownPartitionError, match=f"has partitions 0 to 0, not {partition}"):
        servers.run(servers.operations.count(partition, consistency, deadline))
    assert (servers.calls, servers.now) == ([], before)


def test_a_read_from_a_replica_asks_any_in_sync_one(servers):
    asked = set()
    for _ in range(20):
        servers.calls.clear()
        row = tables_pb2.TableRow(key=b"k", version=-1)
        answers = [OffsetNotAvailableError("behind"), tables_pb2.GetRowsResponse(rows=[row])]
        assert servers.run(read_rows(servers, [b"k"], "replica"), *answers) == {b"k": None}
        asked |= {address for address, _ in servers.calls}
    assert asked == {"b1:1", "b2:1"}


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ({}, {"b1:1", "b2:1", "b3:1"}),
        ({"client_data_center": "east"}, {"b1:1", "b2:1"}),
        ({"client_data_center": "east", "client_rack": "r2"}, {"b2:1"}),
        ({"client_data_center": "east", "client_rack": "r9"}, {"b1:1", "b2:1"}),
        ({"client_data_center": "west", "client_rack": "r2"}, {"b3:1"}),
        ({"client_data_center": "north"}, {"b1:1", "b2:1", "b3:1"}),
    ],
)
def test_a_read_from_a_replica_asks_the_nearest_first(monkeypatch, settings, first):
    """And any of them if that does not answer."""
    servers = Servers(monkeypatch, brokers=("east/r1", "east/r2", "west/r1"), **settings)
    asked, then = set(), set()
    for _ in range(60):
        servers.calls.clear()
        row = tables_pb2.TableRow(key=b"k", version=-1)
        answers = [OffsetNotAvailableError("behind"), tables_pb2.GetRowsResponse(rows=[row])]
        servers.run(read_rows(servers, [b"k"], "replica"), *answers)
        (nearest, _), (other, _) = servers.calls
        asked.add(nearest)
        then.add(other)
    assert asked == first
    assert then == {"b1:1", "b2:1", "b3:1"}


def test_rows_that_did_not_fit_are_asked_for_again(servers):
    rows = [tables_pb2.TableRow(key=b"%d" % number, version=number) for number in range(3)]
    grouped = servers.run(servers.operations.group_keys([b"0", b"1", b"0", b"2"], servers.operations.deadline(None)))
    assert grouped == {0: [b"0", b"1", b"2"]}
    answers = [tables_pb2.GetRowsResponse(rows=rows[:2]), tables_pb2.GetRowsResponse(rows=rows[2:])]
    found = servers.run(read_rows(servers, grouped[0], "leader"), *answers)
    assert {key: row.version for key, row in found.items()} == {b"0": 0, b"1": 1, b"2": 2}
    assert [list(request.keys) for _, request in servers.calls] == [[b"0", b"1", b"2"], [b"2"]]


@pytest.mark.parametrize(("key_bytes", "count"), [(16, 10_500), (110, 10_500), (16 << 10, 100)])
def test_a_request_has_no_more_keys_than_a_broker_takes(servers, key_bytes, count):
    keys = [b"%06d" % number + b"x" * (key_bytes - 6) for number in range(count)]
    purged = servers.run(servers.operations.purged_partitions(keys, None, False, 5))
    reads = [tables_pb2.GetRowsRequest(keys=part) for part in key_parts(keys, KEYS_AT_ONCE)]
    purges = [tables_pb2.PurgeRowsRequest(keys=each.keys) for each in purged]
    for name, requests, most in (("GetRows", reads, KEYS_AT_ONCE), ("PurgeRows", purges, MAX_KEYS)):
        limit = METHODS[f"/headrace.v1.TableService/{name}"].max_bytes
        assert [key for request in requests for key in request.keys] == keys
        assert all(len(each.keys) <= most and each.ByteSize() < 0.9 * limit for each in requests)


def row_of(version, names, next_column=None):
    columns = [tables_pb2.TableColumn(name=name, value=b"x", version=version) for name in names]
    return tables_pb2.TableRow(key=b"k", version=version, columns=columns, next_column=next_column)


def found_by(read, row):
    """Return the response of a read, by GetRows or ScanRows."""
    if read == "scan":
        return tables_pb2.ScanRowsResponse(rows=[row])
    return tables_pb2.GetRowsResponse(rows=[row], as_of_offset=9)


@pytest.mark.parametrize("read", ["get", "scan", "look"])
@pytest.mark.parametrize("columns", [None, ["a", "b", "c"]])
def test_a_row_that_an_answer_has_no_room_for_is_read_to_its_end(servers, read, columns):
    """As of one version: if it has changed meanwhile, all of it is read again."""
    wanted = scan_range(b"", b"", None, columns, 10)
    reads = {
        "get": lambda: servers.operations.get_rows(0, [b"k"], wanted.columns, ReadFrom("leader"), servers.now + 30),
        "scan": lambda: servers.operations.scan_page(0, wanted, "leader", 30.0),
        "look": lambda: servers.operations.look(b"k", wanted.columns, None, 30.0),
    }
    answers = [
        found_by(read, row_of(3, [b"a", b"b"], b"c")),
        tables_pb2.GetRowsResponse(rows=[row_of(5, [b"c"])]),
        tables_pb2.GetRowsResponse(rows=[row_of(5, [b"a"], b"b")]),
        tables_pb2.GetRowsResponse(rows=[row_of(5, [b"b"], b"c")]),
        tables_pb2.GetRowsResponse(rows=[row_of(5, [b"c"])]),
    ]
    found = servers.run(reads[read](), *answers)
    [row] = servers.operations.rows_of(found) if read == "scan" else [found[b"k"]] if read == "get" else [found.row]
    assert (row.version, list(row), row.next_column) == (5, ["a", "b", "c"], None)
    asked = [(each.columns.start, list(each.columns.names), each.read.min_offset) for _, each in servers.calls]
    if columns is None:
        assert asked == [(b"", [], 0), (b"c", [], 4), (b"", [], 4), (b"b", [], 6), (b"c", [], 6)]
    else:
        assert [b"".join(names) for _, names, _ in asked] == [b"abc", b"c", b"abc", b"bc", b"c"]


def test_a_row_that_is_deleted_before_its_end_is_read_is_not_there(servers):
    answers = [
        tables_pb2.ScanRowsResponse(rows=[row_of(3, [b"a"], b"b")]),
        tables_pb2.GetRowsResponse(rows=[row_of(-1, [])]),
        tables_pb2.GetRowsResponse(rows=[row_of(-1, [])]),
    ]
    page = servers.run(servers.operations.scan_page(0, scan_range(b"", b"", None, None, 10), "leader", 30.0), *answers)
    assert list(page.rows) == []


def test_a_limit_of_columns_is_kept(servers):
    wanted = column_slice(None, None, None, 1)
    read = servers.operations.get_rows(0, [b"k"], wanted, ReadFrom("leader"), servers.now + 30)
    found = servers.run(read, tables_pb2.GetRowsResponse(rows=[row_of(3, [b"a"], b"b")]))
    assert (list(found[b"k"]), found[b"k"].next_column) == (["a"], "b")


def test_a_row_whose_deletion_exceeds_a_batch_is_deleted_in_parts(monkeypatch):
    """By the names of its columns, half of them where they are too many, and then as a whole."""
    servers, large = Servers(monkeypatch), BatchTooLargeError("a batch of 2 MiB exceeds the limit")
    first, last, done = tables_pb2.GetRowsResponse(), tables_pb2.GetRowsResponse(), tables_pb2.WriteRowResponse()
    row, end, done.applied = first.rows.add(key=b"r", next_column=b"d"), last.rows.add(key=b"r"), True
    for each, name in ((row, b"a"), (row, b"b"), (row, b"\xff"), (end, b"d")):
        each.columns.add(name=name)
    answers = [large, first, large, done, done, last, done, done]
    assert servers.run(servers.operations.delete_row("r", 60.0), *answers) is None
    writes = [request for _, request in servers.calls if isinstance(request, tables_pb2.WriteRowRequest)]
    names = [(each.delete_row, [(column.name, column.HasField("value")) for column in each.columns]) for each in writes]
    assert names == [
        (True, []),
        (False, [(b"a", False), (b"b", False), (b"\xff", False)]),
        (False, [(b"a", False)]),
        (False, [(b"b", False), (b"\xff", False)]),
        (False, [(b"d", False)]),
        (True, []),
    ]
    reads = [request for _, request in servers.calls if isinstance(request, tables_pb2.GetRowsRequest)]
    assert [each.columns.start for each in reads] == [b"", b"d"]


def test_a_column_whose_deletion_exceeds_a_batch_is_an_error(monkeypatch):
    servers, large = Servers(monkeypatch), BatchTooLargeError("a batch of 32 KiB exceeds the limit")
    found = tables_pb2.GetRowsResponse()
    found.rows.add(key=b"r").columns.add(name=b"a")
    with pytest.raises(BatchTooLargeError):
        servers.run(servers.operations.delete_row("r", 60.0), large, found, large)
