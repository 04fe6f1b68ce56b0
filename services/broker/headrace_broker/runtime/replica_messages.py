"""Conversion of replica fetches between `replication.proto` and `core.replica_fetch`."""

from __future__ import annotations

import asyncio

from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import HeadraceError, to_detail
from headrace_server.internal_v1 import replication_pb2
from headrace_server.native.framed_connection import FRAME_SECONDS
from headrace_server.native.streams import MessageStream, Received
from headrace_server.partition_state import Replica

from headrace_broker.core.replica_fetch import Diverged, FetchAnswer, FetchDecision, FetchRequest, Restart

HEARTBEAT_SECONDS = 0.5
SILENCE_SECONDS = 5.0
"""A stream on which nothing came for so long is given up."""
MAX_REQUEST_BYTES = 1 << 20
"""Of one message of a follower: far more than `replica_fetcher.MAX_FETCHES` take."""


async def receive(stream: MessageStream) -> Received | None:
    """Return the next message of a stream; `None` means that it has ended.

    Raises:
        TimeoutError: If nothing arrives for `SILENCE_SECONDS`, or the message is not complete in `FRAME_SECONDS`.
        HeadraceError: As `read`.
    """
    loop = asyncio.get_running_loop()
    begun, heard_bytes, was_silent = loop.time(), stream.heard_bytes, False
    while True:
        try:
            async with asyncio.timeout(SILENCE_SECONDS / 2):
                return await stream.read()
        except TimeoutError:
            is_silent = stream.heard_bytes == heard_bytes
            if (is_silent and was_silent) or loop.time() - begun > FRAME_SECONDS:
                raise
            was_silent, heard_bytes = is_silent, stream.heard_bytes
            stream.hear_all()


def read_request(follower: Replica, entry: replication_pb2.PartitionReplicaFetch) -> FetchRequest:
    """Convert one fetch of a request."""
    return FetchRequest(
        follower=follower,
        leader_epoch=entry.leader_epoch,
        token=entry.token,
        offset=entry.offset,
        durable_offset=entry.durable_offset,
        last_epoch=entry.last_epoch,
        last_crc=entry.last_crc,
        high_watermark=entry.high_watermark,
        partition_epoch=entry.partition_epoch,
        read_offset=entry.read_offset,
        log_start_offset=entry.log_start_offset,
        deletions_end=entry.deletions_end,
        leader_flushed_offset=entry.leader_flushed_offset if entry.HasField("leader_flushed_offset") else None,
    )


def write_decision(result: replication_pb2.PartitionReplicaFetchResult, decision: FetchDecision) -> None:
    """Store a decision in a result."""
    match decision:
        case Diverged(leader_epoch, end_offset, is_compacted):
            result.diverged.leader_epoch, result.diverged.end_offset = leader_epoch, end_offset
            result.diverged.compacted = is_compacted
        case Restart(offset, previous_crc, is_compacted):
            result.restart.offset, result.restart.previous_crc = offset, previous_crc
            result.restart.compacted = is_compacted


def write_error(result: replication_pb2.PartitionReplicaFetchResult, error: HeadraceError) -> None:
    """Store an error in a result."""
    result.error.CopyFrom(to_detail(error))


def read_answer(result: replication_pb2.PartitionReplicaFetchResult, batches: ReadableBuffer) -> FetchAnswer:
    """Convert one result of a response that is not an error."""
    decision: FetchDecision | None = None
    if result.HasField("diverged"):
        diverged = result.diverged
        decision = Diverged(diverged.leader_epoch, diverged.end_offset, diverged.compacted)
    elif result.HasField("restart"):
        decision = Restart(result.restart.offset, result.restart.previous_crc, result.restart.compacted)
    return FetchAnswer(
        token=result.token,
        leader_epoch=result.leader_epoch,
        decision=decision,
        batches=batches,
        high_watermark=result.high_watermark,
        log_start_offset=result.log_start_offset,
        more=result.more,
        next_offset=result.next_offset,
        deletions_end=result.deletions_end,
        flushed_offset=result.flushed_offset,
    )
