"""Input of `headrace bench`: requests of a workload, or lines of a file, as blocks of records.

A block has the due time of each record, and returns any range of them as columns per partition, which the producer
accepts directly. Needs numpy; generated workloads need pyarrow.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from headrace.cli.bench.workloads import Floats, Ints, Requests, Workload, etc_key_bytes
from headrace.cli.records.line_source import LineBlock
from headrace.cli.records.record_json import OutgoingRecord
from headrace.client.base.partitioner import partition_for_key

BLOCK_RECORDS = 4_000
"""Maximum records of a block: about a millisecond of work, so that generation delays no other work."""
BLOCK_BYTES = 4 << 20
"""Maximum size of the values of a block of equal sizes; a block has at least one record."""
CONTENT_BYTES = 8 << 20
"""Size of the random data that values are slices of."""
KEY_TEXT = b"%020d"


class RecordColumns(NamedTuple):
    """Records for one partition, as arguments of `send_many`."""

    values: Any
    keys: Any = None
    headers: Sequence[Any] | None = None
    # None means that the producer chooses.
    partition: int | None = None

    @property
    def records(self) -> int:
        """Number of records."""
        return len(self.values)


class Block(Protocol):
    """Consecutive records."""

    @property
    def due_s(self) -> Floats:
        """float64[n], ascending: seconds from the first record of all."""

    def columns(self, start: int, end: int) -> Iterator[RecordColumns]:
        """Yield the records `start` to `end` by partition."""

    def bytes_of(self, start: int, end: int) -> int:
        """Return the size of the keys and values of the records `start` to `end`."""


class KeyPool:
    """All keys of a workload, with their lengths and partitions, made once."""

    def __init__(self, count: int, partitions: int, seed: int) -> None:
        import pyarrow as pa

        sizes = etc_key_bytes(np.random.default_rng(seed).random(count))
        texts = [(KEY_TEXT % number)[-size:].ljust(size, b"k") for number, size in enumerate(sizes.tolist())]
        self.sizes = sizes
        self.texts = pa.array(texts, pa.binary())
        self.partitions: Ints = np.fromiter((partition_for_key(text, partitions) for text in texts), np.int64, count)


@dataclass(frozen=True, slots=True)
class MadeBlock:
    """Block of generated requests."""

    requests: Requests
    # None means that records have no keys.
    pool: KeyPool | None
    content: bytes

    @property
    def due_s(self) -> Floats:
        """Due time of each record."""
        return self.requests.due_s

    def columns(self, start: int, end: int) -> Iterator[RecordColumns]:
        """Yield the records by the partition of their key, in order."""
        sizes = self.requests.value_bytes[start:end]
        if self.pool is None or self.requests.keys is None:
            yield RecordColumns(self._values(sizes))
            return
        keys = self.requests.keys[start:end]
        partitions = self.pool.partitions[keys]
        order = np.argsort(partitions, kind="stable")
        values, texts = self._values(sizes[order]), self.pool.texts.take(keys[order])
        sorted_ = partitions[order]
        bounds = [0, *(np.flatnonzero(np.diff(sorted_)) + 1).tolist(), len(order)]
        for first, last in pairwise(bounds):
            length = last - first
            yield RecordColumns(values.slice(first, length), texts.slice(first, length), partition=int(sorted_[first]))

    def bytes_of(self, start: int, end: int) -> int:
        """Return the size of the keys and values of the records `start` to `end`."""
        total = int(self.requests.value_bytes[start:end].sum())
        if self.pool is not None and self.requests.keys is not None:
            total += int(self.pool.sizes[self.requests.keys[start:end]].sum())
        return total

    def _values(self, sizes: Ints) -> Any:
        """Return values of these lengths as consecutive slices of the content."""
        import pyarrow as pa

        ends = np.zeros(len(sizes) + 1, np.int32)
        np.cumsum(sizes, out=ends[1:])
        content = self.content * (int(ends[-1]) // len(self.content) + 1)
        return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(ends), pa.py_buffer(content)])


def made_blocks(workload: Workload, records: int, pool: KeyPool | None, seed: int) -> Iterator[MadeBlock]:
    """Yield `records` requests of a workload in blocks."""
    content = np.random.default_rng(seed).bytes(CONTENT_BYTES // 2).hex().encode()
    most = block_records(workload.usual_value_bytes)
    for start in range(0, records, most):
        yield MadeBlock(workload.requests(min(most, records - start)), pool, content)


def block_records(value_bytes: float) -> int:
    """Return the number of records per block for values of this length."""
    return max(1, min(BLOCK_RECORDS, int(BLOCK_BYTES / value_bytes)))


@dataclass(frozen=True, slots=True)
class ReadBlock:
    """Block of records of a file."""

    records: Sequence[OutgoingRecord]
    due_s: Floats

    def columns(self, start: int, end: int) -> Iterator[RecordColumns]:
        """Yield all records together; the producer partitions them by their keys."""
        part = self.records[start:end]
        keys = [record.key for record in part]
        headers = [record.headers or None for record in part]
        yield RecordColumns(
            [record.value for record in part],
            keys if any(key is not None for key in keys) else None,
            headers if any(headers) else None,
        )

    def bytes_of(self, start: int, end: int) -> int:
        """Return the size of the keys and values of the records `start` to `end`."""
        return sum(record.size_bytes for record in self.records[start:end])


class Timetable:
    """Due times of records of a file: by their timestamps, or evenly spaced."""

    def __init__(self, speed: float, rate: float | None) -> None:
        """Initialize the timetable.

        Args:
            speed: Speed-up factor of the timestamps; 2 halves the gaps.
            rate: Records per second, infinity for all at once; `None` uses the timestamps.
        """
        self._speed = speed
        self._rate = rate
        self._first_ms: int | None = None
        self._last_s = 0.0
        self._count = 0

    def due_s(self, records: Sequence[OutgoingRecord]) -> Floats:
        """Return the due times of the next records; a record older than its predecessor is due with it.

        Raises:
            ValueError: If a record lacks a required timestamp.
        """
        numbers = np.arange(self._count, self._count + len(records), dtype=np.float64)
        self._count += len(records)
        if self._rate is not None:
            return numbers / self._rate
        stamps = [record.timestamp_ms for record in records]
        if None in stamps:
            number = self._count - len(records) + stamps.index(None) + 1
            raise ValueError(f"record {number} has no timestamp_ms; give --rate, or a file with the times")
        if self._first_ms is None and stamps:
            self._first_ms = stamps[0]
        due = (np.array(stamps, np.float64) - (self._first_ms or 0)) / 1000 / self._speed
        due = np.maximum.accumulate(np.maximum(due, self._last_s))
        self._last_s = float(due[-1]) if len(due) else self._last_s
        return due


def read_blocks_of(
    lines: Iterator[LineBlock], record_of: Callable[[bytes], OutgoingRecord], timetable: Timetable, most: int | None
) -> Iterator[ReadBlock]:
    """Yield the records of a file's lines, at most `most`.

    Raises:
        ValueError: If a line is invalid, or has no timestamp; names file and line.
    """
    left = most
    for block in lines:
        found = block.lines if left is None else block.lines[:left]
        for start in range(0, len(found), BLOCK_RECORDS):
            records = []
            for index, line in enumerate(found[start : start + BLOCK_RECORDS], start):
                try:
                    records.append(record_of(line))
                except ValueError as error:
                    raise ValueError(f"{block.source}:{block.first_line + index}: {error}") from None
            yield ReadBlock(records, timetable.due_s(records))
        if left is not None:
            left -= len(found)
            if left <= 0:
                return
