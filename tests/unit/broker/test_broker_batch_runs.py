"""Many small batches in one request are appended together as they are one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from headrace.partition.batch_checks import AppendResult
from headrace.partition.producers import WINDOW_RANGES, ProducerWindows
from headrace.partition.topic_configs import TopicConfig
from headrace.wire import batch_runs
from headrace.wire.encoding import encode_batch

from tests.unit.broker.test_broker_runtime import batch, leading_partition

RUN = [batch(b"%d" % n, b"x", producer=(7, 0, 2 * n)) for n in range(80)]
ANONYMOUS = [batch(b"%d" % n) for n in range(30)]
OTHER = [batch(b"%d" % n, producer=(8, 1, n)) for n in range(20)]
CORRUPT = RUN[12][:-8] + b"damaged!"


def with_one(value: bytes, later_ms: int = 0) -> list[bytes]:
    """Return the run with another batch in its middle."""
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 24}
    other = encode_batch([value, b"x"], base_timestamp_ms=1_700_000_000_000 + later_ms, **producer)
    return [*RUN[:12], other, *RUN[13:]]


def config(**changed: object) -> TopicConfig:
    return replace(TopicConfig(), **changed)  # type: ignore[arg-type]


CASES: dict[str, tuple[list[list[bytes]], TopicConfig]] = {
    "a sequence": ([RUN[:20], RUN[20:]], config()),
    "no producer": ([ANONYMOUS, RUN[:9]], config()),
    "the whole is repeated": ([RUN[:20], RUN[:20]], config()),
    "the first half is repeated": ([RUN[:20], RUN[10:40]], config()),
    "a gap": ([RUN[:12] + RUN[13:30], RUN[12:40]], config()),
    "a gap at the start": ([RUN[:12], RUN[13:30]], config()),
    "an unknown producer": ([RUN[5:30]], config()),
    "several producers": ([ANONYMOUS[:10] + RUN[:12] + OTHER + RUN[12:30] + ANONYMOUS], config()),
    "a corrupt one": ([[*RUN[:12], CORRUPT, *RUN[13:30]]], config()),
    "the first is corrupt": ([[CORRUPT, *RUN[:30]]], config()),
    "another number of records": ([[*RUN[:12], batch(b"a", producer=(7, 0, 24)), *OTHER]], config()),
    "one too large": ([with_one(b"long" * 20)], config(max_batch_bytes=120)),
    "too large": ([RUN], config(max_batch_bytes=96)),
    "a codec is required": ([RUN], config(allowed_codecs="lz4,zstd")),
    "one too old": ([with_one(b"12", -6)], config(timestamp_before_max_ms=5)),
    "one in the future": ([with_one(b"12", 6)], config(timestamp_after_max_ms=5)),
}


async def appended(path: Path, requests: Sequence[Sequence[bytes]], topic: TopicConfig) -> tuple[object, ...]:
    """Return everything that the requests have changed, and their results."""
    async with leading_partition(path) as partition:
        partition.config = topic
        results: list[AppendResult | None] = [
            partition.appender.append_now([memoryview(each) for each in batches], -1, committed=True)  # type: ignore[misc]
            for batches in requests
        ]
        for result in results:
            assert result is not None
            result.append_seconds, result.error = 0.0, repr(result.error)  # type: ignore[assignment]
        partition.replica.validate_state()
        headers = list(partition.open_log.reader.checked_headers(0))
        metrics = partition.context.metrics
        counters = metrics.produced_batches, metrics.produced_records, metrics.produced_bytes, metrics.duplicate_batches
        counts = [sample.value for counter in counters for family in counter.collect() for sample in family.samples[:1]]
        totals = partition.appender.records, partition.appender.size_bytes, partition.replica.log_end_offset
        return results, headers, partition.replica.producers.snapshot(), totals, counts


@pytest.mark.parametrize("case", CASES)
async def test_many_batches_are_appended_as_they_are_one_by_one(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H48: the same log, offsets, errors, sequences and counters."""
    together_path, separate_path = tmp_path / "together", tmp_path / "separate"
    together_path.mkdir()
    separate_path.mkdir()
    together = await appended(together_path, *CASES[case])
    monkeypatch.setattr(batch_runs, "FEW_BATCHES", 1000)
    assert together == await appended(separate_path, *CASES[case])


def test_many_batches_are_remembered_as_they_are_one_by_one() -> None:
    """H48: the last ranges, where the forgotten ones end, and the next sequence, past the greatest one as well."""
    for count in (1, 5, WINDOW_RANGES, WINDOW_RANGES + 9, 3 * WINDOW_RANGES):
        together, separate = (ProducerWindows(max_producers=5, expiry_ms=1000) for _ in range(2))
        for windows in (together, separate):
            windows.record(1, 0, 2**31 - 60, 3, base_offset=4, at_ms=1)
        together.record(1, 0, 2**31 - 57, 3, base_offset=7, at_ms=2, batches=count)
        for number in range(count):
            sequence = (2**31 - 57 + 3 * number) % 2**31
            separate.record(1, 0, sequence, 3, base_offset=7 + 3 * number, at_ms=2)
        together.validate()
        assert together.snapshot() == separate.snapshot()
