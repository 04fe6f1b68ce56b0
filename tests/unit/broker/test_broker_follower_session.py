"""A leader's end of a follower's stream: fetches that it compares, and ranges of its log on their way."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest
from headrace.log import CorruptLogError
from headrace.log.os_filesystem import OsFileSystem
from headrace.log.slices import Slice
from headrace_broker.core.messages import SessionLost, StateSeen
from headrace_broker.core.replica_fetch import Diverged
from headrace_broker.core.roles import Role
from headrace_broker.runtime.follower_fetch_session import FollowerFetchSession, _Response
from headrace_broker.runtime.partition import Partition
from headrace_server.internal_v1 import replication_pb2
from headrace_server.native import outgoing as queue
from headrace_server.native.outgoing import OutgoingMessage
from headrace_server.partition_state import PartitionState, Replica

from tests.unit.broker.test_broker_runtime import TOPIC_ID, Gate, batch, until

KEY = (TOPIC_ID, 0)
ME, FOLLOWER = Replica(1, 5), Replica(2, 7)


async def response(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> tuple[OutgoingMessage, Slice]:
    """A message to a follower with the whole log, as a range."""
    monkeypatch.setattr(queue, "COPIED_BYTES", 0)
    for number in range(3):
        partition.appender.append_now([batch(b"%d" % number)], -1, committed=False)
    made = _Response()
    found, next_offset = await partition.reads.locate_for_replica(0, 1 << 20)
    assert (found is not None, next_offset) == (True, None)
    made.add((TOPIC_ID, 0), partition, found)
    outgoing = made.outgoing()
    (piece,) = outgoing.attached
    assert piece is found
    return outgoing, found


async def test_a_range_that_was_cut_is_discarded(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    """H148: what the kernel sends after the truncation may be of another leader epoch."""
    outgoing, _ = await response(partition, monkeypatch)
    assert outgoing.is_valid is not None
    assert outgoing.close is not None
    assert outgoing.is_valid()
    partition.open_log.truncate_to(1)
    assert not outgoing.is_valid()
    outgoing.close()


async def test_a_range_that_cannot_be_read_takes_the_replica_offline(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H33: another replica is in sync and leads then; else followers would connect and fail again and again."""
    outgoing, found = await response(partition, monkeypatch)
    others = PartitionState((1, 2), Replica(1, 5), 0, (Replica(1, 5), Replica(2, 7)))
    partition.replica.state = others
    os.truncate(found.path, 10)
    with pytest.raises(CorruptLogError) as caught:
        found.read_part(0, found.size_bytes)
    assert outgoing.failed is not None
    assert outgoing.close is not None
    outgoing.failed(found, caught.value)
    assert partition.replica.role is Role.OFFLINE
    outgoing.close()


async def test_a_little_range_is_sent_by_its_bytes(partition: Partition) -> None:
    """It needs no verdict: the bytes are read while the log is known to hold them."""
    partition.appender.append_now([batch(b"a")], -1, committed=False)
    made = _Response()
    found, _ = await partition.reads.locate_for_replica(0, 1 << 20)
    assert found is not None
    size = len(found)
    result = made.add((TOPIC_ID, 0), partition, found)
    outgoing = made.outgoing()
    assert (outgoing.is_valid, result.batches_size) == (None, size)
    assert [len(piece) for piece in outgoing.attached] == [size]


# --- comparisons of logs ---


def stream_to(partition: Partition) -> FollowerFetchSession:
    """The stream of broker 2, which has a replica of `partition`, a log of three batches of one record."""
    partition.handle(StateSeen(PartitionState((1, 2), ME, 0, (ME,), partition_epoch=1), 10))
    for number in range(3):
        partition.appender.append_now([batch(b"%d" % number)], -1, committed=False)
    return FollowerFetchSession(
        FOLLOWER, lambda key: partition if key == KEY else None, lambda _: False, lambda *_: None, partition.context
    )


def fetch(partition: Partition, offset: int, token: int = 1, **fields: int) -> replication_pb2.ReplicaFetchRequest:
    """A fetch of a follower whose log ends at `offset`, as the leader's does there."""
    request = replication_pb2.ReplicaFetchRequest()
    last_crc = partition.open_log.reader.batch_with(offset - 1).chain_crc
    fetched = {"token": token, "offset": offset, "last_epoch": 0, "last_crc": last_crc, "partition_epoch": 1, **fields}
    request.topics.add(topic_id=TOPIC_ID).partitions.add(**fetched)
    return request


def uncached(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """No page is in the cache; the threads that wait for the disk."""
    threads: list[threading.Thread] = []
    pread: Callable[..., bytes] = OsFileSystem.pread

    def noted(filesystem: OsFileSystem, *arguments: int) -> bytes:
        threads.append(threading.current_thread())
        return pread(filesystem, *arguments)

    monkeypatch.setattr(OsFileSystem, "pread_nowait", lambda *_: None)
    monkeypatch.setattr(OsFileSystem, "pread", noted)
    return threads


async def held(
    partition: Partition,
    stream: FollowerFetchSession,
    request: replication_pb2.ReplicaFetchRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Gate:
    """Let the comparison for a fetch wait in its thread, until the gate that is returned opens."""
    uncached(monkeypatch)
    gate = Gate(partition.open_log.reader, "batch_with")
    await stream.on_message(request)
    await gate.reached()
    return gate


@pytest.mark.parametrize(("last_crc", "decision"), [({}, None), ({"last_crc": 1}, Diverged(0, 0))])
async def test_a_comparison_that_would_wait_for_the_disk_runs_in_a_thread(
    partition: Partition, monkeypatch: pytest.MonkeyPatch, last_crc: dict[str, int], decision: object
) -> None:
    """H46: a thousand partitions of a follower that comes back are compared so; the leader's loop must not stop."""
    stream = stream_to(partition)
    request = fetch(partition, 1, **last_crc)
    threads = uncached(monkeypatch)
    await stream.on_message(request)
    await until(lambda: stream._waiting or stream._refused)
    assert threads
    assert threading.current_thread() not in threads
    assert [each.answer for each in stream._refused.values()] == [decision] * (decision is not None)
    leadership = partition.replica.leadership
    assert leadership is not None
    follower = leadership.followers.get(FOLLOWER)
    assert (None if follower is None else follower.offset) == (1 if decision is None else None)


@pytest.mark.parametrize("offset", [1, 3])
async def test_a_comparison_that_need_not_wait_is_made_at_once(
    partition: Partition, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    """A follower at the log end, or little behind: a thread would only cost."""
    stream = stream_to(partition)
    monkeypatch.setattr(partition, "in_thread", None)
    await stream.on_message(fetch(partition, offset))
    assert list(stream._waiting) == [KEY]


async def test_a_later_fetch_replaces_one_that_is_compared(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H6: the follower awaits the answer to its last fetch only."""
    stream = stream_to(partition)
    earlier, later = fetch(partition, 1, token=1), fetch(partition, 3, token=2)
    gate = await held(partition, stream, earlier, monkeypatch)
    await stream.on_message(later)
    gate.opened.set()
    comparing = stream._comparing
    assert comparing is not None
    await comparing
    assert [waiting.request.token for waiting in stream._waiting.values()] == [2]


async def test_a_comparison_that_outlasts_the_leadership_acknowledges_nothing(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H4: the log may have been truncated meanwhile."""
    stream = stream_to(partition)
    request = fetch(partition, 1)
    gate = await held(partition, stream, request, monkeypatch)
    partition.handle(SessionLost())
    gate.opened.set()
    await until(lambda: stream._refused)
    assert not stream._waiting


async def test_a_comparison_that_outlasts_its_stream_is_dropped(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = stream_to(partition)
    request = fetch(partition, 1)
    gate = await held(partition, stream, request, monkeypatch)
    stream.close()
    gate.opened.set()
    comparing = stream._comparing
    assert comparing is not None
    await comparing
    assert not partition.delayed_fetches
