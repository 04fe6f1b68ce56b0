"""Writes to etcd that are retried until their outcome is known, within a deadline.

Any coordinator may write for clients and administrators; compares resolve every race. A write without a response may
or may not be applied, or may be applied seconds later. It is fenced first: each write compares that there is no key of
its attempt under `write_fences/`, and that key is put. Then it is applied or never will be, and is sent again with the
same compares until one attempt gets a response (PROTOCOL C2, C3). Without the fence a creation that arrived late would
bring back what was deleted meanwhile. In the same way a call that its client repeats here is fenced at the coordinator
that did not answer it (`headrace.wire.call_tries`): each write compares a key of the call's try, too.

Used by the stores of topics, partitions, brokers, identity and schemas; belongs to the event loop. Deadlines are in
loop time, seconds.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog
from headrace.wire.errors import (
    HeadraceError,
    MetastoreUnavailableError,
    Outcome,
    TimedOutError,
)
from headrace_server.calls import current_try, user
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace
from headrace_server.metastore.api import (
    KeyValue,
    Metastore,
    MetastoreRolledBackError,
    MetastoreUnknownOutcomeError,
    Put,
    RangeResult,
    TxnResult,
    VersionIs,
)

from headrace_coordinator.core.topic_writes import Write
from headrace_coordinator.metrics import CoordinatorMetrics

log = structlog.get_logger(__name__)

RETRY_SECONDS = 0.1
FENCE_MS = 600_000
"""Life of a fence: far longer than etcd and the network can hold a write back, or a coordinator is paused."""
T = TypeVar("T")


class WriteTracker:
    """Outcome of the writes of one call so far."""

    def __init__(self, fence: str, call_fences: Sequence[str]) -> None:
        """`call_fences`: fences of the call's tries up to this one; none if its caller does not name them."""
        self.fence = fence
        """Of all writes that are sent from now on."""
        self.call_fence = call_fences[-1] if call_fences else ""
        self.fences_due = list(call_fences[:-1])
        """Fences to put before the next attempt."""
        self.pending = False
        """A write was sent and has no response yet."""
        self.unanswered: MetastoreUnavailableError | None = None
        """Error of an earlier write without a response."""


class AmbiguousWriteResolver:
    """Reads and retried writes of etcd, with at most `max_inflight` transactions at once."""

    def __init__(
        self, metastore: Metastore, keyspace: Keyspace, metrics: CoordinatorMetrics, *, max_inflight: int
    ) -> None:
        self._metastore = metastore
        self._keyspace = keyspace
        self._metrics = metrics
        self._permits = asyncio.Semaphore(max_inflight)

    async def read(self, key: str, deadline: float) -> KeyValue | None:
        """Return a key from etcd, or `None` if it does not exist.

        Raises:
            MetastoreUnavailableError: If etcd does not respond; nothing was written.
        """
        return (await self._answered(self._metastore.get(key), deadline)).key_value

    async def read_prefix(self, prefix: str, deadline: float) -> RangeResult:
        """Return all keys of a prefix. Raises as `read`."""
        return await self._answered(self._metastore.range(prefix), deadline)

    async def send(self, tracker: WriteTracker, write: Write) -> TxnResult:
        """Send one transaction once, as part of an attempt."""
        async with self._permits:
            tracker.pending = True
            no_fence = [VersionIs(key, 0) for key in (tracker.fence, tracker.call_fence) if key]
            result = await self._metastore.txn((*write.compares, *no_fence), write.success, write.failure)
            tracker.pending = False
            return result

    async def resolve(self, attempt: Callable[[WriteTracker], Awaitable[T | None]], deadline: float, what: str) -> T:
        """Call `attempt` until it returns a result or raises a typed error; retry after `None` and lost responses.

        Once a write got no response, the final error has outcome UNKNOWN.

        Raises:
            MetastoreUnavailableError: If there is no response in time; has the outcome.
            TimedOutError: If no attempt succeeds in time, or the caller has repeated its call elsewhere; nothing was
                applied.
        """
        tracker = WriteTracker(self._new_fence(), self._call_fences())
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    settled = await self._attempt_once(attempt, tracker, what)
                    if settled is not None:
                        return settled
                    await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError:
            if tracker.pending or tracker.unanswered is not None:
                raise MetastoreUnavailableError(
                    f"{what}: etcd did not answer in time", outcome=Outcome.UNKNOWN
                ) from tracker.unanswered
            raise TimedOutError(
                f"{what} did not end in time",
                outcome=Outcome.NOT_APPLIED,
                action="Try again with a longer deadline; nothing has taken effect.",
            ) from None

    async def _attempt_once(
        self, attempt: Callable[[WriteTracker], Awaitable[T | None]], tracker: WriteTracker, what: str
    ) -> T | None:
        try:
            await self._fence(tracker)
            settled = await attempt(tracker)
            if settled is None and tracker.call_fence:
                await self._check_not_repeated(tracker.call_fence, what)
            return settled
        except MetastoreRolledBackError:
            raise
        except MetastoreUnknownOutcomeError as error:
            self._metrics.ambiguous_writes.inc()
            log.warning("write_unanswered", what=what, cause=error.message)
            tracker.unanswered = error
            if tracker.pending:
                tracker.fences_due.append(tracker.fence)
                tracker.fence, tracker.pending = self._new_fence(), False
            return None
        except MetastoreUnavailableError:
            if tracker.unanswered is None:
                raise
            return None
        except HeadraceError as error:
            if tracker.unanswered is not None:
                error.outcome = Outcome.UNKNOWN
            raise

    def _new_fence(self) -> str:
        return self._keyspace.write_fence(secrets.token_bytes(16))

    def _call_fences(self) -> list[str]:
        """Return the keys by which the tries of the current call are fenced, up to the one that is served here.

        They depend on the user, so that none can fence the calls of others.
        """
        served = current_try()
        if served is None:
            return []
        names = (f"{user()}/{served._replace(number=number)}" for number in range(served.number + 1))
        return [self._keyspace.write_fence(hashlib.sha256(name.encode()).digest()[:16]) for name in names]

    async def _fence(self, tracker: WriteTracker) -> None:
        """Put the fences that are due; raises as the metastore."""
        if not tracker.fences_due:
            return
        fence = metadata_pb2.WriteFence().SerializeToString()
        async with self._permits:
            lease = await self._metastore.grant_lease(FENCE_MS)
            await self._metastore.txn((), [Put(key, fence, lease.lease_id) for key in tracker.fences_due])
        tracker.fences_due.clear()

    async def _check_not_repeated(self, call_fence: str, what: str) -> None:
        """Check that this try of the call may still write.

        Raises:
            TimedOutError: If a later try is served elsewhere.
        """
        if (await self._metastore.get(call_fence)).key_value is not None:
            raise TimedOutError(
                f"{what}: the caller has repeated this call at another coordinator", outcome=Outcome.NOT_APPLIED
            )

    async def _answered(self, read: Awaitable[T], deadline: float) -> T:
        """Wait for a read, whose failure means that nothing was written."""
        try:
            async with asyncio.timeout_at(deadline):
                return await read
        except MetastoreRolledBackError:
            raise
        except MetastoreUnavailableError as error:
            raise MetastoreUnavailableError(error.message, outcome=Outcome.NOT_APPLIED) from error
        except TimeoutError:
            raise MetastoreUnavailableError("etcd did not answer in time", outcome=Outcome.NOT_APPLIED) from None
