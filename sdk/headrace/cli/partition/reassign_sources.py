"""Sources of a move's targets: named replicas, a file, or a plan (`headrace.placement.moves`) for some brokers."""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.common.arguments import broker_list, parse_broker_ids, parse_partition
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.session import CommandFailed, UsageProblem
from headrace.placement.moves import (
    PlanBroker,
    PlanImpossibleError,
    PlannedMove,
    PlanPartition,
    plan_moves,
    with_targets,
)
from headrace.wire.ids import TopicPartition

if TYPE_CHECKING:
    from headrace.client.admin.replication import LogInfo
    from headrace.client.admin.rpc import BrokerDescription, TopicDescription

SOURCES = "--replicas with TOPIC:PARTITION, --to-brokers with --topic, --plan, --add-broker or --remove-broker"

MovePlanner = Callable[["ClusterLayout"], list[PlannedMove]]


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """Input of a plan: brokers and partitions."""

    brokers: "Sequence[BrokerDescription]"
    # State after the moves in progress.
    partitions: Sequence[PlanPartition]

    def check_known(self, broker_ids: Sequence[int]) -> None:
        """Check that brokers are registered or have a replica.

        Raises:
            CommandFailed: If one is neither.
        """
        known = {broker.broker_id for broker in self.brokers}
        known |= {broker_id for each in self.partitions for broker_id in each.replicas}
        if absent := [broker_id for broker_id in broker_ids if broker_id not in known]:
            verb = "is" if len(absent) == 1 else "are"
            raise CommandFailed(ExitCode.NOT_FOUND, f"{broker_list(absent)} {verb} not registered")

    def members(self, without: Collection[int] = ()) -> list[PlanBroker]:
        """Return registered brokers and brokers with replicas except `without`; dead or drained ones do not receive."""
        from headrace.client.admin.balance import plan_brokers

        return plan_brokers(self.brokers, self.partitions, without)


def cluster_layout(
    brokers: "Sequence[BrokerDescription]", topics: "Sequence[TopicDescription]", logs: "Sequence[LogInfo]"
) -> ClusterLayout:
    """Return the input of a plan."""
    from headrace.client.admin.balance import plan_partitions

    return ClusterLayout(brokers, plan_partitions(topics, logs))


def choose_planner(
    partitions: Sequence[str],
    topics: Sequence[str],
    replicas: str | None,
    to_brokers: str | None,
    plan: Path | None,
    add_brokers: Sequence[int],
    remove_brokers: Sequence[int],
) -> MovePlanner | None:
    """Return the planner for the options; `None` means that they name none.

    Raises:
        UsageProblem: If there are two sources, or one is incomplete.
    """
    named = [replicas is not None, to_brokers is not None, plan is not None, bool(add_brokers or remove_brokers)]
    if sum(named) > 1:
        raise UsageProblem(f"more than one source of the reassignment: use one of {SOURCES}")
    if partitions and replicas is None:
        raise UsageProblem("TOPIC:PARTITION requires --replicas, for example clicks:0 --replicas 1,2,3")
    if replicas is not None:
        if not partitions:
            raise UsageProblem("--replicas requires TOPIC:PARTITION, for example clicks:0 --replicas 1,2,3")
        after = parse_broker_ids(replicas, "--replicas")
        return _to_targets({parse_partition(each): after for each in partitions})
    if to_brokers is not None:
        if not topics:
            raise UsageProblem("--to-brokers requires --topic, for example --topic clicks --to-brokers 1,2,3")
        return _to_brokers(parse_broker_ids(to_brokers, "--to-brokers"))
    if plan is not None:
        return _to_targets(read_plan(plan.read_text("utf-8"), str(plan)))
    if add_brokers or remove_brokers:
        if both := sorted(set(add_brokers) & set(remove_brokers)):
            raise UsageProblem(f"{broker_list(both)} cannot be added and removed at once")
        return _add_and_remove(tuple(add_brokers), tuple(remove_brokers))
    return None


def read_plan(text: str, name: str) -> dict[TopicPartition, tuple[int, ...]]:
    """Read what `partition reassign --output json` prints: `{"partitions": [{"topic", "partition", "replicas"}, ...]}`.

    Further fields are ignored, so that a dry run's document and the plans of Kafka's tools are plans.

    Raises:
        UsageProblem: If the text has another form; names the entry.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UsageProblem(f"{name} is not JSON: {error}") from None
    entries = document.get("partitions") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise UsageProblem(f'{name} is not {{"partitions": [{{"topic": "t", "partition": 0, "replicas": [1, 2]}}]}}')
    targets: dict[TopicPartition, tuple[int, ...]] = {}
    for number, entry in enumerate(entries, start=1):
        where, replicas = _plan_entry(entry, f"{name}, entry {number}")
        if where in targets:
            raise UsageProblem(f"{name}, entry {number}: {where.topic}-{where.partition} is there twice")
        targets[where] = replicas
    return targets


def _plan_entry(entry: Any, place: str) -> tuple[TopicPartition, tuple[int, ...]]:
    match entry:
        case {"topic": str(topic), "partition": int(partition), "replicas": [*replicas]}:
            if replicas and all(type(each) is int and each >= 0 for each in replicas):
                if len(set(replicas)) < len(replicas):
                    raise UsageProblem(f"{place}: replicas names a broker twice")
                return TopicPartition(topic, partition), tuple(replicas)
    raise UsageProblem(f"{place} needs topic, partition and replicas (a list of broker ids)")


def _to_targets(targets: dict[TopicPartition, tuple[int, ...]]) -> MovePlanner:
    def planner(layout: ClusterLayout) -> list[PlannedMove]:
        known = {each.where for each in layout.partitions}
        for where in targets:
            if where not in known:
                raise CommandFailed(ExitCode.NOT_FOUND, f"there is no partition {where.topic}-{where.partition}")
        layout.check_known(sorted({broker_id for replicas in targets.values() for broker_id in replicas}))
        return with_targets(layout.partitions, targets)

    return planner


def _to_brokers(broker_ids: tuple[int, ...]) -> MovePlanner:
    def planner(layout: ClusterLayout) -> list[PlannedMove]:
        layout.check_known(broker_ids)
        return _planned(layout, [each for each in layout.members() if each.broker_id in broker_ids], None)

    return planner


def _add_and_remove(added: tuple[int, ...], removed: tuple[int, ...]) -> MovePlanner:
    def planner(layout: ClusterLayout) -> list[PlannedMove]:
        layout.check_known(added)
        able = {each.broker_id for each in layout.brokers if not each.draining}
        if unable := [broker_id for broker_id in added if broker_id not in able]:
            raise CommandFailed(
                ExitCode.FAILED,
                f"{broker_list(unable)} cannot get replicas while away or drained; see `headrace broker undrain`",
            )
        return _planned(layout, layout.members(without=removed), added)

    return planner


def _planned(
    layout: ClusterLayout, brokers: Sequence[PlanBroker], receivers: tuple[int, ...] | None
) -> list[PlannedMove]:
    try:
        return plan_moves(layout.partitions, brokers, receivers)
    except PlanImpossibleError as error:
        raise CommandFailed(ExitCode.FAILED, f"{error}; add a broker, or lower the replication factor") from None
