"""From fetched bytes to records: batches checked, decoded and cut to what was asked for. Pure.

Used by the thread that the application reads with. Every checksum is looked at here, whatever way the bytes came.
"""

from collections.abc import Iterator

from headrace.client.config import FetchConfig
from headrace.client.read_position import Chunk
from headrace.client.records import Deserializers, Segment
from headrace.client.serializers import resolve_deserializer
from headrace.wire.batch import BatchHeader, check_batch, iter_batches, read_header
from headrace.wire.columns import decode_batch
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import CorruptBatchError

MAX_BATCH_BYTES = 2**31 - 1
MAX_RECORDS = 2**31 - 1


def deserializers_of(config: FetchConfig) -> Deserializers:
    """Give what the settings say turns bytes into objects."""
    return Deserializers(
        resolve_deserializer(config.key_deserializer, "key_deserializer"),
        resolve_deserializer(config.value_deserializer, "value_deserializer"),
    )


def segments_of(chunk: Chunk, deserializers: Deserializers, max_payload_bytes: int) -> Iterator[Segment]:
    """Give a chunk's batches as segments, from the chunk's offset up to its end offset; none is empty.

    Raises:
        CorruptBatchError: names partition and offset, with the next good offset; the segments before it came.
    """
    offset = chunk.offset
    batches = iter_batches(chunk.data)
    position = 0
    while True:
        try:
            header, batch = next(batches)
            check_batch(
                batch,
                max_batch_bytes=MAX_BATCH_BYTES,
                max_records=MAX_RECORDS,
                max_payload_bytes=max_payload_bytes,
            )
            columns = decode_batch(batch, max_payload_bytes=max_payload_bytes)
        except StopIteration:
            return
        except CorruptBatchError as error:
            raise _at(chunk, offset, position, error) from error
        position += header.batch_bytes
        start = max(0, offset - header.base_offset)
        end = header.record_count
        if chunk.end_offset is not None:
            end = min(end, chunk.end_offset - header.base_offset)
        if start < end:
            yield Segment(chunk.where, columns, start, end, deserializers)
        offset = max(offset, header.end_offset)


def _at(chunk: Chunk, offset: int, position: int, error: CorruptBatchError) -> CorruptBatchError:
    """Say where the damage is, and where a reader may go on."""
    next_offset = error.next_offset
    if next_offset <= offset:
        following = _header_after(chunk.data, position)
        next_offset = following.base_offset if following is not None else -1
    go_on = f"Seek to {next_offset} to go on behind it." if next_offset > offset else "Seek to an offset behind it."
    return CorruptBatchError(
        f"{chunk.where} at offset {offset}: {error.message}",
        base_offset=error.base_offset,
        next_offset=next_offset,
        action=f"Read it from another replica, or lose it. {go_on}",
    )


def _header_after(data: ReadableBuffer, position: int) -> BatchHeader | None:
    """The header of the batch behind the damaged one, where the damaged one's length can still be believed."""
    try:
        damaged = read_header(data, position)
        return read_header(data, position + damaged.batch_bytes)
    except CorruptBatchError:
        return None
