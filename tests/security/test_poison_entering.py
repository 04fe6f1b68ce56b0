"""A batch that no reader can decode does not enter the log, and refusing it costs little."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from pathlib import Path

import pytest
from headrace.partition.topic_configs import TopicConfig, Validation, parse_topic_config
from headrace.wire.batch import Codec
from headrace.wire.encoding import encode_batch
from headrace.wire.errors import CorruptBatchError, ErrorCode, Outcome, UnsupportedCodecError
from headrace_broker.runtime.partition import AppendResult, Partition

from tests.fakes.manual_clock import ManualClock
from tests.security.poison import GOOD, MIB, NOW_MS, poisons, sealed, wild_times, zeros_bomb
from tests.unit.broker.test_broker_runtime import leading_partition

POISONS = poisons()
WILD_TIMES = wild_times()


async def appended(partition: Partition, *batches: bytes) -> AppendResult:
    """Append as a produce call does."""
    result = partition.appender.append_now(batches, -1, committed=False)
    return result or await partition.appender.append(batches, -1, committed=False)


@pytest.mark.parametrize("name", POISONS)
async def test_batch_that_no_reader_decodes_is_refused(name: str, tmp_path: Path) -> None:
    """Nothing of it is appended, what is before it is, and the error is definite."""
    async with leading_partition(tmp_path) as partition:
        result = await appended(partition, sealed(GOOD, records=2), POISONS[name], sealed(GOOD, records=2))
        assert isinstance(result.error, CorruptBatchError)
        assert result.error.outcome is Outcome.NOT_APPLIED
        assert not result.error.retriable
        assert partition.open_log.log_end_offset == 2


@pytest.mark.parametrize("name", WILD_TIMES)
async def test_time_that_no_reader_can_show_is_refused(name: str, tmp_path: Path) -> None:
    """By default, and whatever `timestamp_before_max_ms` says, for what is outside of the years 1 to 9999."""
    async with leading_partition(tmp_path) as partition:
        result = await appended(partition, WILD_TIMES[name])
        assert result.error is not None
        assert result.error.code is ErrorCode.INVALID_TIMESTAMP
        partition.update_config(TopicConfig(timestamp_before_max_ms=2**63 - 1, timestamp_after_max_ms=2**63 - 1))
        result = await appended(partition, WILD_TIMES[name])
        codes = [] if result.error is None else [result.error.code]
        assert codes == ([] if name == "before 1926" else [ErrorCode.INVALID_TIMESTAMP])


async def test_topic_may_leave_columns_unchecked(tmp_path: Path) -> None:
    """`validate=header` is a setting that does something: it takes what only readers find to be wrong."""
    async with leading_partition(tmp_path) as partition:
        partition.update_config(TopicConfig(validate=Validation.HEADER))
        for name, batch in POISONS.items():
            result = await appended(partition, batch)
            assert result.error is None, name
        assert partition.open_log.log_end_offset > len(POISONS)


async def test_batches_are_appended_in_the_order_of_their_calls_whatever_their_codec(tmp_path: Path) -> None:
    """A compressed batch is inflated in a thread; what is sent behind it uncompressed does not overtake it."""

    def batch(sequence: int, codec: Codec) -> bytes:
        values = [b"v" * 100_000]
        return encode_batch(
            values, base_timestamp_ms=NOW_MS, codec=codec, producer_id=7, producer_epoch=0, base_sequence=sequence
        )

    async with leading_partition(tmp_path) as partition:
        codecs = [Codec.GZIP, Codec.NONE, Codec.LZ4, Codec.NONE, Codec.NONE]
        calls = [appended(partition, batch(n, codec)) for n, codec in enumerate(codecs)]
        results = await asyncio.gather(*calls)
        assert [(result.base_offsets, result.error) for result in results] == [([n], None) for n in range(5)]
        inline = partition.appender.append_now([batch(5, Codec.NONE)], -1, committed=False)
        assert inline is not None, "once they are in, appends are made on the event loop again"


async def test_topic_says_which_codecs_producers_may_use(tmp_path: Path) -> None:
    """A producer's choice never stops readers without the codec's package; what does not shrink is always taken."""
    batches = {codec: encode_batch([b"v" * 1_000], base_timestamp_ms=NOW_MS, codec=codec) for codec in Codec}
    async with leading_partition(tmp_path) as partition:
        for allowed in (["none", "gzip", "lz4", "zstd"], ["none", "gzip"], ["none"]):
            partition.update_config(parse_topic_config({"allowed_codecs": ",".join(allowed)}))
            for codec, batch in batches.items():
                result = await appended(partition, batch)
                if codec.name.lower() in allowed:
                    assert result.error is None
                    continue
                assert isinstance(result.error, UnsupportedCodecError)
                assert result.error.outcome is Outcome.NOT_APPLIED
                assert f"codec {codec.name.lower()} is not among" in str(result.error)


async def test_flood_of_producer_ids_doubles_nothing(tmp_path: Path) -> None:
    """Ids are free; a retry that comes behind 10,000 of them is recognised, and new ids have their turn later."""
    async with leading_partition(tmp_path) as partition:
        clock = partition.context.clock
        assert isinstance(clock, ManualClock)
        honest = sealed(GOOD, records=2, producer=(7, 0, 0))
        first = await appended(partition, honest)
        flood = [await appended(partition, sealed(GOOD, records=2, producer=(n, 0, 0))) for n in range(100, 10_200)]
        refused = [result.error for result in flood if result.error is not None]
        assert len(refused) == 101
        assert all(error.code is ErrorCode.THROTTLED and error.retriable for error in refused)
        again = await appended(partition, honest)
        assert (again.error, again.base_offsets) == (None, first.base_offsets)
        clock.advance(partition.context.settings.producer_retry_window_ms)
        assert (await appended(partition, sealed(GOOD, records=2, producer=(99, 0, 0)))).error is None


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_bombs_are_inflated_one_after_the_other(codec: Codec, tmp_path: Path) -> None:
    """Eight batches that inflate to 48 MiB each, sent at once to two partitions, never hold more than 64 MiB."""
    noise = 400_000
    values = [bytes(48 * MIB - noise) + zeros_bomb(8 * MIB, noise=noise)[:noise]]
    bomb = encode_batch(values, base_timestamp_ms=NOW_MS, codec=codec)
    del values
    assert len(bomb) < MIB

    async def scenario() -> int:
        async with leading_partition(tmp_path / "a") as one, leading_partition(tmp_path / "b") as two:
            object.__setattr__(two.context, "inflation", one.context.inflation)  # as in one broker
            tracemalloc.start()
            try:
                results = await asyncio.gather(*(appended(each, bomb) for each in (one, two) for _ in range(4)))
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert [result.error for result in results] == [None] * 8
            return peak

    assert asyncio.run(scenario()) < 72 * MIB


def test_event_loop_runs_while_bombs_are_inflated(tmp_path: Path) -> None:
    """The loop's own work stays small: it only looks at checksums and headers, whatever the payload inflates to."""
    bomb = zeros_bomb(60 * MIB, noise=400_000)

    async def scenario() -> float:
        async with leading_partition(tmp_path) as partition:
            started = time.thread_time()
            result = await appended(partition, bomb)
            assert result.error is None
            return time.thread_time() - started

    assert asyncio.run(scenario()) < 0.1
