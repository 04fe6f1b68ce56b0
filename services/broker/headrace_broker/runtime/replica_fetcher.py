"""Follower side of the stream to one leader: sends fetches for all partitions followed there, applies responses.

Made by `replication` for each broker that leads partitions followed here; belongs to the event loop. A broken stream is
reopened with back-off; responses to fetches of the old one are never used (H6).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import Any

import structlog
from google.protobuf.message import DecodeError
from headrace.log.errors import REFUSALS
from headrace.wire.attachments import splice_fetch
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import (
    CorruptBatchError,
    HeadraceError,
    InvalidRequestError,
    UnsupportedVersionError,
    from_detail,
)
from headrace.wire.frames import MethodCode
from headrace.wire.ids import BrokerId
from headrace.wire.releases import REPLICA_NEEDS, check_peer
from headrace.wire.zero_copy import SplicedMessage
from headrace_server.internal_v1 import metadata_pb2, replication_pb2
from headrace_server.metadata_view import ClusterView
from headrace_server.native.outgoing import OutgoingMessage
from headrace_server.native.streams import MessageStream, Received, open_stream
from headrace_server.tls import TlsIdentity

from headrace_broker.core.roles import Role
from headrace_broker.runtime.partition import Partition
from headrace_broker.runtime.replica_messages import (
    HEARTBEAT_SECONDS,
    read_answer,
    receive,
)
from headrace_broker.runtime.uninterrupted import cancel_and_wait

log = structlog.get_logger(__name__)

PartitionId = tuple[bytes, int]

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
REFUSED_PAUSE_SECONDS = 0.1
REFUSED_STORAGE_SECONDS = 1.0
MAX_FETCHES = 1_000
"""Of one message, so that neither end is busy with it for long."""


class ReplicaFetcher:
    """Fetches from one leader broker; see the module."""

    def __init__(
        self,
        leader_id: int,
        view: ClusterView,
        identify: Callable[[bytes], replication_pb2.FollowerIdentity | None],
        on_heartbeat: Callable[[], None],
        tls: TlsIdentity | None = None,
    ) -> None:
        """`identify` returns the answer to the leader's challenge, or `None` without a session. `on_heartbeat` is
        called for every message. `tls` is the client identity; `None` means plain text.
        """
        self._leader_id = leader_id
        self._view = view
        self._identify = identify
        self._on_heartbeat = on_heartbeat
        self._tls = tls
        self._partitions: dict[PartitionId, Partition] = {}
        self._due: dict[PartitionId, Partition] = {}
        self._corrupt: dict[PartitionId, None] = {}
        self._wake = asyncio.Event()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._refusal = ""

    @property
    def partitions(self) -> int:
        """Number of followed partitions."""
        return len(self._partitions)

    def add(self, partition: Partition) -> None:
        """Add a partition, or update it for a new leader epoch."""
        key = (partition.topic_id, partition.number)
        self._partitions[key] = partition
        self.fetch(partition)

    def remove(self, partition: Partition) -> None:
        """Remove a partition."""
        key = (partition.topic_id, partition.number)
        self._partitions.pop(key, None)
        self._due.pop(key, None)
        self._corrupt.pop(key, None)

    def fetch(self, partition: Partition) -> None:
        """Schedule a fetch of the partition."""
        key = (partition.topic_id, partition.number)
        if key in self._partitions:
            self._due[key] = partition
            self._wake.set()

    async def run(self) -> None:
        """Keep the stream up until cancelled."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            broker = self._view.brokers.get(BrokerId(self._leader_id))
            if broker is not None and self._partitions and self._goes_with(broker.live):
                try:
                    if await self._connect(broker.live.replication_address):
                        pause = FIRST_PAUSE_SECONDS
                except (OSError, HeadraceError) as error:
                    cause = "nothing was heard" if isinstance(error, TimeoutError) else str(error)
                    log.info("replica_stream_ended", leader=self._leader_id, cause=cause)
                finally:
                    self._end_fetches()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _goes_with(self, leader: metadata_pb2.BrokerLive) -> bool:
        """Return whether the leader's release is compatible; log once why not."""
        try:
            check_peer(f"broker {self._leader_id}, which leads,", leader.version, leader.capabilities, REPLICA_NEEDS)
        except UnsupportedVersionError as error:
            if self._refusal != error.message:
                log.error("leader_not_followed", leader=self._leader_id, reason=str(error))
            self._refusal = error.message
            return False
        self._refusal = ""
        return True

    def _end_fetches(self) -> None:
        for partition in self._partitions.values():
            partition.replica.fetches.end()
            self.fetch(partition)

    async def _connect(self, address: str) -> bool:
        """Run one stream to its end; return whether the leader sent anything. Raises OSError, HeadraceError."""
        context = None if self._tls is None else self._tls.client_context()
        stream = await open_stream(address, MethodCode.REPLICA_FETCH, f"follower of broker-{self._leader_id}", context)
        try:
            return await self._introduce(stream) and await self._talk(stream)
        finally:
            stream.abort()

    async def _talk(self, stream: MessageStream) -> bool:
        """Fetch until the stream ends; return whether the leader sent anything. Raises TimeoutError, HeadraceError."""
        heard = False
        applying: asyncio.Task[None] | None = None
        writer = asyncio.create_task(self._write(stream))
        try:
            while not writer.done():
                received = await receive(stream)
                if received is None:
                    break  # The leader ended the stream.
                heard = True
                self._on_heartbeat()
                spliced = _parse(received)
                # The next message comes in while this one is written: one is at hand, never more.
                if applying is not None:
                    await applying
                applying = asyncio.create_task(self._apply(spliced, is_discarded=received.is_discarded))
            return heard
        finally:
            for task in list(self._tasks):
                task.cancel()
            await cancel_and_wait(writer, *([] if applying is None else [applying]))

    async def _introduce(self, stream: MessageStream) -> bool:
        """Answer the leader's challenge; return whether the stream is ready for fetches."""
        received = await receive(stream)
        if received is None:
            return False
        identity = self._identify(_parse(received).message.challenge)
        if identity is None or stream.is_over:
            return False
        await _send(stream, replication_pb2.ReplicaFetchRequest(follower=identity))
        return True

    # --- fetches ---

    async def _write(self, stream: MessageStream) -> None:
        """Send fetches until the stream is gone."""
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            request = self._make_request()
            try:
                await _send(stream, request)
            except ConnectionError:
                return

    def _make_request(self) -> replication_pb2.ReplicaFetchRequest:
        request = replication_pb2.ReplicaFetchRequest()
        topics: dict[bytes, replication_pb2.TopicReplicaFetch] = {}
        due = dict(islice(self._due.items(), MAX_FETCHES))
        for key in due:
            del self._due[key]
        if self._due:
            self._wake.set()  # The next message has the others.
        for key, partition in due.items():
            if not partition.follower.may_fetch():
                continue  # A flush is in progress and triggers the fetch.
            # A thread may be appending: the last response, or a produce of a leadership that has just ended.
            replica, end = partition.replica, partition.open_log.end
            begun = partition.follower.begin_fetch(end.offset)
            if begun is None:
                continue
            token, durable_offset, read_offset = begun
            topic = topics.get(key[0])
            if topic is None:
                topic = topics[key[0]] = request.topics.add(topic_id=key[0])
            topic.partitions.add(
                partition=key[1],
                leader_epoch=replica.leader_epoch,
                token=token,
                offset=end.offset,
                durable_offset=durable_offset,
                last_epoch=end.epoch,
                last_crc=end.crc,
                high_watermark=replica.high_watermark,
                partition_epoch=0 if replica.state is None else replica.state.partition_epoch,
                corruption_detected=key in self._corrupt,
                read_offset=read_offset,
                log_start_offset=replica.log_start_offset,
                deletions_end=partition.open_log.deletions_end,
                leader_flushed_offset=partition.follower.leader_flushed_offset,
            )
            self._corrupt.pop(key, None)
        return request

    # --- answers ---

    async def _apply(self, spliced: SplicedMessage, *, is_discarded: bool) -> None:
        in_order = iter(spliced.batches)
        for topic in spliced.message.topics:
            for result in topic.partitions:
                data = next(in_order)
                key = (topic.topic_id, result.partition)
                partition = self._partitions.get(key)
                if partition is None:
                    continue
                if is_discarded:
                    if partition.replica.fetches.take_answer(result.token, result.leader_epoch):
                        self._fetch_after(partition, 0)
                elif result.HasField("error"):
                    self._refused(key, partition, result)
                elif result.HasField("diverged") or result.HasField("restart"):
                    # A truncation waits for the disk several times, so it runs concurrently with other partitions.
                    self._spawn(partition, self._take(key, partition, result, b""))
                else:
                    await self._take(key, partition, result, data[0])

    def _spawn(self, partition: Partition, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        partition.context.watch(task)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _take(
        self,
        key: PartitionId,
        partition: Partition,
        result: replication_pb2.PartitionReplicaFetchResult,
        data: ReadableBuffer,
    ) -> None:
        pause = 0.0
        try:
            if not await partition.follower.take_answer(read_answer(result, data)):
                return
        except CorruptBatchError as error:
            partition.context.metrics.corrupt_fetches.inc()
            log.error(
                "replica_fetch_corrupt",
                topic=partition.topic, partition=partition.number, leader=self._leader_id, reason=str(error),
            )  # fmt: skip
            self._corrupt[key] = None
            pause = REFUSED_PAUSE_SECONDS
        except REFUSALS:
            pause = REFUSED_STORAGE_SECONDS
        except HeadraceError:
            return  # It is offline.
        self._fetch_after(partition, pause)

    def _refused(
        self, key: PartitionId, partition: Partition, result: replication_pb2.PartitionReplicaFetchResult
    ) -> None:
        """Handle an error response (not the leader, or stale metadata here) by a retry after a delay."""
        if not partition.replica.fetches.take_answer(result.token, result.leader_epoch):
            return
        error = from_detail(result.error)
        log.info(
            "replica_fetch_refused",
            topic=partition.topic, partition=partition.number, leader=self._leader_id, reason=str(error),
        )  # fmt: skip
        self._fetch_after(partition, REFUSED_PAUSE_SECONDS)

    def _fetch_after(self, partition: Partition, seconds: float) -> None:
        if partition.replica.role is not Role.FOLLOWING:
            return
        if seconds <= 0:
            self.fetch(partition)
        else:
            asyncio.get_running_loop().call_later(seconds, self.fetch, partition)


def _parse(received: Received) -> SplicedMessage:
    try:
        return splice_fetch(replication_pb2.ReplicaFetchResponse.FromString(received.message), received.attachments)
    except (DecodeError, ValueError) as error:
        raise InvalidRequestError("a message of the leader cannot be read") from error


async def _send(stream: MessageStream, request: replication_pb2.ReplicaFetchRequest) -> None:
    await stream.write(OutgoingMessage(request.SerializeToString()))
