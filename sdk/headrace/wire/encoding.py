"""Encoding of columns into a batch, by producers; the docstring of `headrace.wire.columns` has the layout.

Values without nulls, keys and headers cost a join and an array of lengths; only headers need a loop.
"""

import itertools
import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain, repeat
from operator import is_not
from typing import Any, NamedTuple, Required, TypeAlias, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from headrace.wire.batch import (
    CHECKED,
    HEADER_BYTES,
    MAGIC,
    MAX_BATCH_HEADERS,
    MAX_RECORD_HEADERS,
    PADDING_SHIFT,
    STAMP,
    BatchFlags,
    RemovedRecords,
)
from headrace.wire.compression import MAX_RATIO, Codec, compress, compress_within_ratio
from headrace.wire.crc import ReadableBuffer, crc32c
from headrace.wire.errors import BatchTooLargeError, InvalidRequestError
from headrace.wire.typed.payload import ColumnBlock, seal, typed_parts

Int32s: TypeAlias = npt.NDArray[np.int32]
RecordHeaders: TypeAlias = Sequence[tuple[str, bytes]]

MAX_COLUMN_BYTES = 2**31 - 1
SMALL_RECORDS = 64
SMALL_BYTES = 32 * 1024
_ZEROS = bytes(8)
_SIGN = 1 << 31
_SMALL_OFFSETS = [struct.Struct(f"<{count + 1}i{-4 * (count + 1) % 8}x") for count in range(SMALL_RECORDS + 1)]
"""By number of records: the value offsets and the gap after them."""


class ArrowBuffers(NamedTuple):
    """Column in Arrow's layout: input of `encode_columns`, output of `arrow_buffers`."""

    offsets: Int32s
    """int32[n + 1], ascending; need not start at 0."""
    data: ReadableBuffer
    """At least offsets[n] bytes."""
    validity: npt.NDArray[np.uint8] | None = None
    """uint8[(n + 7) // 8], least significant bit first, from bit 0; `None` means that no entry is null."""


class RowBlocks(NamedTuple):
    """Values of a typed batch: input of `column_parts` in place of a column of bytes."""

    text: str
    """The columns, see `headrace.wire.typed.topic_columns`."""
    blocks: list[ColumnBlock]
    """One for each column."""
    rows: int


class CompactedRange(NamedTuple):
    """Offsets that a compacted batch replaces."""

    base_offset: int
    end_offset: int
    end_crc: int
    """Chain value of the last batch that it replaces."""
    record_offsets: npt.NDArray[np.int64]
    """int64[n], ascending: offsets of the records."""
    removed: RemovedRecords | None = None
    """`None` means that the batch does not have it."""


class BatchFields(TypedDict, total=False):
    """Arguments of `batch_parts` besides values and keys."""

    base_timestamp_ms: Required[int]
    headers: Sequence[RecordHeaders | None] | None
    timestamps_ms: Sequence[int | None] | npt.NDArray[np.int64] | None
    codec: Codec
    producer_id: int
    producer_epoch: int
    base_sequence: int
    flags: BatchFlags
    compression_level: int | None


def encode_batch(
    values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None, **fields: Unpack[BatchFields]
) -> bytes:
    """Encode records as one batch: `batch_parts` in one piece."""
    return b"".join(batch_parts(values, keys, **fields))


def encode_columns(values: ArrowBuffers, keys: ArrowBuffers | None = None, **fields: Unpack[BatchFields]) -> bytes:
    """Encode columns as one batch: `column_parts` in one piece."""
    return b"".join(column_parts(values, keys, **fields))


def batch_parts(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    *,
    base_timestamp_ms: int,
    headers: Sequence[RecordHeaders | None] | None = None,
    timestamps_ms: Sequence[int | None] | npt.NDArray[np.int64] | None = None,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    flags: BatchFlags = BatchFlags(0),  # noqa: B008  (immutable)
    compression_level: int | None = None,
) -> list[ReadableBuffer]:
    """Encode records as one batch with both checksums; its bytes are the concatenation of the returned parts.

    The first part has the whole header. The leader's fields are base_offset 0, append_timestamp_ms 0, leader_epoch -1
    and previous_crc 0.

    Args:
        values: one per record, at least one; `None` is a null value.
        keys: one per record; `None` means that no record has a key.
        base_timestamp_ms: timestamp of every record without its own, ms since 1970.
        headers: one per record, each a sequence of (key, value) or `None`; `None` means that no record has headers.
        timestamps_ms: one per record, `None` for base_timestamp_ms; `None` means that all have base_timestamp_ms.
        codec: compression; a payload that does not shrink, or more than 1,000 times, is stored uncompressed.
        producer_id: the idempotent producer, or -1; then epoch and sequence are -1 too.
        producer_epoch: its epoch.
        base_sequence: the sequence of the first record.
        flags: TRANSACTIONAL or CONTROL; the columns' flags are set here.
        compression_level: the codec's own level, or `None` for its default.

    Raises:
        InvalidRequestError: For no record, columns of different lengths, an entry that is not bytes, or a record with
            more than 1,000 headers.
        BatchTooLargeError: For a column over 2^31 - 1 bytes, or more than 1,000,000 headers; split the batch.
        UnsupportedCodecError: If the codec's package is not installed.
    """
    plain = keys is None and headers is None and timestamps_ms is None and codec is Codec.NONE
    if plain and 0 < len(values) <= SMALL_RECORDS:
        small = _encode_small(
            values, (base_timestamp_ms, base_timestamp_ms, producer_id, producer_epoch, base_sequence), int(flags)
        )
        if small is not None:
            return [small]
    return column_parts(
        join_column("value", values),
        None if keys is None else join_column("key", keys),
        base_timestamp_ms=base_timestamp_ms,
        headers=headers,
        timestamps_ms=timestamps_ms,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        flags=flags,
        compression_level=compression_level,
    )


def _encode_small(values: Sequence[bytes | None], rest: tuple[int, ...], bits: int) -> bytes | None:
    """Encode a few short values like `encode_columns`, in half the time; `None` if the values are other ones."""
    try:
        data = b"".join(values)  # type: ignore[arg-type]
    except TypeError:
        return None
    if len(data) > SMALL_BYTES:
        return None
    count = len(values)
    offsets = _SMALL_OFFSETS[count]
    payload_bytes = offsets.size + len(data)
    padding = -payload_bytes % 8
    batch_bytes = HEADER_BYTES + payload_bytes + padding
    bits |= padding << PADDING_SHIFT
    checked = b"".join(
        (
            CHECKED.pack(MAGIC, Codec.NONE, bits, count, payload_bytes, *rest),
            offsets.pack(0, *accumulate(map(len, values))),  # type: ignore[arg-type]
            data,
            _ZEROS[:padding],
        )
    )
    return _head(batch_bytes, crc32c(checked)) + checked


def _head(batch_bytes: int, crc: int) -> bytes:
    """Return the bytes of a batch before those that `crc` covers."""
    return _stamped(batch_bytes) + crc.to_bytes(4, "little")


@lru_cache(maxsize=4096)
def _stamped(batch_bytes: int) -> bytes:
    """Return the first 32 bytes of a batch before an append by a leader."""
    head = STAMP.pack(0, 0, batch_bytes, -1, 0)
    return head + crc32c(head).to_bytes(4, "little")


def column_parts(
    values: ArrowBuffers | RowBlocks,
    keys: ArrowBuffers | None = None,
    *,
    base_timestamp_ms: int,
    headers: Sequence[RecordHeaders | None] | None = None,
    timestamps_ms: Sequence[int | None] | npt.NDArray[np.int64] | None = None,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    flags: BatchFlags = BatchFlags(0),  # noqa: B008  (immutable)
    compression_level: int | None = None,
    compacted: CompactedRange | None = None,
) -> list[ReadableBuffer]:
    """Encode columns in Arrow's layout; see `batch_parts` for the arguments, and `arrow_buffers`.

    The parts are views of the columns, which must not change while the parts are in use. With `compacted` the batch is
    a compacted one, which has no producer and may be empty; it stays compressed, however well its payload shrinks, at
    the codec's default level.
    """
    typed = values if isinstance(values, RowBlocks) else None
    count = values.rows if isinstance(values, RowBlocks) else len(values.offsets) - 1
    if count < 1 and compacted is None:
        raise InvalidRequestError("a batch has at least one record")
    payload = _Payload()
    if isinstance(values, RowBlocks):
        bits = int(flags) | int(BatchFlags.TYPED)
    else:
        bits = int(flags) | payload.column("value", values, count) * BatchFlags.NULL_VALUES
    if keys is not None and _has_any(keys, count):
        bits |= BatchFlags.KEYS | payload.column("key", keys, count) * BatchFlags.NULL_KEYS
    times = base_timestamp_ms, base_timestamp_ms
    if timestamps_ms is not None:
        times = payload.timestamps(timestamps_ms, base_timestamp_ms, count)
        bits |= BatchFlags.RECORD_TIMESTAMPS
    if headers is not None and any(headers):
        payload.headers(headers, count)
        bits |= BatchFlags.HEADERS
    producer = producer_id, producer_epoch, base_sequence
    if compacted is not None:
        payload.record_offsets(compacted)
        bits |= BatchFlags.COMPACTED | (compacted.removed is not None) * BatchFlags.REMOVED
        producer = compacted.end_offset, -1, (compacted.end_crc ^ _SIGN) - _SIGN
    parts: list[ReadableBuffer] = payload.parts
    stored = plain = payload.size
    if typed is not None:
        parts, stored, plain = typed_parts(typed.text, typed.blocks, parts, codec, compression_level)
    elif codec != Codec.NONE:
        joined = b"".join(parts)
        is_compacted = compacted is not None
        packed = compress_within_ratio(codec, joined) if is_compacted else compress(codec, joined, compression_level)
        if len(packed) < stored <= MAX_RATIO * len(packed):
            parts, stored = [packed], len(packed)
        else:
            codec = Codec.NONE
    padding = -stored % 8
    if padding:
        parts.append(_ZEROS[:padding])
    batch_bytes = HEADER_BYTES + stored + padding
    bits |= padding << PADDING_SHIFT
    checked = CHECKED.pack(MAGIC, codec, bits, count, plain, *times, *producer)
    if typed is not None:
        seal(parts[0], checked)
    crc = crc32c(checked)
    for part in parts:
        crc = crc32c(part, crc)
    return [_head(batch_bytes, crc) + checked, *parts]


def arrow_buffers(array: Any) -> ArrowBuffers:
    """Return a pyarrow binary or string array's buffers; only a validity bitmap that starts within a byte is copied.

    Raises:
        InvalidRequestError: For an array of another type; cast it to binary or string.
    """
    import pyarrow as pa

    if pa.types.is_binary(array.type) or pa.types.is_string(array.type):
        validity, offsets, data = array.buffers()
    else:
        try:
            return arrow_buffers(array.cast(pa.binary()))
        except pa.ArrowException as error:
            raise InvalidRequestError(f"an Arrow array of {array.type} is not binary or string: cast it") from error
    start, count = array.offset, len(array)
    if offsets is None or count == 0:
        return ArrowBuffers(np.zeros(count + 1, np.int32), b"")
    bitmap = None
    if validity is not None and array.null_count:
        bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")[start : start + count]
        bitmap = np.packbits(bits, bitorder="little")
    cuts = np.frombuffer(offsets, np.int32, count + 1, 4 * start)
    return ArrowBuffers(cuts, b"" if data is None else memoryview(data), bitmap)


def join_column(name: str, entries: Sequence[bytes | None]) -> ArrowBuffers:
    """Join entries and compute their end offsets; the first try assumes that none is null.

    Args:
        name: name of the entries in errors.
        entries: one per record; `None` is null.

    Raises:
        InvalidRequestError: For an entry that is not bytes.
        BatchTooLargeError: For more than 2^31 - 1 bytes; split the batch.
    """
    count = len(entries)
    validity = None
    try:
        data = b"".join(entries)  # type: ignore[arg-type]
    except TypeError:
        valid = np.fromiter(map(is_not, entries, repeat(None)), np.bool_, count)
        validity = np.packbits(valid, bitorder="little")
        entries = [b"" if entry is None else entry for entry in entries]
        try:
            data = b"".join(entries)  # type: ignore[arg-type]
        except TypeError as error:
            raise InvalidRequestError(f"a {name} is not bytes: {error}", action="Serialise it first.") from error
    if len(data) > MAX_COLUMN_BYTES:
        raise BatchTooLargeError(f"the {name}s have {len(data)} bytes, more than 2^31 - 1")
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(lengths_of(entries), dtype=np.int32, out=offsets[1:])
    return ArrowBuffers(offsets, data, validity)


def lengths_of(entries: Sequence[Any]) -> npt.NDArray[Any]:
    """Return the length of each entry; if all are less than 256, in two thirds of the time.

    Raises:
        TypeError: For an entry without a length.
    """
    try:
        return np.frombuffer(bytearray(map(len, entries)), np.uint8)
    except ValueError:
        return np.fromiter(map(len, entries), np.int64, len(entries))


def _has_any(column: ArrowBuffers, count: int) -> bool:
    return column.validity is None or bool(np.unpackbits(column.validity, count=count, bitorder="little").any())


class _Payload:
    """Collects buffers, each starting at a multiple of 8."""

    def __init__(self) -> None:
        self.parts: list[ReadableBuffer] = []
        self.size = 0

    def _add(self, buffer: ReadableBuffer) -> None:
        gap = -self.size % 8
        if gap:
            self.parts.append(_ZEROS[:gap])
        part = memoryview(buffer).cast("B")
        self.parts.append(part)
        self.size += gap + len(part)

    def column(self, name: str, column: ArrowBuffers, count: int) -> bool:
        """Add a column; return whether it has a validity bitmap."""
        offsets, data, validity = column
        if len(offsets) != count + 1:
            raise InvalidRequestError(f"there are {count} values but {len(offsets) - 1} {name}s")
        start, end = int(offsets[0]), int(offsets[-1])
        if start:
            offsets = offsets - np.int32(start)
        self._add(np.ascontiguousarray(offsets, "<i4").data)
        self._add(data if end - start == len(data) else memoryview(data).cast("B")[start:end])
        if validity is None:
            return False
        bits = np.unpackbits(validity, count=count, bitorder="little")
        if bits.all():
            return False
        self._add(np.packbits(bits, bitorder="little").data)
        return True

    def timestamps(
        self, timestamps_ms: Sequence[int | None] | npt.NDArray[np.int64], base_timestamp_ms: int, count: int
    ) -> tuple[int, int]:
        """Add the records' timestamps; return the smallest and the greatest."""
        rows: Any = timestamps_ms
        if not isinstance(rows, np.ndarray):
            rows = [base_timestamp_ms if time is None else time for time in rows]
        times = np.ascontiguousarray(rows, "<i8")
        if len(times) != count:
            raise InvalidRequestError(f"there are {count} values but {len(times)} timestamps")
        self._add(times.data)
        return int(times.min()), int(times.max())

    def record_offsets(self, compacted: CompactedRange) -> None:
        """Add the records' offsets, relative to the first one of the range, and what was removed."""
        offsets = (compacted.record_offsets - compacted.base_offset).astype("<u4")
        self._add(offsets.data)
        if compacted.removed is not None:
            self._add(np.array(compacted.removed, "<i8").data)

    def headers(self, headers: Sequence[RecordHeaders | None], count: int) -> None:
        """Add the five buffers of list<struct<key: string, value: binary>>; records without headers cost no step."""
        if len(headers) != count:
            raise InvalidRequestError(f"there are {count} values but {len(headers)} lists of headers")
        rows = np.fromiter(itertools.compress(range(count), headers), np.int64)
        lists: list[Any] = list(filter(None, headers))
        lengths = lengths_of(lists)
        if (most := lengths.max()) > MAX_RECORD_HEADERS:
            raise InvalidRequestError(f"a record has {most} headers, above the limit of {MAX_RECORD_HEADERS}")
        pairs = list(chain.from_iterable(lists))
        if len(pairs) > MAX_BATCH_HEADERS:
            raise BatchTooLargeError(
                f"{len(pairs)} headers exceed the limit of {MAX_BATCH_HEADERS} a batch",
                action="Send smaller batches.",
            )
        cuts = np.zeros(count + 1, np.int32)
        cuts[rows + 1] = lengths
        np.cumsum(cuts, out=cuts)
        self._add(cuts.astype("<i4", copy=False).data)
        try:
            keys = [key.encode() for key, _ in pairs]
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidRequestError(f"a header is not a pair of str and bytes: {error}") from error
        values = [value for _, value in pairs]
        if None in values:
            raise InvalidRequestError("a header's value is None", action='Use b"" for a header without a value.')
        self.column("header key", join_column("header key", keys), len(pairs))
        self.column("header value", join_column("header value", values), len(pairs))
