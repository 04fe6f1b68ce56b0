"""Protection against callers that send call headers without a request, or cancel calls before they are read, and
callers whose connections of the native protocol break, or are refused for a wrong session.

grpc.aio spends 100 to 150 us of the event loop on a call before `admission` sees it, even if the caller has cancelled
it or its connection closed while it was queued in gRPC's core. That cost cannot be avoided once the call has arrived,
so the protection blocks connections. A caller may waste `CALLS_PER_SECOND`, with a burst of `CALLS_AT_ONCE`. A caller
above that limit is blocked until its debt is zero: it cannot open connections, and each of its connections that wastes
`CALLS_OF_CONNECTION` more calls is closed.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import structlog

from headrace_server.connections import Diversion, end
from headrace_server.places import Rates, peer_host

log = structlog.get_logger(__name__)

CALLS_PER_SECOND = 100
CALLS_AT_ONCE = 1_000
"""Burst limit, about 0.15 s of the event loop."""
CALLS_OF_CONNECTION = 10
"""Tolerance per connection: a correct client at the same address may have a few calls whose deadlines passed."""
MAX_SHUT_OUT = 256
"""Maximum number of blocked callers: the kernel accepts a filter program of 20 kB (net.core.optmem_max)."""
PASS_SECONDS = 0.1


class WastedCalls:
    """Recently wasted calls, or broken connections, by caller, for one listener.

    Belongs to an event loop; inactive until `start`.
    """

    def __init__(self) -> None:
        self._rates = Rates(calls=CALLS_PER_SECOND)
        self._port = 0
        self._shut_out: dict[str, Counter[int]] = {}  # by caller: calls wasted since then, by port of the connection
        self._ending: set[tuple[str, int]] = set()
        self._keeping: asyncio.Task[None] | None = None

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

    def count(self, peer: str, *, of_connection: bool) -> None:
        """Count a call of a gRPC peer that ended unread; not `of_connection` if it lacked only an admission slot."""
        caller = peer_host(peer)
        self._rates.charge(caller, "calls", 1)
        if caller not in self._shut_out:
            if self._rates.debt_seconds(caller, "calls") <= CALLS_AT_ONCE / CALLS_PER_SECOND or not self._port:
                return
            if len(self._shut_out) >= MAX_SHUT_OUT:
                return
            log.warning("caller_blocked", peer=caller, reason="too many wasted calls or refused connections")
            self._shut_out[caller] = Counter()
            if self._keeping is None:
                self._keeping = asyncio.create_task(self._keep_out(Diversion(self._port)))
        if of_connection:
            port = int(peer.rpartition(":")[2])
            self._shut_out[caller][port] += 1
            if self._shut_out[caller][port] == CALLS_OF_CONNECTION:
                self._ending.add((caller, port))

    async def _keep_out(self, diversion: Diversion) -> None:
        """Update the filter and close connections periodically until no caller is blocked."""
        kept_out, told = [""], [""]
        try:
            while self._shut_out:
                callers, ending, self._ending = list(self._shut_out), self._ending, set()
                try:
                    if ending:
                        await asyncio.to_thread(end, self._port, ending)
                    ending = set()
                    if callers != kept_out:
                        await asyncio.to_thread(diversion.keep_out, callers)
                        kept_out = callers
                except OSError as error:  # For example out of file descriptors; the next pass retries.
                    self._ending |= ending
                    if callers != told:
                        log.warning("callers_not_blocked", peers=callers, cause=str(error))
                        told = callers
                await asyncio.sleep(PASS_SECONDS)
                for caller in callers:
                    if self._rates.debt_seconds(caller, "calls") <= 0:
                        wasted = self._shut_out.pop(caller).values()
                        ended = sum(calls >= CALLS_OF_CONNECTION for calls in wasted)
                        log.warning("caller_unblocked", peer=caller, connections_ended=ended)
        finally:
            diversion.close()
            self._keeping = None
