"""The coordinator's instruments, all in one place; what only the controller knows is set by it and 0 elsewhere.

Nothing in `CoordinatorMetrics` grows with topics or partitions. What grows with consumer groups, and is bounded, is
written by `runtime.group_lag` into `GroupSeries`.
"""

from __future__ import annotations

from headrace_server.instruments import CommonMetrics, LoopHistogram
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

PREFIX = "headrace_coordinator"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class CoordinatorMetrics:
    """Instruments on one registry; made once a coordinator, used from its event loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, documentation: str) -> Counter:
            return Counter(f"{PREFIX}_{name}", documentation, registry=registry)

        def counter_by(name: str, documentation: str, label: str) -> Counter:
            return Counter(f"{PREFIX}_{name}", documentation, [label], registry=registry)

        def gauge(name: str, documentation: str) -> Gauge:
            return Gauge(f"{PREFIX}_{name}", documentation, registry=registry)

        def histogram_by(name: str, documentation: str, label: str) -> Histogram:
            return Histogram(f"{PREFIX}_{name}", documentation, [label], buckets=_SECONDS, registry=registry)

        self.common = CommonMetrics(PREFIX, registry)
        self.registered = self.common.registered

        self.call_seconds = histogram_by("call_seconds", "Calls of ClusterService, by method", "method")
        self.answer_errors = counter_by(
            "answer_errors", "Errors of single topics or partitions inside answers, by code", "code"
        )
        self.topics_created = counter("topics_created", "Topics created here")
        self.topics_deleted = counter("topics_deleted", "Topics deleted here")
        self.producer_ids = counter("producer_ids", "Producer ids given out")
        self.unknown_writes = counter("unknown_writes", "Writes whose answer was lost; each was resolved or reported")
        self.partition_changes = counter_by(
            "partition_changes", "Writes of partitions by this controller, by step", "step"
        )
        self.elections = counter("elections", "Leaders elected by this controller in place of dead ones")
        self.leadership_moves = counter(
            "leadership_moves", "Leaderships taken by this controller from a living broker and given to another"
        )
        self.in_sync_shrinks = counter(
            "in_sync_shrinks", "In-sync sets from which this controller took a dead or stopping broker"
        )
        self.unclean_elections = counter("unclean_elections", "Leaders elected whose log may lack its end")
        self.orphans_cleared = counter("orphans_cleared", "Remains of half-created topics cleared by this controller")
        self.heartbeat_seconds = LoopHistogram(
            f"{PREFIX}_heartbeat_seconds",
            "Heartbeats of group members, without the wait for news",
            registry,
            bounds=_SECONDS,
        )
        self.groups = gauge("groups", "Consumer groups")
        self.group_members = gauge("group_members", "Members of all consumer groups")
        self.group_rounds = counter("group_rounds", "Transactions on the state of groups, lost ones included")
        self.group_conflicts = counter("group_conflicts", "Transactions on groups that lost their compare")
        self.group_rebalances = counter("group_rebalances", "New assignments computed for groups here")
        self.group_evictions = counter("group_evictions", "Members put out here because their session was over")
        self.group_commits = counter("group_commits", "Transactions that stored offsets")
        self.is_controller = gauge("is_controller", "1 while this coordinator is the controller")
        self.topics = gauge("topics", "Visible topics")
        self.partitions = gauge("partitions", "Partitions of visible topics; seen by the controller")
        self.offline_partitions = gauge("offline_partitions", "Partitions without a leader; seen by the controller")
        self.under_replicated_partitions = gauge(
            "under_replicated_partitions", "Partitions with a replica that is not in sync; seen by the controller"
        )
        self.moving_partitions = gauge("moving_partitions", "Partitions whose replicas move; seen by the controller")
