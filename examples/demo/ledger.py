"""Ledgers of sent and received records by partition: counts, a running checksum, times.

The checksum covers the values and their lengths in partition order, so that two ledgers agree only if they have the
same records in the same order. Records are counted from 0; on a topic created for the demo that is their offset, so
each record's end-to-end latency can be computed afterwards without marking the record.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


@dataclass(slots=True)
class PartitionLedger:
    """One partition as seen by one side. One thread writes it; others read it after that thread has ended."""

    records: int = 0
    value_bytes: int = 0
    values_crc: int = 0
    lengths_crc: int = 0
    out_of_order: int = 0
    """Records whose offset did not follow that of the previous record."""
    run_lengths: list[int] = field(default_factory=list)
    run_times_ns: list[int] = field(default_factory=list)
    """Time at which each run of records was sent or received, on the monotonic clock."""

    def add_values(self, values: Sequence[bytes], at_ns: int) -> None:
        """Add sent records."""
        lengths = np.fromiter(map(len, values), dtype="<u4", count=len(values))
        self._add(b"".join(values), lengths, at_ns)

    def add_arrow(self, values: Any, first_offset: int, at_ns: int) -> None:
        """Add received records, a `pyarrow.BinaryArray` without null values, without copying."""
        if first_offset != self.records:
            self.out_of_order += len(values)
        _, offsets_buffer, data = values.buffers()
        ends = np.frombuffer(offsets_buffer, dtype="<i4")[values.offset : values.offset + len(values) + 1]
        view = memoryview(b"") if data is None else memoryview(data)[ends[0] : ends[-1]]
        self._add(view, np.diff(ends).astype("<u4"), at_ns)

    def times_ns(self) -> Int64s:
        """Return int64[records]: the time at which each record was sent or received."""
        return np.repeat(np.array(self.run_times_ns, dtype=np.int64), np.array(self.run_lengths, dtype=np.int64))

    def same_records(self, other: PartitionLedger) -> bool:
        """Return whether both sides have the same records in the same order."""
        mine = (self.records, self.value_bytes, self.values_crc, self.lengths_crc)
        return mine == (other.records, other.value_bytes, other.values_crc, other.lengths_crc)

    def _add(self, data: bytes | memoryview, lengths: npt.NDArray[np.uint32], at_ns: int) -> None:
        self.records += len(lengths)
        self.value_bytes += len(data)
        self.values_crc = zlib.crc32(data, self.values_crc)
        self.lengths_crc = zlib.crc32(lengths.tobytes(), self.lengths_crc)
        self.run_lengths.append(len(lengths))
        self.run_times_ns.append(at_ns)


class Ledger:
    """All partitions of some topics as seen by one side."""

    def __init__(self, topics: dict[str, int]) -> None:
        """`topics`: name -> partitions."""
        self.partitions = {(topic, n): PartitionLedger() for topic, count in topics.items() for n in range(count)}
        self.started_ns = time.monotonic_ns()

    def topic(self, topic: str) -> list[PartitionLedger]:
        """Return one topic's partitions, in order."""
        return [ledger for (name, _), ledger in self.partitions.items() if name == topic]

    def records(self, topic: str | None = None) -> int:
        """Return the number of records of one topic or of all."""
        return sum(part.records for (name, _), part in self.partitions.items() if topic in (None, name))

    def last_ns(self, topic: str) -> int:
        """Return the time at which the last record of a topic was sent or received."""
        return max((part.run_times_ns[-1] for part in self.topic(topic) if part.run_times_ns), default=self.started_ns)
