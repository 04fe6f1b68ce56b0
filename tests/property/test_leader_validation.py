"""What a leader's checks let pass every reader decodes: records, Arrow, pandas, the command line, Spark."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from headrace.cli.records.record_writers import RecordOutput, record_writer
from headrace.client.base.records import Deserializers, RecordBatch
from headrace.client.fetch.decoding import decoded_batches_of
from headrace.client.fetch.partition_fetch_state import CompletedFetch
from headrace.wire.batch import CRC_START, HEADER_BYTES, MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, BatchFlags, Codec
from headrace.wire.batch import check_batch as check_header
from headrace.wire.columns import check_columns
from headrace.wire.crc import crc32c
from headrace.wire.encoding import encode_batch
from headrace.wire.errors import HeadraceError
from headrace.wire.ids import TopicPartition
from headrace_broker.rpc.records import decode_records
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.no_cover

WHERE = TopicPartition("t", 0)
LIMIT = 1 << 20
ENTRY = st.none() | st.binary(max_size=9)
HEADER = st.tuples(st.text(st.characters(codec="utf-8"), max_size=3), st.binary(max_size=3))
TIME = st.sampled_from([MIN_TIMESTAMP_MS, -1, 0, 1_700_000_000_000, MAX_TIMESTAMP_MS])
ROW = st.tuples(ENTRY, ENTRY, st.lists(HEADER, max_size=3).map(tuple), TIME)


@st.composite
def corrupt(draw: st.DrawFn) -> bytes:
    """A batch with bytes of its header or payload changed, and checksums that are right all the same."""
    rows = draw(st.lists(ROW, min_size=1, max_size=9)) * draw(st.sampled_from([1, 1, 20]))  # Few, or many at once.
    values, keys, headers, times = zip(*rows, strict=True)
    batch = bytearray(
        encode_batch(
            values,
            keys=draw(st.sampled_from([None, keys])),
            headers=draw(st.sampled_from([None, headers])),
            timestamps_ms=draw(st.sampled_from([None, times])),
            base_timestamp_ms=draw(TIME),
        )
    )
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            flag = draw(st.sampled_from([int(flag) for flag in BatchFlags]))
            batch[38] ^= flag & 0xFF
            batch[39] ^= flag >> 8
        else:
            position = draw(st.integers(40, len(batch) - 1))
            batch[position] = draw(st.sampled_from([0, 1, 2, 7, 0x7F, 0x80, 0xC3, 0xFF]))
    if draw(st.booleans()):
        batch = compressed(batch)
    batch[32:36] = crc32c(memoryview(batch)[CRC_START:]).to_bytes(4, "little")
    return bytes(batch)


def compressed(batch: bytearray) -> bytearray:
    """Store the payload as gzip, without a look at it."""
    padding = batch[39] >> 5
    deflater = zlib.compressobj(1, zlib.DEFLATED, 31)
    stored = deflater.compress(batch[HEADER_BYTES : len(batch) - padding]) + deflater.flush()
    head, padding = batch[:HEADER_BYTES], -len(stored) % 8
    head[37], head[39] = Codec.GZIP, head[39] & 0x1F | padding << 5
    head[16:20] = (HEADER_BYTES + len(stored) + padding).to_bytes(4, "little")
    head[28:32] = crc32c(head[:28]).to_bytes(4, "little")
    return head + stored + bytes(padding)


@settings(max_examples=400)
@given(corrupt())
def test_batch_that_a_leader_takes_can_be_read_by_every_reader(batch: bytes) -> None:
    """Whatever passes is decoded by all, with as many records as its header says and the same ones everywhere."""
    try:
        header = check_header(batch, max_batch_bytes=LIMIT, max_records=1000, max_payload_bytes=LIMIT)
        check_columns(batch, header, max_payload_bytes=LIMIT)
        taken = header.base_timestamp_ms >= MIN_TIMESTAMP_MS and header.max_timestamp_ms <= MAX_TIMESTAMP_MS
    except HeadraceError:
        return
    assert taken
    completed = CompletedFetch(WHERE, 0, header.base_offset, None, batch)
    found = RecordBatch(list(decoded_batches_of(completed, Deserializers(), LIMIT)))
    records = list(found)
    assert len(records) == header.record_count == len(found[:])
    table = found.to_arrow()
    table.validate(full=True)
    assert table["value"].to_pylist() == [record.value for record in records]
    assert len(table["timestamp"].to_pylist()) == len(found.to_pandas()) == len(records)
    for output in RecordOutput:
        _, write = record_writer(output, None)
        assert all(write(record) for record in records) or output is RecordOutput.RAW
    simple, _ = decode_records(batch, header.base_offset, max_bytes=LIMIT)
    assert [record.value for record in simple] == [record.value or b"" for record in records]
    read_by_spark(found, [record.timestamp_ms for record in records])


def read_by_spark(found: RecordBatch, timestamps_ms: list[int]) -> None:
    """The data source's read path, up to what Spark takes: microseconds that did not wrap."""
    from headrace.spark.arrow_columns import ArrowColumns
    from headrace.spark.schema import full_schema

    batches = list(ArrowColumns(full_schema(include_headers=True), WHERE).batches(found.decoded_batches))
    micros = np.concatenate([batch["timestamp"].cast("int64").to_numpy() for batch in batches])
    assert (micros // 1000).tolist() == timestamps_ms
    for batch in batches:
        batch.validate(full=True)
        batch.to_pylist()
