"""A follower's end of the stream to a leader: how it ends, and what continues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from headrace.wire.errors import StorageOfflineError
from headrace.wire.ids import BrokerId
from headrace_broker.core.messages import SessionLost, SessionStarted
from headrace_broker.core.roles import Role
from headrace_broker.runtime import replica_fetcher
from headrace_broker.runtime.follower_fetch_session import FollowerFetchSession
from headrace_broker.runtime.replica_fetcher import ReplicaFetcher
from headrace_broker.runtime.uninterrupted import cancel_and_wait
from headrace_server.internal_v1 import metadata_pb2, replication_pb2
from headrace_server.metadata_view import ClusterView
from headrace_server.native.outgoing import OutgoingMessage
from headrace_server.native.streams import open_stream
from headrace_server.partition_state import Replica

from tests.fakes.manual_clock import ManualClock
from tests.unit.broker.test_broker_fetch_ahead import LEADER, Follower, Stream, answer, slices
from tests.unit.broker.test_broker_runtime import TOPIC_ID, Gate


class EndingStream(Stream):
    """A stream whose leader ends it when the test says so; `at_end` runs while the fetcher gives its writer up."""

    at_end: Callable[[], object]

    async def write(self, outgoing: OutgoingMessage) -> None:
        await super().write(outgoing)
        if replication_pb2.ReplicaFetchRequest.FromString(outgoing.message).topics:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.at_end()
                raise

    def end(self) -> None:
        self.messages.put_nowait(None)


def streams(monkeypatch: pytest.MonkeyPatch, made: list[Stream]) -> None:
    """Let the fetcher have these streams, one after the other, each with the leader's challenge."""

    async def open_stream(*_: object) -> Any:
        made[0].put(replication_pb2.ReplicaFetchResponse(challenge=b"challenge"))
        return made.pop(0)

    monkeypatch.setattr(replica_fetcher, "open_stream", open_stream)


def connected(follower: Follower) -> ReplicaFetcher:
    """The follower's fetcher, with a leader that is registered."""
    live = metadata_pb2.BrokerLive(broker_id=LEADER.broker_id)
    view = SimpleNamespace(brokers={LEADER.broker_id: SimpleNamespace(live=live)})
    fetcher = follower.fetcher
    fetcher._view = cast(ClusterView, view)
    fetcher._goes_with = lambda leader: True  # type: ignore[method-assign]
    return fetcher


async def test_what_an_ended_task_failed_with_is_raised() -> None:
    """A task that is ended may have met a bug: it is not dropped with the task."""

    async def fails() -> None:
        raise AssertionError("I8")

    task = asyncio.create_task(fails())
    await asyncio.wait([task])
    with pytest.raises(AssertionError, match="I8"):
        await cancel_and_wait(task)


async def test_a_fetcher_that_is_cancelled_while_its_stream_ends_ends(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop comes in the moment in which the fetcher waits for its writer: it ends, and opens no other stream."""
    fetcher = connected(follower)
    stream = EndingStream()
    streams(monkeypatch, [stream])
    running = asyncio.create_task(fetcher.run())
    stream.at_end = running.cancel
    await stream.next_fetch()
    stream.end()
    await asyncio.wait([running])
    assert running.cancelled()


async def test_an_address_that_leads_nowhere_stops_no_follower(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task is one of the broker's, which ends with it."""
    fetcher, opened = connected(follower), asyncio.Event()

    async def open_and_note(*arguments: Any) -> Any:
        try:
            return await open_stream(*arguments)
        finally:
            opened.set()

    monkeypatch.setattr(replica_fetcher, "open_stream", open_and_note)
    fetcher._view.brokers[BrokerId(LEADER.broker_id)].live.replication_address = "broker..2:7183"
    running = asyncio.create_task(fetcher.run())
    async with asyncio.timeout(20):
        await opened.wait()
        opened.clear()
        await opened.wait()
    assert not running.done()
    running.cancel()
    await asyncio.wait([running])


def diverge(stream: Stream, fetch: replication_pb2.PartitionReplicaFetch) -> None:
    """Let the leader say that the logs part at offset 0."""
    response = replication_pb2.ReplicaFetchResponse()
    result = response.topics.add(topic_id=TOPIC_ID).partitions.add(token=fetch.token, leader_epoch=fetch.leader_epoch)
    result.diverged.leader_epoch, result.diverged.end_offset = -1, 0
    stream.put(response)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("what", ["cut", "write"])
async def test_a_replica_that_was_at_work_when_its_stream_broke_fetches_again(
    follower: Follower, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The next stream finds it at work: it fetches there once it has finished, despite cancellations meanwhile."""
    fetcher = connected(follower)
    broken, next_one = Stream(), Stream()
    streams(monkeypatch, [broken, next_one])
    gate = Gate(follower.partition.open_log, "truncate_to" if what == "cut" else "append_replicated")
    follower.gate.set()
    running = asyncio.create_task(fetcher.run())
    fetch = await broken.next_fetch()
    if what == "cut":
        diverge(broken, fetch)
    else:
        broken.answer(fetch, slices(1)[0], 0)
    await gate.reached()
    broken.messages.put_nowait(None)
    if what == "cut":
        await next_one.sent.get()  # Who follows.
        assert next_one.sent.empty()
        await turns()
        assert not fetcher._due, "the fetcher has looked at it, and could not fetch"
    gate.opened.set()
    assert (await next_one.next_fetch()).offset == (0 if what == "cut" else 1)
    running.cancel()
    await asyncio.wait([running])


async def test_a_replica_that_writes_while_its_session_is_renewed_fetches_again(follower: Follower) -> None:
    """The leader epoch is the same before and after, so nothing else would make it fetch."""
    partition = follower.partition
    cast(Any, partition)._host.unfollow = follower.fetcher.remove
    (first,) = slices(1)
    async with follower.write(answer(follower.fetch(), first, 0)):
        partition.handle(SessionLost())
        partition.handle(SessionStarted(6))
        assert partition.replica.role is Role.FOLLOWING
        assert follower.fetch() is None, "it writes still"
    fetch = follower.fetch()
    assert fetch is not None
    assert fetch.offset == 1


async def test_a_failed_write_takes_the_replica_offline_though_its_stream_broke(follower: Follower) -> None:
    """H34: the failure is the replica's, not that of the waiting caller."""
    cast(Any, follower.partition)._host.unfollow = follower.fetcher.remove
    (first,) = slices(1)
    follower.failure = StorageOfflineError("the disk is gone")
    async with follower.write(answer(follower.fetch(), first, 0)) as taking:
        taking.cancel()
    assert follower.partition.replica.role is Role.OFFLINE


async def test_a_stream_that_has_ended_takes_no_fetch_in() -> None:
    """H6, H17: what a follower sent before it came again is behind what it has sent since."""
    found: list[object] = []
    context = SimpleNamespace(clock=ManualClock())
    stream = FollowerFetchSession(Replica(2, 7), found.append, lambda _: True, lambda *_: None, cast(Any, context))
    stream.close()
    request = replication_pb2.ReplicaFetchRequest()
    request.topics.add(topic_id=TOPIC_ID).partitions.add(partition=0)
    await stream.on_message(request)
    assert not found
