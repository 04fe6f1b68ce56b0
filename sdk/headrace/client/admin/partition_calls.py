"""Fetches of whole batches from one log, and appends of them to another, at the leaders of their partitions.

No I/O. The leaders are remembered, and looked up again after an error.
"""

import itertools
import random
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace.client.admin import rpc
from headrace.client.base.config import AdminConfig
from headrace.client.base.operations import Call, Operation, Pause
from headrace.client.base.retry import Backoff, Tries
from headrace.client.net.bootstrap_client import BootstrapClient, error_of_call
from headrace.client.net.cluster_metadata import ClusterMetadata
from headrace.v1 import broker_pb2
from headrace.wire.batch import iter_batches
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import (
    HeadraceError,
    InternalError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    Outcome,
    UnknownTopicIdError,
    rpc_failures,
)
from headrace.wire.ids import TopicPartition
from headrace.wire.zero_copy import SplicedMessage


class Fetched(NamedTuple):
    """Answer to a fetch of one partition."""

    batches: ReadableBuffer
    high_watermark: int
    log_start_offset: int
    """-1 if it is not known yet."""
    deletions_end: int
    leader_epoch: int
    chain_crc: int | None = None
    """Chain value at the offset of the fetch, if the log is empty and ends there."""


class CopyResult(NamedTuple):
    """Answer to an append of copies."""

    log_end_offset: int
    chain_crc: int
    """Chain value at the log end."""
    error: HeadraceError | None
    """Why the copies, or some of them, were not appended: they do not begin at the log end."""


class PartitionCalls:
    """Calls about one topic of one cluster or directory. Several may be in flight."""

    def __init__(self, topic: str, topic_id: bytes, config: AdminConfig) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self._config = config
        self._bootstrap = BootstrapClient(config)
        self._metadata = ClusterMetadata()
        self._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random.Random())

    def fetch(self, number: int, offset: int, *, max_wait_ms: int, max_bytes: int) -> Operation[Fetched]:
        """Fetch whole batches of a partition from the one that contains `offset`; waits up to `max_wait_ms` for some.

        Raises:
            OffsetOutOfRangeError: If the partition begins after `offset`, or ends before it.
            UnknownTopicIdError: If the topic was deleted.
            HeadraceError: The last error, once `request_timeout_ms` has passed.
        """
        request = broker_pb2.FetchRequest(
            client_id=self._config.client_id, max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=max_bytes
        )
        entry = request.topics.add(topic=rpc.by_id(self.topic_id))
        part = entry.partitions.add(partition=number, offset=offset)
        spliced, result = yield from self._at_leader(number, "FetchZeroCopy", request, part, max_wait_ms / 1000)
        error = rpc.error_of(result)
        if error is not None:
            raise error
        if spliced.message.throttle_ms and max_wait_ms:  # The broker has no place for this fetch to wait.
            yield Pause(spliced.message.throttle_ms / 1000)
        return Fetched(
            spliced.batches[0][0] if spliced.batches[0] else b"",
            result.high_watermark,
            result.log_start_offset,
            result.deletions_end,
            result.leader_epoch,
            result.chain_crc if result.HasField("chain_crc") else None,
        )

    def batch_with(self, number: int, offset: int) -> Operation[tuple[int, int] | None]:
        """Return end offset and chain value of the batch that contains an offset; `None` if it is not visible."""
        try:
            fetched = yield from self.fetch(number, offset, max_wait_ms=0, max_bytes=1)
        except OffsetOutOfRangeError:
            return None
        return next(((header.end_offset, header.chain_crc) for header, _ in iter_batches(fetched.batches)), None)

    def append(self, number: int, batches: Sequence[ReadableBuffer], *, deletions_end: int) -> Operation[CopyResult]:
        """Append copies to a partition of a mirror; without any, only ask for the log end.

        A copy that is sent again after an unknown outcome is refused, because the log does not end there any more, and
        the answer has where it ends.

        Raises:
            DivergedLogError: If they do not continue the log.
            InvalidRequestError: If the topic is no mirror, any more.
            UnknownTopicIdError: If the topic was deleted.
            HeadraceError: The last error, once `request_timeout_ms` has passed.
        """
        request = broker_pb2.ProduceRequest(
            client_id=self._config.client_id,
            acks=broker_pb2.ACKS_LEADER,
            timeout_ms=self._config.request_timeout_ms,
            as_copies=True,
        )
        entry = request.topics.add(topic=rpc.by_id(self.topic_id))
        part = entry.partitions.add(partition=number, deletions_end=deletions_end)
        spliced = SplicedMessage(request, [list(batches)])
        _, result = yield from self._at_leader(number, "ProduceZeroCopy", spliced, part, 0)
        error = rpc.error_of(result)
        if error is not None and not isinstance(error, OffsetOutOfRangeError):
            raise error
        return CopyResult(result.log_end_offset, result.log_end_crc, error)

    def _at_leader(
        self, number: int, method: str, request: Any, part: Any, wait_seconds: float
    ) -> Operation[tuple[Any, Any]]:
        """Call the partition's leader; return the response and the partition's result.

        A call that was not applied, or has an unknown outcome, is repeated until `request_timeout_ms` has passed. A
        result with another error is returned.
        """
        seconds = self._config.request_timeout_ms / 1000
        deadline = time.monotonic() + seconds
        problem: HeadraceError | None = None
        tries = Tries(method)
        for attempt in itertools.count(1):
            left = max(0.001, deadline - time.monotonic())
            try:
                address, part.leader_epoch = yield from self._leader(number, left, again=problem is not None)
                response = yield Call(address, "broker", method, request, left + wait_seconds)
                message = response.message if isinstance(response, SplicedMessage) else response
                result = message.topics[0].partitions[0]
                problem = rpc.error_of(result)
                if problem is None or not problem.retriable:
                    return response, result
            except rpc_failures() as error:
                problem = error_of_call(error)
            except HeadraceError as error:
                problem = error
            except IndexError:
                raise InternalError(f"the response to {method} has no result", outcome=Outcome.UNKNOWN) from None
            tries.failed(problem)
            if not problem.retriable:
                raise tries.final(problem)
            delay = self._backoff.delay_ms(attempt, problem.retry_after_ms) / 1000
            if time.monotonic() + delay >= deadline:
                raise tries.final(problem)
            yield Pause(delay)
        raise AssertionError("unreachable: the count has no end")

    def _leader(self, number: int, timeout: float, *, again: bool) -> Operation[tuple[str, int]]:
        """Return address and epoch of a partition's leader."""
        tp = TopicPartition(self.topic, number)
        if again or self._metadata.topic(self.topic) is None:
            self._metadata.update((yield from self._bootstrap.metadata(rpc.metadata_request(self.topic), timeout)))
        found = self._metadata.require(self.topic)
        if found.topic_id != self.topic_id:
            raise UnknownTopicIdError(
                f"topic {self.topic} was deleted and created again: its id is {found.topic_id.hex()}, and not "
                f"{self.topic_id.hex()}",
                outcome=Outcome.NOT_APPLIED,
                retriable=False,
            )
        leader = self._metadata.leader(tp, self.topic_id)
        if leader is None:
            raise LeaderNotAvailableError(f"partition {number} of topic {self.topic} has no leader now")
        return leader[1], leader[2]
