"""Calls of `Admin` to one broker, or to the leader of each partition of a topic, with retries. No I/O."""

import itertools
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace.client.admin import rpc
from headrace.client.base.config import ClientConfig
from headrace.client.base.operations import Call, Operation, Pause
from headrace.client.base.retry import Backoff, Tries
from headrace.client.net.bootstrap_client import BootstrapClient, status_of
from headrace.client.net.cluster_metadata import ClusterMetadata
from headrace.wire.errors import (
    HeadraceError,
    LeaderNotAvailableError,
    NotLeaderError,
    Outcome,
    TimedOutError,
    TransportError,
    UnknownTopicIdError,
    from_rpc_error,
    rpc_failures,
)

BuildRequest = Callable[[list[tuple[int, int]], bytes], Any]
"""Builds a request for partitions of one leader, [(partition, leader epoch)], and the topic's id."""


class BrokerCalls:
    """Broker calls of one client; any thread. `timeout` in seconds is for all tries (default: request_timeout_ms)."""

    def __init__(self, config: ClientConfig, calls: BootstrapClient) -> None:
        self._config = config
        self._calls = calls
        self._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random.Random())

    def seconds(self, timeout: float | None) -> float:
        """Return the timeout in seconds, or the default."""
        return self._config.request_timeout_ms / 1000 if timeout is None else timeout

    def broker(self, address: str, method: str, request: Any, timeout: float | None) -> Operation[Any]:
        """Call one broker; errors name its address."""
        try:
            return (yield Call(address, "broker", method, request, self.seconds(timeout)))
        except rpc_failures() as error:
            typed = from_rpc_error(error)
            typed.add_note(f"call to {address} failed: {status_of(error)[1]}")
            raise typed from error

    def at_leaders(
        self,
        method: str,
        topic: str,
        partitions: Sequence[int] | None,
        build_request: BuildRequest,
        timeout: float | None,
        topic_id: bytes = b"",
    ) -> Operation[tuple[bytes, list[Any]]]:
        """Call each partition's leader. A request that was not applied and may succeed later is repeated with fresh
        metadata and back-off until the timeout.

        All requests address one incarnation of the topic, `topic_id` or the first one found; its id is returned.

        Raises:
            UnknownTopicIdError: If the topic has another id now.
            HeadraceError: The error of the last round that was answered in time, with a note of the partitions left.
        """
        deadline = time.monotonic() + self.seconds(timeout)
        results: list[Any] = []
        tries = Tries(method)
        rounds = self._rounds(method, topic, partitions, build_request, deadline, topic_id, results, tries)
        try:
            return (yield from rounds), results
        except HeadraceError as error:
            if results:
                tries.applied_in_part()
            tries.final(error)
            raise

    def _rounds(
        self,
        method: str,
        topic: str,
        wanted: Sequence[int] | None,
        build_request: BuildRequest,
        deadline: float,
        topic_id: bytes,
        results: list[Any],
        tries: Tries,
    ) -> Operation[bytes]:
        """Ask until all partitions have answered; return the topic's id."""
        problem: HeadraceError | None = None
        for attempt in itertools.count(1):
            left = max(0.001, deadline - time.monotonic())
            cluster_metadata = ClusterMetadata()
            cluster_metadata.update((yield from self._calls.metadata(rpc.metadata_request(topic), left)))
            topic_leaders = cluster_metadata.topic(topic)
            if topic_leaders is not None:
                topic_id = topic_id or topic_leaders.topic_id
                _check_life(topic, topic_id, topic_leaders.topic_id)
            left = max(0.001, deadline - time.monotonic())
            try:
                wanted, problem = yield from self._ask_leaders(
                    method, topic, wanted, build_request, left, cluster_metadata, results, tries
                )
            except TimedOutError as error:
                if problem is None:
                    raise
                raise problem from error  # The reason for which the time was used up.
            if problem is None:
                return topic_id
            if wanted is not None:
                problem.add_note(f"{method} of {topic}: {len(results)} partitions answered, {len(wanted)} left")
            delay = self._backoff.delay_ms(attempt, problem.retry_after_ms) / 1000
            if time.monotonic() + delay >= deadline:
                raise problem
            yield Pause(delay)
        raise AssertionError("unreachable: the count has no end")

    def _ask_leaders(
        self,
        method: str,
        topic: str,
        wanted: Sequence[int] | None,
        build_request: BuildRequest,
        timeout: float,
        cluster_metadata: ClusterMetadata,
        results: list[Any],
        tries: Tries,
    ) -> Operation[tuple[Sequence[int] | None, HeadraceError | None]]:
        """Make one round and append to `results`; return the partitions to retry and the error, or (`None`, `None`)."""
        try:
            plan = rpc.by_leader(cluster_metadata, topic, wanted)
        except HeadraceError as error:
            return wanted, _if_repeatable(error, tries)
        again: list[int] = []
        problem: HeadraceError | None = None
        for address, parts in plan.items():
            request = build_request(parts, cluster_metadata.require(topic).topic_id)
            try:
                response = yield from self.broker(address, method, request, timeout)
            except HeadraceError as error:
                problem = _if_repeatable(error, tries)
                again.extend(partition for partition, _ in parts)
                continue
            for result in response.topics[0].partitions:
                error_here = rpc.error_of(result)
                if error_here is None:
                    results.append(result)
                else:
                    problem = _if_repeatable(error_here, tries)
                    again.append(result.partition)
        return again, problem


def _check_life(topic: str, wanted: bytes, found: bytes) -> None:
    if found != wanted:
        raise UnknownTopicIdError(
            f"topic {topic} was deleted and created again: its id is {found.hex()}, and not {wanted.hex()}",
            outcome=Outcome.NOT_APPLIED,
        )


def _if_repeatable(error: HeadraceError, tries: Tries) -> HeadraceError:
    """Return the error of a try if a retry may succeed; raise any other."""
    tries.failed(error)
    repeatable = error.retriable and (error.outcome == Outcome.NOT_APPLIED or isinstance(error, TransportError))
    if not repeatable and not isinstance(error, NotLeaderError | LeaderNotAvailableError):
        raise error
    return error
