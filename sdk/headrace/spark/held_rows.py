"""Rows of a task whose micro-batch was tried before, held until it is known which of them are stored.

They are in a temporary file; only a digest per row is in memory.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from headrace.spark.routes import Share
from headrace.spark.row_digests import NO_PARTITION, NO_TIME, RowKey, row_key, row_parts


class HeldRows:
    """Rows of one task for one topic, each with its target partition."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._file: Any = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._writer: Any = None
        self._whole = False
        self._partitions: list[int] = []
        """Partition of each Arrow batch in the file."""
        self._open: Counter[RowKey] = Counter()
        self._taken: Counter[RowKey] = Counter()
        self._with_time = self._with_partition = False
        self.count = 0
        """Number of rows that are not known to be stored."""

    def close(self) -> None:
        """Remove the file."""
        self._file.close()

    def add(self, share: Share) -> None:
        """Add rows."""
        if self._writer is None:
            self._with_time = "timestamp" in share.rows.schema.names
            self._with_partition = "partition" in share.rows.schema.names
            self._writer = pa.ipc.new_stream(self._file, share.rows.schema)
        self._writer.write_batch(share.rows)
        self._partitions.append(share.partition)
        keys = [row_key(*parts) for parts in row_parts(share.rows)]
        self._open.update(keys)
        self.count += len(keys)

    def take(self, digest: bytes, time_ms: int, partition: int) -> bool:
        """Record that a row is stored; return `False` if no remaining row equals it."""
        for at in (time_ms, NO_TIME) if self._with_time else (NO_TIME,):
            for where in (partition, NO_PARTITION) if self._with_partition else (NO_PARTITION,):
                key = row_key(digest, at, where)
                if self._open.get(key, 0):
                    self._open[key] -= 1
                    self._taken[key] += 1
                    self.count -= 1
                    return True
        return False

    def left(self) -> Iterator[Share]:
        """Yield the rows that are not known to be stored, in order, with their partitions."""
        if self._writer is None:
            return
        if not self._whole:
            self._writer.close()
            self._whole = True
        self._file.seek(0)
        taken = self._taken.copy()
        for partition, rows in zip(self._partitions, pa.ipc.open_stream(self._file), strict=True):
            keep = []
            for key in (row_key(*parts) for parts in row_parts(rows)):
                keep.append(not taken.get(key, 0))
                if not keep[-1]:
                    taken[key] -= 1
            if any(keep):
                yield Share(self._topic, partition, rows if all(keep) else rows.filter(pa.array(keep)))
