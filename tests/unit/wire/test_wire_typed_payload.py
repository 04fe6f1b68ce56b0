"""Typed batches that are damaged, or lie: with wrong checksums and with right ones."""

from __future__ import annotations

import json
import math
import random
import struct
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from headrace.wire.batch import CRC_START, HEADER_BYTES, check_batch, iter_batches, read_header
from headrace.wire.columns import check_columns, decode_batch, decode_selected, is_part
from headrace.wire.compression import Codec
from headrace.wire.crc import crc32c
from headrace.wire.encoding import RowBlocks, column_parts, join_column
from headrace.wire.errors import BatchTooLargeError, CorruptBatchError, InvalidRequestError, UnsupportedCodecError
from headrace.wire.typed.array_blocks import block_of_array
from headrace.wire.typed.arrow_columns import array_of_block, arrays_of_rows, arrow_type, check_row
from headrace.wire.typed.blocks import read_block, values_of
from headrace.wire.typed.json_values import json_row, row_of_json
from headrace.wire.typed.payload import DOUBLE, ENTRY, HEAD, INT64, TEXT, read_directory, seal
from headrace.wire.typed.selection import ColumnRange, ColumnSelection, select
from headrace.wire.typed.topic_columns import parse_columns

COLUMNS = parse_columns("1 a int32 required, 2 b string, 3 c list<string>, 4 d bool, 5 e struct<x: double>")
ROWS = [{"a": number, "b": f"b{number}" * 3, "c": ["x", None], "d": True, "e": {"x": 0.5}} for number in range(9)]
BIG = 1 << 20


def typed(codec: Codec = Codec.NONE, keys: bool = True) -> bytes:
    """Return a produced batch."""
    arrays = arrays_of_rows(ROWS, COLUMNS)
    blocks = [block_of_array(array, column.type) for array, column in zip(arrays, COLUMNS.current, strict=True)]
    keyed = join_column("key", [b"k"] * len(ROWS)) if keys else None
    return b"".join(
        column_parts(RowBlocks(COLUMNS.batch_text, blocks, len(ROWS)), keyed, base_timestamp_ms=0, codec=codec)
    )


def read(batch: bytes) -> list[dict[str, object]]:
    """Check a batch as a leader and as a reader do; return its rows."""
    header = check_batch(batch, max_batch_bytes=BIG, max_records=BIG, max_payload_bytes=BIG)
    check_columns(batch, header, max_payload_bytes=BIG)
    columns = decode_batch(batch, max_payload_bytes=BIG)
    assert columns.typed is not None
    columns.typed.check()
    return columns.typed.rows(0, columns.record_count)


def resealed(batch: bytearray) -> bytes:
    """Return the batch with the right checksums of the blocks, of the directory and of the whole."""
    payload = memoryview(batch)[HEADER_BYTES:]
    size, count = HEAD.unpack_from(payload)[1], HEAD.unpack_from(payload)[3]
    position = size
    for place in range(min(count, (len(payload) - HEAD.size) // ENTRY.size)):
        at = HEAD.size + ENTRY.size * place
        stored = int.from_bytes(payload[at : at + 4], "little")
        payload[at + 8 : at + 12] = crc32c(payload[position : position + stored]).to_bytes(4, "little")
        position += -(-stored // 8) * 8
    rest = int.from_bytes(payload[16:20], "little")
    payload[24:28] = crc32c(payload[position : position + rest]).to_bytes(4, "little")
    if size <= len(payload):
        directory = bytearray(payload[:size])
        if len(directory) > 4:
            seal(directory, bytes(batch[CRC_START:HEADER_BYTES]))
            payload[:size] = directory
    batch[32:36] = crc32c(memoryview(batch)[CRC_START:]).to_bytes(4, "little")
    return bytes(batch)


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_come_back(codec: Codec) -> None:
    """Under each codec, and resealed as they were."""
    assert read(typed(codec)) == ROWS
    assert resealed(bytearray(typed(codec))) == typed(codec)


def test_each_flipped_bit_is_found() -> None:
    """No byte is outside the checksums: not of the whole batch, and not of the part that a projection is."""
    batch = typed()
    header = read_header(batch)
    directory = read_directory(batch, header)
    for position in range(CRC_START, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(CorruptBatchError):
            read(bytes(damaged))
        damaged[32:36] = crc32c(memoryview(damaged)[CRC_START:]).to_bytes(4, "little")
        if 64 <= position < HEADER_BYTES:
            continue  # The producer's fields, which a reader of a projection does not use.
        with pytest.raises((CorruptBatchError, UnsupportedCodecError, BatchTooLargeError)):
            read(bytes(damaged))
    assert directory.size % 8 == 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_lies_with_right_checksums(codec: Codec) -> None:
    """Random bytes with right checksums are refused, or read as some rows: nothing else happens."""
    chance = random.Random(22)
    good = typed(codec)
    refused = 0
    for _ in range(3_000):
        damaged = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(HEADER_BYTES, len(damaged))] = chance.choice([0, 1, 255, chance.randrange(256)])
        try:
            rows = read(resealed(damaged))
        except CorruptBatchError:
            refused += 1
        else:
            assert len(rows) == len(ROWS)
    assert 500 < refused < 3_000


def test_wrong_checksums_of_blocks_are_not_appended() -> None:
    """A leader finds them although the checksums of the directory and of the batch are right."""
    batch = bytearray(typed())
    at = HEADER_BYTES + HEAD.size + 8
    batch[at] ^= 1
    size = HEAD.unpack_from(batch, HEADER_BYTES)[1]
    directory = bytearray(batch[HEADER_BYTES : HEADER_BYTES + size])
    seal(directory, bytes(batch[CRC_START:HEADER_BYTES]))
    batch[HEADER_BYTES : HEADER_BYTES + size] = directory
    batch[32:36] = crc32c(memoryview(batch)[CRC_START:]).to_bytes(4, "little")
    header = check_batch(bytes(batch), max_batch_bytes=BIG, max_records=BIG, max_payload_bytes=BIG)
    with pytest.raises(CorruptBatchError, match="a: the block's checksum is wrong"):
        check_columns(bytes(batch), header, max_payload_bytes=BIG)


def block(text: str, array: pa.Array) -> bytes:
    """Return the stored bytes of one column in a batch of it alone, resealed after a change by the caller."""
    columns = parse_columns(text)
    parts = column_parts(
        RowBlocks(columns.batch_text, [block_of_array(array, columns.current[0].type)], len(array)), base_timestamp_ms=0
    )
    return b"".join(parts)


@pytest.mark.parametrize(
    ("text", "array", "find", "replace", "message"),
    [
        ("1 a string", pa.array(["abc", "de"]), "<3i", [(0, 3, 5), (0, 5, 3)], "column a: offsets do not ascend"),
        ("1 a string", pa.array(["abc", "de"]), "<3i", [(0, 3, 5), (0, 3, 4)], "column a: a buffer has 5 bytes, not 4"),
        ("1 a string", pa.array(["abc", "de"]), "<3i", [(0, 3, 5), (0, 3, 2**31 - 1)], "column a: a buffer has 5"),
        (
            "1 a list<int8>",
            pa.array([[1, 2], [3]], pa.list_(pa.int8())),
            "<3i",
            [(0, 2, 3), (0, 2, 10**9)],
            "has 3 byt",
        ),
    ],
)
def test_columns_that_lie_about_their_lengths(
    text: str, array: pa.Array, find: str, replace: list[tuple[int, ...]], message: str
) -> None:
    """The error names the column and the next offset, and no memory is taken for what is claimed."""
    old, new = (np.array(each, "<i4").tobytes() for each in replace)
    good = block(text, array)
    assert good.count(old) == 1
    bad = resealed(bytearray(good.replace(old, new)))
    with pytest.raises(CorruptBatchError, match=message) as raised:
        read(bad)
    assert (raised.value.base_offset, raised.value.next_offset) == (0, 2)


def test_text_that_is_no_text() -> None:
    """Bytes that are not UTF-8 in a column of strings are refused, with Arrow and without."""
    good = block("1 a string", pa.array(["abc"]))
    bad = resealed(bytearray(good.replace(b"abc", b"\xff\xfe\xfd")))
    with pytest.raises(CorruptBatchError, match="column a: "):
        read(bad)
    columns = decode_batch(bad, max_payload_bytes=BIG)
    assert columns.typed is not None
    with pytest.raises(CorruptBatchError, match="column a: a value is no string"):
        columns.typed.rows(0, 1)


@pytest.mark.parametrize("has_arrow", [True, False])
def test_decimals_with_too_many_digits_are_refused(has_arrow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Arrow and without; not of null, whose bytes have no meaning."""
    monkeypatch.setattr("headrace.wire.typed.typed_columns._has_arrow", lambda: has_arrow)
    numbers = b"".join(number.to_bytes(16, "little", signed=True) for number in (-99_999, 100_000, 7))
    for validity, is_corrupt in ((None, True), (b"\x05", False)):
        known = None if validity is None else pa.py_buffer(validity)
        array = pa.Array.from_buffers(pa.decimal128(5, 2), 3, [known, pa.py_buffer(numbers)])
        batch = block("1 a decimal(5, 2)", array)
        if is_corrupt:
            with pytest.raises(CorruptBatchError, match=r"column a: .*decimal\(5, 2\)"):
                read(batch)
        else:
            assert [row["a"] for row in read(batch)] == [Decimal("-999.99"), None, Decimal("0.07")]


@pytest.mark.parametrize("has_arrow", [True, False])
@pytest.mark.parametrize(
    ("kind", "outside", "within"),
    [
        ("date", 3_000_000, date(9999, 12, 31)),
        ("date", -(2**31), date(1, 1, 1)),
        ("timestamp[us]", 2**62, datetime(2026, 1, 2)),
        ("timestamp[ms, UTC]", -(2**60), datetime(2026, 1, 2, tzinfo=UTC)),
        ("timestamp[s, Asia/Tokyo]", 253_402_300_799, datetime(2026, 1, 2, tzinfo=UTC)),
        ("duration[s]", 2**62, timedelta(days=999_999_999)),
    ],
)
def test_times_that_python_lacks(
    kind: str, outside: int, within: object, has_arrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are no damage: a reader has them as stored numbers, with Arrow and without, at any depth, and sends them."""
    monkeypatch.setattr("headrace.wire.typed.typed_columns._has_arrow", lambda: has_arrow)
    columns = parse_columns(f"1 a {kind}, 2 b list<{kind}>")
    rows = [{"a": outside, "b": [within, None, outside]}, {"a": None, "b": None}]
    arrays = arrays_of_rows(rows, columns)
    blocks = [block_of_array(array, column.type) for array, column in zip(arrays, columns.current, strict=True)]
    batch = b"".join(column_parts(RowBlocks(columns.batch_text, blocks, len(rows)), base_timestamp_ms=0))
    assert read(batch) == rows
    document = json.loads(json_row(rows[0]))
    assert (document["a"], document["b"][2]) == (outside, outside)
    if kind != "duration[s]":  # A number of JSON is seconds.
        assert row_of_json(document, columns) == rows[0]


@pytest.mark.parametrize("has_arrow", [True, False])
@pytest.mark.parametrize(
    ("kind", "width", "outside", "within"),
    [
        ("time[s]", 32, 86_400, time(23, 59, 59)),
        ("time[ms]", 32, -1, time(0)),
        ("time[us]", 64, -(2**63), time(1)),
        ("time[ns]", 64, 86_400 * 10**9, 86_400 * 10**9 - 1),
    ],
)
def test_stored_times_that_are_not_within_a_day_stop_no_reader(
    kind: str, width: int, outside: int, within: object, has_arrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers of other libraries may have sent some: objects have the number, arrays null, and the rest is there."""
    monkeypatch.setattr("headrace.wire.typed.typed_columns._has_arrow", lambda: has_arrow)
    columns = parse_columns(f"1 a {kind}, 2 b list<{kind}>, 3 n int64")
    arrow = arrow_type(columns.current[0].type)
    numbers = pa.array([outside, None, 7], pa.int32() if width == 32 else pa.int64()).view(arrow)
    numbers = pa.concat_arrays([numbers, pa.array([within], arrow)])
    nested = pa.ListArray.from_arrays(pa.array([0, 2, 2, 2, 4], pa.int32()), numbers)
    blocks = [
        block_of_array(array, column.type)
        for array, column in zip((numbers, nested, pa.array(range(4))), columns.current, strict=True)
    ]
    batch = b"".join(column_parts(RowBlocks(columns.batch_text, blocks, 4), base_timestamp_ms=0))
    rows = read(batch)
    assert [rows[0], rows[3]["a"]] == [{"a": outside, "b": [outside, None], "n": 0}, within]
    assert json.loads(json_row(rows[0]))["a"] == outside
    found = decode_batch(batch, max_payload_bytes=BIG).typed
    assert found is not None
    assert [found.array(column).is_null().to_pylist() for column in columns.current[:1]] == [[True, True, False, False]]
    assert found.array(columns.current[1]).flatten().is_null().to_pylist() == [True, True, False, False]
    assert found.array(columns.current[0]).slice(2).equals(numbers.slice(2))


@pytest.mark.parametrize("has_arrow", [True, False])
def test_stored_keys_that_are_no_times_of_day_stop_no_reader(has_arrow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects have the number; in arrays, whose keys are never null, the entry is missing and the others are there."""
    monkeypatch.setattr("headrace.wire.typed.typed_columns._has_arrow", lambda: has_arrow)
    columns = parse_columns("1 a map<time[s], string>, 2 b list<map<time[s], list<int8>>>")
    maps = arrow_type(columns.current[0].type)
    keys = pa.array([60, 86_400, -1, 120], pa.int32()).view(pa.time32("s"))
    offsets = pa.array([0, 2, None, 3, 3, 4], pa.int32())
    flat = pa.MapArray.from_arrays(offsets, keys, pa.array(["x", "y", None, "z"]), type=maps)
    inner = pa.MapArray.from_arrays(
        pa.array([0, 3, 4], pa.int32()), keys, pa.array([[1], [2], None, []], pa.list_(pa.int8()))
    )
    nested = pa.ListArray.from_arrays(pa.array([0, 0, 1, 1, 1, 2], pa.int32()), inner)
    blocks = [block_of_array(array, column.type) for array, column in zip((flat, nested), columns.current, strict=True)]
    batch = b"".join(column_parts(RowBlocks(columns.batch_text, blocks, 5), base_timestamp_ms=0))
    rows = read(batch)
    assert [row["a"] for row in rows] == [{time(0, 1): "x", 86_400: "y"}, {-1: None}, None, {}, {time(0, 2): "z"}]
    assert rows[1]["b"] == [{time(0, 1): [1], 86_400: [2], -1: None}]
    assert json.loads(json_row(rows[0]))["a"] == {"00:01:00": "x", "86400": "y"}
    found = decode_batch(batch, max_payload_bytes=BIG).typed
    assert found is not None
    flat, nested = (found.array(column) for column in columns.current)
    assert flat.to_pylist() == [[(time(0, 1), "x")], [], None, [], [(time(0, 2), "z")]]
    assert nested.to_pylist() == [[], [[(time(0, 1), [1])]], [], [], [[(time(0, 2), [])]]]


@pytest.mark.parametrize("text", ["1 a map<int32, int8>", "1 a map<time[s], int8>"])
def test_stored_keys_that_are_null_end_no_process(text: str) -> None:
    """No producer of this library sends one; Arrow ends the process that makes an array of it."""
    kind = parse_columns(text).current[0].type
    buffers = [b"", struct.pack("<2i", 0, 2), b"", b"\x01", struct.pack("<2i", 5, 6), b"", b"\x07\x08"]
    stored = struct.pack("<7I", *map(len, buffers)) + bytes(4)
    stored += b"".join(buffer + bytes(-len(buffer) % 8) for buffer in buffers)
    [entries] = array_of_block(stored, kind, 1).to_pylist()
    assert [item for _, item in entries] == [7]
    assert list(values_of(read_block(stored, kind, 1))[0].values()) == [7, 8]


def test_a_key_outside_the_years_of_python_is_read_from_json() -> None:
    """As it is written: a legal date that an object of Python cannot be."""
    columns = parse_columns("1 a map<date, int8>, 2 b map<timestamp[ms, UTC], int8>")
    row = {"a": [(3_000_000, 1), (date(2026, 1, 2), 2)], "b": [(-(2**60), 3)]}
    document = json.loads(json_row({name: dict(pairs) for name, pairs in row.items()}))
    assert row_of_json(document, columns) == row


def test_a_bomb_is_refused() -> None:
    """A block that inflates to more than a thousand times its bytes, or than the reader's limit, is not inflated."""
    array = pa.array(np.zeros(200_000, np.int64))
    columns = parse_columns("1 a int64")
    parts = column_parts(
        RowBlocks("1 a int64", [block_of_array(array, columns.current[0].type)], len(array)),
        base_timestamp_ms=0, codec=Codec.ZSTD,
    )  # fmt: skip
    batch = b"".join(parts)
    header = read_header(batch)
    assert header.payload_bytes > 1_600_000, "stored uncompressed, or within the ratio"
    with pytest.raises(CorruptBatchError, match="exceeds the limit"):
        decode_batch(batch, max_payload_bytes=BIG)


def part(batch: bytes, selection: ColumnSelection) -> bytes:
    """Return what a broker sends of a batch."""
    pieces, end_offset, epoch = select(lambda at, size: batch[at : at + size], len(batch), selection, 0)
    assert (end_offset, epoch) == (len(ROWS), -1)
    return b"".join(pieces)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_what_a_selection_sends(codec: Codec) -> None:
    """The header with another size, the directory and the wanted blocks; the rest if it is asked for."""
    batch = typed(codec)
    for ids, rest in (({1, 4}, False), ({2}, True), (set(), False), ({9}, False)):
        selection = ColumnSelection(frozenset(ids), rest)
        sent = part(batch, selection)
        assert len(sent) < len(batch)
        assert is_part(sent)
        (header, only), *others = iter_batches(sent)
        assert not others
        columns = decode_selected(only, selection, max_payload_bytes=BIG)
        assert columns.typed is not None
        wanted = [column for column in COLUMNS.current if column.id in ids]
        assert columns.typed.rows(0, len(ROWS), wanted) == (
            [{column.name: row[column.name] for column in wanted} for row in ROWS] if wanted else []
        )
        assert columns.keys() == ([b"k"] * len(ROWS) if rest else [None] * len(ROWS))
        assert header.end_offset == len(ROWS)
    whole = part(batch, ColumnSelection(frozenset({1, 2, 3, 4, 5}), True))
    assert (whole, is_part(whole)) == (batch, False)


def test_ranges_skip_batches() -> None:
    """A batch that can have no row in all ranges is its header and directory; one that may have is sent."""
    batch = typed()

    def sent(*ranges: ColumnRange) -> int:
        selection = ColumnSelection(frozenset({1}), False, ranges)
        found = part(batch, selection)
        columns = decode_selected(found, selection, max_payload_bytes=BIG)
        assert columns.typed is not None
        return len(found)

    whole = sent()
    ends = struct.Struct("<q")

    def numbers(low: int, high: int, column: int = 1, kind: int = INT64) -> ColumnRange:
        return ColumnRange(column, kind, ends.pack(low), ends.pack(high))

    assert {sent(numbers(low, high)) for low, high in ((0, 0), (8, 99), (-5, 0), (3, 4))} == {whole}
    skipped = {sent(numbers(low, high)) for low, high in ((9, 99), (-5, -1))}
    assert len(skipped) == 1
    assert skipped.pop() < whole
    assert sent(numbers(9, 99, kind=DOUBLE)) == whole, "bounds of another kind say nothing"
    assert sent(numbers(9, 99, column=7)) == whole, "a column that the batch lacks may have a default"
    assert sent(ColumnRange(2, TEXT, b"b8b8b8\0\0", b"c".ljust(8, b"\0"))) == whole
    assert sent(ColumnRange(2, TEXT, b"c".ljust(8, b"\0"), b"\xff" * 8)) < whole


def test_each_flipped_bit_of_a_part_is_found() -> None:
    """The stamp, the directory and the blocks have checksums of their own, so that it is known as damage."""
    selection = ColumnSelection(frozenset({1, 3}), True)
    good = part(typed(), selection)
    next_offsets: set[int] = set()
    for position in range(len(good)):
        if 32 <= position < 36 or 64 <= position < HEADER_BYTES:
            continue  # The checksum of the whole batch, and the producer's fields, which no reader of a part uses.
        damaged = bytearray(good)
        damaged[position] ^= 1 << position % 8
        try:
            columns = decode_selected(bytes(damaged), selection, max_payload_bytes=BIG)
            assert columns.typed is not None
            columns.typed.check()
        except CorruptBatchError as error:
            next_offsets.add(error.next_offset)
            continue
        gap = typed().count(0)  # A gap between blocks has no meaning.
        assert gap
        assert columns.typed.rows(0, len(ROWS), COLUMNS.current[:1]) == [{"a": row["a"]} for row in ROWS], position
    assert next_offsets == {-1}


def test_damaged_batches_are_sent_whole() -> None:
    """A broker does not hide damage: it sends such a batch as it is, and the reader finds it."""
    batch = bytearray(typed())
    batch[HEADER_BYTES + HEAD.size] ^= 1
    assert part(bytes(batch), ColumnSelection(frozenset({1}), False)) == bytes(batch)


def test_rows_from_json() -> None:
    """Each type in its JSON form is the same row again; a form that is none names the column."""
    columns = parse_columns(
        "1 b binary, 2 m decimal(10, 2), 3 d date, 4 t time[ms], 5 s timestamp[us, UTC], 6 n timestamp[ms], "
        "7 u duration[ms], 8 l list<date>, 9 p map<string, binary>, 10 r struct<x: decimal(5, 1), y: bool>, "
        "11 i map<int64, double>, 12 k map<date, decimal(20, 0)>, 13 z map<bool, timestamp[ns]>, 14 f list<float>"
    )
    row = {
        "b": b"\0\xff", "m": Decimal("1.50"), "d": date(2026, 1, 2), "t": time(3, 4, 5), "u": timedelta(seconds=1.5),
        "s": datetime(2026, 1, 2, tzinfo=UTC), "n": datetime(2026, 1, 2, 3, 4), "l": [date(2026, 1, 2), None],
        "p": {"k": b"v"}, "r": {"x": Decimal("0.5"), "y": True}, "i": {-7: 1.5, 8: math.inf},
        "k": {date(2026, 1, 2): Decimal(10**19)}, "z": {True: 1, False: None}, "f": [-math.inf, 0.5],
    }  # fmt: skip
    document = json.loads(json_row(row), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert document["k"] == {"2026-01-02": 10**19}
    assert document["f"] == ["-Infinity", 0.5]
    found = row_of_json(document, columns)
    assert found == row | {name: list(row[name].items()) for name in "pikz"}
    check_row(found, columns)
    for wrong in (
        {"b": "?"},
        {"m": "x"},
        {"d": "x"},
        {"t": "x"},
        {"s": "noon"},
        {"u": "x"},
        {"l": 7},
        {"p": []},
        {"i": {"x": 1}},
        {"r": 1},
    ):
        with pytest.raises(InvalidRequestError, match=f"column {next(iter(wrong))}: "):
            row_of_json(wrong, columns)
