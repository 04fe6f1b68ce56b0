"""Input of `headrace bench`: requests of a workload, or lines of a file, as blocks of records.

A block has the due time of each record, and returns any range of them as columns per partition, which the producer
accepts directly. Needs numpy; generated workloads need pyarrow.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from headrace.cli.bench.distributions import Floats, Ints, SizeModel
from headrace.cli.bench.workloads import Requests, Workload
from headrace.cli.records.line_source import LineBlock
from headrace.cli.records.record_json import OutgoingRecord
from headrace.wire.partitioning import partition_for_key

BLOCK_RECORDS = 4_000
"""Maximum records of a block: about a millisecond of work, so that generation delays no other work."""
BLOCK_BYTES = 4 << 20
"""Maximum size of the values of a block of equal sizes; a block has at least one record."""
CONTENT_BYTES = 8 << 20
"""Size of the random data that values are slices of."""


class RecordColumns(NamedTuple):
    """Records for one partition, as arguments of `send_many`."""

    values: Any
    keys: Any = None
    headers: Sequence[Any] | None = None
    # None means that the producer chooses.
    partition: int | None = None
    # Size of the keys and values.
    size_bytes: int = 0
    # Due time of each record in seconds from the first record of all; empty if they have none.
    due_s: Floats = np.zeros(0)

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


class KeyPool:
    """All keys of a workload, with their lengths and partitions, made once; keys of higher ranks are made when used.

    A key is its rank with leading zeros, up to its length; a key whose rank needs more digits is as long as these.
    """

    def __init__(self, count: int, partitions: int, seed: int, key_bytes: SizeModel) -> None:
        import pyarrow as pa

        self._chance = np.random.default_rng(seed)
        self._key_bytes = key_bytes
        self._count = count
        self._partitions = partitions
        texts = self._made(range(count))
        self.texts = pa.array(texts, pa.binary())
        self._partition: Ints = self._partitions_of(texts)

    def keys(self, ranks: Ints) -> tuple[Any, Ints]:
        """Return the keys of these ranks, an Arrow array of binary, and their partitions."""
        new = np.flatnonzero(ranks >= self._count)
        if not len(new):
            return self.texts.take(ranks), self._partition[ranks]
        import pyarrow as pa

        known = ranks.copy()
        known[new] = 0
        texts = self._made(ranks[new].tolist())
        partition = self._partition[known]
        partition[new] = self._partitions_of(texts)
        places = np.arange(len(ranks))
        places[new] = len(ranks) + np.arange(len(new))
        return pa.concat_arrays([self.texts.take(known), pa.array(texts, pa.binary())]).take(places), partition

    def _made(self, ranks: Sequence[int]) -> list[bytes]:
        sizes = self._key_bytes.draw(self._chance.random(len(ranks)))
        return [b"%0*d" % pair for pair in zip(sizes.tolist(), ranks, strict=True)]

    def _partitions_of(self, texts: list[bytes]) -> Ints:
        return np.fromiter((partition_for_key(text, self._partitions) for text in texts), np.int64, len(texts))


@dataclass(frozen=True, slots=True)
class MadeBlock:
    """Block of generated requests."""

    requests: Requests
    # Seconds from the first record of all.
    due_s: Floats
    # None means that records have no keys.
    pool: KeyPool | None
    content: bytes

    def columns(self, start: int, end: int) -> Iterator[RecordColumns]:
        """Yield the records by the partition of their key, in order."""
        sizes, due_s = self.requests.value_bytes[start:end], self.due_s[start:end]
        if self.pool is None or self.requests.keys is None:
            yield RecordColumns(self._values(sizes), size_bytes=int(sizes.sum()), due_s=due_s)
            return
        keys, partitions = self.pool.keys(self.requests.keys[start:end])
        order = np.argsort(partitions, kind="stable")
        values, texts = self._values(sizes[order]), keys.take(order)
        sorted_ = partitions[order]
        bounds = [0, *(np.flatnonzero(np.diff(sorted_)) + 1).tolist(), len(order)]
        for first, last in pairwise(bounds):
            part, part_keys = values.slice(first, last - first), texts.slice(first, last - first)
            size_bytes = _data_bytes(part) + _data_bytes(part_keys)
            due = due_s[order[first:last]]
            yield RecordColumns(part, part_keys, partition=int(sorted_[first]), size_bytes=size_bytes, due_s=due)

    def _values(self, sizes: Ints) -> Any:
        """Return values of these lengths as consecutive slices of the content."""
        import pyarrow as pa

        ends = np.zeros(len(sizes) + 1, np.int32)
        np.cumsum(sizes, out=ends[1:])
        content = self.content * (int(ends[-1]) // len(self.content) + 1)
        return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(ends), pa.py_buffer(content)])


def made_blocks(
    workload: Workload, records: int, pool: KeyPool | None, seed: int, speed: float = 1.0
) -> Iterator[MadeBlock]:
    """Yield `records` requests of a workload in blocks, due `speed` times as fast; infinity means all at once."""
    content = np.random.default_rng(seed).bytes(CONTENT_BYTES // 2).hex().encode()
    most = block_records(workload.usual_value_bytes)
    for start in range(0, records, most):
        requests = workload.requests(min(most, records - start))
        yield MadeBlock(requests, requests.due_s / speed, pool, content)


def _data_bytes(array: Any) -> int:
    """Return the size of the data of an Arrow array of binary."""
    ends = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)
    return int(ends[-1] - ends[0])


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
            size_bytes=sum(record.size_bytes for record in part),
            due_s=self.due_s[start:end],
        )


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
