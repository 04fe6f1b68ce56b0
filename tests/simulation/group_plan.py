"""What one seed of the simulation of consumer groups runs. As `plan`, for groups."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import ClassVar

from tests.simulation.fault_profile import FaultProfile, phase_ms
from tests.simulation.plan import RATES

GROUP_FAULTS = (
    "kill",
    "restart",
    "leave",
    "pause",
    "second life",
    "subscription",
    "slow handler",
    "create topic",
    "delete topic",
    "grow topic",
    "cut link",
    "isolate",
    "swizzle",
    "break streams",
    "etcd away",
    "etcd leader change",
    "etcd compacts",
    "answers lost",
    "lease ends early",
    "coordinator dies",
    "coordinator pauses",
    "clock jump",
)
"""What the nemesis may do to a group, by name. A seed may have "delete group" besides."""

_INSTEAD = {"late produces": "doubles"}
GROUP_RATES = (*(_INSTEAD.get(each, each) for each in RATES if each != "slow disk"), "late requests")
"""What goes wrong all the time, by name."""

ASSIGNORS = ("", "", "uniform", "range", "rack-aware")


@dataclass(frozen=True, slots=True)
class GroupPlan(FaultProfile):
    """One run. Times are virtual milliseconds."""

    STALE_READ_RATE: ClassVar[float] = 0.1

    seed: int
    steps: int = 3_000
    members: int = 4
    static: int = 0
    """The number of members that name their place."""
    topics: int = 2
    partitions: int = 4
    """Of each topic at first."""
    assignor: str = ""
    session_timeout_ms: int = 6_000
    rebalance_timeout_ms: int = 60_000
    auto_commit: tuple[bool, ...] = (True,)
    """Of the members in turn; False: the application commits."""
    max_members: int = 1_000
    """The coordinators' `max_group_members`."""
    handling_ms: int = 20
    """How long the application takes with a few records, on average."""
    stop_on_session_loss: bool = False
    offsets_retention_ms: int = 3_600_000
    buggy_etcd: bool = False
    faults: tuple[str, ...] = ()
    fault_period_ms: int = 1_000
    """A fault comes so often, on average."""
    faults_ms: int = 0
    """Faults come for at least this long, however many events that takes."""
    rates: tuple[str, ...] = ()
    rate: float = 0.02
    skipped: tuple[int, ...] = ()
    """Faults that are not done, by their number: for the shrinker."""

    @classmethod
    def draw(cls, seed: int, *, steps: int = 3_000, buggy_etcd: bool = False) -> GroupPlan:
        """Return the plan of a seed."""
        chance = random.Random(f"{seed}/group plan")
        members = chance.choice((2, 3, 3, 4, 5, 8, 12))
        return cls(
            seed=seed,
            steps=steps,
            members=members,
            static=chance.choice((0, 0, 1, members // 2, members)),
            topics=chance.choice((1, 2, 2, 3)),
            partitions=chance.choice((1, 3, 4, 6)),
            assignor=chance.choice(ASSIGNORS),
            session_timeout_ms=chance.choice((2_000, 6_000, 10_000)),
            rebalance_timeout_ms=chance.choice((2_000, 60_000, 60_000)),
            auto_commit=chance.choice(((True,), (False,), (True, False))),
            handling_ms=chance.choice((5, 20, 100)),
            stop_on_session_loss=chance.random() < 0.3,
            max_members=members if random.Random(f"{seed}/member limit").random() < 0.4 else 1_000,
            offsets_retention_ms=chance.choice((20_000, 3_600_000, 3_600_000)),
            buggy_etcd=buggy_etcd,
            faults=(
                *(each for each in GROUP_FAULTS if chance.random() < 0.4),
                *(("delete group",) if random.Random(f"{seed}/group deletions").random() < 0.4 else ()),
            ),
            fault_period_ms=(period := chance.choice((300, 700, 1_500, 3_000))),
            faults_ms=phase_ms(steps, period),
            rates=tuple(each for each in GROUP_RATES if chance.random() < 0.4),
            rate=chance.choice((0.005, 0.02, 0.08)),
        )

    def smaller(self) -> GroupPlan | None:
        """The same plan with a member less; None: there is no smaller one."""
        if self.members <= 1:
            return None
        return replace(self, members=self.members - 1, static=min(self.static, self.members - 1))

    @property
    def ends_leases_early(self) -> bool:
        """Whether a member's session may be over before its time, which no member can know."""
        return self.buggy_etcd or "lease ends early" in self.faults or "lying keepalives" in self.rates

    @property
    def late_request_rate(self) -> float:
        """How often a call reaches its coordinator only when its caller has given it up."""
        return self.rate_of("late requests") * 2
