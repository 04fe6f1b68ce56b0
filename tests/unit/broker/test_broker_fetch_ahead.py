"""A follower that is far behind: the next slice comes while a thread writes this one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from headrace.log.errors import storage_full
from headrace.log.os_filesystem import OsFileSystem
from headrace.partition.topic_configs import Durability
from headrace.wire.batch import STAMP_BYTES, read_header, stamp
from headrace.wire.errors import CorruptBatchError, HeadraceError, InvalidRequestError
from headrace_broker.core.messages import StateSeen
from headrace_broker.core.replica_fetch import Diverged, FetchAnswer, Restart
from headrace_broker.core.roles import Role
from headrace_broker.runtime.partition import Partition
from headrace_broker.runtime.replica_fetcher import MAX_FETCHES, ReplicaFetcher
from headrace_server.internal_v1 import replication_pb2
from headrace_server.metadata_view import ClusterView
from headrace_server.native.outgoing import OutgoingMessage
from headrace_server.native.streams import Received
from headrace_server.partition_state import PartitionState, Replica

from tests.unit.broker.test_broker_runtime import TOPIC_ID, batch, leading_partition

LEADER = Replica(2, 7)
ME = Replica(1, 5)
LARGE = bytes(200_000)
"""A batch of it is written in a thread."""


def slices(count: int, value: bytes = LARGE) -> list[bytes]:
    """Batches of one record from offset 0, as the leader of epoch 1 has them."""
    made: list[bytes] = []
    previous_crc = 0
    for offset in range(count):
        data = batch(value)
        header = read_header(data)
        made.append(
            stamp(header, base_offset=offset, append_timestamp_ms=1, leader_epoch=1, previous_crc=previous_crc)
            + data[STAMP_BYTES:]
        )
        previous_crc = header.crc
    return made


def introduce(challenge: bytes) -> replication_pb2.FollowerIdentity:
    """Say who follows, as any leader of these tests takes it."""
    assert challenge == b"challenge"
    return replication_pb2.FollowerIdentity(broker_id=ME.broker_id)


class Follower:
    """A partition that follows broker 2 by a fetcher without a connection; its large writes stop at a gate."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.fetcher = ReplicaFetcher(LEADER.broker_id, cast(ClusterView, None), introduce, lambda: None)
        host = cast(Any, partition)._host
        host.follow = lambda partition, _leader: self.fetcher.add(partition)
        host.fetch = self.fetcher.fetch
        self.writing, self.gate = asyncio.Event(), threading.Event()
        self.failure: HeadraceError | None = None
        self._loop = asyncio.get_running_loop()
        self._append = partition.open_log.append_replicated
        partition.open_log.append_replicated = self._write  # type: ignore[method-assign]
        partition.update_config(replace(partition.config, durability=Durability.ASYNC))
        self.see(1)
        assert partition.replica.role is Role.FOLLOWING

    def see(self, leader_epoch: int, **fields: Any) -> None:
        """The key names broker 2 as leader of an epoch."""
        state = PartitionState((1, 2), LEADER, leader_epoch, (ME, LEADER), **fields)
        self.partition.handle(StateSeen(state, 100 + leader_epoch))

    def _write(self, data: Any) -> Any:
        self._loop.call_soon_threadsafe(self.writing.set)
        assert self.gate.wait(20)
        if self.failure is not None:
            raise self.failure
        return self._append(data)

    def fetch(self) -> replication_pb2.PartitionReplicaFetch | None:
        """What the fetcher would send now."""
        topics = self.fetcher._make_request().topics
        return topics[0].partitions[0] if topics else None

    @asynccontextmanager
    async def write(self, answer: FetchAnswer) -> AsyncIterator[asyncio.Task[bool]]:
        """Within: an answer is being written; after: it has been."""
        self.writing.clear()
        self.gate.clear()
        taking = asyncio.create_task(self.partition.follower.take_answer(answer))
        try:
            await asyncio.wait_for(self.writing.wait(), 20)
            yield taking
        finally:
            self.gate.set()
            await asyncio.wait([taking])


@asynccontextmanager
async def following(path: Path) -> AsyncIterator[Follower]:
    async with leading_partition(path) as partition:
        follower = Follower(partition)
        try:
            yield follower
        finally:
            follower.gate.set()


def answer(
    fetch: replication_pb2.PartitionReplicaFetch | None, batches: bytes, next_offset: int, **fields: Any
) -> FetchAnswer:
    assert fetch is not None
    return FetchAnswer(
        fetch.token, fetch.leader_epoch, batches=batches, more=next_offset > 0, next_offset=next_offset, **fields
    )


async def test_the_next_slice_is_fetched_while_one_is_written(follower: Follower) -> None:
    """The fetch says where the log ends, which is what it acknowledges, and from where it wants more; one at a time."""
    first, second, third = slices(3)
    begun = follower.fetch()
    async with follower.write(answer(begun, first, 1)):
        ahead = follower.fetch()
        assert ahead is not None
        assert (ahead.offset, ahead.durable_offset, ahead.last_epoch, ahead.read_offset) == (0, 0, -1, 1)
        follower.fetcher.fetch(follower.partition)
        assert follower.fetch() is None
    follower.fetcher.fetch(follower.partition)
    assert follower.fetch() is None
    async with follower.write(answer(ahead, second, 2)):
        further = follower.fetch()
        assert further is not None
        assert (further.offset, further.last_epoch, further.read_offset) == (1, 1, 2)
    assert await follower.partition.follower.take_answer(answer(further, third, 0))
    assert follower.partition.replica.log_end_offset == 3
    follower.fetcher.fetch(follower.partition)
    last = follower.fetch()
    assert last is not None
    assert (last.offset, last.read_offset) == (3, 0)


@pytest.mark.parametrize("failure", [storage_full("here"), CorruptBatchError("rotten")], ids=["full", "rotten"])
async def test_nothing_is_made_of_what_follows_a_slice_that_was_not_written(
    follower: Follower, failure: HeadraceError
) -> None:
    """H6: the fetch ahead is over, so that its answer neither counts as corruption nor cuts the pause short."""
    first, second = slices(2)
    begun = follower.fetch()
    follower.failure = failure
    async with follower.write(answer(begun, first, 1)) as taking:
        ahead = follower.fetch()
    with pytest.raises(type(failure)):
        await taking
    assert not await follower.partition.follower.take_answer(answer(ahead, second, 0))
    assert follower.partition.replica.log_end_offset == 0
    follower.fetcher.fetch(follower.partition)
    again = follower.fetch()
    assert again is not None
    assert (again.offset, again.read_offset) == (0, 0)


async def test_a_decision_on_a_fetch_ahead_changes_nothing(follower: Follower) -> None:
    """H6: it is about the log before the slice; the leader is asked again."""
    (first,) = slices(1)
    async with follower.write(answer(follower.fetch(), first, 1)):
        ahead = follower.fetch()
    assert await follower.partition.follower.take_answer(answer(ahead, b"", 0, decision=Restart(9, 0)))
    assert follower.partition.replica.log_end_offset == 1


@pytest.mark.parametrize("is_ahead", [True, False])
async def test_deletions_that_went_meanwhile_are_asked_about_first(follower: Follower, is_ahead: bool) -> None:
    """H151: the leader has removed deletions since it judged the fetch. The range lacks them, and the log here may have
    what they deleted; the leader decides by what the next fetch says.
    """
    first, second = slices(2)
    async with follower.write(answer(follower.fetch(), first, 1 if is_ahead else 0)):
        fetch = follower.fetch() if is_ahead else None
    if not is_ahead:
        follower.fetcher.fetch(follower.partition)
        fetch = follower.fetch()
    assert await follower.partition.follower.take_answer(answer(fetch, second, 0, deletions_end=2))
    follower.fetcher.fetch(follower.partition)
    again = follower.fetch()
    assert again is not None
    assert (again.offset, again.read_offset, again.deletions_end) == (1, 0, 0)


async def test_what_one_leader_sent_is_no_place_to_read_on_at_another(follower: Follower) -> None:
    """H4: a new epoch begins while a slice is written; its first fetch waits for that and is from the log end."""
    (first,) = slices(1)
    async with follower.write(answer(follower.fetch(), first, 1)):
        follower.see(2)
        assert follower.fetch() is None
    fetch = follower.fetch()
    assert fetch is not None
    assert (fetch.leader_epoch, fetch.offset, fetch.read_offset) == (2, 1, 0)


async def test_a_throttled_copy_fetches_nothing_ahead(follower: Follower) -> None:
    """Its next slice is due when the last one is paid for."""
    (first,) = slices(1)
    follower.see(2, adding=(1,), copy_bytes_per_second=1_000_000)
    async with follower.write(answer(follower.fetch(), first, 1)):
        assert follower.fetch() is None


class Stream:
    """A stream to a leader whose messages a test puts in; `taken` counts those that the fetcher has read."""

    is_over = False
    heard_bytes = 0

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Received | None] = asyncio.Queue()
        self.taken = 0
        self.has_read = asyncio.Event()
        self.sent: asyncio.Queue[replication_pb2.ReplicaFetchRequest] = asyncio.Queue()

    async def read(self) -> Received | None:
        received = await self.messages.get()
        self.taken += 1
        self.has_read.set()
        return received

    async def write(self, outgoing: OutgoingMessage) -> None:
        self.sent.put_nowait(replication_pb2.ReplicaFetchRequest.FromString(outgoing.message))

    def abort(self) -> None:
        pass

    def hear_all(self) -> None:
        pass

    def put(self, response: replication_pb2.ReplicaFetchResponse, batches: bytes = b"", **fields: Any) -> None:
        """Have the leader send a message."""
        fields = {"is_discarded": False, **fields}
        self.messages.put_nowait(Received(response.SerializeToString(), memoryview(batches), **fields))

    async def next_fetch(self) -> replication_pb2.PartitionReplicaFetch:
        while True:
            request = await asyncio.wait_for(self.sent.get(), 20)
            if request.topics:
                return request.topics[0].partitions[0]

    def answer(
        self, fetch: replication_pb2.PartitionReplicaFetch, batches: bytes, next_offset: int, **fields: Any
    ) -> None:
        response = replication_pb2.ReplicaFetchResponse()
        result = response.topics.add(topic_id=TOPIC_ID).partitions.add(
            token=fetch.token,
            leader_epoch=fetch.leader_epoch,
            more=next_offset > 0,
            next_offset=next_offset,
            batches_size=len(batches),
        )
        assert result.partition == 0
        self.put(response, batches, **fields)


async def test_one_message_is_read_while_one_is_written(follower: Follower) -> None:
    """And no more than one: what is in memory is bounded."""
    first, second = slices(2)
    stream = Stream()
    talking = asyncio.create_task(follower.fetcher._talk(cast(Any, stream)))
    stream.answer(await stream.next_fetch(), first, 1)
    ahead = await stream.next_fetch()
    await asyncio.wait_for(follower.writing.wait(), 20)
    assert ahead.read_offset == 1
    stream.answer(ahead, second, 0)
    for _ in range(3):
        stream.put(replication_pb2.ReplicaFetchResponse())
    for _ in range(20):
        await asyncio.sleep(0)
    assert (stream.taken, follower.partition.open_log.log_end_offset) == (2, 0)
    follower.gate.set()
    last = await stream.next_fetch()
    assert (last.offset, last.read_offset) == (2, 0)
    talking.cancel()
    await asyncio.wait([talking])


async def test_a_late_answer_does_not_retry_a_full_disk(follower: Follower) -> None:
    """The answer to the fetch ahead comes while the follower pauses: the pause continues."""
    first, second = slices(2)
    follower.failure = storage_full("here")
    stream = Stream()
    talking = asyncio.create_task(follower.fetcher._talk(cast(Any, stream)))
    stream.answer(await stream.next_fetch(), first, 1)
    stream.answer(await stream.next_fetch(), second, 0)
    stream.put(replication_pb2.ReplicaFetchResponse())
    await asyncio.wait_for(follower.writing.wait(), 20)
    follower.gate.set()
    async with asyncio.timeout(20):
        while stream.taken < 3:  # The fetcher reads the third once it has dealt with the first.
            stream.has_read.clear()
            await stream.has_read.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not follower.fetcher._due
    assert stream.sent.empty()
    talking.cancel()
    await asyncio.wait([talking])


class Followed:
    """A partition that may always be fetched, as a fetcher sees it."""

    class replica:
        leader_epoch, flushed_offset, high_watermark, log_start_offset, state = 1, 0, 0, 0, None

    class open_log:
        deletions_end = 0

        class end:
            offset, epoch, crc = 0, -1, 0

    class follower:
        leader_flushed_offset = 0

        @staticmethod
        def may_fetch() -> bool:
            return True

        @staticmethod
        def begin_fetch(_offset: int) -> tuple[int, int, int]:
            return 1, 0, 0


def test_a_message_of_a_follower_is_bounded() -> None:
    """Neither end is busy with one message for long: what is over the bound goes by the next one, at once."""
    fetcher = ReplicaFetcher(LEADER.broker_id, cast(ClusterView, None), lambda: None, lambda: None)
    fetcher._due = {(b"t" * 16, number): cast(Partition, Followed()) for number in range(MAX_FETCHES + 500)}
    asked = []
    for expected, wakes in ((MAX_FETCHES, True), (500, False)):
        (topic,) = fetcher._make_request().topics
        assert (len(topic.partitions), fetcher._wake.is_set()) == (expected, wakes)
        asked += [part.partition for part in topic.partitions]
        fetcher._wake.clear()
    assert asked == list(range(MAX_FETCHES + 500))


async def test_a_discarded_answer_is_not_applied_and_fetched_again(follower: Follower) -> None:
    """H4: the leader's log was truncated while it was sent, so the bytes may be of two leader epochs."""
    (first,) = slices(1)
    stream = Stream()
    follower.gate.set()
    talking = asyncio.create_task(follower.fetcher._talk(cast(Any, stream)))
    fetch = await stream.next_fetch()
    stream.answer(fetch, first, 0, is_discarded=True)
    again = await stream.next_fetch()
    assert (again.offset, again.token) == (0, fetch.token + 1)
    assert follower.partition.open_log.log_end_offset == 0
    stream.answer(again, first, 0)
    assert (await stream.next_fetch()).offset == 1
    talking.cancel()
    await asyncio.wait([talking])


async def test_a_message_that_contradicts_itself_ends_the_stream(follower: Follower) -> None:
    """Sizes that are not those of the attachments, or no message: nothing of it is applied."""
    stream = Stream()
    response = replication_pb2.ReplicaFetchResponse()
    response.topics.add(topic_id=TOPIC_ID).partitions.add(batches_size=5)
    stream.put(response, b"four")
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        await follower.fetcher._talk(cast(Any, stream))


async def test_the_batch_of_a_truncation_is_looked_up_in_a_thread(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H46: after a failover the logs of many partitions may have diverged."""
    reading: list[bool] = []
    main, pread = threading.current_thread(), OsFileSystem.pread

    def noted(filesystem: OsFileSystem, *arguments: int) -> bytes:
        reading.append(threading.current_thread() is main)
        return pread(filesystem, *arguments)

    follower.gate.set()
    first, second = slices(2, b"small")
    assert await follower.partition.follower.take_answer(answer(follower.fetch(), first + second, 0))
    follower.fetcher.fetch(follower.partition)
    monkeypatch.setattr(OsFileSystem, "pread", noted)
    assert await follower.partition.follower.take_answer(answer(follower.fetch(), b"", 0, decision=Diverged(1, 1)))
    assert follower.partition.replica.log_end_offset == 1
    assert reading
    assert not any(reading)


async def test_a_leader_epoch_that_begins_is_synced_in_a_thread(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H46: after a failover the first answer of each partition is small; the next ones append on the loop."""
    syncing: list[bool] = []
    appending: list[bool] = []
    main = threading.current_thread()
    for name in ("fsync", "fsync_directory"):
        sync = getattr(OsFileSystem, name)

        def noted(filesystem: OsFileSystem, file: Any, sync: Callable[..., None] = sync) -> None:
            syncing.append(threading.current_thread() is main)
            sync(filesystem, file)

        monkeypatch.setattr(OsFileSystem, name, noted)

    def append(data: Any, append: Callable[..., Any] = follower.partition.open_log.append_replicated) -> Any:
        appending.append(threading.current_thread() is main)
        return append(data)

    monkeypatch.setattr(follower.partition.open_log, "append_replicated", append)
    follower.gate.set()
    for data in slices(2, b"small"):
        assert await follower.partition.follower.take_answer(answer(follower.fetch(), data, 0))
        follower.fetcher.fetch(follower.partition)
    assert syncing
    assert not any(syncing)
    assert appending == [False, True]
    assert follower.partition.open_log.epochs() == ((1, 0),)
