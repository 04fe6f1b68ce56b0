"""When the replicas of a topic with `flush_messages` or `flush_ms` flush."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from headrace.partition.topic_configs import Durability, TopicConfig
from headrace_broker.core.messages import StateSeen
from headrace_broker.core.roles import Role
from headrace_broker.runtime import follower_fetch_session
from headrace_broker.runtime.follower_fetch_session import FollowerFetchSession
from headrace_broker.runtime.partition import Partition
from headrace_server.internal_v1 import replication_pb2
from headrace_server.native.outgoing import OutgoingMessage
from headrace_server.native.streams import Received
from headrace_server.partition_state import PartitionState, Replica

from tests.unit.broker.test_broker_fetch_ahead import Follower, following
from tests.unit.broker.test_broker_runtime import Gate, batch, leading_partition, until

ME, FOLLOWER = Replica(1, 5), Replica(2, 7)
EVERY_TEN = TopicConfig(durability=Durability.ASYNC, flush_messages=10)
LATE = TopicConfig(durability=Durability.ASYNC, flush_ms=3_600_000)


def produce(partition: Partition, records: int) -> None:
    assert partition.appender.append_now([batch(*[b"x"] * records)], -1, committed=False) is not None


class Link:
    """The stream between a follower and its leader, in one process."""

    is_over = False
    heard_bytes = 0

    def __init__(self, session: FollowerFetchSession, *, knows_flushes: bool) -> None:
        self._session = session
        self._responses = session.responses()
        self._knows_flushes = knows_flushes
        self.answers = 0
        """Results that the leader has sent."""
        self.last_fetch = (-1, -1)
        """Its offset and its durable offset."""
        self.takes_fetches = asyncio.Event()
        self.takes_fetches.set()

    def hear_all(self) -> None:
        pass

    async def read(self) -> Received:
        outgoing = await anext(self._responses)
        message = replication_pb2.ReplicaFetchResponse.FromString(outgoing.message)
        self.answers += sum(len(topic.partitions) for topic in message.topics)
        return Received(outgoing.message, memoryview(b"".join(cast(Any, outgoing.attached))), is_discarded=False)

    async def write(self, outgoing: OutgoingMessage) -> None:
        request = replication_pb2.ReplicaFetchRequest.FromString(outgoing.message)
        for topic in request.topics:
            for entry in topic.partitions:
                if not self._knows_flushes:
                    entry.ClearField("leader_flushed_offset")
        await self.takes_fetches.wait()
        await self._session.on_message(request)
        for topic in request.topics:
            self.last_fetch = topic.partitions[0].offset, topic.partitions[0].durable_offset


@asynccontextmanager
async def two_replicas(path: Path, *, knows_flushes: bool = True) -> AsyncIterator[tuple[Partition, Follower, Link]]:
    """A leader and its follower, both in sync; `knows_flushes` is false of a follower of an older release."""
    async with leading_partition(path / "leader") as leader, following(path / "follower") as follower:
        follower.gate.set()
        host = cast(Any, leader)._host
        for partition in (leader, follower.partition):
            partition.update_config(EVERY_TEN)
        leader.handle(StateSeen(PartitionState((1, 2), ME, 1, (ME, FOLLOWER)), 10))
        await host.tasks[-1]
        session = FollowerFetchSession(FOLLOWER, lambda _: leader, lambda _: False, lambda *_: None, leader.context)
        link = Link(session, knows_flushes=knows_flushes)
        talking = asyncio.create_task(follower.fetcher._talk(cast(Any, link)))
        try:
            yield leader, follower, link
        finally:
            talking.cancel()
            await asyncio.wait([talking])
            session.close()


async def out_of_phase(leader: Partition, follower: Partition, link: Link, *, flushes_first: bool) -> None:
    """Of four batches of 7 records the leader flushes all, and the follower flushes three by its own count.

    `flushes_first`: the leader's last flush ends before the follower's last fetch arrives.
    """
    produce(leader, 7)
    await until(lambda: follower.replica.log_end_offset == 7)
    gate = Gate(leader.open_log, "flush")
    produce(leader, 7)
    produce(leader, 7)
    gate.opened.set()
    await until(lambda: link.last_fetch == (21, 21) and leader.replica.high_watermark == 21)
    gate = Gate(leader.open_log, "flush")
    if flushes_first:
        link.takes_fetches.clear()
    produce(leader, 7)
    await until(lambda: follower.replica.log_end_offset == 28)
    if not flushes_first:
        await until(lambda: link.last_fetch == (28, 21))
    gate.opened.set()
    await until(lambda: leader.replica.flushed_offset == 28)
    link.takes_fetches.set()


@pytest.mark.parametrize("flushes_first", [True, False])
async def test_a_follower_flushes_what_its_leader_has_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushes_first: bool
) -> None:
    """Each replica counts for itself, and the records are committed once all have flushed them."""
    monkeypatch.setattr(follower_fetch_session, "WATERMARK_DELAY_SECONDS", 0)
    async with two_replicas(tmp_path) as (leader, follower, link):
        await out_of_phase(leader, follower.partition, link, flushes_first=flushes_first)
        await until(lambda: leader.replica.high_watermark == 28)
        assert follower.partition.replica.flushed_offset == 28


async def test_a_follower_of_an_older_release_is_sent_no_flushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not flush, and fetch again at once, without end."""
    monkeypatch.setattr(follower_fetch_session, "WATERMARK_DELAY_SECONDS", 0)
    async with two_replicas(tmp_path, knows_flushes=False) as (leader, follower, link):
        cast(Any, follower.partition).flush_policy.follow_leader = lambda _: None
        await out_of_phase(leader, follower.partition, link, flushes_first=False)
        await until(lambda: follower.partition.replica.high_watermark == 21)
        answers = link.answers
        for _ in range(100):
            await asyncio.sleep(0)
        assert link.answers == answers
        assert leader.replica.high_watermark == 21


async def test_an_answer_without_flushes_flushes_nothing(follower: Follower) -> None:
    """An older leader does not send them."""
    follower.partition.update_config(EVERY_TEN)
    cast(Any, follower.partition).flush_policy._unflushed_records = 7
    follower.partition.flush_policy.follow_leader(0)
    assert cast(Any, follower.partition).flush_policy._unflushed_records == 7
    assert follower.partition.replica.role is Role.FOLLOWING


@pytest.mark.parametrize(
    "config",
    [
        replace(LATE, flush_ms=1_000),
        EVERY_TEN,
        TopicConfig(),
        TopicConfig(durability=Durability.ASYNC),
    ],
    ids=["flush_ms", "flush_messages", "fsync", "async"],
)
async def test_a_changed_flush_policy_applies_to_records_that_wait(partition: Partition, config: TopicConfig) -> None:
    """They would wait for the time, or the number of records, that was set when they were appended."""
    partition.update_config(LATE)
    await until(lambda: not partition.context.flusher._running)
    produce(partition, 1)
    partition.update_config(replace(LATE, retention_ms=1))
    assert partition.flush_policy._timer is not None
    partition.update_config(config)
    assert partition.flush_policy._timer is None
    await until(lambda: partition.replica.high_watermark == 1)
