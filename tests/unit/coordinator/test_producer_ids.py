"""Producer ids are never given out twice (H53), whatever answers are lost."""

from __future__ import annotations

import asyncio

import pytest
from headrace.wire.errors import MetastoreUnavailableError, Outcome
from headrace_coordinator.runtime.producer_ids import ProducerIds

LOST, NEVER = "answer lost", "never arrived"


def make(parts, block_size=3):
    return ProducerIds(parts.metastore, parts.keyspace, parts.metrics, block_size=block_size)


async def test_ids_of_several_coordinators_are_unique(parts):
    """Blocks by compare-and-swap: all takers at once get different ids."""

    async def let_others_read(compares, success):
        await asyncio.sleep(0)

    parts.metastore.before_txn = let_others_read
    sources = [make(parts), make(parts), make(parts)]
    taken = await asyncio.gather(*(source.take() for _ in range(20) for source in sources))
    assert len(set(taken)) == 60


async def test_a_block_whose_answer_was_lost_is_given_up(parts):
    """An unanswered block gives no id and an error; the next attempt takes another one."""
    first, second = make(parts), make(parts)
    taken = [await second.take()]
    parts.metastore.faults = [LOST]
    with pytest.raises(MetastoreUnavailableError) as failure:
        await first.take()
    assert failure.value.outcome is Outcome.NOT_APPLIED
    taken += [await source.take() for _ in range(7) for source in (first, second)]
    assert len(set(taken)) == 15


async def test_a_block_outlives_an_outage(parts):
    """etcd is needed once a block only."""
    source = make(parts, block_size=2)
    first = await source.take()
    parts.metastore.faults = [NEVER]
    assert await source.take() == first + 1
    with pytest.raises(MetastoreUnavailableError):
        await source.take()


async def test_each_generation_has_ids_of_its_own(parts):
    """A restored cluster has a higher generation and jumps ahead; ids fit an int64."""
    assert await make(parts).take() == 3 << 40
