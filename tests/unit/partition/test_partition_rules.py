"""What is decided about a partition without other replicas: batches, selections, writes and answers of rows."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from headrace.partition.batch_cache import RecordValue
from headrace.partition.batch_checks import AppendResult, check_produced, find_compressed, inflatable
from headrace.partition.producers import ProducerWindows
from headrace.partition.row_writes import identity_of, read_row_write
from headrace.partition.selections import read_selected, selection_of
from headrace.partition.table_rows import MAX_ANSWER_BYTES, FittingValues, FoundRow, RowsAnswer, look_up, wanted_columns
from headrace.partition.table_state import ColumnSlice, RowOffsets
from headrace.partition.topic_configs import parse_topic_config
from headrace.v1 import broker_pb2, tables_pb2
from headrace.wire.batch import HEADER_BYTES, Codec
from headrace.wire.encoding import RowBlocks, column_parts, encode_batch
from headrace.wire.errors import (
    ConflictError,
    CorruptBatchError,
    HeadraceError,
    InvalidRequestError,
    InvalidTimestampError,
    UnsupportedCodecError,
)
from headrace.wire.typed.array_blocks import block_of_array
from headrace.wire.typed.payload import INT64
from headrace.wire.typed.selection import MAX_RANGES
from headrace.wire.typed.topic_columns import parse_columns

from tests.unit.wire.test_wire_typed_payload import COLUMNS, typed


class Limits:
    max_batch_records = 1_000
    max_payload_bytes = 1 << 20


def check(batch, now_ms=0, compressed=None, **config):
    producers = ProducerWindows(max_producers=10, expiry_ms=60_000)
    return check_produced(
        [batch], AppendResult(), producers=producers, config=parse_topic_config(config), limits=Limits(), now_ms=now_ms,
        compressed=compressed,
    )  # fmt: skip


def test_rows_are_taken_by_a_topic_of_their_columns_alone():
    rows, values = typed(), encode_batch([b"1"], base_timestamp_ms=0)
    assert check(rows, columns=str(COLUMNS))
    with pytest.raises(InvalidRequestError, match="the topic is not typed"):
        check(rows)
    with pytest.raises(InvalidRequestError, match="the topic is typed"):
        check(values, columns=str(COLUMNS))
    with pytest.raises(InvalidRequestError, match="does not fit"):
        check(rows, columns="1 a string, 9 z int32")
    with pytest.raises(ConflictError, match="may not know the newest columns"):
        check(rows, columns="1 a int32 required, 2 b string")


@pytest.mark.parametrize(
    ("known", "newest", "wrong"),
    [
        ("1 a int32", "1 a int64", "column a is int64, and int32 in the topic"),
        ("1 a int32 required", "1 a int32", "column a may be null in the batch, and is required in the topic"),
        ("1 a int32 required, 2 b string", "2 b string, 1 a int32 dropped", "the required column a is missing"),
    ],
)
def test_rows_of_newer_columns_than_the_leader_knows_are_sent_again(known, newest, wrong):
    """A change that adds no column, too. What no change allows is refused for good, as where nearly all are allowed."""
    columns = parse_columns(newest)
    values = {"int32": pa.array([1], pa.int32()), "int64": pa.array([1], pa.int64()), "string": pa.array(["x"])}
    arrays = [values[str(column.type)] for column in columns.current]
    blocks = [block_of_array(array, column.type) for array, column in zip(arrays, columns.current, strict=True)]
    rows = b"".join(column_parts(RowBlocks(columns.batch_text, blocks, 1), base_timestamp_ms=0))
    assert check(rows, columns=newest)
    with pytest.raises(ConflictError, match=wrong) as refused:
        check(rows, columns=known)
    assert refused.value.retriable
    for mode in ("forward", "none"):
        with pytest.raises(InvalidRequestError, match=wrong):
            check(rows, columns=known, compatibility=mode)


def test_rows_have_no_null_in_a_required_column():
    """A producer of an earlier release has made such batches."""
    columns = parse_columns("1 a int32, 2 b int32 required")
    array = pa.array([1, None], pa.int32())
    blocks = [block_of_array(array, column.type) for column in columns.current]
    rows = b"".join(column_parts(RowBlocks(columns.batch_text, blocks, 2), base_timestamp_ms=0))
    with pytest.raises(InvalidRequestError, match="column b is required, and null in the batch"):
        check(rows, columns=str(columns))


def test_what_a_topic_refuses():
    batch = encode_batch([b"1"], base_timestamp_ms=1_000)
    for now_ms, config in ((10**9, {"timestamp_before_max_ms": "5"}), (-(10**9), {"timestamp_after_max_ms": "5"})):
        with pytest.raises(InvalidTimestampError):
            check(batch, now_ms, **config)
    with pytest.raises(InvalidRequestError, match="no key"):
        check(batch, cleanup_policy="compact")
    squeezed = encode_batch([b"x" * 1_000], base_timestamp_ms=0, codec=Codec.GZIP)
    with pytest.raises(UnsupportedCodecError, match="gzip"):
        check(squeezed, allowed_codecs="none")


def test_compressed_batches_are_found_and_their_errors_raised():
    config = parse_topic_config({})
    squeezed, plain = (
        encode_batch([b"x" * 1_000], base_timestamp_ms=0, codec=Codec.GZIP),
        encode_batch([b"1"], base_timestamp_ms=0),
    )
    assert find_compressed([plain, squeezed], config) == [1]
    assert find_compressed([squeezed], parse_topic_config({"validate": "header"})) == []
    header = inflatable([squeezed], 0, config, Limits())
    assert header is not None
    assert header.codec == Codec.GZIP
    assert inflatable([b"short"], 0, config, Limits()) is None
    assert inflatable([squeezed], 0, parse_topic_config({"allowed_codecs": "none"}), Limits()) is None
    with pytest.raises(CorruptBatchError, match="no columns"):
        check(squeezed, compressed={0: CorruptBatchError("no columns")})


def asked(column_ids=(1,), ranges=()):
    topic = broker_pb2.TopicFetch()
    topic.selection.column_ids.extend(column_ids)
    for each in ranges:
        topic.selection.ranges.add(**each)
    return topic


def test_a_selection_is_checked():
    assert selection_of(broker_pb2.TopicFetch()) is None
    a_range = {"column_id": 1, "bounds": INT64, "minimum": bytes(8), "maximum": bytes(8)}
    found = selection_of(asked(ranges=[a_range]))
    assert found is not None
    assert found.ids == frozenset({1})
    with pytest.raises(InvalidRequestError, match="over the limits"):
        selection_of(asked(ranges=[a_range] * (MAX_RANGES + 1)))
    for wrong in ({"bounds": 99}, {"minimum": b"short"}):
        with pytest.raises(InvalidRequestError, match="8 bytes"):
            selection_of(asked(ranges=[a_range | wrong]))


class Piece:
    """Slice of a log in memory."""

    end_offset = 9

    def __init__(self, data, was_cut=False):
        self.data = data
        self.was_cut = was_cut

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.data = b""

    def __len__(self):
        return len(self.data)

    def read_part(self, start, size):
        return self.data[start : start + size]

    def too_short(self, size):
        return HeadraceError("cut")


def test_a_selection_is_read_and_a_damaged_batch_is_sent_whole():
    selection = selection_of(asked())
    whole = typed()
    parts, end_offset, _ = read_selected(Piece(whole), selection, 1 << 20)
    assert 0 < sum(map(len, parts)) < len(whole)
    assert end_offset >= 0
    damaged = bytearray(whole)
    damaged[HEADER_BYTES + 5] ^= 1
    parts, end_offset, epoch = read_selected(Piece(bytes(damaged)), selection, 1 << 20)
    assert (b"".join(parts), end_offset, epoch) == (bytes(damaged), 9, -1)
    with pytest.raises(HeadraceError, match="cut"):
        read_selected(Piece(whole, was_cut=True), selection, 1 << 20)


def written(**fields):
    columns = fields.pop("columns", {b"name": b"Ada"})
    request = tables_pb2.WriteRowRequest(key=b"u17", **fields)
    for name, value in columns.items():
        request.columns.add(name=name, **({} if value is None else {"value": value}))
    return request


def test_a_write_of_a_row_is_checked_and_encoded():
    write = read_row_write(written(columns={b"name": b"Ada", b"plan": None}, ttl_ms=5), 0, 100)
    assert (write.columns, write.expires_ms, write.if_version) == ({b"name": b"Ada", b"plan": None}, 105, None)
    assert not write.needs_state
    assert write.encode(7)
    assert read_row_write(written(if_version=3), 60, 100).needs_state
    assert read_row_write(written(columns={}, delete_row=True), 60, 100).deletes_row
    for wrong in (written(columns={}), written(delete_row=True), written(ttl_ms=-1)):
        with pytest.raises(InvalidRequestError):
            read_row_write(wrong, 0, 0)
    twice = written()
    twice.columns.add(name=b"name", value=b"Bob")
    with pytest.raises(InvalidRequestError, match="twice"):
        read_row_write(twice, 0, 0)
    assert identity_of(None) == (-1, -1, -1)
    assert identity_of(broker_pb2.ProducerIdentity(producer_id=1, base_sequence=2)) == (1, 0, 2)
    with pytest.raises(InvalidRequestError, match="negative"):
        identity_of(broker_pb2.ProducerIdentity(producer_id=-1))


def test_columns_are_given_in_one_way():
    assert wanted_columns(tables_pb2.ColumnSlice()).columns.is_all
    for wrong in (tables_pb2.ColumnSlice(names=[b"a"], start=b"b"), tables_pb2.ColumnSlice(limit=-1)):
        with pytest.raises(InvalidRequestError):
            wanted_columns(wrong)


def test_a_row_that_does_not_fit_is_left_out_as_a_whole():
    """Clients that read many rows do not ask for the rest of one."""
    values = {offset: RecordValue(b"x" * (MAX_ANSWER_BYTES // 5), 0) for offset in range(8)}
    rows = [FoundRow(b"%d" % n, 2 * n + 1, [(b"a", 2 * n), (b"b", 2 * n + 1)], None) for n in range(4)]
    answer, response = RowsAnswer(), tables_pb2.GetRowsResponse()
    answer.add(rows[:3], values, response.rows)
    answer.add(rows[3:], values, response.rows)
    assert [(each.key, len(each.columns), each.HasField("next_column")) for each in response.rows] == [
        (b"0", 2, False),
        (b"1", 2, False),
    ]
    assert (answer.keys, answer.hits, answer.is_full) == ([b"0", b"1"], 2, True)
    assert answer.size_bytes < response.ByteSize() + 100


def test_an_answer_ends_when_it_is_full_and_says_where_to_continue():
    answer, response = RowsAnswer(), tables_pb2.GetRowsResponse()
    large = {1: RecordValue(b"x" * MAX_ANSWER_BYTES, 0), 2: RecordValue(b"y", 0)}
    row = FoundRow(b"r", 2, [(b"a", 1), (b"b", 2)], None)
    answer.add([row, row], large, response.rows)
    assert [each.next_column for each in response.rows] == [b"b"]
    assert answer.is_full
    assert look_up(RowOffsets(), b"r", wanted_columns(tables_pb2.ColumnSlice())).columns == []
    assert ColumnSlice((b"a",)).is_all is False


@pytest.mark.parametrize("seed", range(10))
def test_values_are_read_in_the_order_of_the_answer_until_it_is_full(seed):
    """The log has them in another order, a few large ones among them, and a key may be asked for twice."""
    draw = random.Random(seed)
    stored = {n: RecordValue(bytes(draw.choice((0, 10, 10, 10, 3_000))), 1) for n in range(1_000)}
    columns = [(b"c", draw.randrange(1_000)) for _ in range(draw.choice((0, 1, 50, 700)))]
    found = [FoundRow(b"r%d" % at, 1, columns[at : at + 7], None) for at in range(0, len(columns), 7)]
    room_bytes = draw.choice((100, 20_000, 10_000_000))
    fitting, reads = FittingValues(found, room_bytes), 0
    while offsets := fitting.next_offsets():
        read, size_bytes = {}, 0
        for offset in offsets:
            if size_bytes <= fitting.room_bytes:
                read[offset], size_bytes = stored[offset], size_bytes + len(stored[offset].value)
        reads += len(read)
        assert fitting.note(read)
    first = next((place for place, (_, offset) in enumerate(columns) if offset not in fitting.values), len(columns))
    size_bytes = sum(len(stored[offset].value) for _, offset in columns[:first])
    assert first == len(columns) or size_bytes > room_bytes
    assert all(stored[offset] == value for offset, value in fitting.values.items())
    assert reads <= 3 * len(columns)


def test_a_value_that_is_gone_is_found():
    fitting = FittingValues([FoundRow(b"r", 1, [(b"a", 1), (b"b", 2)], None)], 100)
    assert fitting.next_offsets() == [1, 2]
    assert not fitting.note({2: RecordValue(b"", 1)})
