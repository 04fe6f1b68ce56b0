"""Metrics of the tables of a broker: part of `BrokerMetrics`. None grows with tables or partitions."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum
from typing import Protocol

from headrace_server.instruments import LoopCounter, LoopCounters, LoopHistogram
from prometheus_client import CollectorRegistry, Gauge

_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_REBUILD_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class TableCall(Enum):
    """Kind of a call; the value is the label `operation`."""

    GET = "get"
    SCAN = "scan"
    COUNT = "count"
    PUT = "put"
    DELETE = "delete"
    COMPARE_AND_PUT = "compare_and_put"


class ObservedTable(Protocol):
    """A `PartitionTable`, as a scrape sees it from another thread."""

    @property
    def keys(self) -> int:
        """Number of keys in memory."""

    @property
    def key_bytes(self) -> int:
        """Memory that they take."""

    @property
    def lag_seconds(self) -> float:
        """Time since the state had all that was committed; 0 if it has."""


class TableMetrics:
    """Instruments of tables; the event loop writes them."""

    def __init__(self, prefix: str, registry: CollectorRegistry) -> None:
        """Register all instruments."""

        def counter(name: str, documentation: str) -> LoopCounter:
            return LoopCounter(f"{prefix}_table_{name}", documentation, registry)

        def gauge(name: str, documentation: str) -> Gauge:
            return Gauge(f"{prefix}_table_{name}", documentation, registry=registry)

        calls = [call.value for call in TableCall]
        seconds = LoopHistogram(
            f"{prefix}_table_seconds", "Calls on rows, without the wait for an offset or for a quota", registry,
            bounds=_SECONDS, label="operation", values=calls,
        )  # fmt: skip
        rows = LoopCounters(
            f"{prefix}_table_rows", "Rows read or written, by operation", registry, label="operation", values=calls
        )
        self.seconds = {call: seconds.series(call.value) for call in TableCall}
        self.rows = {call: rows.series(call.value) for call in TableCall}
        self.hits = counter("hits", "Rows that a get has found")
        self.misses = counter("misses", "Rows that a get has not found")
        self.conflicts = counter("conflicts", "Writes refused because the row did not have the expected version")
        self.batch_hits = counter("batch_hits", "Reads of a value whose decoded batch was in memory")
        self.batch_misses = counter("batch_misses", "Reads of a value for which a batch was read and decoded")
        self.rebuild_seconds = LoopHistogram(
            f"{prefix}_table_rebuild_seconds", "Making a state from the log, after a start or on a new replica",
            registry, bounds=_REBUILD_SECONDS,
        )  # fmt: skip
        self.trace_requests = counter("trace_requests", "Sampled requests written to __table_trace")
        self.trace_dropped = counter(
            "trace_dropped", "Sampled requests that were dropped because __table_trace was not written in time"
        )
        self._keys = gauge("keys", "Keys (columns of rows) in memory, of all tables")
        self._key_bytes = gauge("key_bytes", "Memory of these keys, estimated")
        self._lag = gauge(
            "lag_seconds", "Time since a state had all that is committed, of the table that is furthest behind"
        )

    def observe(self, tables: Collection[ObservedTable]) -> None:
        """Read these tables at each scrape."""

        def all_of() -> Iterable[ObservedTable]:
            return list(tables)  # At once: the event loop changes them meanwhile.

        self._keys.set_function(lambda: sum(table.keys for table in all_of()))
        self._key_bytes.set_function(lambda: sum(table.key_bytes for table in all_of()))
        self._lag.set_function(lambda: max((table.lag_seconds for table in all_of()), default=0.0))
