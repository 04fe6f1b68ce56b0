"""Requests of a model as a request trace, as a table's brokers would record them. Pure but for the clock given to it.

The trace is that of one server that serves every request. Operations and outcomes are drawn from the model; a model has
no latencies, so these are 0, which means not measured.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from headrace.cli.bench.distributions import Floats
from headrace.cli.bench.models import WorkloadModel
from headrace.cli.bench.records import MadeBlock, RecordColumns
from headrace.wire.request_trace import KeySampler, RequestOutcome, TableOperation, TraceBuffer

SERVER_ID = -1
"""`server_id` of a generated trace."""
BUFFER_REQUESTS = 1 << 20
"""Capacity of the buffer, above the requests of a block: none is dropped."""


class TraceRecorder:
    """Records the requests of a model: draws operations and outcomes."""

    def __init__(
        self, model: WorkloadModel, table: str, table_id: bytes, start_us: int, fraction: float, seed: int
    ) -> None:
        """Prepare.

        Args:
            model: Model of the requests.
            table: Name of the table in the trace.
            table_id: Its id, 16 bytes.
            start_us: Time of the first request, microseconds since 1970.
            fraction: Fraction of the keys that are sampled.
            seed: Seed of operations and outcomes, and secret of the keyed hash.
        """
        self._chance = np.random.default_rng(seed)
        self._operations = np.array([TableOperation[name.upper()] for name in model.operations], np.int64)
        self._ends = np.cumsum(list(model.operations.values()))
        self._hit_rate = model.hit_rate
        self._start_us = start_us
        sampler = KeySampler(b"generated %d" % seed, table_id, fraction)
        self._buffer = TraceBuffer(sampler, table, table_id, SERVER_ID, BUFFER_REQUESTS)

    def record(self, block: MadeBlock, start: int, end: int) -> None:
        """Record the requests `start` to `end` of a block."""
        assert block.pool is not None
        assert block.requests.keys is not None
        keys, _ = block.pool.keys(block.requests.keys[start:end])
        count, chance = end - start, self._chance
        found = np.searchsorted(self._ends, chance.random(count), side="right")
        operations = self._operations[np.minimum(found, len(self._operations) - 1)]
        of_gets = np.where(chance.random(count) < self._hit_rate, RequestOutcome.HIT, RequestOutcome.MISS)
        outcomes = np.where(operations == TableOperation.GET, of_gets, RequestOutcome.DONE)
        without_value = (outcomes == RequestOutcome.MISS) | (operations == TableOperation.DELETE)
        sizes = np.where(without_value, 0, block.requests.value_bytes[start:end])
        at_us = self._start_us + (block.requests.due_s[start:end] * 1e6).astype(np.int64)
        add, arrive = self._buffer.add, self._buffer.arrive
        rows = zip(
            at_us.tolist(), operations.tolist(), outcomes.tolist(), keys.to_pylist(), sizes.tolist(), strict=True
        )
        for at, operation, outcome, key, size in rows:
            add(at, arrive(at), operation, outcome, key, size, 0)

    def columns(self) -> Iterator[RecordColumns]:
        """Yield what was recorded since the last call, as values of records."""
        values = self._buffer.drain()
        if values:
            yield RecordColumns(values, size_bytes=sum(map(len, values)))


@dataclass(frozen=True, slots=True)
class TracedBlock:
    """Block of generated requests, sent as blocks of a trace."""

    block: MadeBlock
    recorder: TraceRecorder

    @property
    def due_s(self) -> Floats:
        """Due time of each request."""
        return self.block.due_s

    def columns(self, start: int, end: int) -> Iterator[RecordColumns]:
        """Record the requests, and yield those of the whole block with its last ones, with which they are due."""
        self.recorder.record(self.block, start, end)
        if end == len(self.due_s):
            for part in self.recorder.columns():
                yield part._replace(due_s=np.full(part.records, self.due_s[-1]))


def traced_blocks(blocks: Iterable[MadeBlock], recorder: TraceRecorder) -> Iterator[TracedBlock]:
    """Yield the blocks of a workload as blocks of a trace."""
    for block in blocks:
        yield TracedBlock(block, recorder)
