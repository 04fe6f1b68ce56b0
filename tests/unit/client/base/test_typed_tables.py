"""Tables of typed batches that were written, or are read, with other types of the same columns."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from headrace.client.base.arrow_tables import table_of, typed_batch_of, typed_schema
from headrace.client.base.records import DecodedBatch, Deserializers
from headrace.client.fetch.selections import filtered, named_selection
from headrace.wire.columns import decode_batch
from headrace.wire.encoding import RowBlocks, column_parts
from headrace.wire.errors import CorruptBatchError, InvalidRequestError
from headrace.wire.ids import TopicPartition
from headrace.wire.typed.array_blocks import block_of_array
from headrace.wire.typed.arrow_columns import arrays_of_rows
from headrace.wire.typed.topic_columns import parse_columns

BIG = 3_000_000_000


def decoded(written: str, value: Any, known: str) -> DecodedBatch:
    """A batch of one row, read by a client that knows other columns."""
    columns = parse_columns(written)
    arrays = arrays_of_rows([{columns.current[0].name: value}], columns)
    blocks = [block_of_array(array, column.type) for array, column in zip(arrays, columns.current, strict=True)]
    batch = b"".join(column_parts(RowBlocks(columns.batch_text, blocks, 1), base_timestamp_ms=0))
    found = decode_batch(batch, max_payload_bytes=1 << 20)
    return DecodedBatch(TopicPartition("t", 0), found, 0, 1, Deserializers(), parse_columns(known))


@pytest.mark.parametrize(
    ("narrow", "wide", "value"),
    [
        ("int32", "int64", BIG),
        ("string", "binary", b"\xff"),
        ("decimal(4, 2)", "decimal(6, 2)", Decimal("1234.50")),
    ],
)
def test_a_value_of_a_type_that_was_widened_is_in_the_table(narrow: str, wide: str, value: Any) -> None:
    """The client's metadata are older than the batch."""
    batch = decoded(f"1 n {wide}", value, f"1 n {narrow}")
    assert table_of([batch]).column("n").to_pylist() == [value]
    (column,) = parse_columns(f"1 n {narrow}").current
    with pytest.raises(
        InvalidRequestError, match=f"column n: .*the batch has {wide.replace('(', '.').replace(')', '.')}"
    ):
        typed_batch_of(batch, [column], typed_schema([column]))


def test_a_value_that_fits_has_the_type_that_the_client_knows() -> None:
    assert table_of([decoded("1 n int64", 7, "1 n int32")]).schema.field("n").type == pa.int32()


@pytest.mark.parametrize("order", [1, -1])
def test_a_table_of_batches_that_were_read_with_several_types_has_the_widest(order: int) -> None:
    """The metadata were read anew between two fetches; the last names are the newest."""
    batches = [decoded("1 n int32", 1, "1 n int32"), decoded("1 m int64", BIG, "1 m int64")][::order]
    table = table_of(batches)
    assert table.column_names == ["mn"[order == -1]]
    assert table.column(0).to_pylist() == [1, BIG][::order]


def test_a_range_finds_values_of_a_type_that_was_widened() -> None:
    """A batch that is whole is not corrupt."""
    found = decoded("1 n int64", BIG, "1 n int32").columns
    for ends, rows in (((5, None), 1), ((None, 5), 0)):
        selection = named_selection("t", "1 n int32", None, {"n": ends})
        assert selection is not None
        assert filtered(found, selection).record_count == rows


def test_a_value_of_another_type_is_corruption() -> None:
    """No change of columns lets a reader have a time as a number."""
    batch = decoded("1 n timestamp[us]", 10**15, "1 n timestamp[us]")
    (column,) = parse_columns("1 n int8").current
    assert batch.columns.typed is not None
    with pytest.raises(CorruptBatchError, match="column n: "):
        batch.columns.typed.array(column)
