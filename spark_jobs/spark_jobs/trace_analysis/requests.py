"""Requests of a trace as columns, and where they are read from: trace blocks, a topic, Parquet files.

A Parquet file has either the blocks, in a column `value` as `spark_jobs.load` writes it, or one row a request with the
columns of `TracedRequests`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import headrace
import numpy as np
import numpy.typing as npt
from headrace.wire.batch import MAX_TIMESTAMP_MS
from headrace.wire.request_trace import (
    ALL_KEYS,
    RequestOutcome,
    TableOperation,
    TraceBlock,
    TraceFormatError,
    decode_block,
)

if TYPE_CHECKING:
    import pyarrow


class TracedRequests(NamedTuple):
    """Requests as columns of one length; `headrace.wire.request_trace` defines them, but for `at_us`."""

    key_hash: npt.NDArray[np.uint64]
    at_us: npt.NDArray[np.int64]
    """Microseconds since 1970."""
    gap_us: npt.NDArray[np.uint32]
    latency_us: npt.NDArray[np.uint32]
    value_bytes: npt.NDArray[np.uint32]
    key_bytes: npt.NDArray[np.uint16]
    operation: npt.NDArray[np.uint8]
    outcome: npt.NDArray[np.uint8]


DTYPES: dict[str, np.dtype[Any]] = {
    "key_hash": np.dtype(np.uint64),
    "at_us": np.dtype(np.int64),
    "gap_us": np.dtype(np.uint32),
    "latency_us": np.dtype(np.uint32),
    "value_bytes": np.dtype(np.uint32),
    "key_bytes": np.dtype(np.uint16),
    "operation": np.dtype(np.uint8),
    "outcome": np.dtype(np.uint8),
}
"""Types of the columns of `TracedRequests`, in order."""
_RANGES = {
    "at_us": (0, MAX_TIMESTAMP_MS * 1_000),
    "operation": (int(min(TableOperation)), int(max(TableOperation))),
    "outcome": (int(min(RequestOutcome)), int(max(RequestOutcome))),
}
"""Least and largest number of columns that do not take all numbers of their type."""


TraceKey = tuple[str, bytes, int]
"""Name and id of a table, and the threshold of its sample: what may be analysed together."""


@dataclass(slots=True)
class TableTrace:
    """What the blocks of one table with one sample say of it."""

    table: str
    threshold: int
    blocks: int = 0
    requests: int = 0
    """Sampled requests that are in the trace."""
    seen_requests: int = 0
    """All requests of the table, sampled or not."""
    dropped_requests: int = 0
    """Requests that were sampled and not recorded."""
    repeated_blocks: int = 0
    """Blocks that are left out, since they were written before: the acknowledgement of a write was lost."""
    table_id: bytes = bytes(16)
    left_out: tuple[TableTrace, ...] = ()
    """Other traces of this name, of `chosen_trace`."""

    @property
    def key(self) -> TraceKey:
        """What tells the trace from others."""
        return self.table, self.table_id, self.threshold

    @property
    def fraction(self) -> float:
        """Fraction of the keys that are in the trace."""
        return self.threshold / ALL_KEYS

    def add(self, blocks: int, requests: int, seen: int, dropped: int) -> None:
        """Add blocks."""
        self.blocks += blocks
        self.requests += requests
        self.seen_requests += seen
        self.dropped_requests += dropped


def key_of(block: TraceBlock) -> TraceKey:
    """Return the trace that a block belongs to."""
    return block.table, block.table_id, block.sample_threshold


def digest_of(value: bytes) -> bytes:
    """Return what tells a block from all others: a server writes one again with the same bytes."""
    return blake2b(value, digest_size=16).digest()


class TraceError(Exception):
    """The trace cannot be analysed; the message has the next step."""


def chosen_trace(traces: Iterable[TableTrace], table: str | None, source: str) -> TableTrace:
    """Return the trace to analyse: of the table that is wanted, or of the only one.

    A table whose sampled fraction was changed has several, and so has the name of one that was deleted and created
    again, whose keys have other hashes. The one with most requests is returned, since keys would seem to begin or end
    with the change; the others are its `left_out`.

    Raises:
        TraceError: If there is no such table, or more than one.
    """
    held = (trace for trace in traces if trace.requests)
    found = sorted(held, key=lambda trace: (-trace.requests, -trace.threshold))
    names = sorted({trace.table for trace in found})
    if not names:
        raise TraceError(f"{source} has no trace of a table; turn on trace_sample of a table and let it be used")
    if table is None and len(names) > 1:
        raise TraceError(f"{source} has traces of {len(names)} tables; choose one by --table: {', '.join(names[:20])}")
    if table is not None and table not in names:
        raise TraceError(f"{source} has no trace of the table {table}; it has {', '.join(names[:20])}")
    chosen, *others = [trace for trace in found if table in (None, trace.table)]
    return replace(chosen, left_out=tuple(others))


def requests_of(block: TraceBlock) -> TracedRequests:
    """Return the requests of a block; views, except for the times."""
    columns = block.columns
    at_us = columns.time_us.astype(np.int64) + block.base_time_us
    return TracedRequests(columns.key_hash, at_us, *columns[2:])


def joined(parts: Iterable[TracedRequests]) -> TracedRequests:
    """Return the requests of all parts, in their order."""
    held = list(parts)
    if not held:
        return TracedRequests(*(np.empty(0, dtype) for dtype in DTYPES.values()))
    return TracedRequests(*(np.concatenate(columns) for columns in zip(*held, strict=True)))


def in_order_of_time(requests: TracedRequests) -> TracedRequests:
    """Return the requests ordered by time; those of the same time keep their order."""
    if np.all(requests.at_us[1:] >= requests.at_us[:-1]):
        return requests
    return taken(requests, np.argsort(requests.at_us, kind="stable"))


def taken(requests: TracedRequests, positions: npt.NDArray[np.int64]) -> TracedRequests:
    """Return the requests at these positions."""
    columns: Iterable[npt.NDArray[Any]] = requests
    return TracedRequests(*(column[positions] for column in columns))


class TraceCollector:
    """Collects the blocks of traces: of one table their requests, if it is named, and of others their numbers."""

    def __init__(self, table: str | None = None) -> None:
        self._table = table
        self.traces: dict[TraceKey, TableTrace] = {}
        self.damaged = 0
        """Records that are not blocks of a trace."""
        self._parts: dict[TraceKey, list[TracedRequests]] = {}
        self._digests: set[bytes] = set()

    def add(self, value: bytes | None) -> None:
        """Add a record's value, unless it is a block that was added before."""
        try:
            block = decode_block(value or b"")
        except TraceFormatError:
            self.damaged += 1
            return
        key = key_of(block)
        trace = self._trace(key)
        digest = digest_of(value or b"")
        if digest in self._digests:
            trace.repeated_blocks += 1
            return
        self._digests.add(digest)
        trace.add(1, block.requests, block.seen_requests, block.dropped_requests)
        if self._table in (None, block.table):
            self._parts[key].append(requests_of(block))

    def add_rows(self, table: str, requests: TracedRequests) -> None:
        """Add requests of a table that are not in blocks: all of its keys."""
        key = (table, bytes(16), ALL_KEYS)
        self._trace(key).add(0, len(requests.key_hash), len(requests.key_hash), 0)
        self._parts[key].append(requests)

    def requests(self, trace: TableTrace) -> TracedRequests:
        """Return the requests of a trace in order of time, and release their memory here."""
        return in_order_of_time(joined(self._parts.pop(trace.key)))

    def _trace(self, key: TraceKey) -> TableTrace:
        self._parts.setdefault(key, [])
        table, table_id, threshold = key
        return self.traces.setdefault(key, TableTrace(table, threshold, table_id=table_id))


def topic_values(bootstrap_servers: str, topic: str) -> Iterator[bytes | None]:
    """Yield the values of a topic that exist now."""
    with headrace.Reader(topic, bootstrap_servers=bootstrap_servers, client_id="workload") as reader:
        for record in reader:
            yield record.value


def read_parquet(path: Path, collector: TraceCollector, table: str | None) -> None:
    """Add Parquet files to a collector: a file, or a directory of them.

    Raises:
        TraceError: If columns are missing, or one has what no request has.
    """
    import pyarrow.dataset

    found = pyarrow.dataset.dataset(path, format="parquet", exclude_invalid_files=True)
    if "value" in found.schema.names:
        for batch in found.to_batches(columns=["value"]):
            for value in batch.column(0):
                collector.add(value.as_py())
        return
    missing = [name for name in DTYPES if name not in found.schema.names]
    if missing:
        raise TraceError(f"{path} has neither a column value with trace blocks nor the columns {', '.join(missing)}")
    rows = found.to_table(columns=list(DTYPES))
    columns = (_whole_numbers(rows.column(name), name, path) for name in DTYPES)
    collector.add_rows(table or path.stem, TracedRequests(*columns))


def _whole_numbers(column: pyarrow.ChunkedArray, name: str, path: Path) -> npt.NDArray[Any]:
    """Return a column of rows; raise `TraceError` if it has what no request has."""
    import pyarrow

    of = f"the column {name} of {path} has"
    if column.null_count:
        raise TraceError(f"{of} nulls")
    if name == "at_us" and pyarrow.types.is_timestamp(column.type):
        column = column.cast(pyarrow.timestamp("us", column.type.tz), safe=False).cast(pyarrow.int64())
    if not pyarrow.types.is_integer(column.type):
        raise TraceError(f"{of} the type {column.type}; it takes whole numbers")
    values: npt.NDArray[Any] = column.to_numpy()
    # Spark has no unsigned numbers: it writes hashes as signed ones of the same bits.
    if name != "key_hash" and len(values):
        low, high = _RANGES.get(name, (0, int(np.iinfo(DTYPES[name]).max)))
        if int(values.min()) < low or int(values.max()) > high:
            raise TraceError(f"{of} a number that is not from {low} to {high}")
    return values.astype(DTYPES[name])
