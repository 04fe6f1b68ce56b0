"""What goes wrong in a run, read from its plan: the same for replication and for groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

from tests.simulation.etcd import EtcdRates
from tests.simulation.network import NetworkRates

FULL_STEPS = 2_000
"""Runs of at least so long draw a phase of faults by its time, too."""
PERIODS, LONGEST_PHASE_MS = 10, 15_000
"""The phase lasts for this number of faults on average, or for this time: five leases of a broker."""


def phase_ms(steps: int, period_ms: int) -> int:
    """Return how long faults come at least, one every `period_ms` on average."""
    return min(PERIODS * period_ms, LONGEST_PHASE_MS) if steps >= FULL_STEPS else 0


class FaultProfile:
    """The part of a plan that names faults and rates; the plan, a dataclass, has the fields."""

    __slots__ = ()

    STALE_READ_RATE: ClassVar[float]
    """How often an etcd with bugs answers from the past. It loses and doubles events half as often."""

    buggy_etcd: bool
    faults: tuple[str, ...]
    rates: tuple[str, ...]
    rate: float

    def without(self, name: str) -> Self:
        """The same plan without one kind of fault or rate."""
        plan: Any = self
        less: Self = replace(
            plan,
            faults=tuple(each for each in self.faults if each != name),
            rates=tuple(each for each in self.rates if each != name),
        )
        return less

    def network_rates(self) -> NetworkRates:
        """How the network behaves."""
        return NetworkRates(
            slow_rate=self.rate_of("slow messages"),
            drop_rate=self.rate_of("drops"),
            double_rate=self.rate_of("doubles"),
            late_produce_rate=self.rate_of("late produces"),
        )

    def etcd_rates(self) -> EtcdRates:
        """How etcd behaves."""
        rates = EtcdRates(
            lost_answer_rate=self.rate_of("lost answers") * 3,
            late_apply_rate=self.rate_of("late applies"),
            no_space_rate=self.rate_of("no space") * 2,
            lying_keepalive_rate=self.rate_of("lying keepalives") * 10,
        )
        if self.buggy_etcd:
            rates.stale_read_rate = self.STALE_READ_RATE
            rates.lost_event_rate = rates.duplicated_event_rate = self.STALE_READ_RATE / 2
            rates.lying_keepalive_rate = 0.5
        return rates

    def rate_of(self, name: str) -> float:
        """How often it goes wrong; 0 where the plan does not name it."""
        return self.rate if name in self.rates else 0.0
