"""Plans of `Admin.plan_balance`: descriptions of brokers, topics and logs in, moves out. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from headrace.client.admin.replication import LogInfo
from headrace.client.admin.rpc import BrokerDescription, TopicDescription
from headrace.client.base.errors import ConfigError
from headrace.placement.load import PartitionLoad, broker_loads, load_ratio, plan_load
from headrace.placement.moves import (
    PlanBroker,
    PlanImpossibleError,
    PlannedMove,
    PlanPartition,
    applied,
    plan_moves,
    with_targets,
)
from headrace.placement.policy import parse_placement
from headrace.wire.errors import NotEnoughBrokersError
from headrace.wire.ids import TopicPartition

BalanceBy: TypeAlias = Literal["replicas", "load"]


@dataclass(frozen=True, slots=True)
class BalancePlan:
    """Moves that balance the brokers, for `Admin.reassign_partitions`."""

    by: BalanceBy
    moves: tuple[PlannedMove, ...]
    """By topic and partition."""
    before: Mapping[int, float]
    """Replicas, or load in bytes per second, of each broker that receives replicas, by id."""
    after: Mapping[int, float]
    hidden_topics: int = 0
    """Number of topics that are not shown to the caller: the plan neither counts nor moves their replicas."""

    @property
    def targets(self) -> dict[TopicPartition, tuple[int, ...]]:
        """Replicas of each moved partition after its move, in order of preference."""
        return {move.where: move.after for move in self.moves}

    @property
    def ratio_before(self) -> float:
        """Largest number or load divided by the mean; 1 if all are 0."""
        return load_ratio(self.before)

    @property
    def ratio_after(self) -> float:
        """Largest number or load divided by the mean, after the moves."""
        return load_ratio(self.after)


def plan_partitions(topics: Iterable[TopicDescription], logs: Iterable[LogInfo]) -> list[PlanPartition]:
    """Return the partitions after the moves in progress; the size of a replica is the largest known of its partition.

    Raises:
        InvalidConfigError: If a later release has set a placement that this one does not know.
    """
    sizes: dict[TopicPartition, int] = {}
    for log in logs:
        where = TopicPartition(log.topic, log.partition)
        sizes[where] = max(log.size_bytes, sizes.get(where, 0))
    partitions = []
    for topic in topics:
        policy = parse_placement(topic.placement)
        for each in topic.partitions:
            where = TopicPartition(topic.name, each.partition)
            partitions.append(PlanPartition(where, each.target_replicas, sizes.get(where, 0), policy))
    return partitions


def plan_brokers(
    brokers: Iterable[BrokerDescription], partitions: Iterable[PlanPartition], without: Collection[int] = ()
) -> list[PlanBroker]:
    """Return registered brokers and brokers with replicas except `without`; dead or drained ones do not receive."""
    holders = {broker_id for each in partitions for broker_id in each.replicas}
    found = {broker_id: PlanBroker(broker_id, receives=False) for broker_id in holders}
    for broker in brokers:
        found[broker.broker_id] = PlanBroker(
            broker.broker_id,
            broker.rack,
            broker.host,
            receives=not broker.draining,
            data_center=broker.data_center,
        )
    return [found[broker_id] for broker_id in sorted(found) if broker_id not in without]


def partition_loads(logs: Iterable[LogInfo]) -> dict[TopicPartition, PartitionLoad]:
    """Return the measured load of each partition: its leader's, and the mean of its followers'.

    Of two that report leadership, that of the later epoch counts. A partition without a leader has no load.
    """
    leaders: dict[TopicPartition, LogInfo] = {}
    followers: dict[TopicPartition, list[float]] = {}
    for log in logs:
        where = TopicPartition(log.topic, log.partition)
        if not log.is_leader:
            followers.setdefault(where, []).append(log.load.cost)
        elif where not in leaders or leaders[where].leader_epoch < log.leader_epoch:
            leaders[where] = log
    return {
        where: PartitionLoad(leader.load.cost, sum(costs) / len(costs) if (costs := followers.get(where)) else 0.0)
        for where, leader in leaders.items()
    }


def plan_balance(
    brokers: Sequence[BrokerDescription],
    topics: Sequence[TopicDescription],
    logs: Sequence[LogInfo],
    by: BalanceBy,
    max_ratio: float,
) -> BalancePlan:
    """Return the plan; partitions that differ from their placement policy move in any case.

    Raises:
        NotEnoughBrokersError: If a partition needs a broker that does not exist.
        InvalidConfigError: As `plan_partitions`.
    """
    partitions = plan_partitions(topics, logs)
    members = plan_brokers(brokers, partitions)
    receivers = [each for each in members if each.receives]
    try:
        moves = plan_moves(partitions, members, () if by == "load" else None)
    except PlanImpossibleError as error:
        raise NotEnoughBrokersError(str(error), action="Add a broker, or change the topic's placement.") from error
    settled = applied(partitions, moves)
    if by == "load":
        loads = partition_loads(logs)
        plan = plan_load(settled, loads, members, max_ratio)
        targets = {each.where: each.replicas for each in applied(settled, plan.moves)}
        moves = with_targets(partitions, targets)
        return BalancePlan(by, tuple(moves), broker_loads(partitions, loads, receivers), plan.after)
    one_each = {each.where: PartitionLoad(1, 1) for each in partitions}
    before, after = (broker_loads(each, one_each, receivers) for each in (partitions, settled))
    return BalancePlan(by, tuple(moves), before, after)


def check_balance(by: str, max_ratio: float) -> None:
    """Check the arguments of `Admin.plan_balance`.

    Raises:
        ConfigError: If `by` is unknown, or `max_ratio` is not above 1.
    """
    if by not in ("replicas", "load"):
        raise ConfigError(f"by={by!r} is not replicas or load", action="Balance by one of the two.")
    if not max_ratio > 1:
        raise ConfigError(f"max_ratio={max_ratio} is not above 1", action="Use for example 1.2.")
