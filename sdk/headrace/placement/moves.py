"""Planner of moves for even numbers of replicas: partitions and brokers in, moves out.

Pure and deterministic: the same cluster gives the same plan, and the plan of a cluster after its plan is empty. A plan

1. gives every partition the replicas of its placement policy, on brokers that may hold some: a data center with too few
   gets more, one with too many loses the last ones. Each new replica goes to a broker of the rack, then of the host,
   with the fewest replicas of that partition, there to the one with the fewest replicas in total, then of that topic;
2. then moves replicas to brokers with at least two fewer than the fullest, unless that leaves a partition on fewer
   racks, or changes its data centers against the policy; among a broker's replicas one that adds a rack to its
   partition moves first, then one of a topic of which the receiver has few replicas, then the smallest;
3. in the partitions that it moves anyway, makes that replica the preferred leader whose broker is preferred in the
   fewest partitions; the current preferred leader stays if its broker has at most one more.

So only the copies needed for an even replica count are made. Spreading over failure domains has priority, as in the
placement of new topics (KIP-36).
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from headrace.placement.policy import RACK, PlacementPolicy
from headrace.wire.ids import TopicPartition


class PlanImpossibleError(ValueError):
    """Too few brokers for the replicas of a partition; the message names the partition."""


@dataclass(frozen=True, slots=True)
class PlanBroker:
    """Broker that may have replicas."""

    broker_id: int
    # Failure domains; empty if not configured.
    rack: str = ""
    host: str = ""
    # False for a drained or dead broker, which keeps its replicas and gets no others.
    receives: bool = True
    data_center: str = ""


@dataclass(frozen=True, slots=True)
class PlanPartition:
    """Partition after the moves in progress."""

    where: TopicPartition
    # In order of preference.
    replicas: tuple[int, ...]
    # Size of one replica on disk.
    size_bytes: int = 0
    policy: PlacementPolicy = RACK
    # True while it is moving: it counts where it will be, and `plan_fill` does not move it again.
    is_moving: bool = False


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """New replicas of one partition."""

    where: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]
    size_bytes: int = 0

    @property
    def adding(self) -> tuple[int, ...]:
        """Brokers that copy the partition, in the order of `after`."""
        return tuple(broker_id for broker_id in self.after if broker_id not in self.before)

    @property
    def removing(self) -> tuple[int, ...]:
        """Brokers whose replica is removed, in the order of `before`."""
        return tuple(broker_id for broker_id in self.before if broker_id not in self.after)

    @property
    def copy_bytes(self) -> int:
        """Approximate bytes to copy over the network."""
        return self.size_bytes * len(self.adding)


def plan_moves(
    partitions: Sequence[PlanPartition],
    brokers: Sequence[PlanBroker],
    receivers: Collection[int] | None = None,
) -> list[PlannedMove]:
    """Return the moves, by topic and partition, after which only `brokers` have `partitions`, evenly.

    Args:
        partitions: Partitions that may move, in any order.
        brokers: Brokers that may have replicas. Replicas on other brokers must move to receivers among them.
        receivers: Brokers among them that get replicas for an even count; `None` means all that accept replicas.

    Raises:
        PlanImpossibleError: If there is no broker for a replica that must move.
    """
    layout = _Layout(partitions, brokers)
    for where in layout.order:
        layout.settle(where)
    wanted = layout.receivers if receivers is None else [each for each in layout.receivers if each in set(receivers)]
    while any(layout.fill(broker_id) for broker_id in layout.emptiest_first(wanted)):
        pass
    return layout.moves()


def plan_fill(
    partitions: Sequence[PlanPartition], brokers: Sequence[PlanBroker], receivers: Collection[int], limit: int
) -> list[PlannedMove]:
    """Return the first moves, at most `limit`, by which `plan_moves` makes the count even; no other partition moves.

    Every broker with replicas must be among `brokers`.
    """
    layout = _Layout(partitions, brokers)
    for _ in range(limit):
        if not any(layout.fill(broker_id) for broker_id in layout.emptiest_first(sorted(receivers))):
            break
    return layout.moves()


class _Layout:
    """Mutable replicas of a plan. Used by `plan_moves`."""

    def __init__(self, partitions: Sequence[PlanPartition], brokers: Sequence[PlanBroker]) -> None:
        self._before = {each.where: each for each in partitions}
        self._now = {each.where: list(each.replicas) for each in partitions}
        self._brokers = {each.broker_id: each for each in brokers}
        self._data_centers = {each.broker_id: each.data_center for each in brokers}
        self.order = sorted(self._before)
        self.receivers = sorted(each.broker_id for each in brokers if each.receives)
        self._held: dict[int, set[TopicPartition]] = {broker_id: set() for broker_id in sorted(self._brokers)}
        self._of_topic: Counter[tuple[int, str]] = Counter()
        for where in self.order:
            for broker_id in self._now[where]:
                if broker_id in self._brokers:
                    self._held[broker_id].add(where)
                    self._of_topic[broker_id, where.topic] += 1

    def settle(self, where: TopicPartition) -> None:
        """Put a partition on the brokers that its policy requires, all of them brokers that may have replicas."""
        now, policy = self._now[where], self._before[where].policy
        leaving = [broker_id for broker_id in now if broker_id not in self._brokers]
        wanted: list[str | None] = [None] * len(leaving)
        if policy.counts:
            missing = policy.missing(self._data_centers, now)
            for broker_id in reversed(now):
                data_center = self._data_centers.get(broker_id)
                if data_center is not None and missing[data_center] < 0:
                    leaving.append(broker_id)
                    missing[data_center] += 1
            wanted = [name for name, count in sorted(missing.items()) for _ in range(count)]
        for data_center in wanted:
            home = self._best_home(where, leaving, data_center)
            self._move(where, leaving.pop(0) if leaving else None, home)
        for broker_id in leaving:
            self._move(where, broker_id, None)

    def emptiest_first(self, brokers: Sequence[int]) -> list[int]:
        """Return brokers by ascending replica count, so that each is filled once."""
        return sorted(brokers, key=lambda each: (len(self._held[each]), each))

    def fill(self, receiver: int) -> bool:
        """Move one replica to a broker that has too few; return False if it has enough or none can move."""
        donors = sorted(self._held, key=lambda each: (-len(self._held[each]), each))
        for donor in donors:
            if len(self._held[donor]) < len(self._held[receiver]) + 2:
                return False
            movable = [where for where in self._held[donor] if self._may_move(where, donor, receiver)]
            if movable:
                self._move(min(movable, key=lambda where: self._rank(where, donor, receiver)), donor, receiver)
                return True
        return False

    def moves(self) -> list[PlannedMove]:
        """Return the partitions that have changed, with their replicas in order of preference."""
        moved = [where for where in self.order if set(self._now[where]) != set(self._before[where].replicas)]
        still = set(self.order) - set(moved)
        first = Counter(self._before[where].replicas[0] for where in still if self._before[where].replicas)
        found = []
        for where in moved:
            now, before = self._now[where], self._before[where]
            least = min(now, key=lambda broker_id: (first[broker_id], now.index(broker_id)))
            keeps = now[0] == before.replicas[0] and first[now[0]] <= first[least] + 1
            leader = now[0] if keeps else least
            first[leader] += 1
            after = (leader, *(broker_id for broker_id in now if broker_id != leader))
            found.append(PlannedMove(where, before.replicas, after, before.size_bytes))
        return found

    def _best_home(self, where: TopicPartition, leaving: Collection[int], data_center: str | None) -> int:
        policy, now = self._before[where].policy, self._now[where]
        stay = [self._brokers[each] for each in now if each not in leaving and each in self._brokers]
        racks, hosts = Counter(map(policy.rack_of, stay)), Counter(map(policy.host_of, stay))
        free = [
            self._brokers[each]
            for each in self.receivers
            if each not in now and data_center in (None, self._data_centers[each])
        ]
        if not free:
            raise PlanImpossibleError(
                f"{where.topic}-{where.partition} has {len(now)} replicas and no other broker "
                f"{f'of data center {data_center} ' if data_center else ''}that could take one"
            )
        best = min(
            free,
            key=lambda each: (
                racks[policy.rack_of(each)],
                hosts[policy.host_of(each)],
                len(self._held[each.broker_id]),
                self._of_topic[each.broker_id, where.topic],
                each.broker_id,
            ),
        )
        return best.broker_id

    def _may_move(self, where: TopicPartition, donor: int, receiver: int) -> bool:
        planned = self._before[where]
        if planned.is_moving or receiver in self._now[where]:
            return False
        may_replace = planned.policy.may_replace(self._brokers[donor], self._brokers[receiver])
        return may_replace and self._gained(where, donor, receiver) >= (0, 0)

    def _rank(self, where: TopicPartition, donor: int, receiver: int) -> tuple[object, ...]:
        racks, hosts = self._gained(where, donor, receiver)
        uneven = self._of_topic[donor, where.topic] - self._of_topic[receiver, where.topic]
        return (-racks, -hosts, -uneven, self._before[where].size_bytes, where)

    def _gained(self, where: TopicPartition, donor: int, receiver: int) -> tuple[int, int]:
        now = [self._brokers[each] for each in self._now[where]]
        return gained_domains(self._before[where].policy, now, self._brokers[donor], self._brokers[receiver])

    def _move(self, where: TopicPartition, donor: int | None, receiver: int | None) -> None:
        """Replace `donor` by `receiver`; without one of them, add or remove a replica."""
        now = self._now[where]
        at = len(now) if donor is None else now.index(donor)
        now[at : at + 1] = [] if receiver is None else [receiver]
        if donor in self._brokers:
            self._held[donor].remove(where)
            self._of_topic[donor, where.topic] -= 1
        if receiver is not None:
            self._held[receiver].add(where)
            self._of_topic[receiver, where.topic] += 1


def gained_domains(
    policy: PlacementPolicy, holders: Sequence[PlanBroker], donor: PlanBroker, receiver: PlanBroker
) -> tuple[int, int]:
    """Return how many racks, and then hosts, a partition on `holders` gains if the receiver replaces the donor."""
    gained = []
    for domain_of in (policy.rack_of, policy.host_of):
        leaves, comes = domain_of(donor), domain_of(receiver)
        held = [domain_of(each) for each in holders]
        gained.append(0 if leaves == comes else (comes not in held) - (held.count(leaves) == 1))
    return gained[0], gained[1]


def with_targets(
    partitions: Sequence[PlanPartition], targets: dict[TopicPartition, tuple[int, ...]]
) -> list[PlannedMove]:
    """Return the moves to explicit targets, by topic and partition, without those that change nothing."""
    found = []
    for each in sorted(partitions, key=lambda each: each.where):
        after = targets.get(each.where, each.replicas)
        if after != each.replicas:
            found.append(PlannedMove(each.where, each.replicas, after, each.size_bytes))
    return found


def applied(partitions: Sequence[PlanPartition], moves: Sequence[PlannedMove]) -> list[PlanPartition]:
    """Return the partitions after moves."""
    after = {move.where: move.after for move in moves}
    return [replace(each, replicas=after.get(each.where, each.replicas)) for each in partitions]
