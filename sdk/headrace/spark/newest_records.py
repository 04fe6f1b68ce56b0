"""Newest record of each key, of records that come in the order of their offsets, with bounded memory.

Records are held in memory and reduced to the newest of each key whenever they exceed a limit. If that does not help,
they are divided by the hashes of their keys into temporary files, each of which is then reduced by itself.
"""

import tempfile
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa

MEMORY_BYTES = 32 << 20
"""Arrow data that is held in memory; a reduction needs about as much again."""
KEY = "key"
_HASH_BITS = 4
_LEVELS = 32 // _HASH_BITS
_BATCH_ROWS = 16_384


class NewestRecords:
    """Records of one task. Close it after use."""

    def __init__(self, schema: Any, memory_bytes: int = MEMORY_BYTES, level: int = 0) -> None:
        """`schema` is the Arrow schema of the records, with the column `key`, which has no nulls."""
        self._schema = schema
        self._memory_bytes = memory_bytes
        self._level = level
        self._held: list[Any] = []
        self._held_bytes = 0
        self._parts: list[_Part] = []

    def close(self) -> None:
        """Remove the files."""
        for part in self._parts:
            part.close()

    def add(self, batch: Any) -> None:
        """Add a record batch whose records follow those that were added."""
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes > self._memory_bytes:
            self._reduce()

    def batches(self) -> Iterator[Any]:
        """Yield record batches of the newest record of each key, in any order. Nothing can be added any more."""
        self._reduce(is_last=True)
        for batch in self._held:
            yield from _cut(batch)
        self._held = []
        for part in self._parts:
            inner = NewestRecords(self._schema, self._memory_bytes, self._level + 1)
            try:
                for batch in part.read():
                    inner.add(batch)
                part.close()
                yield from inner.batches()
            finally:
                inner.close()

    def _reduce(self, *, is_last: bool = False) -> None:
        """Keep the newest record of each key; write them to files if those are too many, or if others were before."""
        if not self._held:
            return
        newest = _newest(pa.Table.from_batches(self._held, self._schema))
        self._held, self._held_bytes = newest.to_batches(), newest.nbytes
        is_large = self._held_bytes > self._memory_bytes // 2 and self._level < _LEVELS
        if self._parts or (is_large and not is_last):
            self._divide(newest)
            self._held, self._held_bytes = [], 0

    def _divide(self, table: Any) -> None:
        if not self._parts:
            self._parts = [_Part(self._schema) for _ in range(1 << _HASH_BITS)]
        keys = table.column(KEY).to_pylist()
        hashes = np.fromiter(map(crc32, keys), np.uint32, len(keys))
        numbers = (hashes >> (_HASH_BITS * self._level)) & ((1 << _HASH_BITS) - 1)  # Other bits at each level.
        for number, part in enumerate(self._parts):
            rows = np.flatnonzero(numbers == number)
            if len(rows):
                part.write(table.take(pa.array(rows)))


class _Part:
    """Temporary file with some of the records."""

    def __init__(self, schema: Any) -> None:
        self._file: Any = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._writer = pa.ipc.new_stream(self._file, schema)

    def write(self, table: Any) -> None:
        self._writer.write_table(table)

    def read(self) -> Iterator[Any]:
        self._writer.close()
        self._file.seek(0)
        yield from pa.ipc.open_stream(self._file)

    def close(self) -> None:
        self._file.close()


def _newest(table: Any) -> Any:
    """Return the last row of each key, in the order of the rows."""
    places = pa.array(np.arange(len(table), dtype=np.int64))
    keys = table.column(KEY).take(places)  # A copy: those of a batch may begin at any byte, of which Arrow warns.
    keyed = pa.table([keys, places], names=[KEY, "place"])
    last = keyed.group_by(KEY, use_threads=False).aggregate([("place", "max")]).column("place_max")
    if len(last) == len(table):
        return table
    return table.take(pa.array(np.sort(last.to_numpy())))


def _cut(batch: Any) -> Iterator[Any]:
    for start in range(0, len(batch), _BATCH_ROWS):
        yield batch.slice(start, _BATCH_ROWS)
