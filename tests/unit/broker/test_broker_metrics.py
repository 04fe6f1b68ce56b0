"""The broker's metrics: names, what grows with partitions and what does not, where the time of a produce goes."""

import re
import time
from dataclasses import replace
from types import SimpleNamespace

from headrace.log.space import DiskUsage
from headrace_broker.metrics import BrokerMetrics, PartitionSample, partition_metrics
from headrace_broker.rpc.produce import ProduceHandler, _Pending, _Times
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

SAMPLE = PartitionSample("t", 0, 1, 9, 8, 7, 100, 2, True, 3, False, 3, 2, 5, 50, 40)


def exposition(samples):
    """The page of these partitions."""

    class Detail(Collector):
        def collect(self):
            yield from partition_metrics(samples)

    registry = CollectorRegistry()
    registry.register(Detail())
    return generate_latest(registry).decode()


def test_names_are_ours_and_units_are_base_units():
    """Every instrument is headrace_broker_..., no milliseconds, no kilobytes, documented."""
    registry = CollectorRegistry()
    BrokerMetrics(registry)
    families = list(registry.collect())
    assert len(families) > 40
    for family in families:
        assert re.fullmatch(r"headrace_broker_[a-z_]+", family.name), family.name
        assert not re.search(r"_(ms|milliseconds|kb|kib|mb|percent)\b", family.name), family.name
        assert family.documentation


def test_a_scrape_of_metrics_is_the_same_whatever_partitions_there_are():
    """Only labels that partitions do not multiply are there; those of users are bounded by `DecisionCounts`."""
    registry = CollectorRegistry()
    BrokerMetrics(registry)
    labels = {label for collector in registry._collector_to_names for label in getattr(collector, "_labelnames", ())}
    by_user = {"user", "right", "quota"}
    fixed = {"peer", "code", "method", "level", "stage", "name", "version", "cluster", "use", "operation"}
    assert labels <= fixed | by_user


def test_space_that_was_not_measured_yet_is_absent():
    """A forecast takes a 0 for a full disk: an alert after each long recovery."""
    registry = CollectorRegistry()
    metrics = BrokerMetrics(registry)
    names = ("headrace_broker_disk_free_bytes", "headrace_broker_disk_total_bytes")
    assert [registry.get_sample_value(name) for name in names] == [None, None]
    metrics.disk_space.usage = DiskUsage(total_bytes=10, free_bytes=1, refusing=True)
    assert [registry.get_sample_value(name) for name in names] == [1, 10]


def test_the_detail_has_a_series_a_partition():
    """In-sync sets are the leader's to tell."""
    page = exposition([SAMPLE, replace(SAMPLE, partition=1, leader=False, replicas=-1, in_sync_replicas=-1)])
    assert 'headrace_broker_partition_log_end_offset{partition="0",topic="t"} 9.0' in page
    assert 'headrace_broker_partition_log_end_offset{partition="1",topic="t"} 9.0' in page
    assert 'headrace_broker_partition_produced_bytes_total{partition="1",topic="t"} 50.0' in page
    assert 'headrace_broker_partition_in_sync_replicas{partition="0",topic="t"} 2.0' in page
    assert 'headrace_broker_partition_in_sync_replicas{partition="1"' not in page


def stages(flushed, *, appended, started, append_seconds, pending=True):
    """What `_observe` says, in seconds by stage; None: nothing."""
    registry = CollectorRegistry()
    metrics = BrokerMetrics(registry)
    handler = ProduceHandler(None, None, SimpleNamespace(metrics=metrics), None)
    partition = SimpleNamespace(flush_policy=SimpleNamespace(flushed_at=lambda end_offset: flushed))
    waiting = [_Pending(partition, 10, 0, None, None)] if pending else []
    handler._observe(_Times(started, appended, append_seconds), waiting)
    found = {}
    for name in ("queue", "append", "fsync", "replication"):
        count = registry.get_sample_value("headrace_broker_produce_stage_seconds_count", {"stage": name})
        total = registry.get_sample_value("headrace_broker_produce_stage_seconds_sum", {"stage": name})
        found[name] = total if count else None
    return found


def test_the_stages_of_a_produce_add_up_to_it():
    """Queue, append, fsync, replication; what was flushed last of all partitions ends the fsync."""
    now = time.perf_counter()
    found = stages(now - 3, appended=now - 5, started=now - 9, append_seconds=1.0)
    assert [round(found[name], 1) for name in ("queue", "append", "fsync", "replication")] == [3.0, 1.0, 2.0, 3.0]


def test_a_produce_that_waits_for_nothing_has_no_share_in_the_waits():
    """acks=1, and acks=all of what is committed at once."""
    now = time.perf_counter()
    found = stages(None, appended=now, started=now - 2, append_seconds=0.5, pending=False)
    assert (found["fsync"], found["replication"]) == (None, None)
    assert round(found["queue"], 1) == 1.5


def test_a_topic_that_is_not_flushed_has_no_fsync():
    """All of the wait is the followers'."""
    now = time.perf_counter()
    found = stages(None, appended=now - 2, started=now - 2, append_seconds=0.0)
    assert found["fsync"] == 0.0
    assert round(found["replication"], 1) == 2.0
