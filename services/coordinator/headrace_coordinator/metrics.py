"""Metrics of the coordinator. Metrics that only the controller sets are 0 on other coordinators.

The number of series in `CoordinatorMetrics` does not grow with topics or partitions. Series per consumer group are
bounded, measured by `runtime.group_lag` on the controller and exported by `LagCollector`; those per partition are on
`/metrics/detail`. The constructor is longer than other functions because it is the list of instruments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from google.protobuf import descriptor_pool
from headrace_server.instruments import CommonMetrics, LoopHistogram
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PREFIX = "headrace_coordinator"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class CoordinatorMetrics:
    """Instruments on one registry, made once per coordinator and used from its event loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register all instruments."""

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

        self.call_seconds = histogram_by(
            "call_seconds", "Duration of calls by method, without heartbeats, which are long polls", "method"
        )
        self.answer_errors = counter_by(
            "answer_errors", "Errors of single topics or partitions in responses, by code", "code"
        )
        self.schemas = gauge("schemas", "Schemas in the registry")
        self.schema_subjects = gauge("schema_subjects", "Subjects in the registry")
        self.schema_bytes = gauge("schema_bytes", "Bytes of schemas and subjects in etcd")
        self.topics_created = counter("topics_created", "Topics created by this coordinator")
        self.topics_deleted = counter("topics_deleted", "Topics deleted by this coordinator")
        self.ambiguous_writes = counter(
            "ambiguous_writes", "etcd writes without a response; each was resolved or reported"
        )
        self.partition_changes = counter_by(
            "partition_changes", "Partition states written by this controller, by step", "step"
        )
        self.elections = counter("elections", "Leaders elected by this controller because the previous one was gone")
        self.leadership_moves = counter("leadership_moves", "Hand-overs of leaderships that this controller requested")
        self.in_sync_shrinks = counter(
            "in_sync_shrinks", "In-sync sets from which this controller removed a dead or stopping broker"
        )
        self.unclean_elections = counter("unclean_elections", "Leaders elected that may lack committed records")
        self.orphans_cleared = counter(
            "orphans_cleared", "Keys of incompletely created topics removed by this controller"
        )
        self.heartbeat_seconds = LoopHistogram(
            f"{PREFIX}_heartbeat_seconds",
            "Processing time of group heartbeats, without the long poll",
            registry,
            bounds=_SECONDS,
        )
        self.groups = gauge("groups", "Consumer groups")
        self.group_members = gauge("group_members", "Members of all consumer groups")
        self.group_transactions = counter(
            "group_transactions", "Transactions on the state of groups, including failed compares"
        )
        self.group_conflicts = counter("group_conflicts", "Transactions on groups whose compare failed")
        self.group_rebalances = counter("group_rebalances", "Target assignments computed by this coordinator")
        self.group_evictions = counter("group_evictions", "Members removed because their session expired")
        self.group_commits = counter("group_commits", "Transactions that stored offsets")
        self.is_controller = gauge("is_controller", "1 while this coordinator is the controller")
        self.topics = gauge("topics", "Visible topics")
        self.partitions = gauge("partitions", "Partitions of visible topics; reported by the controller")
        self.offline_partitions = gauge("offline_partitions", "Partitions without a leader; reported by the controller")
        self.under_replicated_partitions = gauge(
            "under_replicated_partitions", "Partitions with a replica that is not in sync; reported by the controller"
        )
        self.moving_partitions = gauge("moving_partitions", "Partitions under reassignment; reported by the controller")
        self.missing_brokers = gauge(
            "missing_brokers", "Brokers that hold replicas and are not registered; reported by the controller"
        )
        self.etcd_request_seconds = histogram_by(
            "etcd_request_seconds", "Duration of requests to etcd, including failed ones, by operation", "operation"
        )
        self.etcd_errors = counter_by("etcd_errors", "Failed or timed-out requests to etcd, by operation", "operation")
        self.etcd_members_reached = gauge("etcd_members_reached", "etcd endpoints that responded to the last check")
        self.etcd_has_leader = gauge("etcd_has_leader", "1 if an etcd member reports a leader")
        self.etcd_db_bytes = gauge("etcd_db_bytes", "Size of etcd's database on the member where it is largest")
        self.etcd_db_quota_bytes = gauge(
            "etcd_db_quota_bytes", "etcd's space quota; 2 GiB, the default, if etcd does not report it (before 3.6)"
        )
        self.etcd_alarms = gauge("etcd_alarms", "Alarms that etcd has raised, such as NOSPACE")
        self.lags = LagCollector()
        registry.register(self.lags)

    def timers(self, service_name: str, but: Sequence[str] = ()) -> dict[str, Histogram]:
        """Return the timers of a service's calls, by method, without those named in `but`."""
        service = descriptor_pool.Default().FindServiceByName(service_name)
        names = [method.name for method in service.methods if method.name not in but]
        return {name: self.call_seconds.labels(name) for name in names}

    def observe_etcd(self, operation: str, seconds: float, answered: bool) -> None:
        """Observe one call of etcd."""
        self.etcd_request_seconds.labels(operation).observe(seconds)
        if not answered:
            self.etcd_errors.labels(operation).inc()


@dataclass(frozen=True, slots=True)
class PartitionLagSample:
    """Committed offset of one group or reader in one partition, and its lag; `None` is an unknown lag."""

    partition: int
    offset: int
    lag_records: int | None = None
    lag_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class TopicLag:
    """Committed offsets of a group in one topic, and its lag; `None` if the lag of no partition is known."""

    group: str
    topic: str
    partitions: tuple[PartitionLagSample, ...]

    @property
    def offset(self) -> int:
        """Sum of all partitions."""
        return sum(part.offset for part in self.partitions)

    @property
    def lag_records(self) -> int | None:
        """Sum of the partitions whose lag is known."""
        known = [part.lag_records for part in self.partitions if part.lag_records is not None]
        return sum(known) if known else None

    @property
    def lag_seconds(self) -> float | None:
        """Lag of the partition that is furthest behind."""
        return max((part.lag_seconds for part in self.partitions if part.lag_seconds is not None), default=None)


@dataclass(frozen=True, slots=True)
class GroupSample:
    """Current state of a group."""

    group: str
    members: int
    epoch: int
    rebalancing: bool
    unknown_partitions: int
    """Partitions with a committed offset whose leader did not report the lag."""


@dataclass(frozen=True, slots=True)
class LagRound:
    """Result of one measurement of all groups."""

    lags: Sequence[TopicLag] = ()
    groups: Sequence[GroupSample] = ()
    omitted_lags: int = 0
    """Pairs of group and topic that are not exported, because only those with the largest lag are."""
    omitted_groups: int = 0
    """Groups without series of their own."""
    took_seconds: float = 0.0


class LagCollector(Collector):
    """Exports the last round. A round is replaced as a whole and read from the threads of the endpoint."""

    def __init__(self) -> None:
        self.round: LagRound | None = None
        """`None` on coordinators other than the controller, which do not measure."""
        self.age_seconds: Callable[[], float] = lambda: 0.0

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families of `/metrics`."""
        shown = self.round or LagRound()
        for name, documentation, of_topic in _TOPIC_GAUGES:
            family = GaugeMetricFamily(f"{PREFIX}_group_{name}", documentation, labels=("group", "topic"))
            for lag in shown.lags:
                if (value := of_topic(lag)) is not None:
                    family.add_metric([lag.group, lag.topic], value)
            yield family
        for name, documentation, read in _GROUP_GAUGES:
            family = GaugeMetricFamily(f"{PREFIX}_group_{name}", documentation, labels=("group",))
            for sample in shown.groups:
                family.add_metric([sample.group], read(sample))
            yield family
        yield _plain("lag_series_omitted", "Pairs of group and topic omitted because of the limit", shown.omitted_lags)
        yield _plain("group_series_omitted", "Groups omitted because of the limit", shown.omitted_groups)
        yield _plain("lag_round_seconds", "Duration of the last measurement of all lags", shown.took_seconds)
        age_seconds = 0.0 if self.round is None else self.age_seconds()
        yield _plain("lag_age_seconds", "Age of the last measurement of lags", age_seconds)

    describe = collect

    def detail(self) -> Iterator[Metric]:
        """Yield the metric families of `/metrics/detail`."""
        shown = self.round or LagRound()
        for name, documentation, read in _PARTITION_GAUGES:
            family = GaugeMetricFamily(
                f"{PREFIX}_group_partition_{name}", documentation, labels=("group", "topic", "partition")
            )
            for lag in shown.lags:
                for part in lag.partitions:
                    if (value := read(part)) is not None:
                        family.add_metric([lag.group, lag.topic, str(part.partition)], value)
            yield family


_TOPIC_GAUGES: tuple[tuple[str, str, Callable[[TopicLag], float | None]], ...] = (
    (
        "lag_records",
        "Records between committed offsets and the ends of the topic, of partitions whose leader responded",
        lambda lag: lag.lag_records,
    ),
    ("lag_seconds", "Age of the oldest uncommitted record in its log", lambda lag: lag.lag_seconds),
    ("offset", "Sum of the committed offsets of the topic's partitions", lambda lag: lag.offset),
)
_GROUP_GAUGES: tuple[tuple[str, str, Callable[[GroupSample], int]], ...] = (
    ("size", "Members of the group", lambda sample: sample.members),
    ("epoch", "The group's epoch; it rises when members, topics or partitions change", lambda sample: sample.epoch),
    ("rebalancing", "1 while a member does not own its target assignment", lambda sample: sample.rebalancing),
    (
        "unknown_partitions",
        "Partitions with a committed offset whose leader did not report the lag",
        lambda sample: sample.unknown_partitions,
    ),
)
_PARTITION_GAUGES: tuple[tuple[str, str, Callable[[PartitionLagSample], float | None]], ...] = (
    ("lag_records", "Records from the committed offset to the high watermark", lambda part: part.lag_records),
    ("lag_seconds", "Age of the first of these records in the log", lambda part: part.lag_seconds),
    ("offset", "Committed offset", lambda part: part.offset),
)


def _plain(name: str, documentation: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", documentation, value=value)
