"""Metrics of the broker, and the series per partition of `/metrics/detail`.

Histograms are per RPC only, and the number of series in `BrokerMetrics` does not grow with topics or partitions, so
that `/metrics` costs the same with ten partitions and with ten thousand. Metrics that are updated per call are a
`LoopCounter` or `LoopHistogram` (see `headrace_server.instruments`), which only the event loop writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.log.space import DiskUsage
from headrace_server.instruments import CommonMetrics, LoopCounter, LoopHistogram
from headrace_server.native.server import NativeMetrics
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace_broker.table_metrics import TableMetrics

PREFIX = "headrace_broker"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
STAGES = ("queue", "append", "fsync", "replication")


class BrokerMetrics:
    """Instruments on one registry, made once per broker."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register all instruments."""

        def histogram(name: str, documentation: str) -> LoopHistogram:
            return LoopHistogram(f"{PREFIX}_{name}", documentation, registry, bounds=_SECONDS)

        def loop_counter(name: str, documentation: str) -> LoopCounter:
            return LoopCounter(f"{PREFIX}_{name}", documentation, registry)

        def counter(name: str, documentation: str) -> Counter:
            return Counter(f"{PREFIX}_{name}", documentation, registry=registry)

        def counter_by(name: str, documentation: str, label: str) -> Counter:
            return Counter(f"{PREFIX}_{name}", documentation, [label], registry=registry)

        def gauge(name: str, documentation: str) -> Gauge:
            return Gauge(f"{PREFIX}_{name}", documentation, registry=registry)

        def gauge_by(name: str, documentation: str, label: str) -> Gauge:
            return Gauge(f"{PREFIX}_{name}", documentation, [label], registry=registry)

        self.common = CommonMetrics(PREFIX, registry)
        self.registered = self.common.registered

        self.produce_seconds = histogram("produce_seconds", "Produce calls, including the wait for acknowledgements")
        self.produce_stage_seconds = LoopHistogram(
            f"{PREFIX}_produce_stage_seconds",
            "Time of produce calls by stage: before the appends begin (queue), the appends (append), the wait for the "
            "leader's own disk (fsync), and the further wait for the followers (replication)",
            registry,
            bounds=_SECONDS,
            label="stage",
            values=STAGES,
        )
        self.queue_stage, self.append_stage, self.fsync_stage, self.replication_stage = (
            self.produce_stage_seconds.series(stage) for stage in STAGES
        )
        self.fetch_seconds = histogram("fetch_seconds", "Fetch calls, without the wait for data")
        self.fetch_wait_seconds = histogram("fetch_wait_seconds", "Time that long polls wait for data")
        self.flush_seconds = histogram("flush_seconds", "One fsync round of one log")
        self.produced_bytes = loop_counter("produced_bytes", "Bytes of batches appended")
        self.produced_records = loop_counter("produced_records", "Records appended")
        self.produced_batches = loop_counter("produced_batches", "Batches appended")
        self.duplicate_batches = counter("duplicate_batches", "Batches that were already stored, not appended again")
        self.fetched_bytes = loop_counter("fetched_bytes", "Bytes of batches sent to readers")
        self.native, self.replication_listener = (
            NativeMetrics(
                connections=gauge(f"{name}_connections", f"Open connections of {what}"),
                refused=counter(f"{name}_refused", f"Connections of {what} closed because a limit was reached"),
                broken=counter(f"{name}_broken", f"Connections of {what} closed for a protocol error or a timeout"),
                sent_bytes=loop_counter(
                    f"{name}_sent_bytes", f"Bytes of batches that the kernel sent to {whom} from the page cache"
                ),
            )
            for name, what, whom in (
                ("native", "the native protocol", "clients"),
                ("replication", "followers", "followers"),
            )
        )
        self.slow_appends = counter("slow_appends", "Appends that ran in a thread because the disk was slow")
        self.blocking_reads = counter("blocking_reads", "Reads that ran in a thread, not from the page cache")
        self.throttled = counter("throttled", "Calls rejected because max_inflight_bytes is reached")
        self.produce_errors = counter_by(
            "produce_errors", "Partitions of produce calls answered with an error, by code", "code"
        )
        self.fetch_errors = counter_by(
            "fetch_errors", "Partitions of fetch calls answered with an error, by code", "code"
        )
        self.inflight_bytes = gauge("inflight_bytes", "Bytes of requests and responses in memory")
        self.waiting_fetches = gauge("waiting_fetches", "Fetches waiting for data")

        self.replicated_in_bytes = loop_counter("replicated_in_bytes", "Bytes of batches copied from leaders")
        self.replicated_out_bytes = loop_counter("replicated_out_bytes", "Bytes of batches sent to followers")
        self.corrupt_fetches = counter("corrupt_fetches", "Responses of leaders with batches that failed their checks")
        self.truncations = counter("truncations", "Logs truncated because they diverged from their leader's")
        self.in_sync_shrinks = counter("in_sync_shrinks", "Followers removed from an in-sync set by their leader")
        self.in_sync_expands = counter("in_sync_expands", "Followers added to an in-sync set by their leader")
        self.hand_overs = counter("hand_overs", "Leaderships handed over on request")
        self.hand_overs_abandoned = counter(
            "hand_overs_abandoned", "Hand-overs that ended because no successor reached the log end in time"
        )
        self.isr_update_timeouts = counter(
            "isr_update_timeouts", "Changes of in-sync sets to which etcd did not respond in time"
        )
        self.connected_followers = gauge("connected_followers", "Connected brokers that replicate from this one")
        self.follower_partitions = gauge("follower_partitions", "Partitions replicated from other brokers")
        self.follower_lag_records = gauge_by(
            "follower_lag_records", "Records that a follower is behind this leader, in its worst partition", "peer"
        )
        self.follower_lag_seconds = gauge_by(
            "follower_lag_seconds",
            "Time since a follower was caught up with the log end, in its worst partition",
            "peer",
        )
        self.peer_phi = gauge_by(
            "peer_phi",
            "Phi of a peer on replication streams; at 1 one in ten suspicions is wrong",
            "peer",
        )
        self.under_replicated = gauge("under_replicated", "Partitions led by this broker with out-of-sync replicas")
        self.under_min_insync = gauge("under_min_insync", "Partitions led by this broker below min_insync_replicas")
        self.partitions = gauge("partitions", "Replicas held")
        self.leader_partitions = gauge("leader_partitions", "Partitions that this broker leads")
        self.leaderships_started = counter("leaderships_started", "Leaderships that this broker has started")

        self.offline_logs = gauge("offline_logs", "Replicas whose log failed")
        self.storage_refusals = counter(
            "storage_refusals", "Flushes and maintenance postponed because disk space, descriptors or memory ran out"
        )
        self.unclaimed_logs = gauge(
            "unclaimed_logs", "Logs on disk that no key in etcd claims and that may not be deleted"
        )
        self.corruptions_detected = counter(
            "corruptions_detected", "Corruption found in logs that no other replica can replace"
        )
        self.scrubbed_bytes = counter("scrubbed_bytes", "Bytes of logs read and checked in the background")
        self.compactions = counter("compactions", "Compactions of logs")
        self.compacted_bytes = counter("compacted_bytes", "Bytes of segments that compaction has replaced")
        self.compaction_written_bytes = counter(
            "compaction_written_bytes", "Bytes of the segments that compaction has written in their place"
        )
        self.compaction_removed_records = counter(
            "compaction_removed_records", "Records removed by compaction, replaced by newer ones or deleted"
        )
        self.uncompacted_bytes = gauge(
            "uncompacted_bytes", "Bytes of the logs of compacted topics that no compaction has reached"
        )
        self.compaction_lag_seconds = gauge(
            "compaction_lag_seconds", "Time for which compaction has not caught up with a log, of the worst log"
        )
        self.tables = TableMetrics(PREFIX, registry)
        self.replaced_logs = counter("replaced_logs", "Corrupt logs set aside and copied again from another replica")
        self.disk_space = DiskSpaceCollector()
        registry.register(self.disk_space)
        self.appends_rejected_disk_full = gauge(
            "appends_rejected_disk_full", "1 while appends are rejected because the disk is full"
        )
        self.log_bytes = gauge("log_bytes", "Bytes of all logs held")
        self.log_segments = gauge("log_segments", "Segments of all logs held")
        self.deleted_segments = counter("deleted_segments", "Segments removed below the log start")
        self.recovering = gauge("recovering", "1 while the logs are opened and recovered after a start")
        self.recovery_seconds = gauge("recovery_seconds", "Time spent opening logs at this start")
        self.recovery_logs = gauge("recovery_logs", "Logs found on disk at this start")
        self.recovered_logs = gauge("recovered_logs", "Logs opened so far at this start")


class DiskSpaceCollector(Collector):
    """Exports the space on the data directory's volume, once it is measured: forecasts take a 0 for a full disk."""

    def __init__(self) -> None:
        self.usage: DiskUsage | None = None
        """The last measurement."""

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families, without samples before the first measurement."""
        free = GaugeMetricFamily(f"{PREFIX}_disk_free_bytes", "Free bytes on the data directory's volume")
        total = GaugeMetricFamily(f"{PREFIX}_disk_total_bytes", "Size of the data directory's volume")
        usage = self.usage
        if usage is not None:
            free.add_metric([], usage.free_bytes)
            total.add_metric([], usage.total_bytes)
        yield from (free, total)

    describe = collect


@dataclass(frozen=True, slots=True)
class PartitionSample:
    """State of one partition at a scrape."""

    topic: str
    partition: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    flushed_offset: int
    log_bytes: int
    log_segments: int
    leader: bool
    leader_epoch: int
    offline: bool
    replicas: int
    """`-1` if this broker does not lead it."""
    in_sync_replicas: int
    produced_records: int
    produced_bytes: int
    fetched_bytes: int


_DETAIL_GAUGES: tuple[tuple[str, str, Callable[[PartitionSample], int]], ...] = (
    ("log_start_offset", "Offset of the first record", lambda sample: sample.log_start_offset),
    ("log_end_offset", "Offset after the last record", lambda sample: sample.log_end_offset),
    ("high_watermark", "Offset after the last record visible to readers", lambda sample: sample.high_watermark),
    ("flushed_offset", "Offset after the last record on stable storage", lambda sample: sample.flushed_offset),
    ("log_bytes", "Bytes of the log", lambda sample: sample.log_bytes),
    ("log_segments", "Segments of the log", lambda sample: sample.log_segments),
    ("leader", "1 if this broker leads the partition", lambda sample: sample.leader),
    ("leader_epoch", "Latest leader epoch seen by this broker", lambda sample: sample.leader_epoch),
    ("offline", "1 if the log is offline after a failure", lambda sample: sample.offline),
    ("replicas", "Replicas of a partition led here", lambda sample: sample.replicas),
    ("in_sync_replicas", "In-sync replicas of a partition led here", lambda sample: sample.in_sync_replicas),
)
_DETAIL_COUNTERS: tuple[tuple[str, str, Callable[[PartitionSample], int]], ...] = (
    ("produced_records", "Records appended by this broker as leader", lambda sample: sample.produced_records),
    ("produced_bytes", "Bytes of batches appended by this broker as leader", lambda sample: sample.produced_bytes),
    ("fetched_bytes", "Bytes of batches sent to readers", lambda sample: sample.fetched_bytes),
)
_LED_ONLY = ("replicas", "in_sync_replicas")


def partition_metrics(samples: list[PartitionSample]) -> Iterator[Metric]:
    """Yield the families of `/metrics/detail`."""
    labels = [[sample.topic, str(sample.partition)] for sample in samples]
    for name, documentation, read in _DETAIL_GAUGES:
        gauge = GaugeMetricFamily(f"{PREFIX}_partition_{name}", documentation, labels=("topic", "partition"))
        for label, sample in zip(labels, samples, strict=True):
            if name not in _LED_ONLY or sample.leader:
                gauge.add_metric(label, read(sample))
        yield gauge
    for name, documentation, read in _DETAIL_COUNTERS:
        counter = CounterMetricFamily(f"{PREFIX}_partition_{name}", documentation, labels=("topic", "partition"))
        for label, sample in zip(labels, samples, strict=True):
            counter.add_metric(label, read(sample))
        yield counter
