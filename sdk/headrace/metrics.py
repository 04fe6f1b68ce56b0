"""Metrics of producers and consumers for Prometheus, for applications that want them; needs the extra `metrics`.

    from headrace.metrics import ClientCollector

    collector = ClientCollector()
    prometheus_client.REGISTRY.register(collector)
    with headrace.Producer(...) as producer:
        collector.watch(producer)

Nothing is counted for it on the way of a record: a scrape reads what the clients know of themselves. Any thread.
"""

import threading
import weakref
from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.client.consumer import Consumer
from headrace.client.delivery import ProducerStats
from headrace.client.producer import Producer
from headrace.wire.errors import HeadraceError

PREFIX = "headrace_client"
_PRODUCER_COUNTERS = (
    ("sent_records", "Records that were acknowledged"),
    ("sent_batches", "Batches that were acknowledged"),
    ("failed_records", "Records that ended in an error"),
)
_PRODUCER_GAUGES = (
    ("buffered_bytes", "Bytes of records on their way, those in flight included"),
    ("inflight_requests", "Requests that wait for their answer"),
)


class ClientCollector(Collector):
    """Shows the clients that it watches; one that is closed or forgotten is shown no more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._producers: weakref.WeakKeyDictionary[Producer, str] = weakref.WeakKeyDictionary()
        self._consumers: weakref.WeakKeyDictionary[Consumer, str] = weakref.WeakKeyDictionary()
        self._number = 0

    def watch(self, client: Producer | Consumer, name: str = "") -> None:
        """Show a client from now on. `name` is its label `client`; empty: its kind and a number."""
        with self._lock:
            self._number += 1
            if isinstance(client, Producer):
                self._producers[client] = name or f"producer-{self._number}"
            elif isinstance(client, Consumer):
                self._consumers[client] = name or f"consumer-{self._number}"
            else:
                raise TypeError(f"a blocking Producer or Consumer is wanted, not {type(client).__name__}")

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        with self._lock:
            producers = {name: client.stats() for client, name in self._producers.items()}
            consumers = [(name, client) for client, name in self._consumers.items()]
        yield from _of_producers(producers)
        yield from _of_consumers(consumers)


def _of_producers(producers: dict[str, ProducerStats]) -> Iterator[Metric]:
    for field, documentation in _PRODUCER_COUNTERS:
        counter = CounterMetricFamily(f"{PREFIX}_{field}", documentation, labels=("client",))
        for name, stats in producers.items():
            counter.add_metric([name], getattr(stats, field))
        yield counter
    for field, documentation in _PRODUCER_GAUGES:
        gauge = GaugeMetricFamily(f"{PREFIX}_{field}", documentation, labels=("client",))
        for name, stats in producers.items():
            gauge.add_metric([name], getattr(stats, field))
        yield gauge


def _of_consumers(consumers: list[tuple[str, Consumer]]) -> Iterator[Metric]:
    partition = ("client", "topic", "partition")
    healthy = GaugeMetricFamily(f"{PREFIX}_healthy", "1 while the consumer can work", labels=("client",))
    assigned = GaugeMetricFamily(f"{PREFIX}_assigned_partitions", "Partitions that it reads", labels=("client",))
    silent = GaugeMetricFamily(
        f"{PREFIX}_since_last_answer_seconds", "How long ago a broker last answered a fetch", labels=("client",)
    )
    lag = GaugeMetricFamily(
        f"{PREFIX}_lag_records", "Records that are still ahead, by the last fetch", labels=partition
    )
    position = GaugeMetricFamily(
        f"{PREFIX}_position", "Offset of the next record; its rate is how fast it reads", labels=partition
    )
    for name, consumer in consumers:
        health = consumer.health()
        healthy.add_metric([name], health.healthy)
        assigned.add_metric([name], health.assigned)
        silent.add_metric([name], health.since_last_answer_ms / 1000)
        try:
            behind = consumer.lag()
            positions = {where: consumer.position(where) for where in behind}
        except HeadraceError:
            continue  # It was closed, or lost a partition, meanwhile: its health says so.
        for where, records in behind.items():
            labels = [name, where.topic, str(where.partition)]
            position.add_metric(labels, positions[where])
            if records is not None:
                lag.add_metric(labels, records)
    yield from (healthy, assigned, silent, lag, position)
