"""Requests of a model as columns, without a topic."""

import numpy as np
from headrace.cli.bench.models import WorkloadModel
from headrace.cli.bench.workloads import ModelWorkload
from headrace.wire.request_trace import ALL_KEYS, UNKNOWN_GAP_US, RequestOutcome, TableOperation
from spark_jobs.trace_analysis.requests import TableTrace, TracedRequests, taken

START_US = 1_700_006_400_000_000
"""2023-11-15 00:00 UTC."""


def drawn(model: WorkloadModel, count: int, fraction: float = 1.0, seed: int = 1) -> tuple[TableTrace, TracedRequests]:
    """Return requests of a model, of a fraction of the keys, and what its blocks would say."""
    chance = np.random.default_rng(seed)
    made = ModelWorkload(model, None, seed).requests(count)
    assert made.keys is not None
    ranks = int(made.keys.max()) + 1
    hashes = chance.integers(0, 2**64, ranks, np.uint64)
    key_bytes = model.key_bytes.draw(chance.random(ranks))
    sampled = chance.random(ranks) < fraction
    names = [TableOperation[name.upper()] for name in model.operations]
    operation = chance.choice(names, count, p=list(model.operations.values()))
    outcome = np.where(chance.random(count) < model.hit_rate, RequestOutcome.HIT, RequestOutcome.MISS)
    outcome = np.where(operation == TableOperation.GET, outcome, RequestOutcome.DONE)
    at_us = START_US + (made.due_s * 1e6).astype(np.int64)
    requests = TracedRequests(
        hashes[made.keys],
        at_us,
        np.append(UNKNOWN_GAP_US, np.diff(at_us)).astype(np.uint32),
        np.full(count, 90, np.uint32),
        np.where((outcome == RequestOutcome.MISS) | (operation == TableOperation.DELETE), 0, made.value_bytes).astype(
            np.uint32
        ),
        key_bytes[made.keys].astype(np.uint16),
        operation.astype(np.uint8),
        outcome.astype(np.uint8),
    )
    held = taken(requests, np.flatnonzero(sampled[made.keys]))
    trace = TableTrace("users", round(fraction * ALL_KEYS))
    trace.add(10, len(held.at_us), count, 0)
    return trace, held
