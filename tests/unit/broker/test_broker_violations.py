"""A violated invariant ends the broker, in whatever task or call it shows."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from headrace.wire.ids import Offset
from headrace.wire.zero_copy import SplicedMessage
from headrace_broker.app import crash
from headrace_broker.core.messages import LogStartRaised
from headrace_broker.runtime.partition import Partition
from headrace_server.internal_v1 import replication_pb2

from tests.unit.broker.test_broker_fetch_ahead import Follower
from tests.unit.broker.test_broker_runtime import TOPIC_ID, batch, leading_partition


def note_crashes(partition: Partition) -> list[BaseException]:
    """What ends the broker of this partition."""
    met: list[BaseException] = []
    object.__setattr__(partition.context, "crash", met.append)
    return met


def test_a_violation_that_one_call_meets_ends_the_broker(tmp_path: Path) -> None:
    """gRPC would answer that call with an error, and the broker would continue with a core that is wrong."""

    async def scenario() -> None:
        async with leading_partition(tmp_path) as partition, asyncio.TaskGroup() as tasks:
            object.__setattr__(partition.context, "crash", partial(crash, tasks))
            with pytest.raises(AssertionError):
                partition.handle(LogStartRaised(Offset(-1)))
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as ended:
        asyncio.run(asyncio.wait_for(scenario(), 20))
    assert ended.group_contains(AssertionError, match="I18")


async def test_a_violation_by_an_append_ends_the_broker(partition: Partition) -> None:
    """The path of a produce gives the core its events by itself."""
    met = note_crashes(partition)
    partition.replica.log_end_offset = Offset(7)
    with pytest.raises(AssertionError, match="I6"):
        partition.appender.append_now([batch(b"a")], -1, committed=True)
    assert len(met) == 1
    partition.replica.log_end_offset = Offset(1)


async def test_a_violation_in_a_task_that_nobody_awaits_ends_the_broker(follower: Follower) -> None:
    """A truncation runs concurrently with the other answers of its stream, a search for corruption with everything."""
    met = note_crashes(follower.partition)

    async def fails(*_: object) -> bool:
        raise AssertionError("I7")

    follower.partition.follower.take_answer = fails  # type: ignore[method-assign]
    response = replication_pb2.ReplicaFetchResponse()
    response.topics.add(topic_id=TOPIC_ID).partitions.add().diverged.end_offset = 0
    await follower.fetcher._apply(SplicedMessage(response, [[b""]]), is_discarded=False)
    await asyncio.wait(follower.fetcher._tasks)
    follower.partition.corruption._verify = fails  # type: ignore[assignment,method-assign]
    follower.partition.corruption.verify(0)
    assert follower.partition.corruption.task is not None
    await asyncio.wait([follower.partition.corruption.task])
    assert [str(error) for error in met] == ["I7", "I7"]


async def test_a_broker_that_ends_already_is_not_ended_again() -> None:
    """What is met while the tasks are being ended changes nothing."""
    async with asyncio.TaskGroup() as tasks:
        pass
    crash(tasks, AssertionError("I8"))
