"""Prometheus metrics of a worker of mirrors; extra `metrics`."""

import threading
from collections.abc import Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.client.mirror.rows import MirrorDescription, is_left_alone

LABELS = ("mirror", "topic", "partition")


class MirrorCollector(Collector):
    """Collects what the workers of this process reported last. Any thread may scrape."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mirrors: dict[str, MirrorDescription] = {}

    def report(self, name: str, described: MirrorDescription | None) -> None:
        """Take the report of a worker of this process; `None` means that it copies nothing of the mirror any more."""
        with self._lock:
            if described is None:
                self._mirrors.pop(name, None)
            else:
                self._mirrors[name] = described

    def collect(self) -> Iterator[Metric]:
        """Return the lag and the problems of the mirrors and partitions that this process copies."""
        lag = GaugeMetricFamily(
            "headrace_mirror_lag_records", "Records of the source that are not copied; absent if unknown", labels=LABELS
        )
        seconds = GaugeMetricFamily(
            "headrace_mirror_lag_seconds",
            "Age of the last copied batch while records are missing, else 0, in seconds; absent if unknown",
            labels=LABELS,
        )
        failed = GaugeMetricFamily(
            "headrace_mirror_partition_failed", "1 while the copy of a partition fails, else 0", labels=LABELS
        )
        refused = GaugeMetricFamily(
            "headrace_mirror_topic_refused", "1 while a topic is not copied at all, else 0", labels=LABELS[:2]
        )
        subjects = GaugeMetricFamily(
            "headrace_mirror_subject_refused",
            "1 while a subject of the schema registry is not copied in full, else 0",
            labels=("mirror", "subject"),
        )
        stopped = GaugeMetricFamily(
            "headrace_mirror_failed",
            "1 while a mirror is not copied, or its topics cannot be compared with the source, else 0",
            labels=LABELS[:1],
        )
        with self._lock:
            mirrors = list(self._mirrors.values())
        for mirror in mirrors:
            stopped.add_metric((mirror.name,), float(bool(mirror.problem)))
            for subject in mirror.subjects:
                if not is_left_alone(mirror, subject.name):
                    subjects.add_metric((mirror.name, subject.name), float(bool(subject.problem)))
            for topic in mirror.topics:
                if topic.is_promoted:
                    continue
                refused.add_metric((mirror.name, topic.name), float(bool(topic.problem)))
                for number, report in topic.partitions.items():
                    labels = (mirror.name, topic.name, str(number))
                    failed.add_metric(labels, float(bool(report.problem)))
                    if report.lag >= 0:
                        lag.add_metric(labels, report.lag)
                    if report.lag_ms >= 0:
                        seconds.add_metric(labels, report.lag_ms / 1000)
        yield from (lag, seconds, failed, refused, subjects, stopped)
