"""Planner of moves for an even load: measured loads of replicas in, the fewest moves out.

Pure and deterministic. The load of a replica is a rate in bytes per second, in which a request counts as
`REQUEST_BYTES`; a leader has another load than a follower. While the most loaded broker has more than `max_ratio` times
the mean, the plan takes the step that lowers the larger of the two loads that it changes the most:

- another replica becomes the preferred leader, which copies nothing;
- a replica moves to another broker, if the partition stays on as many racks and hosts, and in the data centers of its
  placement policy.

A step that brings both brokers below the limit comes before a larger one that copies more. At the end each partition
whose move the limit does not need goes back. The fewest moves are a problem of bin packing: this is a heuristic.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest

from headrace.placement.moves import PlanBroker, PlannedMove, PlanPartition, gained_domains, with_targets
from headrace.wire.ids import TopicPartition

REQUEST_BYTES = 64 << 10
"""Bytes that cost a broker as much as one request: over the native protocol it answers 66,000 small requests or moves
4.5 GB in the same second of processor time."""
MAX_RATIO = 1.2
"""Default limit of the load of a broker, as a multiple of the mean."""
_EXAMINED = 100
"""Partitions that are examined for one step, those with the largest loads that fit: a step then takes milliseconds."""


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """Measured rates of one replica, averages per second."""

    bytes_in: float = 0.0
    bytes_out: float = 0.0
    requests: float = 0.0

    @property
    def cost(self) -> float:
        """Load in bytes per second."""
        return self.bytes_in + self.bytes_out + REQUEST_BYTES * self.requests


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    """Load of the replicas of one partition, in bytes per second."""

    leader: float = 0.0
    follower: float = 0.0
    """Of each follower."""


_NO_LOAD = PartitionLoad()


@dataclass(frozen=True, slots=True)
class LoadBalancePlan:
    """Moves, with the loads of brokers before and after them, in bytes per second by id."""

    moves: tuple[PlannedMove, ...]
    before: Mapping[int, float]
    after: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class _Step:
    """New replicas of a partition, and the load that they move between two brokers."""

    where: TopicPartition
    replicas: tuple[int, ...]
    receiver: int
    load: float
    copies: int


def load_ratio(loads: Mapping[int, float]) -> float:
    """Return the largest load divided by the mean; 1 without any load."""
    total = sum(loads.values())
    return max(loads.values()) * len(loads) / total if total > 0 else 1.0


def broker_loads(
    partitions: Sequence[PlanPartition], loads: Mapping[TopicPartition, PartitionLoad], brokers: Sequence[PlanBroker]
) -> dict[int, float]:
    """Return the load of each broker if every partition is led by its preferred leader."""
    found = {each.broker_id: 0.0 for each in brokers}
    for each in partitions:
        load = loads.get(each.where, _NO_LOAD)
        for index, broker_id in enumerate(each.replicas):
            if broker_id in found:
                found[broker_id] += load.follower if index else load.leader
    return found


def plan_load(
    partitions: Sequence[PlanPartition],
    loads: Mapping[TopicPartition, PartitionLoad],
    brokers: Sequence[PlanBroker],
    max_ratio: float = MAX_RATIO,
) -> LoadBalancePlan:
    """Return moves after which no broker has more than `max_ratio` > 1 times the mean load, or as near as steps come.

    Args:
        partitions: All partitions, after the moves in progress.
        loads: Measured loads; a partition without one has none.
        brokers: Brokers that share the load. Those that receive nothing are no part of the mean, and keep their load.
        max_ratio: Limit as a multiple of the mean.
    """
    balance = _Balance(partitions, loads, [each for each in brokers if each.receives], brokers)
    before = dict(balance.loads)
    if balance.loads:
        balance.run(max_ratio)
    return LoadBalancePlan(tuple(with_targets(partitions, balance.now)), before, balance.loads)


class _Balance:
    """Mutable replicas and loads of a plan. Used by `plan_load`."""

    def __init__(
        self,
        partitions: Sequence[PlanPartition],
        loads: Mapping[TopicPartition, PartitionLoad],
        receivers: Sequence[PlanBroker],
        brokers: Sequence[PlanBroker],
    ) -> None:
        self._partitions = {each.where: each for each in sorted(partitions, key=lambda each: each.where)}
        self._partition_loads = loads
        self._brokers = {each.broker_id: each for each in brokers}
        self.now = {where: each.replicas for where, each in self._partitions.items()}
        self.loads = broker_loads(
            list(self._partitions.values()), loads, sorted(receivers, key=lambda each: each.broker_id)
        )
        self._held: dict[int, set[TopicPartition]] = {broker_id: set() for broker_id in self.loads}
        for where, replicas in self.now.items():
            self._note(where, (), replicas)

    def run(self, max_ratio: float) -> None:
        """Take steps until no broker is above the limit, or no step lowers the highest load."""
        limit = max_ratio * sum(self.loads.values()) / len(self.loads)
        changed: list[TopicPartition] = []
        while self.loads[hottest := max(self.loads, key=lambda each: (self.loads[each], -each))] > limit:
            best = min(self._steps(hottest), key=lambda step: self._rank(step, hottest, limit), default=None)
            if best is None:
                break
            changed.append(best.where)
            self._set(best.where, best.replicas)
        highest = max(limit, *self.loads.values())
        for where in dict.fromkeys(changed):
            self._take_back(where, highest)

    def _steps(self, hottest: int) -> Iterator[_Step]:
        """Yield the steps that move load off a broker and leave the receiver with less than that has now."""
        room = {broker_id: self.loads[hottest] - load for broker_id, load in self.loads.items()}
        held = [(where, self._load(where), self.now[where]) for where in self._held[hottest]]
        shifts = [(load.leader - load.follower, where) for where, load, replicas in held if replicas[0] == hottest]
        for shifted, where in _largest(shifts, max(room.values())):
            for receiver in self.now[where][1:]:
                if shifted < room.get(receiver, 0):
                    rest = tuple(each for each in self.now[where] if each != receiver)
                    yield _Step(where, (receiver, *rest), receiver, shifted, 0)
        moves = [(load.leader if replicas[0] == hottest else load.follower, where) for where, load, replicas in held]
        for moved, where in _largest(moves, max(room.values())):
            for receiver in self.loads:
                if moved < room[receiver] and self._may_replace(where, hottest, receiver):
                    replicas = tuple(receiver if each == hottest else each for each in self.now[where])
                    yield _Step(where, replicas, receiver, moved, 1)

    def _load(self, where: TopicPartition) -> PartitionLoad:
        return self._partition_loads.get(where, _NO_LOAD)

    def _rank(self, step: _Step, hottest: int, limit: float) -> tuple[object, ...]:
        """Order steps: within the limit by what they copy, others by the larger of the two loads after them."""
        highest = max(self.loads[hottest] - step.load, self.loads[step.receiver] + step.load)
        copied = step.copies * self._partitions[step.where].size_bytes
        is_enough = highest <= limit
        return (not is_enough, (step.copies, copied) if is_enough else (0, 0), highest, step.copies, copied, step.where)

    def _may_replace(self, where: TopicPartition, donor: int, receiver: int) -> bool:
        holders = [self._brokers[each] for each in self.now[where] if each in self._brokers]
        policy = self._partitions[where].policy
        leaving, coming = self._brokers[donor], self._brokers[receiver]
        return (
            receiver not in self.now[where]
            and policy.may_replace(leaving, coming)
            and gained_domains(policy, holders, leaving, coming) >= (0, 0)
        )

    def _take_back(self, where: TopicPartition, highest: float) -> None:
        """Undo the changes of a partition if no load exceeds `highest` without them."""
        changed, before = self.now[where], self._partitions[where].replicas
        self._set(where, before)
        if max(self.loads.values()) > highest:
            self._set(where, changed)

    def _set(self, where: TopicPartition, replicas: tuple[int, ...]) -> None:
        load, before = self._load(where), self.now[where]
        for sign, members in ((-1, before), (1, replicas)):
            for index, broker_id in enumerate(members):
                if broker_id in self.loads:
                    self.loads[broker_id] += sign * (load.follower if index else load.leader)
        self._note(where, before, replicas)
        self.now[where] = replicas

    def _note(self, where: TopicPartition, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        for broker_id in before:
            self._held.get(broker_id, set()).discard(where)
        for broker_id in after:
            self._held.get(broker_id, set()).add(where)


def _largest(loads: list[tuple[float, TopicPartition]], below: float) -> list[tuple[float, TopicPartition]]:
    """Return the largest loads between 0 and `below`, in descending order."""
    return nlargest(_EXAMINED, (entry for entry in loads if 0 < entry[0] < below))
