"""What is wrong with a cluster and what to do about it: facts in, problems out. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.client.admin_replication import LogInfo
    from headrace.client.admin_rpc import ClusterDescription, PartitionDescription, TopicDescription

MAX_NAMED = 10
"""How many partitions one problem names before it says `and n more`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    # A constant word, for programs.
    kind: str
    # What is wrong, in one sentence.
    message: str
    # What to do, in one sentence.
    action: str


def find_problems(
    cluster: "ClusterDescription", topics: "Sequence[TopicDescription]", logs: "Sequence[LogInfo]"
) -> list[Problem]:
    """Everything that is wrong, the gravest first; empty when the cluster is healthy."""
    live = {broker.broker_id for broker in cluster.brokers}
    partitions = [(topic.name, partition) for topic in topics for partition in topic.partitions]
    problems: list[Problem] = []
    if not cluster.controller_id:
        problems.append(
            Problem(
                "no_controller",
                "no coordinator is the controller, so nothing is elected or placed",
                "Look at the coordinators' logs; they need etcd with a majority.",
            )
        )
    if not cluster.brokers:
        problems.append(Problem("no_brokers", "no broker is registered", "Start the brokers; look at their logs."))
    offline = [(name, each) for name, each in partitions if each.leader_id < 0]
    if offline:
        problems.append(_offline(offline, live))
    for log in logs:
        if log.offline_reason:
            problems.append(
                Problem(
                    "replica_offline",
                    f"broker {log.broker_id} has taken {log.topic}-{log.partition} offline: {log.offline_reason}",
                    f"Look at the log of broker {log.broker_id}; its disk has failed or a file is damaged.",
                )
            )
    behind = [
        (name, each)
        for name, each in partitions
        if each.leader_id >= 0 and set(each.replicas) - set(each.in_sync_replicas)
    ]
    if behind:
        missing = sorted({broker for _, each in behind for broker in set(each.replicas) - set(each.in_sync_replicas)})
        dead = [broker for broker in missing if broker not in live]
        problems.append(
            Problem(
                "under_replicated",
                f"{_count(len(behind))} not all replicas in sync: {_names(behind)}",
                f"Bring back {_brokers(dead)}."
                if dead
                else f"Wait for {_brokers(missing)} to catch up, or see its log.",
            )
        )
    return problems


def _offline(offline: "Sequence[tuple[str, PartitionDescription]]", live: set[int]) -> Problem:
    dead = sorted({broker for _, each in offline for broker in each.replicas if broker >= 0 and broker not in live})
    return Problem(
        "offline_partitions",
        f"{_count(len(offline))} no leader: {_names(offline)}",
        f"Bring back {_brokers(dead)}, which hold their replicas."
        if dead
        else "The brokers live: wait a few seconds for the controller, then look at its log.",
    )


def _count(number: int) -> str:
    return "1 partition has" if number == 1 else f"{number} partitions have"


def _names(partitions: "Sequence[tuple[str, PartitionDescription]]") -> str:
    names = [f"{name}-{each.partition}" for name, each in partitions[:MAX_NAMED]]
    return ", ".join(names) + (f" and {len(partitions) - MAX_NAMED} more" if len(partitions) > MAX_NAMED else "")


def _brokers(broker_ids: Iterable[int]) -> str:
    listed = list(broker_ids)
    return f"{'broker' if len(listed) == 1 else 'brokers'} {', '.join(map(str, listed))}"
