"""What an executor does to read a range, on a cluster over lists; and how batches become Spark's. No Spark runs."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
from headrace.client.base.errors import ConfigError
from headrace.client.base.records import DecodedBatch, Deserializers
from headrace.spark import arrow_columns, range_reader
from headrace.spark.arrow_columns import MOST_BYTES, MOST_ROWS, ArrowColumns, grouped
from headrace.spark.errors import DataLossError
from headrace.spark.range_reader import read_range
from headrace.spark.ranges import OffsetRange
from headrace.spark.reader import make_reader
from headrace.spark.schema import check_read_schema, full_schema
from headrace.spark.subscribed_cluster import SubscribedCluster
from headrace.wire.batch import read_header
from headrace.wire.columns import decode_batch, encode_batch
from headrace.wire.errors import CorruptBatchError, HeadraceError
from headrace.wire.ids import TopicPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, LongType, StructField, StructType

from tests.fakes.cluster import FakeCluster, running_fake

T0 = TopicPartition("t", 0)


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    """One partition with the records 0 to 29, ten a batch."""
    with running_fake() as cluster:
        cluster.create_topic("t")
        for first in range(0, 30, 10):
            cluster.append("t", encode_batch([b"%d" % n for n in range(first, first + 10)], base_timestamp_ms=5))
        yield cluster


def read(fake, start, end, **more):
    settings = {"bootstrap_servers": fake.address, "fetch_max_bytes": 100, "prefetch_bytes": 1}
    decoded_batches = read_range(settings, OffsetRange(T0, start, end), fail_on_data_loss=more.get("fail", True))
    return [value for decoded in decoded_batches for value in decoded.columns.values()[decoded.start : decoded.end]]


def test_a_range_is_read_whole_and_nothing_else(fake):
    """Whatever batches it begins and ends in."""
    assert read(fake, 7, 24) == [b"%d" % n for n in range(7, 24)]
    assert read(fake, 5, 5) == []


@pytest.mark.parametrize("bound", ["endingTimestamp", "startingTimestamp"])
def test_a_read_by_time_ends_where_the_log_did_when_it_was_planned(fake, monkeypatch, bound):
    """Records are written meanwhile, so the end found by time is after the one that was looked up."""
    bounds = SubscribedCluster.bounds

    def bounds_before_records(cluster, partitions):
        found = bounds(cluster, partitions)
        fake.append("t", encode_batch([b"30"], base_timestamp_ms=5))
        return found

    monkeypatch.setattr(SubscribedCluster, "bounds", bounds_before_records)
    given = {"headrace.bootstrap.servers": fake.address, "subscribe": "t", bound: "6"}
    read = [task.part for task in make_reader(given, full_schema(False)).partitions()]
    assert [(part.start, part.end) for part in read if len(part)] == ([(0, 30)] if bound == "endingTimestamp" else [])


def test_an_offset_past_the_end_is_an_error(fake):
    given = {"headrace.bootstrap.servers": fake.address, "subscribe": "t", "endingOffsets": '{"t": {"0": 31}}'}
    with pytest.raises(ConfigError, match="endingOffsets: 31 for t-0 is past its end, 30"):
        make_reader(given, full_schema(False)).partitions()


def test_records_removed_by_retention_are_reported_or_left_out(fake):
    """With offsets and count."""
    fake.topics["t"].partitions[0].start = 10
    lost = "t-0: offset 7 was requested and the log starts at 10, 3 records were removed"
    with pytest.raises(DataLossError, match=lost):
        read(fake, 7, 24)
    assert read(fake, 7, 24, fail=False) == [b"%d" % n for n in range(10, 24)]
    assert read(fake, 2, 8, fail=False) == []


def test_only_columns_without_nulls_may_exclude_them():
    """Spark drops `is null` where a column, or a part of it, is NOT NULL."""
    check_read_schema(StructType([StructField("offset", LongType(), nullable=False)]))
    headers = full_schema(True)["headers"].dataType
    inner = StructField("headers", ArrayType(headers.elementType, containsNull=False))
    for column in (StructField("value", BinaryType(), nullable=False), inner):
        with pytest.raises(ConfigError, match=f"column {column.name} is NOT NULL"):
            check_read_schema(StructType([column]))


def test_every_checksum_is_looked_at(fake):
    """A corrupt copy is asked for again; a batch that stays corrupt is an error."""
    fake.topics["t"].partitions[0].spoiled = 1
    assert read(fake, 0, 30) == [b"%d" % n for n in range(30)]
    fake.topics["t"].partitions[0].spoiled = 99
    with pytest.raises(CorruptBatchError):
        read(fake, 0, 30)


def test_a_log_that_ends_before_the_range_is_an_error(fake, monkeypatch):
    """After a while: a new leader may not know yet how far records are visible."""
    monkeypatch.setattr(range_reader, "END_TIMEOUT_S", 0.0)
    with pytest.raises(HeadraceError, match="t-0 was truncated"):
        read(fake, 20, 31)


def decoded(values, base_offset=0, start=0, **columns):
    encoded = encode_batch(values, base_timestamp_ms=7, **columns)
    decoded = decode_batch(encoded, max_payload_bytes=2**30)
    assert read_header(encoded).record_count == len(values)
    return DecodedBatch(T0, decoded, start, len(values), Deserializers())


def test_batches_are_of_a_size_that_suits_spark():
    """Small ones together, large ones in parts, by rows and by bytes; nothing lost, nothing moved."""
    small = [decoded([b"v"] * 100) for _ in range(90)]
    assert [sum(each.end - each.start for each in group) for group in grouped(small)] == [4100, 4100, 800]
    assert all(
        sum(each.end - each.start for each in group) <= MOST_ROWS for group in grouped([decoded([b"v"] * 50_000)])
    )
    uneven = decoded([b"x" * 1000] * 900 + [b"y" * (MOST_BYTES // 3)] * 4 + [b"z"] * 9)
    groups = list(grouped([uneven]))
    sizes = [sum(map(arrow_columns._bytes, group)) for group in groups]
    assert max(sizes) <= MOST_BYTES
    rows = [(each.start, each.end) for group in groups for each in group]
    assert rows[0][0] == 0
    assert rows[-1][1] == 913
    assert all(before[1] == after[0] for before, after in pairwise(rows))


@pytest.mark.parametrize("names", [None, ["headers", "offset"], ["value"]])
def test_columns_have_the_types_that_spark_holds_strictly(names):
    """To the name of a list's child; with all columns, and with some in another order."""
    full = full_schema(True)
    schema = full if names is None else StructType([full[name] for name in names])
    headers = [[("h", b"1")], [], None]
    parts = [
        decoded([b"a", None, b"c"], keys=[b"k", None, b""], headers=headers, timestamps_ms=[1, 2, 3]),
        decoded([b"d"]),
    ]
    (batch,) = ArrowColumns(schema, T0).batches(parts)
    assert batch.schema == to_arrow_schema(schema, timezone="UTC")
    found = batch.to_pydict()
    expected = {
        "key": [b"k", None, b"", None],
        "value": [b"a", None, b"c", b"d"],
        "topic": ["t"] * 4,
        "partition": [0] * 4,
        "offset": [0, 1, 2, 0],
        "headers": [[{"key": "h", "value": b"1"}], [], [], []],
    }
    for name, values in expected.items():
        if name in found:
            assert found[name] == values
    if names is None:
        assert [at.timestamp() for at in found["timestamp"]] == [0.001, 0.002, 0.003, 0.007]
