"""Partition summary for `status`: leaders by broker, and partitions that are not healthy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import headrace
from headrace.client.admin.rpc import ClusterDescription, TopicDescription

TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """State of a cluster's partitions at one time."""

    topics: int
    partitions: int
    offline_partitions: int
    """Partitions without a leader, which can be neither written nor read."""
    under_replicated_partitions: int
    """Partitions with fewer in-sync replicas than replicas."""
    leaders: dict[int, int]
    """Number of led partitions by broker id, without brokers that lead none."""


def ask_for_leadership(
    bootstrap_servers: str, client_settings: Mapping[str, str] = MappingProxyType({})
) -> PartitionSummary | None:
    """Return the summary from the coordinators, or `None` if they do not respond within TIMEOUT_SECONDS.

    `client_settings` are those for TLS.
    """
    settings: dict[str, Any] = {"bootstrap_servers": bootstrap_servers, "client_id": "devcluster", **client_settings}
    try:
        with headrace.Admin(**settings) as admin:
            cluster = admin.describe_cluster(timeout=TIMEOUT_SECONDS)
            return summarize(cluster, admin.describe_topics(timeout=TIMEOUT_SECONDS))
    except headrace.HeadraceError:
        return None


def summarize(cluster: ClusterDescription, topics: Iterable[TopicDescription]) -> PartitionSummary:
    """Return the summary of a cluster's topics."""
    leaders = Counter(part.leader_id for topic in topics for part in topic.partitions if part.leader_id >= 0)
    return PartitionSummary(
        topics=cluster.topics,
        partitions=cluster.partitions,
        offline_partitions=cluster.offline_partitions,
        under_replicated_partitions=cluster.under_replicated_partitions,
        leaders=dict(sorted(leaders.items())),
    )


def sentence(leadership: PartitionSummary | None) -> str:
    """Return a sentence about the partitions, for people."""
    if leadership is None:
        return "the coordinators do not respond; see their logs"
    return (
        f"{leadership.partitions} partitions of {leadership.topics} topics: "
        f"{leadership.offline_partitions} without a leader, "
        f"{leadership.under_replicated_partitions} under-replicated"
    )
