"""Keeping a lease alive from a plain thread: a busy event loop must not cost the registration (PROTOCOL H74-H77, H89).

The thread has a synchronous channel of its own. After each answer it knows until when the lease surely lives: the
moment the renewal was *sent*, plus the time to live, less a margin, on the clock that counts sleep. Three things can be
learnt, and they differ: the lease is alive; etcd is silent (which by itself fences nothing); the lease is lost, because
etcd said so. Where the event loop no longer beats, the thread stops renewing: a process that does no work must not look
alive.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

import grpc
import structlog
from headrace.wire.errors import MetastoreUnavailableError

from headrace_server.clock import Clock
from headrace_server.metastore.etcd3_stubs import LeaseStub, rpc_pb2

log = structlog.get_logger(__name__)

RENEWALS_PER_TTL = 3
RETRY_MS = 1000


class LeaseState(Enum):
    """What is known of a lease."""

    ALIVE = "alive"
    SILENT = "silent"
    """The last renewal was not answered."""
    LOST = "lost"
    """etcd said that the lease has ended. Final."""


class Renewer(Protocol):
    """Renews leases, synchronously."""

    def renew(self, lease_id: int) -> int:
        """The new time to live in ms; 0: the lease has ended.

        Raises:
            MetastoreUnavailableError: no answer.
        """

    def close(self) -> None:
        """Give up connections."""


class EtcdRenewer:
    """Renews over channels of its own, one an endpoint, going on to the next one after a failure. For one thread."""

    def __init__(self, endpoints: Sequence[str], timeout_seconds: float) -> None:
        """`endpoints` are host:port."""
        self._timeout_seconds = timeout_seconds
        self._channels = [grpc.insecure_channel(endpoint) for endpoint in endpoints]
        self._stubs = [LeaseStub(channel) for channel in self._channels]
        self._next = 0

    def renew(self, lease_id: int) -> int:
        """See `Renewer`. One request on a stream of its own: nothing of an earlier failure can cling to it."""
        stub = self._stubs[self._next % len(self._stubs)]
        request = rpc_pb2.LeaseKeepAliveRequest(ID=lease_id)
        call = stub.LeaseKeepAlive(iter([request]), timeout=self._timeout_seconds)
        try:
            answer = next(call, None)
        except grpc.RpcError as error:
            self._next += 1
            raise MetastoreUnavailableError(f"etcd did not renew lease {lease_id:x}: {error.details()}") from error
        finally:
            call.cancel()
        if answer is None:
            self._next += 1
            raise MetastoreUnavailableError(f"etcd ended the stream that renews lease {lease_id:x}")
        return max(0, int(answer.TTL)) * 1000

    def close(self) -> None:
        """Close the channels."""
        for channel in self._channels:
            channel.close()


class LeaseKeeper:
    """Renews one lease until stopped or lost.

    `start` and `stop` are called by the event loop; the rest may be read from any thread.
    """

    def __init__(
        self,
        renewer: Renewer,
        lease_id: int,
        ttl_ms: int,
        clock: Clock,
        *,
        granted_at_ms: int,
        beats: Callable[[], int],
        on_state: Callable[[LeaseState], None],
        stall_ms: int | None = None,
    ) -> None:
        """Keep `lease_id` alive.

        Args:
            renewer: used by the thread only; closed with it.
            lease_id: a lease just granted.
            ttl_ms: what was granted.
            clock: boot time is read.
            granted_at_ms: boot time when the grant was sent.
            beats: a count that the event loop raises while it lives.
            on_state: called in the event loop at each change of state.
            stall_ms: how long the loop may stand still before renewals end; default: half the time to live.
        """
        self.lease_id = lease_id
        self._renewer = renewer
        self._ttl_ms = ttl_ms
        self._clock = clock
        self._margin_ms = ttl_ms // 10
        self._beats = beats
        self._on_state = on_state
        self._stall_ms = ttl_ms // 2 if stall_ms is None else stall_ms
        self._deadline_ms = granted_at_ms + ttl_ms - self._margin_ms
        self._state = LeaseState.ALIVE
        self._stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name=f"lease-{lease_id:x}", daemon=True)

    @property
    def state(self) -> LeaseState:
        """What is known now."""
        return self._state

    @property
    def deadline_ms(self) -> int:
        """Boot time until which the lease surely lives."""
        return self._deadline_ms

    def is_sure(self) -> bool:
        """Whether the lease surely lives now: not lost, and its deadline not passed."""
        return self._state is not LeaseState.LOST and self._clock.boottime_ms() < self._deadline_ms

    def start(self) -> None:
        """Begin; called in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """End the renewals and the thread; the lease lives on until revoked or expired."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        beats, beat_ms = self._beats(), self._clock.monotonic_ms()
        wait_ms = self._ttl_ms // RENEWALS_PER_TTL
        while not self._stop.wait(wait_ms / 1000):
            now_ms = self._clock.monotonic_ms()
            if self._beats() != beats:
                beats, beat_ms = self._beats(), now_ms
            if now_ms - beat_ms > self._stall_ms:
                log.error("lease_not_renewed", reason="the event loop stands still", since_ms=now_ms - beat_ms)
                wait_ms = min(RETRY_MS, self._ttl_ms // RENEWALS_PER_TTL)
                continue
            wait_ms = self._renew_once()
            if self._state is LeaseState.LOST:
                break
        self._renewer.close()

    def _renew_once(self) -> int:
        """Renew and return how long to wait before the next time, in ms."""
        sent_ms = self._clock.boottime_ms()
        try:
            ttl_ms = self._renewer.renew(self.lease_id)
        except MetastoreUnavailableError as error:
            log.warning("lease_silent", lease_id=self.lease_id, cause=str(error))
            self._change(LeaseState.SILENT)
            return min(RETRY_MS, self._ttl_ms // RENEWALS_PER_TTL)
        if ttl_ms == 0:
            self._change(LeaseState.LOST)
            return 0
        self._deadline_ms = sent_ms + ttl_ms - self._margin_ms
        self._change(LeaseState.ALIVE)
        return self._ttl_ms // RENEWALS_PER_TTL

    def _change(self, state: LeaseState) -> None:
        if state is self._state:
            return
        self._state = state
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._on_state, state)
        except RuntimeError:
            log.debug("lease_state_unheard", state=state.value)  # The loop is closed: nobody is left to tell.
