"""Decoding of fetched bytes: batches are checked, decoded and cut to the requested range. Pure.

Runs on the thread on which the application reads. Every checksum is verified here, for gRPC and the native protocol.
"""

from collections.abc import Iterator
from dataclasses import replace

from headrace.client.base.config import FetchConfig
from headrace.client.base.records import DecodedBatch, Deserializers
from headrace.client.base.serializers import resolve_deserializer
from headrace.client.fetch.partition_fetch_state import CompletedFetch
from headrace.client.fetch.selections import NamedSelection, filtered
from headrace.wire.batch import STAMP_CRC_START, BatchHeader, check_batch, iter_batches, read_header
from headrace.wire.columns import Columns, decode_batch, decode_selected, is_part
from headrace.wire.crc import ReadableBuffer, crc32c
from headrace.wire.errors import BatchTooLargeError, CorruptBatchError, UnsupportedCodecError
from headrace.wire.typed.topic_columns import TopicColumns, parse_columns

MAX_BATCH_BYTES = 2**31 - 1
MAX_RECORDS = 2**31 - 1
DECODED_BATCH_RECORDS = 100_000
"""Larger batches are divided: record objects are created for one decoded batch at a time."""


def deserializers_of(config: FetchConfig) -> Deserializers:
    """Return the deserializers of the settings."""
    return Deserializers(
        resolve_deserializer(config.key_deserializer, "key_deserializer"),
        resolve_deserializer(config.value_deserializer, "value_deserializer"),
    )


def decoded_batches_of(
    completed: CompletedFetch,
    deserializers: Deserializers,
    max_payload_bytes: int,
    selection: NamedSelection | None = None,
) -> Iterator[DecodedBatch]:
    """Yield the decoded batches of a completed fetch, from its offset up to its end offset.

    A decoded batch is empty only where a compacted batch ends with offsets that have no record any more: it moves the
    reader to its end.

    With a `selection` of a typed topic they have its columns and its rows.

    One batch is decompressed at a time, when its first decoded batch is taken; a large batch is divided into several.

    Raises:
        CorruptBatchError: Names partition, offset and next valid offset. All decoded batches before it were yielded.
        UnsupportedCodecError: The codec's package is not installed here.
    """
    offset = completed.offset
    topic_columns = parse_columns(completed.columns) if completed.columns else None
    if selection is not None:
        topic_columns = TopicColumns(selection.returned)
    batches = iter_batches(completed.data)
    position = 0
    while True:
        try:
            header, batch = next(batches)
            columns = _decoded(batch, max_payload_bytes, selection)
            header = columns.header
        except StopIteration:
            return
        except CorruptBatchError as error:
            raise _at(completed, offset, position, error) from error
        except UnsupportedCodecError as error:
            raise UnsupportedCodecError(
                f"{completed.where} at offset {offset}: {error.message}",
                action=f"{error.action} The topic setting allowed_codecs restricts the codecs of producers.",
            ) from error
        position += len(batch)
        start = columns.index_of(offset)
        end = header.record_count
        if completed.end_offset is not None and completed.end_offset < header.end_offset:
            end = columns.index_of(completed.end_offset)
        for first in range(start, end, DECODED_BATCH_RECORDS):
            last = min(end, first + DECODED_BATCH_RECORDS)
            yield DecodedBatch(completed.where, columns, first, last, deserializers, topic_columns)
        if header.is_compacted:
            yield from _end_of_compacted(completed, columns, start, end, deserializers)
        offset = max(offset, header.end_offset)


def _end_of_compacted(
    completed: CompletedFetch, columns: Columns, start: int, end: int, deserializers: Deserializers
) -> Iterator[DecodedBatch]:
    """Yield an empty decoded batch if the one before, of the records `start` to `end`, does not end the range."""
    header = columns.header
    range_end = header.end_offset if completed.end_offset is None else min(header.end_offset, completed.end_offset)
    if start >= end or columns.offset_after(end) < range_end:
        rest = replace(columns, header=header._replace(producer_id=range_end))  # A compacted batch's end_offset.
        yield DecodedBatch(completed.where, rest, columns.record_count, columns.record_count, deserializers)


def _decoded(batch: memoryview, max_payload_bytes: int, selection: NamedSelection | None = None) -> Columns:
    """Check and decode one batch. If its checksums are right, the error names the offset after the batch.

    Raises:
        CorruptBatchError: The batch violates its format, or exceeds `max_payload_bytes`.
        UnsupportedCodecError: The codec is unknown, or its package is not installed.
    """
    if selection is not None and is_part(batch):
        columns = decode_selected(batch, selection.on_wire, max_payload_bytes=max_payload_bytes)
        assert columns.typed is not None, "only typed batches are sent in parts"
        columns.typed.check()
        return filtered(columns, selection)
    try:
        check_batch(
            batch, max_batch_bytes=MAX_BATCH_BYTES, max_records=MAX_RECORDS, max_payload_bytes=max_payload_bytes
        )
    except BatchTooLargeError as error:
        raise CorruptBatchError(
            error.message, next_offset=read_header(batch).end_offset, action="Raise max_payload_bytes to read it."
        ) from error
    columns = decode_batch(batch, max_payload_bytes=max_payload_bytes)
    if columns.typed is not None:
        columns.typed.check()
    return columns if selection is None else filtered(columns, selection)


def _at(completed: CompletedFetch, offset: int, position: int, error: CorruptBatchError) -> CorruptBatchError:
    """Return the error with the place of the corruption, the remedy, and the offset at which a reader can continue."""
    next_offset, written_so = error.next_offset, error.next_offset > offset
    following = None if written_so else _header_after(completed.data, position, offset)
    if not written_so:
        next_offset = following[0].base_offset if following is not None else -1
    if not written_so:
        cause = "Read it from another replica, or lose it."
    elif "max_payload_bytes" in error.action:
        cause = error.action
    else:
        cause = "It is corrupt on every replica: its records cannot be read."
    seek = f"Seek to {next_offset}" if next_offset > offset else "Seek to an offset after it"
    found = CorruptBatchError(
        f"{completed.where} at offset {offset}: {error.message}",
        base_offset=error.base_offset,
        next_offset=next_offset,
        action=f"{cause} {seek} to continue after it, or set on_corrupt_batch.",
    )
    end = None if following is None else following[1]
    if written_so:
        end = position + read_header(completed.data, position).batch_bytes
    found.batch = bytes(memoryview(completed.data)[position:end])
    found.offset, found.written_so = offset, written_so
    return found


def _header_after(data: ReadableBuffer, position: int, offset: int) -> tuple[BatchHeader, int] | None:
    """Return the next header behind the corrupt batch at `offset` whose stamp is right, and its position.

    `None` if there is none at the ends that the corrupt headers state: these may be wrong, too.
    """
    view = memoryview(data).cast("B")
    try:
        while True:
            position += read_header(view, position).batch_bytes
            header = read_header(view, position)
            is_stamped = crc32c(view[position : position + STAMP_CRC_START]) == header.stamp_crc
            if is_stamped and header.base_offset > offset:
                return header, position
    except CorruptBatchError:
        return None
