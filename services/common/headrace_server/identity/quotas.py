"""Quotas: the rates at which a broker or coordinator serves one user, kept by delaying its answers.

Callers without an identity have the quota of every user, each address by itself. Who exceeds its rate is in debt, and
its next answers are held until the debt is paid. Any client slows down by that, whatever its language, because it has
a bounded number of requests in flight; nothing that was accepted is lost.
The answer of a stream is held before its first message, when nothing is done yet.
Where the debt, over many connections, passes `MAX_DEBT_SECONDS`, requests are refused until it is paid. Each
server counts by itself. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

from headrace.v1 import auth_pb2
from headrace.wire.errors import Outcome, ThrottledError

MAX_DEBT_SECONDS = 30.0
MAX_HELD_SECONDS = 5.0
"""Maximum time for which one answer is held."""
MAX_PAYERS = 20_000
EVERY_USER = "*"
"""Principal of the quota of every user without one of its own, and of callers without an identity."""
DEFAULT_QUOTA = auth_pb2.Quota(
    user=EVERY_USER,
    produce_bytes_per_second=5_000_000_000,
    fetch_bytes_per_second=10_000_000_000,
    requests_per_second=50_000,
    connections=2_048,
    changes_per_minute=20_000,
)
"""Bounds where no quota sets one, above what one process serves: 2.5 GB/s of Arrow batches in was the most measured.
The changes are two topics of 10,000 partitions at once, so that no user fills etcd before an administrator sees it.
"""


class Payer(NamedTuple):
    """Who uses a quota: a user, or all callers without an identity of one address."""

    user: str
    address: str = ""
    """Empty for a user."""

    def __str__(self) -> str:
        return self.user or f"{self.address or 'a caller'} without an identity"


class Use(Enum):
    """What a quota bounds, each a rate; the value is the field of `Quota`."""

    PRODUCE = "produce_bytes_per_second"
    FETCH = "fetch_bytes_per_second"
    REQUEST = "requests_per_second"
    CHANGE = "changes_per_minute"

    @property
    def period_seconds(self) -> float:
        """Time of the rate. A user that was idle may use at once what it may use in this time."""
        return 60.0 if self is Use.CHANGE else 1.0


class QuotaSource(Protocol):
    """Where the quotas are."""

    def quota_of(self, user: str) -> auth_pb2.Quota:
        """Return the bounds that apply to a user; 0 means no bound."""


class Quotas:
    """What each payer owes to one server."""

    def __init__(
        self,
        source: QuotaSource,
        count_delay: Callable[[str, str, float], None],
        now: Callable[[], float] | None = None,
    ) -> None:
        """`count_delay(user, use, seconds)` counts held answers; `now` is in seconds, by default the loop's time."""
        self._source = source
        self._count_delay = count_delay
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._paid_at: OrderedDict[tuple[Payer, Use], float] = OrderedDict()
        self._connections: Counter[Payer] = Counter()

    def charge(self, payer: Payer, use: Use, amount: int) -> None:
        """Record use, in bytes, requests or changes."""
        rate = getattr(self._source.quota_of(payer.user), use.value)
        if not rate:
            return
        key, period = (payer, use), use.period_seconds
        paid_at = max(self._paid_at.pop(key, 0.0), self._now() - period)
        self._paid_at[key] = paid_at + amount * period / rate
        if len(self._paid_at) > MAX_PAYERS:
            self._paid_at.popitem(last=False)

    def debt_seconds(self, payer: Payer, use: Use) -> float:
        """Return the time until its use is paid; 0 if it is."""
        paid_at = self._paid_at.get((payer, use))
        return 0.0 if paid_at is None else max(0.0, paid_at - self._now())

    def check(self, payer: Payer, use: Use) -> None:
        """Refuse a request of a payer whose debt is too large to hold the answer.

        Raises:
            ThrottledError: If it is; contains the time until it is paid.
        """
        debt = self.debt_seconds(payer, use)
        if debt > MAX_DEBT_SECONDS:
            self._count_delay(payer.user, use.value, 0.0)
            raise ThrottledError(
                f"{payer} has used its {use.value.replace('_', ' ')} for the next {debt:.0f} s",
                outcome=Outcome.NOT_APPLIED,
                retry_after_ms=round(debt * 1000),
                action="Send less, or ask an administrator for a higher quota.",
            )

    def connect(self, payer: Payer) -> None:
        """Count a connection, until `disconnect`.

        Raises:
            ThrottledError: If it has as many as its quota allows.
        """
        most = self._source.quota_of(payer.user).connections
        if most and self._connections[payer] >= most:
            raise ThrottledError(
                f"{payer} has {self._connections[payer]} connections, its quota",
                outcome=Outcome.NOT_APPLIED,
                retry_after_ms=1_000,
                action="Close some, or ask an administrator for a higher quota.",
            )
        self._connections[payer] += 1

    def disconnect(self, payer: Payer) -> None:
        """Count a connection less."""
        self._connections[payer] -= 1
        if not self._connections[payer]:
            del self._connections[payer]

    async def hold(self, payer: Payer, use: Use, most_seconds: float = MAX_HELD_SECONDS) -> int:
        """Wait until the payer's debt is paid, at most for a while; return the milliseconds waited."""
        debt = self.debt_seconds(payer, use)
        if not debt:
            return 0
        seconds = min(debt, max(0.0, most_seconds))
        self._count_delay(payer.user, use.value, seconds)
        await asyncio.sleep(seconds)
        return round(seconds * 1000)
