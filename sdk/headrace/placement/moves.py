"""Planner of moves for even numbers of replicas: partitions and brokers in, moves out.

Pure and deterministic: the same cluster gives the same plan, and the plan of a cluster after its plan is empty. A plan

1. moves every replica off brokers that must hold none: each goes to a broker of the rack, then of the host, with the
   fewest replicas of that partition, there to the one with the fewest replicas in total, then of that topic;
2. then moves replicas to brokers with at least two fewer than the fullest, unless that leaves a partition on fewer
   racks; among a broker's replicas one that adds a rack to its partition moves first, then one of a topic of
   which the receiver has few replicas, then the smallest;
3. in the partitions that it moves anyway, makes that replica the preferred leader whose broker is preferred in the
   fewest partitions; the current preferred leader stays if its broker has at most one more.

So only the copies needed for an even replica count are made. Spreading over failure domains has priority, as in the
placement of new topics (KIP-36).
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True)
class PlanPartition:
    """Partition after the moves in progress."""

    where: TopicPartition
    # In order of preference.
    replicas: tuple[int, ...]
    # Size of one replica on disk.
    size_bytes: int = 0


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
        layout.evacuate(where)
    wanted = layout.receivers if receivers is None else [each for each in layout.receivers if each in set(receivers)]
    while any(layout.fill(broker_id) for broker_id in layout.emptiest_first(wanted)):
        pass
    return layout.moves()


class _Layout:
    """Mutable replicas of a plan. Used by `plan_moves`."""

    def __init__(self, partitions: Sequence[PlanPartition], brokers: Sequence[PlanBroker]) -> None:
        self._before = {each.where: each for each in partitions}
        self._now = {each.where: list(each.replicas) for each in partitions}
        self._racks = {each.broker_id: each.rack for each in brokers}
        # A broker that names no host counts as a host of its own.
        self._hosts = {each.broker_id: (each.rack, each.host or f"broker {each.broker_id}") for each in brokers}
        self.order = sorted(self._before)
        self.receivers = sorted(each.broker_id for each in brokers if each.receives)
        self._held: dict[int, set[TopicPartition]] = {broker_id: set() for broker_id in sorted(self._racks)}
        self._of_topic: Counter[tuple[int, str]] = Counter()
        for where in self.order:
            for broker_id in self._now[where]:
                if broker_id in self._racks:
                    self._held[broker_id].add(where)
                    self._of_topic[broker_id, where.topic] += 1

    def evacuate(self, where: TopicPartition) -> None:
        """Move a partition's replicas off brokers that must not have any."""
        for broker_id in self._before[where].replicas:
            if broker_id not in self._racks:
                self._move(where, broker_id, self._best_home(where, broker_id))

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

    def _best_home(self, where: TopicPartition, leaving: int) -> int:
        stay = [each for each in self._now[where] if each != leaving and each in self._racks]
        racks = Counter(self._racks[each] for each in stay)
        hosts = Counter(self._hosts[each] for each in stay)
        free = [each for each in self.receivers if each not in self._now[where]]
        if not free:
            raise PlanImpossibleError(
                f"{where.topic}-{where.partition} has {len(self._now[where])} replicas "
                f"and no other broker that could take the one of broker {leaving}"
            )
        return min(
            free,
            key=lambda each: (
                racks[self._racks[each]],
                hosts[self._hosts[each]],
                len(self._held[each]),
                self._of_topic[each, where.topic],
                each,
            ),
        )

    def _may_move(self, where: TopicPartition, donor: int, receiver: int) -> bool:
        return receiver not in self._now[where] and self._gained_domains(where, donor, receiver) >= (0, 0)

    def _rank(self, where: TopicPartition, donor: int, receiver: int) -> tuple[object, ...]:
        racks, hosts = self._gained_domains(where, donor, receiver)
        uneven = self._of_topic[donor, where.topic] - self._of_topic[receiver, where.topic]
        return (-racks, -hosts, -uneven, self._before[where].size_bytes, where)

    def _gained_domains(self, where: TopicPartition, donor: int, receiver: int) -> tuple[int, int]:
        """Return how many racks, and then hosts, the partition gains if the receiver replaces the donor."""
        gained = []
        for domain_of in (self._racks, self._hosts):
            leaves, comes = domain_of[donor], domain_of[receiver]
            held = [domain_of[each] for each in self._now[where]]
            gained.append(0 if leaves == comes else (comes not in held) - (held.count(leaves) == 1))
        return gained[0], gained[1]

    def _move(self, where: TopicPartition, donor: int, receiver: int) -> None:
        now = self._now[where]
        now[now.index(donor)] = receiver
        if donor in self._racks:
            self._held[donor].remove(where)
            self._of_topic[donor, where.topic] -= 1
        self._held[receiver].add(where)
        self._of_topic[receiver, where.topic] += 1


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
