"""What one seed runs: the cluster's shape, which faults are on, and how often.

Swarm testing: each seed has a mix of its own. Drawn from the seed alone, so that a seed means the same run for ever; a
shrinker takes kinds of faults or single faults away (`without`, `skipped`) and leaves the rest of the plan as it was.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import ClassVar

from headrace.partition.topic_configs import INT64_MAX

from tests.simulation.fault_profile import FaultProfile, phase_ms

FAULTS = (
    "kill",
    "power",
    "power all",
    "power in a call",
    "stop",
    "pause",
    "cut link",
    "isolate",
    "deaf leader",
    "swizzle",
    "break streams",
    "break at a cut",
    "etcd away",
    "etcd leader change",
    "answers lost",
    "lease ends early",
    "etcd compacts",
    "coordinator dies",
    "disk error",
    "disk full",
    "corruption",
    "scrub",
    "disk replaced",
    "clock jump",
    "drain",
    "move leader",
    "move",
    "delete records",
    "minimum changes",
    "durability changes",
    "unclean election",
    "topic made anew",
)
"""What the nemesis may do, by name."""

LATER_FAULTS = {
    "volume put back": 0.3,
    "disk refuses": 0.25,
    "session renewed": 0.15,
    "clock wrong at a start": 0.15,
    "etcd put back": 0.2,
    "rot": 0.25,
    "coordinator pauses": 0.25,
    "client cut off": 0.25,
    "partitions added": 0.15,
}
"""What the nemesis may do, too, in such a share of the seeds that may have it: drawn by a stream of each one's own, so
that other seeds keep their faults."""

COLUMNS_CHANGE = "columns change"
"""What the nemesis may do in the seeds with a typed topic."""

RATES = (
    "slow messages",
    "drops",
    "late produces",
    "lost answers",
    "late applies",
    "no space",
    "lying keepalives",
    "slow disk",
)
"""What goes wrong all the time, by name."""


ORDERLY = (
    "stop",
    "drain",
    "move leader",
    "move",
    "coordinator dies",
    "break streams",
    "clock jump",
    "delete records",
    "minimum changes",
)
"""Faults after which no leader's session ends but in order: what `acks=1` promises holds (H24)."""
ORDERLY_RATES = ("late produces", "slow disk")


@dataclass(frozen=True, slots=True)
class Plan(FaultProfile):
    """One run. Times are virtual milliseconds."""

    STALE_READ_RATE: ClassVar[float] = 0.2

    seed: int
    steps: int = 2_000
    brokers: int = 3
    partitions: int = 1
    replication_factor: int = 3
    min_insync_replicas: int = 2
    durable: bool = True
    """Only records are acknowledged and visible that are flushed."""
    flush_messages: int = INT64_MAX
    """As the topic's setting, with `flush_ms`."""
    flush_ms: int = 0
    """As the topic's setting; 0: a durable topic is flushed at every append."""
    buggy_etcd: bool = False
    faults: tuple[str, ...] = ()
    fault_period_ms: int = 1_000
    """A fault comes so often, on average."""
    faults_ms: int = 0
    """Faults come for at least this long, however many events that takes."""
    rates: tuple[str, ...] = ()
    rate: float = 0.02
    producers: tuple[int, ...] = (-1,)
    """The acks of each producer."""
    produce_period_ms: int = 40
    gives_up: bool = False
    """Producers report a batch as failed at a definite error, and do not send it again."""
    forgets: bool = False
    """Partitions remember few producers, for a short time; producers give up before that, end, and begin anew."""
    slow_append_ms: int = 20
    """As the broker's setting; 0: a leader appends in threads."""
    leader_rebalance_interval_ms: int = 3_000
    retention_ms: int = -1
    """As the topic's setting; -1: nothing is removed by its age."""
    retention_interval_ms: int = 1_000
    compacts: bool = False
    """The topic is compacted, and some records replace or delete others."""
    forgets_deletions: bool = False
    """Compaction removes deletions without delay."""
    is_table: bool = False
    """The topic is a table, which its clients write by rows."""
    expires: bool = False
    """Some columns of the table expire, and what has is removed without delay."""
    purges: bool = False
    """Rows of the table are deleted and purged."""
    typed: bool = False
    """The topic has columns, which change where the faults have that."""
    mirrors: bool = False
    """The topic is a mirror, whose log copiers append, until it is promoted."""
    is_administrated: bool = False
    """Administrators create, change and delete another topic all the time."""
    fences: bool = False
    """As the broker's `fence_on_lease_loss`."""
    cold_cache: bool = False
    """Nothing that is read is in the page cache: threads read it."""
    skipped: tuple[int, ...] = ()
    """Faults that are not done, by their number: for the shrinker."""

    @classmethod
    def draw(
        cls,
        seed: int,
        *,
        steps: int = 2_000,
        durability: str = "mixed",
        buggy_etcd: bool = False,
        tables: bool = False,
    ) -> Plan:
        """Return the plan of a seed; `durability`: fsync, async, or mixed; `tables`: with a table in any case."""
        chance = random.Random(f"{seed}/plan")
        durable = chance.random() < 0.75
        if durability != "mixed":
            durable = durability == "fsync"
        brokers = chance.choice((3, 3, 3, 4, 5))
        replication_factor = chance.choice((3, 3, 3, 3, 2, 1)) if durable else 3
        minimum = min(chance.choice((1, 2, 2, 2)) if durable else 2, replication_factor)
        possible = FAULTS if durable else tuple(each for each in FAULTS if each not in _LOSSY)
        if replication_factor < 3 or minimum < 2:  # Where one replica may be the only one that has a record.
            possible = tuple(each for each in possible if each not in ("corruption", "disk replaced"))
        faults = tuple(each for each in possible if chance.random() < (0.08 if each in _RARE else 0.4))
        if chance.random() < 0.3:  # One or two kinds alone reach what a storm of all hides.
            faults = tuple(chance.sample(possible, chance.choice((1, 2))))
        if "durability changes" in faults:
            faults = tuple(each for each in faults if each not in _LOSSY or each == "power all")
        outlives_disks = durable and replication_factor >= 3 and minimum >= 2 and "durability changes" not in faults
        for name, share in LATER_FAULTS.items():
            own = random.Random(f"{seed}/{name}")
            if name in _TAKES_DISKS and (buggy_etcd or not outlives_disks):
                continue
            if own.random() < share:
                # What waits for a whole cluster hardly ever meets one in a storm.
                faults = (name, "kill") if name in _TAKES_DISKS and own.random() < 0.5 else (*faults, name)
        acks = chance.choice(((-1,), (-1, -1), (-1, 1), (-1, -1, 0)))
        rates = tuple(each for each in RATES if chance.random() < 0.4)
        other = random.Random(f"{seed}/orderly")
        if other.random() < ORDERLY_SHARE and not buggy_etcd:
            faults = tuple(other.sample(ORDERLY, other.choice((1, 2, 4, len(ORDERLY)))))
            rates = tuple(each for each in ORDERLY_RATES if other.random() < 0.4)
            acks = other.choice(((1,), (1, 1), (-1, 1)))
        flush_messages, flush_ms = INT64_MAX, 0
        if durable and durability == "mixed":
            flush_messages, flush_ms = _drawn_flushes(random.Random(f"{seed}/flushes"))
        plan = cls(
            seed=seed,
            steps=steps,
            brokers=brokers,
            partitions=chance.choice((1, 1, 2)),
            replication_factor=replication_factor,
            min_insync_replicas=minimum,
            durable=durable,
            flush_messages=flush_messages,
            flush_ms=flush_ms,
            buggy_etcd=buggy_etcd,
            faults=faults,
            fault_period_ms=(period := chance.choice((300, 700, 1_500, 3_000))),
            faults_ms=phase_ms(steps, period),
            rates=rates,
            rate=chance.choice((0.005, 0.02, 0.08)),
            producers=acks,
            produce_period_ms=chance.choice((20, 40, 90)),
            gives_up=random.Random(f"{seed}/gives up").random() < GIVES_UP_SHARE,
            forgets=random.Random(f"{seed}/forgets").random() < FORGETS_SHARE,
            slow_append_ms=chance.choice((20, 20, 0)),
            leader_rebalance_interval_ms=chance.choice((1_000, 3_000, 300_000)),
            retention_ms=chance.choice((-1, -1, -1, -1, 2_000)),
            compacts=random.Random(f"{seed}/compacts").random() < COMPACTS_SHARE,
            retention_interval_ms=chance.choice((300, 1_000)),
            is_administrated=random.Random(f"{seed}/administrated").random() < ADMINISTRATED_SHARE,
            fences=chance.random() < 0.2,
            cold_cache=chance.random() < 0.2,
        )
        if not (buggy_etcd or tables) and random.Random(f"{seed}/mirrors").random() < MIRROR_SHARE:
            return plan.with_mirror()
        if not (buggy_etcd or tables or plan.compacts) and random.Random(f"{seed}/typed").random() < TYPED_SHARE:
            return plan.with_columns()
        is_table = tables or (plan.compacts and random.Random(f"{seed}/table").random() < TABLE_SHARE)
        if not is_table:
            forgets = plan.compacts and random.Random(f"{seed}/deletions").random() < FORGETS_DELETIONS_SHARE
            partitions = MANY if random.Random(f"{seed}/many").random() < MANY_SHARE else plan.partitions
            return replace(plan, forgets_deletions=forgets, partitions=partitions)
        return replace(
            plan.with_table(),
            expires=random.Random(f"{seed}/expires").random() < EXPIRES_SHARE,
            purges=random.Random(f"{seed}/purges").random() < PURGES_SHARE,
        )

    def with_table(self) -> Plan:
        """Return the plan with clients of a table; no one removes rows by their age or offset, or adds partitions."""
        faults = tuple(each for each in self.faults if each != "partitions added")
        return replace(self, compacts=True, is_table=True, retention_ms=-1, producers=(), faults=faults)

    def with_mirror(self) -> Plan:
        """Return the plan with a mirror, and without what gives up the topic, its settings or its records."""
        faults = tuple(each for each in self.faults if each not in _ENDS_MIRRORS)
        return replace(self, mirrors=True, compacts=False, retention_ms=-1, forgets=False, faults=faults)

    def with_columns(self) -> Plan:
        """Return the plan with a typed topic.

        No topic ever has again the columns that an earlier etcd lacks: a producer gives a batch with them up.
        """
        changes = (COLUMNS_CHANGE,) * (1 + len(self.faults) // 3)
        gives_up = self.gives_up or "etcd put back" in self.faults
        return replace(self, typed=True, gives_up=gives_up, faults=(*self.faults, *changes))

    @property
    def is_orderly(self) -> bool:
        """Whether leaderships move in order only."""
        return (
            not self.buggy_etcd
            and set(self.faults) <= {*ORDERLY, COLUMNS_CHANGE}
            and set(self.rates) <= set(ORDERLY_RATES)
        )

    @property
    def is_wide(self) -> bool:
        """Whether brokers lead several partitions each, and producers send to all."""
        return self.partitions >= MANY

    @property
    def goes_by_age(self) -> bool:
        """Whether anything goes by its age: then clocks differ little, or jump so far that they are in doubt."""
        return self.retention_ms >= 0 or self.forgets

    @property
    def clocks_agree(self) -> bool:
        """Whether clocks differ little from the start: also in half of the tables in which rows expire."""
        return self.goes_by_age or (self.expires and random.Random(f"{self.seed}/clocks").random() < 0.5)

    @property
    def slow_disk_rate(self) -> float:
        """How often an fsync takes long."""
        return self.rate_of("slow disk") * 2


def _drawn_flushes(chance: random.Random) -> tuple[int, int]:
    """Draw `flush_messages` and `flush_ms` of a durable topic; a time is always set, as no more records may come."""
    if chance.random() >= FLUSH_POLICY_SHARE:
        return INT64_MAX, 0
    return chance.choice((2, 10, 50, INT64_MAX)), chance.choice((5, 50, 400))


ORDERLY_SHARE = 0.1
"""This share of seeds has only clean operations."""
FLUSH_POLICY_SHARE = 0.2
"""In this share of the seeds with a durable topic it is flushed by `flush_messages` and `flush_ms`."""
GIVES_UP_SHARE = 0.25
"""In this share of seeds producers give up at a definite error."""
COMPACTS_SHARE = 0.2
"""In this share of seeds the topic is compacted."""
FORGETS_DELETIONS_SHARE = 0.5
"""In this share of the seeds with a compacted topic that is no table deletions are removed without delay."""
TABLE_SHARE = 0.4
"""In this share of the seeds with a compacted topic it is a table."""
MIRROR_SHARE = 0.08
"""In this share of seeds the topic is a mirror."""
TYPED_SHARE = 0.12
"""In this share of the other seeds the topic is typed."""
EXPIRES_SHARE = 0.5
"""In this share of the seeds with a table some columns expire."""
PURGES_SHARE = 0.5
"""In this share of the seeds with a table rows are purged."""
ADMINISTRATED_SHARE = 0.3
"""In this share of seeds administrators have another topic."""
MANY, MANY_SHARE = 4, 0.1
"""Number of partitions in this share of the seeds with neither table nor mirror nor columns."""
FORGETS_SHARE = 0.15
"""In this share of seeds producers come and go, and expire."""
_RARE = ("unclean election", "durability changes")
"""After it much may be lost that otherwise must not."""
_ENDS_MIRRORS = ("topic made anew", "etcd put back", "unclean election", "partitions added")
"""Another topic would be another mirror, an earlier etcd has its setting, the copied log is not lost and has no more
partitions."""
_TAKES_DISKS = ("volume put back", "etcd put back", "rot")
"""Where one replica may be the only one that has a record, or a write promises what async does, these would lose it."""
_LOSSY = ("power all", "power in a call", "disk error", "corruption", "disk replaced", "disk full")
"""What async durability promises nothing about, where it meets several replicas at once."""
