"""Keep-alive of one lease from an OS thread, with a conservative estimate of whether the lease is still valid.

The thread has its own synchronous connection, so that a busy event loop does not lose the lease (PROTOCOL H89). If the
loop has not run for `loop_dead_after_ms` the renewals stop, so that a hung process loses its leadership.

States, as `LeaseKeeper.state`:

    ALIVE   the last renewal succeeded, and its deadline has not passed
    SILENT  no response until the deadline; the lease may or may not be alive (a later response makes it ALIVE again)
    LOST    etcd reported that the lease has ended (time to live 0, not found); final

The deadline is the send time of the last successful renewal + TTL - margin, on CLOCK_BOOTTIME (PROTOCOL H77).
`alive_now` compares it with the current time, so that a process that was suspended detects a lost lease at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from enum import Enum

import structlog
from headrace.wire.errors import MetastoreUnavailableError

from headrace_server.clock import Clock, SystemClock
from headrace_server.metastore.api import LeaseRenewer, Metastore, MetastoreRolledBackError

log = structlog.get_logger(__name__)

GIVE_BACK_SECONDS = 5.0
"""Time for revoking a lease at shutdown, longer than a leader election of etcd."""
GIVE_BACK_PAUSE_SECONDS = 0.1


class LeaseState(Enum):
    """State of the lease; see the module."""

    ALIVE = "alive"
    SILENT = "silent"
    LOST = "lost"


async def give_back(metastore: Metastore, lease_id: int) -> None:
    """Revoke a lease, so that its keys are deleted now and not at expiry, for which other processes would wait.

    It is retried while etcd does not respond: revocation is idempotent, and services often stop together with the etcd
    member on their machine. After `GIVE_BACK_SECONDS` the lease is left to expire.
    """
    cause = "no answer"
    try:
        async with asyncio.timeout(GIVE_BACK_SECONDS):
            while True:
                try:
                    await metastore.revoke_lease(lease_id)
                except MetastoreRolledBackError as error:
                    cause = str(error)
                    break
                except MetastoreUnavailableError as error:
                    cause = str(error)
                    await asyncio.sleep(GIVE_BACK_PAUSE_SECONDS)
                else:
                    return
    except TimeoutError:
        pass
    log.warning("lease_not_revoked", cause=cause)


class LeaseKeeper:
    """Thread that renews a lease, owned by the registered service. `start`, `stop` and the callback belong to the event
    loop; `state`, `deadline_ms` and `alive_now` may be read from any thread.

    Args:
        renewer: ownership is transferred; closed by `stop`.
        lease_id: the granted lease.
        ttl_ms: its granted time to live.
        granted_at_ms: boot time just before the grant was sent.
        margin_ms: safety margin before etcd's expiry; default a tenth of the TTL.
        loop_dead_after_ms: maximum blocking of the event loop before renewals stop; default half the TTL.
        on_change: called on the event loop with each new state, in order; LOST is the last.
    """

    def __init__(
        self,
        renewer: LeaseRenewer,
        lease_id: int,
        ttl_ms: int,
        *,
        granted_at_ms: int,
        on_change: Callable[[LeaseState], None],
        margin_ms: int | None = None,
        loop_dead_after_ms: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.lease_id = lease_id
        self._renewer = renewer
        self._ttl_ms = ttl_ms
        self._margin_ms = ttl_ms // 10 if margin_ms is None else margin_ms
        assert 0 <= self._margin_ms < ttl_ms, (self._margin_ms, ttl_ms)
        self._loop_dead_after_ms = ttl_ms // 2 if loop_dead_after_ms is None else loop_dead_after_ms
        self._on_change = on_change
        self._clock: Clock = clock or SystemClock()
        self._deadline_ms = granted_at_ms + ttl_ms - self._margin_ms
        self._state = LeaseState.ALIVE
        self._wake = threading.Event()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beat_asked_ms = 0
        self._beat_pending = False
        self._thread = threading.Thread(target=self._run, name=f"lease-{lease_id:x}", daemon=True)

    @property
    def state(self) -> LeaseState:
        """Current state; the change to SILENT is computed on read."""
        if self._state is LeaseState.ALIVE and self._clock.boottime_ms() >= self._deadline_ms:
            return LeaseState.SILENT
        return self._state

    @property
    def deadline_ms(self) -> int:
        """Boot time in ms until which the lease is valid, if etcd's clock does not run faster than this one."""
        return self._deadline_ms

    def alive_now(self) -> bool:
        """Return whether the lease is valid by the current time."""
        return self.state is LeaseState.ALIVE

    def start(self) -> None:
        """Start the thread. Call it once, on the event loop that runs the callbacks."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Stop renewals without revocation, close the connection, and wait for the end of the thread."""
        self._stopping = True
        self._wake.set()
        self._renewer.close()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        """Renew every third of the TTL, sooner after a failure; the thread's main function."""
        pause_s = self._ttl_ms / 3_000
        self._beat()
        self._wake.wait(pause_s)
        while not self._stopping and self._state is not LeaseState.LOST:
            self._beat()
            if self._loop_is_dead():
                self._note_silence()
                self._wake.wait(pause_s / 4)
                continue
            answered = self._renew_once(timeout_s=pause_s)
            self._wake.wait(pause_s if answered else pause_s / 4)

    def _renew_once(self, timeout_s: float) -> bool:
        """Renew once; return False if there is no response."""
        sent_ms = self._clock.boottime_ms()
        try:
            ttl_ms = self._renewer.renew(self.lease_id, timeout_s)
        except (MetastoreUnavailableError, ValueError):
            # gRPC raises ValueError if `stop` closes the channel during the call.
            self._note_silence()
            return False
        self._take_answer(sent_ms, ttl_ms)
        return True

    def _take_answer(self, sent_ms: int, ttl_ms: int) -> None:
        """Apply etcd's response to a renewal sent at `sent_ms`."""
        if ttl_ms <= 0:
            self._change(LeaseState.LOST)
            return
        self._deadline_ms = sent_ms + ttl_ms - self._margin_ms
        self._change(LeaseState.ALIVE if self._clock.boottime_ms() < self._deadline_ms else LeaseState.SILENT)

    def _note_silence(self) -> None:
        if self._clock.boottime_ms() >= self._deadline_ms:
            self._change(LeaseState.SILENT)

    def _change(self, state: LeaseState) -> None:
        if state is self._state or self._stopping:
            return
        self._state = state
        self._tell_loop(lambda: self._on_change(state))

    def _beat(self) -> None:
        """Request a heartbeat of the event loop, unless one is pending."""
        if not self._beat_pending:
            self._beat_asked_ms = self._clock.boottime_ms()
            self._beat_pending = True
            self._tell_loop(self._on_beat)

    def _on_beat(self) -> None:
        self._beat_pending = False

    def _loop_is_dead(self) -> bool:
        """Return whether a requested heartbeat is overdue."""
        return self._beat_pending and self._clock.boottime_ms() - self._beat_asked_ms > self._loop_dead_after_ms

    def _tell_loop(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            # The loop is closed because the process ends; no callback is needed.
            self._stopping = True
