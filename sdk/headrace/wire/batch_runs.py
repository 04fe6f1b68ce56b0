"""Runs of small batches: encoded, checked and stamped together, by a few passes of numpy instead of a loop of Python.

A busy producer of small batches sends many at once (docs/decisions/0022). `headrace.wire.batch`, `encoding` and
`columns` define the format, by functions that take one batch. The functions here process many batches that have the
same number of values and nothing else: no keys, nulls, headers, own timestamps or compression. All other batches, and
all invalid ones, are left to the functions for one batch, which raise the error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.wire.batch import (
    CRC_START,
    HEADER_BYTES,
    HEADER_DTYPE,
    MAGIC,
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    PADDING_SHIFT,
    SEQUENCES,
    STAMP_BYTES,
    STAMP_CRC_START,
)
from headrace.wire.compression import Codec
from headrace.wire.crc import ReadableBuffer, crc32c, crc32c_rows
from headrace.wire.encoding import SMALL_BYTES, SMALL_RECORDS, lengths_of

FEW_BATCHES = 8
"""Number of batches up to which a loop is faster."""
_STAMP_DTYPE = np.dtype(HEADER_DTYPE.descr[:6])
"""The leader's fields."""
assert _STAMP_DTYPE.itemsize == STAMP_BYTES
_STAMP_WORDS = STAMP_BYTES // 8
_COUNT_AT = HEADER_DTYPE.fields["record_count"][1]  # type: ignore[index]
_CRC_WORD = CRC_START // 4 - 1
_PADDINGS = [bytes(size) for size in range(8)]
_PADDING_MASKS = np.array([2**64 - 2 ** (64 - 8 * size) for size in range(8)], np.uint64)
"""By number of final bytes: those bytes of a batch's last eight."""
_LARGEST = HEADER_BYTES + 4 * SMALL_RECORDS + 8 + SMALL_BYTES

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BatchRun:
    """Consecutive batches of the usual kind, all with the same number of records."""

    data: memoryview
    """Their bytes, one behind the other; writable."""
    ends: Int64s
    """int64[n]: end of each in `data`."""
    headers: npt.NDArray[Any]
    """HEADER_DTYPE[n]: their headers before `stamp`."""

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def starts(self) -> Int64s:
        """Start of each in `data`."""
        starts: Int64s = self.ends - self.headers["batch_bytes"]
        return starts

    @property
    def record_count(self) -> int:
        """Number of records of each batch."""
        return int(self.headers["record_count"][0])

    @property
    def producer(self) -> tuple[int, int, int]:
        """Producer id, epoch and sequence of the first."""
        first = self.headers[0]
        return int(first["producer_id"]), int(first["producer_epoch"]), int(first["base_sequence"])

    def first(self, count: int) -> "BatchRun":
        """Return the first batches, at least one, in the same memory."""
        return BatchRun(self.data[: int(self.ends[count - 1])], self.ends[:count], self.headers[:count])

    def stamp(self, *, base_offset: int, append_timestamp_ms: int, leader_epoch: int, previous_crc: int) -> None:
        """Overwrite the leader's fields in `data` as `headrace.wire.batch.stamp` does, at consecutive offsets."""
        count = len(self)
        stamps = np.zeros(count, _STAMP_DTYPE)
        stamps["base_offset"] = np.arange(count) * self.record_count + base_offset
        stamps["append_timestamp_ms"] = append_timestamp_ms
        stamps["batch_bytes"] = self.headers["batch_bytes"]
        stamps["leader_epoch"] = leader_epoch
        stamps["previous_crc"][0] = previous_crc
        stamps["previous_crc"][1:] = self.headers["crc"][:-1]
        stamps["stamp_crc"] = crc32c_rows(stamps.view(np.uint8).reshape(count, STAMP_BYTES)[:, :STAMP_CRC_START])
        words = np.frombuffer(self.data, np.uint64)
        words[(self.starts // 8)[:, None] + np.arange(_STAMP_WORDS)] = stamps.view(np.uint64).reshape(count, -1)


class EncodedRun(NamedTuple):
    """Consecutive batches, encoded by a producer."""

    data: bytearray
    sizes: list[int]
    """Bytes of each."""


def encode_run(
    values: Sequence[bytes | None],
    batch_records: int,
    *,
    base_timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> EncodedRun | None:
    """Encode values as batches of `batch_records` each, like `headrace.wire.encoding.batch_parts`.

    Return `None` if the values are null, not bytes or long, or a batch has many.
    """
    if batch_records > SMALL_RECORDS:
        return None
    count = len(values) // batch_records
    assert count * batch_records == len(values), "every batch has the same number of records"
    try:
        lengths = lengths_of(values)
    except TypeError:
        return None
    head_bytes = _head_bytes(batch_records)
    heads = np.zeros((count, head_bytes), np.uint8)
    offsets = np.cumsum(lengths.reshape(count, batch_records), axis=1, dtype=np.int64)
    totals = offsets[:, -1]
    if totals.max() > SMALL_BYTES:
        return None
    _offsets_of(heads, batch_records)[:, 1:] = offsets
    stored = head_bytes - HEADER_BYTES + totals
    paddings = -stored % 8
    headers = _headers_of(heads)
    sizes = stored + paddings + HEADER_BYTES
    headers["batch_bytes"] = sizes
    headers["leader_epoch"] = -1
    headers["magic"] = MAGIC
    headers["flags"] = paddings << PADDING_SHIFT
    headers["record_count"] = batch_records
    headers["payload_bytes"] = stored
    headers["base_timestamp_ms"] = headers["max_timestamp_ms"] = base_timestamp_ms
    headers["producer_id"] = producer_id
    headers["producer_epoch"] = producer_epoch
    headers["base_sequence"] = _sequences(base_sequence, batch_records, count) if producer_id >= 0 else base_sequence
    headers["stamp_crc"] = crc32c_rows(heads[:, :STAMP_CRC_START])
    joined, stride = heads.tobytes(), batch_records + 2
    pieces: list[Any] = [b""] * (count * stride)
    pieces[::stride] = [joined[start : start + head_bytes] for start in range(0, len(joined), head_bytes)]
    for place in range(batch_records):
        pieces[place + 1 :: stride] = values[place::batch_records]
    if paddings.any():
        pieces[stride - 1 :: stride] = [_PADDINGS[size] for size in paddings.tolist()]
    ends = np.cumsum(sizes)
    try:
        data = bytearray().join(pieces)
    except TypeError:
        return None
    if len(data) != ends[-1]:
        return None  # An entry that is not bytes: its length differs from its size.
    np.frombuffer(data, np.uint32)[(ends - sizes) // 4 + _CRC_WORD] = _checksums(memoryview(data), ends - sizes, ends)
    return EncodedRun(data, sizes.tolist())


def read_run(
    batches: Sequence[ReadableBuffer], *, max_batch_bytes: int, max_records: int, max_payload_bytes: int
) -> BatchRun | None:
    """Return a copy of the first batches that are produced, of the usual kind and valid.

    They pass `headrace.wire.batch.check_batch` with these limits, and `headrace.wire.columns.check_columns`. The next
    one may be valid, too. `None` if there are few.
    """
    if len(batches) <= FEW_BATCHES or len(batches[0]) < HEADER_BYTES:
        return None
    count = int.from_bytes(batches[0][_COUNT_AT : _COUNT_AT + 4], "little")
    if not 1 <= count <= min(SMALL_RECORDS, max_records):
        return None
    head_bytes = _head_bytes(count)
    sizes = np.fromiter(map(len, batches), np.int64, len(batches))
    fits = (sizes % 8 == 0) & (sizes >= head_bytes) & (sizes <= min(_LARGEST, max_batch_bytes))
    sizes = sizes[: _leading(fits)]
    if len(sizes) <= FEW_BATCHES:
        return None
    data = memoryview(bytearray().join(batches[: len(sizes)]))
    ends = np.cumsum(sizes)
    words = np.frombuffer(data, np.uint64)
    heads = words[((ends - sizes) // 8)[:, None] + np.arange(head_bytes // 8)].view(np.uint8)
    headers = _headers_of(heads)
    is_sound = _are_plain(headers, sizes, count) & (headers["payload_bytes"] <= max_payload_bytes)
    is_sound &= _are_offsets_sound(heads, headers, count)
    is_sound &= headers["stamp_crc"] == crc32c_rows(heads[:, :STAMP_CRC_START])
    is_sound &= words[ends // 8 - 1] & _PADDING_MASKS[headers["flags"] >> PADDING_SHIFT] == 0
    number = _leading(is_sound)
    crcs = _checksums(data, (ends - sizes)[:number], ends[:number])
    number = _leading(headers["crc"][:number] == crcs)
    return BatchRun(data, ends, headers).first(number) if number > FEW_BATCHES else None


def _are_plain(headers: npt.NDArray[Any], sizes: Int64s, count: int) -> npt.NDArray[np.bool_]:
    """Return which headers are those of produced batches of `count` values, without anything else."""
    paddings = headers["flags"] >> PADDING_SHIFT
    own_id, epochs, sequences = headers["producer_id"], headers["producer_epoch"], headers["base_sequence"]
    times = headers["base_timestamp_ms"]
    is_anonymous = (own_id == -1) & (epochs == -1) & (sequences == -1)
    are_plain: npt.NDArray[np.bool_] = (
        (headers["base_offset"] == 0)
        & (headers["leader_epoch"] == -1)
        & (headers["magic"] == MAGIC)
        & (headers["codec"] == Codec.NONE)
        & (headers["flags"] == paddings << PADDING_SHIFT)
        & (headers["batch_bytes"] == sizes)
        & (headers["record_count"] == count)
        & (headers["payload_bytes"] == sizes - HEADER_BYTES - paddings)
        & (headers["max_timestamp_ms"] == times)
        & (times >= MIN_TIMESTAMP_MS)
        & (times <= MAX_TIMESTAMP_MS)
        & (is_anonymous | ((own_id >= 0) & (epochs >= 0) & (sequences >= 0)))
    )
    return are_plain


def _are_offsets_sound(heads: npt.NDArray[np.uint8], headers: npt.NDArray[Any], count: int) -> npt.NDArray[np.bool_]:
    """Return which batches' offsets ascend from 0 to the end of their values, with zeros in the gap behind them."""
    offsets = _offsets_of(heads, count)
    gap_at = HEADER_BYTES + 4 * (count + 1)
    is_sound: npt.NDArray[np.bool_] = offsets[:, 0] == 0
    is_sound &= heads.shape[1] - HEADER_BYTES + offsets[:, -1].astype(np.int64) == headers["payload_bytes"]
    is_sound &= (offsets[:, 1:] >= offsets[:, :-1]).all(axis=1)
    if gap_at < heads.shape[1]:
        is_sound &= ~heads[:, gap_at:].any(axis=1)
    return is_sound


def continuing(run: BatchRun) -> int:
    """Return how many batches at the start of a run are of one producer and follow each other in its sequence."""
    headers = run.headers
    first = headers[0]
    is_next = headers["producer_id"] == first["producer_id"]
    if first["producer_id"] >= 0:
        is_next &= headers["producer_epoch"] == first["producer_epoch"]
        is_next &= headers["base_sequence"] == _sequences(int(first["base_sequence"]), run.record_count, len(run))
    return _leading(is_next)


def _sequences(base_sequence: int, batch_records: int, count: int) -> Int64s:
    return (base_sequence + np.arange(count) * batch_records) % SEQUENCES


def _checksums(data: memoryview, starts: Int64s, ends: Int64s) -> npt.NDArray[np.uint32]:
    """Return `crc` of the batches between these positions."""
    spans = zip((starts + CRC_START).tolist(), ends.tolist(), strict=True)
    return np.array([crc32c(data[start:end]) for start, end in spans], np.uint32)


def _head_bytes(count: int) -> int:
    """Return the bytes of a plain batch before its values."""
    return -(-(HEADER_BYTES + 4 * (count + 1)) // 8) * 8


def _headers_of(heads: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    return np.ndarray(len(heads), HEADER_DTYPE, heads.data, strides=heads.strides[:1])


def _offsets_of(heads: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.int32]:
    shape, strides = (len(heads), count + 1), (heads.strides[0], 4)
    return np.ndarray(shape, np.int32, heads.data, HEADER_BYTES, strides)


def _leading(are_true: npt.NDArray[np.bool_]) -> int:
    """Return the number of leading true values."""
    return len(are_true) if are_true.all() else int(np.argmin(are_true))
