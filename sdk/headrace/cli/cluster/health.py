"""Checks of `headrace cluster health`: descriptions of the cluster in, findings out. Pure.

A failure makes the cluster unhealthy: something cannot be written or read, or would not survive the next failure.
A notice does not.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.cli.common.arguments import broker_list, counted
from headrace.cli.common.findings import Finding, Status
from headrace.cli.common.hidden_topics import HIDDEN_ACTION, hidden_text
from headrace.cli.partition.problems import PartitionProblem, missing_replicas, problems_of
from headrace.cli.partition.replica_logs import leader_logs

if TYPE_CHECKING:
    from headrace.client.admin.replication import LogInfo
    from headrace.client.admin.rpc import ClusterDescription, PartitionDescription, TopicDescription

    NamedPartition = tuple[str, PartitionDescription]

MAX_NAMED = 10
"""Maximum partitions that one finding names before `and n more`."""


@dataclass(frozen=True, slots=True)
class CatchingUp:
    """Lag of the replicas that are not in sync."""

    replicas: int
    records: int
    """Total of the missing records; a replica that has not fetched yet lacks the whole log."""


def failure(check: str, found: str, action: str) -> Finding:
    """Return a finding that makes the cluster unhealthy."""
    return Finding(check, "cluster", Status.FAILURE, found, action)


def _notice(check: str, found: str, action: str) -> Finding:
    return Finding(check, "cluster", Status.NOTICE, found, action)


def find_failures(
    cluster: "ClusterDescription", topics: "Sequence[TopicDescription]", logs: "Sequence[LogInfo]"
) -> Iterator[Finding]:
    """Yield all failures, the most severe first; none if the cluster is healthy."""
    live = {broker.broker_id for broker in cluster.brokers}
    found = _by_problem(topics, _able(cluster))
    if not cluster.controller_id:
        yield failure(
            "no_controller",
            "no coordinator is the controller, so nothing is elected or placed",
            "Look at the coordinators' logs; they need etcd with a majority.",
        )
    if not cluster.brokers:
        yield failure("no_brokers", "no broker is registered", "Start the brokers; look at their logs.")
    if offline := found[PartitionProblem.OFFLINE]:
        yield _offline(offline, live)
    if under := found[PartitionProblem.UNDER_MIN_IN_SYNC]:
        yield failure(
            "under_min_in_sync",
            f"{_have(len(under))} fewer replicas in sync than min_insync_replicas, so acks=all is refused: "
            f"{_names(under)}",
            _recovery(under, live),
        )
    for log in logs:
        if log.offline_reason:
            yield failure(
                "replica_offline",
                f"broker {log.broker_id} has taken {log.topic}-{log.partition} offline: {log.offline_reason}",
                f"Look at the log of broker {log.broker_id}; its disk has failed or a file is corrupt.",
            )
    if behind := found[PartitionProblem.UNDER_REPLICATED]:
        yield failure(
            "under_replicated",
            f"{_have(len(behind))} not all replicas in sync: {_names(behind)}",
            _recovery(behind, live),
        )
    if cluster.count_hidden(topics):
        yield from _hidden_failures(cluster, len(found[PartitionProblem.OFFLINE]), _under_replicated(topics))


def _hidden_failures(cluster: "ClusterDescription", offline: int, under_replicated: int) -> Iterator[Finding]:
    """Yield failures of the topics that are not shown to the caller, which the counts of the cluster include."""
    action = f"To see their names: {HIDDEN_ACTION}."
    if (more := cluster.offline_partitions - offline) > 0:
        yield failure("offline_partitions", f"{_have(more)} no leader, in topics that are not shown to you", action)
    if (more := cluster.under_replicated_partitions - under_replicated) > 0:
        found = f"{_have(more)} not all replicas in sync, in topics that are not shown to you"
        yield failure("under_replicated", found, action)


def _under_replicated(topics: "Sequence[TopicDescription]") -> int:
    """Return the number that the cluster counts, which has partitions without a leader as well."""
    return sum(bool(missing_replicas(each)) for topic in topics for each in topic.partitions)


def find_notices(
    cluster: "ClusterDescription", topics: "Sequence[TopicDescription]", drained: Collection[int]
) -> Iterator[Finding]:
    """Yield notices for administrators, also of a healthy cluster.

    Args:
        cluster: Description of the cluster.
        topics: Descriptions of its topics.
        drained: Brokers drained by an administrator; other draining brokers are stopping.
    """
    able = _able(cluster)
    stopping = {broker.broker_id for broker in cluster.brokers} - able - set(drained)
    leads = Counter(each.leader_id for topic in topics for each in topic.partitions if each.leader_id >= 0)
    found = _by_problem(topics, able)
    for broker_id in sorted(drained):
        yield _notice(
            "drained_broker",
            f"broker {broker_id} is drained: it leads {counted(leads[broker_id], 'partition')} "
            "and gets no new replicas",
            f"When its work is done, run `headrace broker undrain {broker_id}`.",
        )
    for broker_id in sorted(stopping):
        yield _notice(
            "stopping_broker",
            f"broker {broker_id} is stopping and hands its leadership over",
            "Wait for it, or see its log.",
        )
    if hidden := cluster.count_hidden(topics):
        yield _notice(
            "hidden_topics",
            f"{hidden_text(hidden)}: of their partitions only offline and under-replicated ones are counted",
            f"For all checks: {HIDDEN_ACTION}.",
        )
    if moving := found[PartitionProblem.MOVING]:
        yield _notice(
            "moves_under_way",
            f"{counted(len(moving), 'partition')} moving: {_names(moving)}",
            "`headrace partition reassign --watch` shows how far they are.",
        )
    if unclean := found[PartitionProblem.UNCLEAN]:
        yield _notice(
            "unclean_leader",
            f"{_have(len(unclean))} a leader from an unclean election and may lack records: {_names(unclean)}",
            "No action restores the records. This notice ends with the next election of a leader.",
        )
    if elsewhere := found[PartitionProblem.NOT_PREFERRED]:
        counts = ", ".join(f"broker {broker_id} leads {leads[broker_id]}" for broker_id in sorted(able))
        yield _notice(
            "leader_imbalance",
            f"{len(elsewhere)} of {leads.total()} partitions not led by the preferred replica ({counts})",
            "The controller corrects this periodically; `headrace partition elect` does it now.",
        )


def catching_up(topics: "Sequence[TopicDescription]", logs: "Sequence[LogInfo]") -> CatchingUp | None:
    """Return the lag of replicas by the state of their leaders; `None` means that all are in sync."""
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


def _able(cluster: "ClusterDescription") -> set[int]:
    """Return the brokers that can become leaders."""
    return {broker.broker_id for broker in cluster.brokers if not broker.draining}


def _by_problem(
    topics: "Sequence[TopicDescription]", able: Collection[int]
) -> "dict[PartitionProblem, list[NamedPartition]]":
    found: dict[PartitionProblem, list[NamedPartition]] = {problem: [] for problem in PartitionProblem}
    for topic in topics:
        for each in topic.partitions:
            for problem in problems_of(each, able):
                found[problem].append((topic.name, each))
    return found


def _offline(offline: "Sequence[NamedPartition]", live: set[int]) -> Finding:
    dead = sorted({broker for _, each in offline for broker in each.replicas if broker >= 0 and broker not in live})
    action = (
        f"Bring back {broker_list(dead)}, which hold their replicas."
        if dead
        else "The brokers live: wait a few seconds for the controller, then look at its log."
    )
    if any(live & set(each.replicas) - {*each.in_sync_replicas, *each.eligible_leaders} for _, each in offline):
        action += " If they are lost for good: `headrace partition elect --unclean` takes a replica that lacks records."
    return failure("offline_partitions", f"{_have(len(offline))} no leader: {_names(offline)}", action)


def _recovery(behind: "Sequence[NamedPartition]", live: set[int]) -> str:
    missing = sorted({broker for _, each in behind for broker in missing_replicas(each)})
    dead = [broker for broker in missing if broker not in live]
    if dead:
        return f"Bring back {broker_list(dead)}."
    if missing:
        return f"Wait for {broker_list(missing)} to catch up, or see its log."
    return "Give the topic more replicas, or lower its min_insync_replicas."


def _have(number: int) -> str:
    return "1 partition has" if number == 1 else f"{number} partitions have"


def _names(partitions: "Sequence[NamedPartition]") -> str:
    names = [f"{name}-{each.partition}" for name, each in partitions[:MAX_NAMED]]
    return ", ".join(names) + (f" and {len(partitions) - MAX_NAMED} more" if len(partitions) > MAX_NAMED else "")
