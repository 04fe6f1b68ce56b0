"""Prometheus metrics of producers, consumers and readers, for applications that need them; extra `metrics`.

::

    from headrace.metrics import ClientCollector

    collector = ClientCollector()
    prometheus_client.REGISTRY.register(collector)
    with headrace.Producer(...) as producer:
        collector.watch(producer, "billing")

It counts nothing on the path of a record: a scrape reads the clients' own statistics. Any thread may scrape. A client
of `headrace.aio` is watched from its event loop, on which a scrape reads it; one that does not respond within a second
is omitted from that scrape.
"""

import asyncio
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.client.base.call_counts import SECONDS, CallStats
from headrace.client.consumer.consumer import Consumer
from headrace.client.consumer.consumer_async import AsyncConsumer
from headrace.client.consumer.reader import Reader
from headrace.client.consumer.reader_async import AsyncReader
from headrace.client.group.consumer_health import ConsumerHealth
from headrace.client.producer.producer import Producer
from headrace.client.producer.producer_async import Producer as AsyncProducer
from headrace.client.producer.sender import ProducerStats
from headrace.wire.errors import HeadraceError
from headrace.wire.ids import TopicPartition

if TYPE_CHECKING:
    import headrace.aio

PREFIX = "headrace_client"
LOOP_SECONDS = 1.0
"""Total time for which a scrape waits for the event loops of asyncio clients."""
_KINDS: dict[str, tuple[type, ...]] = {
    "producer": (Producer, AsyncProducer),
    "consumer": (Consumer, AsyncConsumer),
    "reader": (Reader, AsyncReader),
}
_PRODUCER_COUNTERS = (
    ("sent_records", "Records that were acknowledged"),
    ("sent_batches", "Batches that were acknowledged"),
    ("failed_records", "Records that failed"),
)
_PRODUCER_GAUGES = (
    ("buffered_bytes", "Bytes of unacknowledged records, including those in flight"),
    ("inflight_requests", "Requests waiting for a response"),
)
_PRODUCE = (
    "produce",
    "Duration of produce calls, including those without a response",
    "Batches that were queued again for a retry",
)
_FETCH = (
    "fetch",
    "Duration of fetch calls, including the wait for data and calls without a response",
    "Partitions that were fetched again after an error",
)

Sample = TypeVar("Sample")


class _Watched(NamedTuple):
    name: str
    loop: asyncio.AbstractEventLoop | None
    """`None` means a blocking client, which any thread may read."""


class _ProducerSample(NamedTuple):
    name: str
    stats: ProducerStats
    calls: CallStats


class _ConsumerSample(NamedTuple):
    name: str
    health: ConsumerHealth
    positions: Mapping[TopicPartition, tuple[int, int | None]]
    """Position and lag; empty if it was closed, or lost a partition, in the meantime: its health reports that."""


class _ReaderSample(NamedTuple):
    name: str
    calls: CallStats
    consumer: _ConsumerSample | None
    """`None` means that it is a `Reader`."""


class ClientCollector(Collector):
    """Exports the clients that it watches until they are forgotten; a closed consumer is exported as unhealthy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._producers: weakref.WeakKeyDictionary[Any, _Watched] = weakref.WeakKeyDictionary()
        self._readers: weakref.WeakKeyDictionary[Any, _Watched] = weakref.WeakKeyDictionary()
        self._number = 0

    def watch(
        self,
        client: "headrace.Producer | headrace.Consumer | headrace.Reader"
        " | headrace.aio.Producer | headrace.aio.Consumer | headrace.aio.Reader",
        name: str = "",
    ) -> None:
        """Export a client from now on.

        Args:
            client: a client of `headrace.aio` is watched from the loop to which it belongs.
            name: its label `client`; empty means its kind and a number. It replaces a closed client of that name.

        Raises:
            TypeError: For another object, or an asyncio client without a running event loop.
            ValueError: If another open client has this name: their series could not be distinguished.
        """
        if not isinstance(client, tuple(chain(*_KINDS.values()))):
            raise TypeError(f"a Producer, Consumer or Reader is wanted, not {type(client).__name__}")
        is_asyncio = isinstance(client, AsyncProducer | AsyncConsumer | AsyncReader)
        loop = _running_loop() if is_asyncio else None
        if is_asyncio and loop is None:
            raise TypeError("an asyncio client is watched from its event loop: call watch on that event loop")
        with self._lock:
            clients = self._producers if isinstance(client, _KINDS["producer"]) else self._readers
            clients[client] = _Watched(self._name(clients, client, name), loop)

    def _name(self, clients: "weakref.WeakKeyDictionary[Any, _Watched]", client: Any, wanted: str) -> str:
        """Return the name for a client, and forget the closed one that had it."""
        taken = {watched.name: other for other, watched in clients.items() if other is not client}
        if not wanted:
            kind = next(kind for kind, classes in _KINDS.items() if isinstance(client, classes))
            while not wanted or wanted in taken:
                self._number += 1
                wanted = f"{kind}-{self._number}"
        elif wanted in taken:
            if not _is_closed(taken[wanted]):
                raise ValueError(f"there is an open client named {wanted!r} already: use a unique name")
            del clients[taken[wanted]]
        return wanted

    def collect(self) -> Iterator[Metric]:
        """Return the metrics for the registry."""
        deadline = time.monotonic() + LOOP_SECONDS
        with self._lock:
            producers, readers = list(self._producers.items()), list(self._readers.items())
        produced = _ask_all(producers, _sample_producer, deadline)
        read = _ask_all(readers, _sample_reader, deadline)
        yield from _of_producers(produced)
        yield from _of_calls(_PRODUCE, {sample.name: sample.calls for sample in produced})
        yield from _of_consumers([sample.consumer for sample in read if sample.consumer is not None])
        yield from _of_calls(_FETCH, {sample.name: sample.calls for sample in read})
        corrupt = CounterMetricFamily(
            f"{PREFIX}_corrupt_batches",
            "Batches that could not be decoded and were skipped (on_corrupt_batch)",
            labels=("client",),
        )
        for sample in read:
            corrupt.add_metric([sample.name], sample.calls.corrupt_batches)
        yield corrupt


def _is_closed(client: Producer | AsyncProducer | Consumer | AsyncConsumer | Reader | AsyncReader) -> bool:
    if isinstance(client, Producer | AsyncProducer):
        return client._core.is_closed
    return not client._core.fetcher.is_usable


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _ask_all(
    clients: list[tuple[Any, _Watched]], sample: Callable[[Any, str], Sample], deadline: float
) -> list[Sample]:
    """Sample each client, on its loop if it has one; without those whose loop is closed or does not respond."""
    asked = []
    for client, (name, loop) in clients:
        future: Future[Sample] = Future()
        answer = _answering(future, sample, client, name)
        if loop is None or loop is _running_loop():
            answer()
        else:
            try:
                loop.call_soon_threadsafe(answer)
            except RuntimeError:  # The loop is closed, with nothing of its clients left to sample.
                continue
        asked.append(future)
    found = []
    for future in asked:
        try:
            found.append(future.result(max(0.0, deadline - time.monotonic())))
        except NotYet:
            future.cancel()
    return found


def _answering(
    future: "Future[Sample]", sample: Callable[[Any, str], Sample], client: Any, name: str
) -> Callable[[], None]:
    def answer() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(sample(client, name))
        except Exception as error:
            future.set_exception(error)

    return answer


def _sample_producer(producer: Producer | AsyncProducer, name: str) -> _ProducerSample:
    return _ProducerSample(name, producer.stats(), producer.calls())


def _sample_reader(core: Consumer | AsyncConsumer | Reader | AsyncReader, name: str) -> _ReaderSample:
    if not isinstance(core, Consumer | AsyncConsumer):
        return _ReaderSample(name, core.calls(), None)
    positions: dict[TopicPartition, tuple[int, int | None]] = {}
    health = core.health()
    with contextlib.suppress(HeadraceError):  # It was closed, or lost a partition: its health reports that.
        positions = {where: (core.position(where), records) for where, records in core.lag().items()}
    return _ReaderSample(name, core.calls(), _ConsumerSample(name, health, positions))


def _of_producers(producers: list[_ProducerSample]) -> Iterator[Metric]:
    for field, documentation in _PRODUCER_COUNTERS:
        counter = CounterMetricFamily(f"{PREFIX}_{field}", documentation, labels=("client",))
        for name, stats, _ in producers:
            counter.add_metric([name], getattr(stats, field))
        yield counter
    for field, documentation in _PRODUCER_GAUGES:
        gauge = GaugeMetricFamily(f"{PREFIX}_{field}", documentation, labels=("client",))
        for name, stats, _ in producers:
            gauge.add_metric([name], getattr(stats, field))
        yield gauge


def _of_calls(kind: tuple[str, str, str], clients: Mapping[str, CallStats]) -> Iterator[Metric]:
    method, of_seconds, of_retries = kind
    seconds = HistogramMetricFamily(f"{PREFIX}_{method}_seconds", of_seconds, labels=("client",))
    errors = CounterMetricFamily(
        f"{PREFIX}_{method}_errors",
        f"Partitions of {method} calls that failed, by code",
        labels=("client", "code"),
    )
    retries = CounterMetricFamily(f"{PREFIX}_{method}_retries", of_retries, labels=("client",))
    fallbacks = CounterMetricFamily(
        f"{PREFIX}_{method}_grpc_fallbacks",
        f"Calls of {method} that used gRPC because the native protocol was unavailable",
        labels=("client",),
    )
    for name, calls in clients.items():
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, SECONDS), "+Inf"), calls.calls_by_seconds, strict=True):
            total += count
            buckets.append((bound, total))
        seconds.add_metric([name], buckets, sum_value=calls.sum_seconds)
        retries.add_metric([name], calls.retries)
        for code, count in sorted(calls.errors.items()):
            errors.add_metric([name, code.name], count)
        fallbacks.add_metric([name], calls.grpc_fallbacks)
    yield from (seconds, errors, retries, fallbacks)


def _of_consumers(consumers: list[_ConsumerSample]) -> Iterator[Metric]:
    partition = ("client", "topic", "partition")
    healthy = GaugeMetricFamily(f"{PREFIX}_healthy", "1 while the consumer is healthy", labels=("client",))
    assigned = GaugeMetricFamily(f"{PREFIX}_assigned_partitions", "Assigned partitions", labels=("client",))
    silent = GaugeMetricFamily(
        f"{PREFIX}_since_last_answer_seconds", "Time since the last response to a fetch", labels=("client",)
    )
    lag = GaugeMetricFamily(
        f"{PREFIX}_lag_records",
        "Records between the position and the high watermark of the last fetch",
        labels=partition,
    )
    position = GaugeMetricFamily(
        f"{PREFIX}_position", "Offset of the next record; its rate is the read rate", labels=partition
    )
    for name, health, positions in consumers:
        healthy.add_metric([name], health.healthy)
        assigned.add_metric([name], health.assigned)
        silent.add_metric([name], health.since_last_answer_ms / 1000)
        for where, (offset, records) in positions.items():
            labels = [name, where.topic, str(where.partition)]
            position.add_metric(labels, offset)
            if records is not None:
                lag.add_metric(labels, records)
    yield from (healthy, assigned, silent, lag, position)
