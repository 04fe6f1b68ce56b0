"""What is wrong with a cluster and what to do about it: facts in, problems out. Pure.

A problem makes the cluster unhealthy: something cannot be written or read, or would not survive the next failure. A
notice does not: it is somebody's wish (a move, a drain), or costs no more than time.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.cli.arguments import broker_list, counted
from headrace.cli.replica_logs import leader_logs

if TYPE_CHECKING:
    from headrace.client.admin_replication import LogInfo
    from headrace.client.admin_rpc import ClusterDescription, PartitionDescription, TopicDescription

    NamedPartition = tuple[str, PartitionDescription]

MAX_NAMED = 10
"""How many partitions one problem names before it says `and n more`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, or worth to know."""

    # A constant word, for programs.
    kind: str
    # What is wrong, in one sentence.
    message: str
    # What to do, in one sentence.
    action: str


@dataclass(frozen=True, slots=True)
class CatchingUp:
    """How far the replicas that are not in sync have to go."""

    replicas: int
    # Records that they lack, all together; those that have not fetched yet lack the whole log.
    records: int


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
    led = [(name, each) for name, each in partitions if each.leader_id >= 0]
    problems += _under_min_in_sync(led, live)
    problems += [
        Problem(
            "replica_offline",
            f"broker {log.broker_id} has taken {log.topic}-{log.partition} offline: {log.offline_reason}",
            f"Look at the log of broker {log.broker_id}; its disk has failed or a file is damaged.",
        )
        for log in logs
        if log.offline_reason
    ]
    problems += _under_replicated(led, live)
    return problems


def find_notices(
    cluster: "ClusterDescription", topics: "Sequence[TopicDescription]", drained: Collection[int]
) -> list[Problem]:
    """What is worth to know of a cluster that may well be healthy.

    Args:
        cluster: the cluster.
        topics: its topics.
        drained: the brokers that an administrator drains; others that drain are stopping.
    """
    draining = {broker.broker_id for broker in cluster.brokers if broker.draining}
    partitions = [(topic.name, partition) for topic in topics for partition in topic.partitions]
    notices = []
    for broker_id in sorted(drained):
        notices.append(
            Problem(
                "drained_broker",
                f"broker {broker_id} is drained: it leads {counted(_leads(partitions, broker_id), 'partition')} "
                "and gets no new replicas",
                f"When its work is done, run `headrace broker undrain {broker_id}`.",
            )
        )
    for broker_id in sorted(draining - set(drained)):
        notices.append(
            Problem(
                "stopping_broker",
                f"broker {broker_id} is stopping and hands its leadership over",
                "Wait for it, or see its log.",
            )
        )
    moving = [(name, each) for name, each in partitions if each.adding_replicas or each.removing_replicas]
    if moving:
        notices.append(
            Problem(
                "moves_under_way",
                f"{counted(len(moving), 'partition')} moving: {_names(moving)}",
                "`headrace partition move --watch` shows how far they are.",
            )
        )
    unclean = [(name, each) for name, each in partitions if each.unclean]
    if unclean:
        notices.append(
            Problem(
                "unclean_leader",
                f"{_have(len(unclean))} a leader from an unclean election and may lack records: {_names(unclean)}",
                "Nothing to do here; what was lost is lost. It is said until the next leader is elected.",
            )
        )
    notices += _imbalance(partitions, {broker.broker_id for broker in cluster.brokers} - draining)
    return notices


def catching_up(topics: "Sequence[TopicDescription]", logs: "Sequence[LogInfo]") -> CatchingUp | None:
    """How far replicas are behind their leaders, as those see it; None where all are in sync."""
    leads = leader_logs(logs)
    replicas = records = 0
    for topic in topics:
        for each in topic.partitions:
            log = leads.get((topic.name, each.partition))
            behind = set(each.replicas) - set(each.in_sync_replicas) - set(each.removing_replicas)
            if log is None or not behind:
                continue
            ends = {follower.broker_id: follower.log_end_offset for follower in log.followers}
            replicas += len(behind)
            for broker_id in behind:
                records += max(0, log.log_end_offset - max(log.log_start_offset, ends.get(broker_id, -1)))
    return CatchingUp(replicas, records) if replicas else None


def _offline(offline: "Sequence[NamedPartition]", live: set[int]) -> Problem:
    dead = sorted({broker for _, each in offline for broker in each.replicas if broker >= 0 and broker not in live})
    action = (
        f"Bring back {broker_list(dead)}, which hold their replicas."
        if dead
        else "The brokers live: wait a few seconds for the controller, then look at its log."
    )
    if any(live & set(each.replicas) - {*each.in_sync_replicas, *each.eligible_leaders} for _, each in offline):
        action += " If they are lost for good: `headrace partition elect --unclean` takes a replica that lacks records."
    return Problem("offline_partitions", f"{_have(len(offline))} no leader: {_names(offline)}", action)


def _under_min_in_sync(led: "Sequence[NamedPartition]", live: set[int]) -> list[Problem]:
    under = [(name, each) for name, each in led if len(each.in_sync_replicas) < each.min_insync_replicas]
    if not under:
        return []
    return [
        Problem(
            "under_min_in_sync",
            f"{_have(len(under))} fewer replicas in sync than min_insync_replicas, so acks=all is refused: "
            f"{_names(under)}",
            _recovery(under, live),
        )
    ]


def _under_replicated(led: "Sequence[NamedPartition]", live: set[int]) -> list[Problem]:
    behind = [(name, each) for name, each in led if _missing(each)]
    if not behind:
        return []
    return [
        Problem(
            "under_replicated",
            f"{_have(len(behind))} not all replicas in sync: {_names(behind)}",
            _recovery(behind, live),
        )
    ]


def _missing(each: "PartitionDescription") -> set[int]:
    """Who should be in sync and is not. A replica that a move adds is not expected to be yet."""
    return set(each.replicas) - set(each.in_sync_replicas) - set(each.adding_replicas)


def _recovery(behind: "Sequence[NamedPartition]", live: set[int]) -> str:
    missing = sorted({broker for _, each in behind for broker in _missing(each)})
    dead = [broker for broker in missing if broker not in live]
    if dead:
        return f"Bring back {broker_list(dead)}."
    if missing:
        return f"Wait for {broker_list(missing)} to catch up, or see its log."
    return "Give the topic more replicas, or lower its min_insync_replicas."


def _imbalance(partitions: "Sequence[NamedPartition]", able: set[int]) -> list[Problem]:
    """Partitions whose preferred replica could lead and does not."""
    elsewhere = [
        (name, each)
        for name, each in partitions
        if each.leader_id >= 0
        and each.leader_id != (preferred := (each.target_replicas or (-1,))[0])
        and preferred in able
        and preferred in each.in_sync_replicas
    ]
    if not elsewhere:
        return []
    leads = Counter(each.leader_id for _, each in partitions if each.leader_id >= 0)
    counts = ", ".join(f"broker {broker_id} leads {leads[broker_id]}" for broker_id in sorted(able))
    return [
        Problem(
            "leader_imbalance",
            f"{len(elsewhere)} of {counted(len(partitions), 'partition')} not led by the preferred replica ({counts})",
            "The controller puts that right from time to time; `headrace partition elect` does it now.",
        )
    ]


def _leads(partitions: "Sequence[NamedPartition]", broker_id: int) -> int:
    return sum(each.leader_id == broker_id for _, each in partitions)


def _have(number: int) -> str:
    return "1 partition has" if number == 1 else f"{number} partitions have"


def _names(partitions: "Sequence[NamedPartition]") -> str:
    names = [f"{name}-{each.partition}" for name, each in partitions[:MAX_NAMED]]
    return ", ".join(names) + (f" and {len(partitions) - MAX_NAMED} more" if len(partitions) > MAX_NAMED else "")
