"""Protection against callers that send call headers without a request, or cancel calls before they are read, and
callers whose connections of the native protocol break, or are refused for a wrong session.

grpc.aio spends 100 to 150 us of the event loop on a call before `admission` sees it, even if the caller has cancelled
it or its connection closed while it was queued in gRPC's core. That cost cannot be avoided once the call has arrived,
so the protection blocks connections. A caller may waste `CALLS_PER_SECOND`, with a burst of `CALLS_AT_ONCE`. A caller
above that limit is blocked until its debt is zero: it cannot open connections, and each of its connections that wastes
`CALLS_OF_CONNECTION` more calls is closed.

All callers that are not blocked may waste `ALL_PER_SECOND`. Above that the price of a wasted call rises, so that
callers are blocked sooner, and while it is `n`, the kernel accepts one of `n` new connections of callers of which no
call was served after their last wasted one. Connections that are open stay, unless they waste
`CALLS_OF_CONNECTION` themselves.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterable

import structlog

from headrace_server.connections import CALLERS_BYTES, Diversion, Filter, bytes_of, end
from headrace_server.places import Rates, has_address, peer_host

log = structlog.get_logger(__name__)

CALLS_PER_SECOND = 100
CALLS_AT_ONCE = 1_000
"""Burst limit, about 0.15 s of the event loop."""
ALL_PER_SECOND = 500
"""Of all callers: at 100 to 220 us a tenth of a core."""
ALL_AT_ONCE = 2_000
"""More than `CALLS_AT_ONCE`, so that one caller alone is blocked first."""
MAX_PRICE = 256.0
CALLS_OF_CONNECTION = 10
"""Tolerance per connection: a correct client at the same address may have a few calls whose deadlines passed."""
MAX_SHUT_OUT = 200
"""Maximum number of blocked callers, which have to fit into the filter."""
MAX_SERVED = 200
"""Maximum number of callers whose connections are always accepted; as many as the blocked ones leave room for."""
MAX_COUNTED_CONNECTIONS = 10_000
PASS_SECONDS = 0.1
LOG_SECONDS = 60.0
"""Least interval of log lines about filters that could not be set."""


class WastedCalls:
    """Recently wasted calls, or broken connections, by caller, for one listener.

    Belongs to an event loop; inactive until `start`.
    """

    def __init__(self) -> None:
        self._rates = Rates(calls=CALLS_PER_SECOND, all=ALL_PER_SECOND)
        self._port = 0
        self._price = 1.0
        self._counted = 0
        """Calls wasted since the last pass, except those of blocked callers."""
        self._shut_out: dict[str, None] = {}
        self._served: dict[str, None] = {}
        """Callers of which a call was served after their last wasted one, the latest last."""
        self._of_connections: Counter[tuple[str, int]] = Counter()
        """Calls wasted by caller and remote port, of callers that are blocked, and of all while the price is raised."""
        self._ending: set[tuple[str, int]] = set()
        self._keeping: asyncio.Task[None] | None = None
        self._failures = 0
        """Filters that could not be set since the last log line about them."""
        self._log_at = -math.inf

    def start(self, port: int) -> None:
        """Protect the listener of this process at `port`."""
        self._port = port

    def stop(self) -> None:
        """Stop protecting the listener, which is closing."""
        self._port = 0
        if self._keeping is not None:
            self._keeping.cancel()

    def is_shut_out(self, caller: str) -> bool:
        """Return whether the caller is blocked."""
        return caller in self._shut_out

    def note_served(self, caller: str) -> None:
        """Take note of a call that is served to a client of the cluster, not to any stranger."""
        if not has_address(caller):
            return
        self._served.pop(caller, None)
        self._served[caller] = None
        if len(self._served) > MAX_SERVED:
            del self._served[next(iter(self._served))]

    def count(self, peer: str, *, of_connection: bool) -> None:
        """Count a call of a gRPC peer that ended unread; not `of_connection` if it lacked only an admission slot.

        A peer without an IP address is not counted: no filter can name it.
        """
        caller = peer_host(peer)
        if not has_address(caller):
            return
        self._served.pop(caller, None)
        if caller not in self._shut_out:  # Else one caller would limit all others.
            self._count_of_all()
        self._rates.charge(caller, "calls", round(self._price))
        if not self._port:
            return
        debt_seconds = self._rates.debt_seconds(caller, "calls")
        if debt_seconds > CALLS_AT_ONCE / CALLS_PER_SECOND and caller not in self._shut_out:
            self._block(caller)
        self._begin_keeping()
        if of_connection and (caller in self._shut_out or self._price > 1):
            self._count_of_connection((caller, int(peer.rpartition(":")[2])))

    def count_evicted(self) -> None:
        """Count a connection that ended for another caller's: it is the waste of no caller, but of all."""
        self._count_of_all()
        if self._port:
            self._begin_keeping()

    def _count_of_all(self) -> None:
        self._counted += 1
        self._rates.charge("", "all", 1)

    def _block(self, caller: str) -> None:
        """Block a caller if there is room in the filter."""
        has_room = sum(map(bytes_of, self._shut_out)) + bytes_of(caller) <= CALLERS_BYTES
        if len(self._shut_out) < MAX_SHUT_OUT and has_room:
            log.warning("caller_blocked", peer=caller, reason="too many wasted calls or refused connections")
            self._shut_out[caller] = None

    def _begin_keeping(self) -> None:
        is_over = self._rates.debt_seconds("", "all") > ALL_AT_ONCE / ALL_PER_SECOND
        if self._keeping is None and (self._shut_out or is_over):
            self._counted = 0
            self._keeping = asyncio.create_task(self._keep_out(Diversion(self._port)))

    def _count_of_connection(self, connection: tuple[str, int]) -> None:
        if len(self._of_connections) >= MAX_COUNTED_CONNECTIONS:
            self._of_connections.clear()
        self._of_connections[connection] += 1
        if self._of_connections[connection] >= CALLS_OF_CONNECTION:
            del self._of_connections[connection]  # A later connection may have the same port.
            self._ending.add(connection)

    def _wanted(self) -> Filter:
        """Return the filter of blocked callers, and of those that were served last if the price is raised."""
        served: list[str] = []
        if self._price > 1:
            room = CALLERS_BYTES - sum(map(bytes_of, self._shut_out))
            for caller in reversed(self._served):
                room -= bytes_of(caller)
                if room < 0:
                    break
                served.append(caller)
        return Filter(tuple(self._shut_out), tuple(sorted(served)), round(self._price))

    async def _keep_out(self, diversion: Diversion) -> None:
        """Update the filter and close connections periodically until no caller is blocked and the price is 1."""
        loop = asyncio.get_running_loop()
        kept: Filter | None = Filter()
        passed_at = loop.time()
        try:
            while self._shut_out or self._price > 1 or self._rates.debt_seconds("", "all") > 0:
                ending, self._ending = self._ending, set()
                wanted = self._wanted()
                try:
                    if ending:
                        await asyncio.to_thread(end, self._port, ending)
                    ending = set()
                    if wanted != kept:
                        kept = None  # It may fail in part.
                        await asyncio.to_thread(diversion.keep_out, wanted)
                        kept = wanted
                except OSError as error:  # For example out of file descriptors; the next pass retries.
                    self._ending |= ending
                    self._note_failure(wanted, error, loop.time())
                await asyncio.sleep(PASS_SECONDS)
                diversion.reset()
                now = loop.time()
                self._set_price(now - passed_at)
                passed_at = now
                self._unblock(wanted.callers)
        finally:
            diversion.close()
            self._of_connections.clear()
            self._price, self._keeping = 1.0, None

    def _note_failure(self, wanted: Filter, error: OSError, now: float) -> None:
        self._failures += 1
        if now < self._log_at:
            return
        log.warning(
            "callers_not_blocked",
            failures=self._failures,
            peers=wanted.callers,
            accepted_one_of=wanted.one_of,
            cause=str(error),
        )
        self._log_at, self._failures = now + LOG_SECONDS, 0

    def _set_price(self, seconds: float) -> None:
        """Raise the price by as much as all callers wasted more than they may, or lower it slowly."""
        over, self._counted = self._counted / (ALL_PER_SECOND * seconds), 0
        if over > 1 and self._price == 1:
            log.warning("new_callers_limited", reason="too many wasted calls or refused connections of all callers")
        self._price = min(MAX_PRICE, self._price * min(over, 2.0)) if over > 1 else max(1.0, self._price / 1.1)

    def _unblock(self, callers: Iterable[str]) -> None:
        for caller in callers:
            if self._rates.debt_seconds(caller, "calls") <= 0:
                del self._shut_out[caller]
                log.warning("caller_unblocked", peer=caller)
