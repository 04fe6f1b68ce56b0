"""Typed batches of this release, byte by byte."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
from headrace.wire.batch import BatchFlags, check_batch, read_header, stamp
from headrace.wire.columns import check_columns, decode_batch
from headrace.wire.encoding import RowBlocks, column_parts, join_column
from headrace.wire.typed.array_blocks import block_of_array
from headrace.wire.typed.arrow_columns import arrays_of_rows, arrow_schema
from headrace.wire.typed.payload import DOUBLE, INT64, NO_BOUNDS, TEXT, read_directory
from headrace.wire.typed.topic_columns import parse_columns

GOLDEN = Path(__file__).parent / "batch-v1-typed.bin"
COLUMNS = parse_columns(
    "1 page string required, 2 user int32, 4 price decimal(10, 2), 7 at timestamp[ms, UTC], 8 score double, "
    "9 ok bool, 10 tags list<string>, 11 place struct<lat: double, lon: double>, 12 counts map<string, int64>"
)
ROWS = [
    {
        "page": "/größe", "user": -7, "price": Decimal("12.50"), "at": dt.datetime(2026, 1, 2, 3, 4, 5, 6_000, dt.UTC),
        "score": 0.25, "ok": True, "tags": ["a", None, "bc"], "place": {"lat": 1.5, "lon": -2.5}, "counts": {"x": 1},
    },
    dict.fromkeys([column.name for column in COLUMNS.current]) | {"page": "", "tags": []},
    {
        "page": "/z", "user": 2**31 - 1, "price": Decimal("-0.01"), "at": dt.datetime(1969, 12, 31, tzinfo=dt.UTC),
        "score": -1e300, "ok": False, "tags": ["d"], "place": {"lat": None, "lon": 0.0}, "counts": {},
    },
]  # fmt: skip


def typed() -> bytes:
    """Return a batch of three rows with keys and headers, as a leader stores it."""
    arrays = arrays_of_rows(ROWS, COLUMNS)
    blocks = [block_of_array(array, column.type) for array, column in zip(arrays, COLUMNS.current, strict=True)]
    batch = b"".join(
        column_parts(
            RowBlocks(COLUMNS.batch_text, blocks, 3), join_column("key", [b"k1", None, b"k3"]),
            base_timestamp_ms=1_700_000_000_000, headers=[(), [("h", b"v")], None],
            producer_id=77, producer_epoch=3, base_sequence=900,
        )
    )  # fmt: skip
    head = stamp(
        read_header(batch), base_offset=1_000_000, append_timestamp_ms=1_700_000_000_500, leader_epoch=5,
        previous_crc=0xDEADBEEF,
    )  # fmt: skip
    return head + batch[32:]


def test_golden_typed_batch_encodes() -> None:
    """What this release writes is what the file has."""
    assert typed() == GOLDEN.read_bytes()


def test_golden_typed_batch_decodes() -> None:
    """Rows, keys and headers come back, as objects and as Arrow columns; the directory has the bounds."""
    batch = GOLDEN.read_bytes()
    header = check_batch(batch, max_batch_bytes=8192, max_records=10, max_payload_bytes=8192)
    check_columns(batch, header, max_payload_bytes=8192)
    assert header.is_typed
    assert header.flags & 0x1FFF == BatchFlags.TYPED | BatchFlags.KEYS | BatchFlags.NULL_KEYS | BatchFlags.HEADERS
    columns = decode_batch(batch, max_payload_bytes=8192)
    assert (columns.keys(), columns.headers()) == ([b"k1", None, b"k3"], [(), (("h", b"v"),), ()])
    assert columns.typed is not None
    assert columns.typed.rows(0, 3) == ROWS
    table = pa.table([columns.typed.array(each) for each in COLUMNS.current], schema=arrow_schema(COLUMNS.current))
    assert table.schema.field("counts").type == pa.map_(pa.string(), pa.int64())
    assert table.drop_columns(["counts"]).to_pylist() == [
        {name: value for name, value in row.items() if name != "counts"} for row in ROWS
    ]
    entries = dict(zip([each.name for each in COLUMNS.current], read_directory(batch, header).entries, strict=True))
    assert {name: entry.bounds for name, entry in entries.items()} == {
        "page": TEXT, "user": INT64, "price": NO_BOUNDS, "at": INT64, "score": DOUBLE, "ok": INT64,
        "tags": NO_BOUNDS, "place": NO_BOUNDS, "counts": NO_BOUNDS,
    }  # fmt: skip
    assert [np.frombuffer(each, "<i8")[0] for each in (entries["user"].minimum, entries["user"].maximum)] == [
        -7, 2**31 - 1,
    ]  # fmt: skip
    assert (entries["page"].minimum, entries["page"].maximum) == (bytes(8), b"/z".ljust(8, b"\0"))
    assert [entry.null_count for entry in entries.values()] == [0, 1, 1, 1, 1, 1, 0, 1, 1]
