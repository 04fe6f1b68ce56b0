"""Concurrency limits of calls, and rate limits of expensive methods per caller. Pure; belong to an event loop.

Pools are apart (see `methods.Pool`), and in each one a peer has a share: neither health nor administrators
wait behind clients, and no client behind another one's calls.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address, ip_network
from urllib.parse import unquote

from headrace.wire.errors import Outcome, ThrottledError

from headrace_server.methods import Pool

RETRY_AFTER_MS = 100
BURST_SECONDS = 8
"""Burst size of a rate limit, in seconds of the rate."""
MAX_DEBT_SECONDS = 30
MAX_RATED_PEERS = 4_096


@dataclass(frozen=True, slots=True)
class PlaceLimits:
    """Maximum open calls of each pool: in total, and of one peer."""

    clients: tuple[int, int] = (4_096, 512)
    administrators: tuple[int, int] = (256, 16)
    health: tuple[int, int] = (512, 8)


class Place:
    """Slot of one open call. Repeated calls of `release` have no effect."""

    __slots__ = ("_held", "_pool", "peer")

    def __init__(self, pool: _PlacePool, peer: str) -> None:
        self._pool = pool
        self.peer = peer
        self._held = True

    def release(self, _context: object = None) -> None:
        """Release the slot. Can be passed to `add_done_callback` of a call's context."""
        if self._held:
            self._held = False
            self._pool.leave(self.peer)

    def retake(self) -> None:
        """Acquire a slot again after `release`.

        Raises:
            ThrottledError: If none is free.
        """
        assert not self._held
        self._pool.enter(self.peer)
        self._held = True


class _PlacePool:
    def __init__(self, name: str, limits: tuple[int, int]) -> None:
        self._name = name
        self._max_calls, self._max_peer_calls = limits
        self._calls = 0
        self._peers: dict[str, int] = {}

    def enter(self, peer: str) -> None:
        of_peer = self._peers.get(peer, 0)
        if of_peer >= self._max_peer_calls:
            raise _no_place(f"{of_peer} calls of {self._name} from {peer} are open, the maximum per peer")
        if self._calls >= self._max_calls:
            raise _no_place(f"{self._calls} calls of {self._name} are open, the maximum")
        self._calls += 1
        self._peers[peer] = of_peer + 1

    def leave(self, peer: str) -> None:
        self._calls -= 1
        left = self._peers[peer] - 1
        if left:
            self._peers[peer] = left
        else:
            del self._peers[peer]


class Places:
    """Slot pools of one server."""

    def __init__(self, limits: PlaceLimits) -> None:
        self._pools = {
            Pool.CLIENTS: _PlacePool("clients", limits.clients),
            Pool.ADMINISTRATORS: _PlacePool("administrators", limits.administrators),
            Pool.HEALTH: _PlacePool("health", limits.health),
        }

    def take(self, pool: Pool, peer: str) -> Place:
        """Acquire a slot for a call.

        Raises:
            ThrottledError: If none is free, or the peer has its share; retriable.
        """
        found = self._pools[pool]
        found.enter(peer)
        return Place(found, peer)


class Rates:
    """Recent use of expensive methods by each peer, in response bytes or calls."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, **per_second: float) -> None:
        """`per_second` are the rates of methods that are charged without `check`."""
        self._monotonic = monotonic
        # (peer, method) -> time at which its use is paid off; least recently used first
        self._paid_at: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._rates = per_second

    def check(self, peer: str, method: str, per_second: float, unit: str) -> None:
        """Check a call against the peer's rate.

        Raises:
            ThrottledError: If the peer exceeds the rate; contains the retry delay.
        """
        self._rates[method] = per_second
        over_seconds = self.debt_seconds(peer, method) - BURST_SECONDS
        if over_seconds > 0:
            raise ThrottledError(
                f"{peer} exceeded {per_second:g} {unit} per second of {method}",
                outcome=Outcome.NOT_APPLIED,
                retry_after_ms=round(over_seconds * 1000) + 1,
                action="Send smaller or fewer requests.",
            )

    def debt_seconds(self, peer: str, method: str) -> float:
        """Return the time in seconds until the peer's use is paid off; `0` or less means that it is."""
        return self._paid_at.get((peer, method), 0.0) - self._monotonic()

    def charge(self, peer: str, method: str, amount: int) -> None:
        """Record use by a peer, after `check`."""
        now = self._monotonic()
        paid_at = max(self._paid_at.pop((peer, method), 0.0), now) + amount / self._rates[method]
        self._paid_at[(peer, method)] = min(paid_at, now + BURST_SECONDS + MAX_DEBT_SECONDS)
        if len(self._paid_at) > MAX_RATED_PEERS:
            self._paid_at.popitem(last=False)


def share_of(places: int, callers: int) -> int:
    """Return the share of each of `callers`: `places / (callers + 1)`, so that a new caller finds free ones."""
    return max(1, places // (callers + 1))


@lru_cache(MAX_RATED_PEERS)
def caller(host: str) -> str:
    """Return the caller of an address: the IPv4 address, or the first 64 bits of IPv6, one site (RFC 6177)."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if address.version == 4:
        return host
    return str(address.ipv4_mapped or ip_network((int(address) >> 64 << 64, 64)))


@lru_cache(MAX_RATED_PEERS)
def has_address(caller: str) -> bool:
    """Return whether a `caller` is an address or a site, and not the name of something else, or empty."""
    try:
        ip_network(caller)
    except ValueError:
        return False
    return True


def peer_host(peer: str) -> str:
    """Return the `caller` of a gRPC peer such as `ipv4:10.0.0.1:5000` or `ipv6:%5B::1%5D:5000`."""
    return caller(unquote(peer.partition(":")[2].rpartition(":")[0]).strip("[]"))


def _no_place(message: str) -> ThrottledError:
    return ThrottledError(
        message,
        outcome=Outcome.NOT_APPLIED,
        retry_after_ms=RETRY_AFTER_MS,
        action="Wait for open calls to end, or raise max_calls_per_peer and max_concurrent_calls.",
    )
