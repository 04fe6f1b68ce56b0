"""`headrace.metrics`: how calls went, under which names, and asked from which thread."""

import asyncio
import gc
import threading
import time

import headrace
import headrace.aio
import pytest
from headrace import metrics
from headrace.client.base.call_counts import SECONDS, CallCounts
from headrace.metrics import ClientCollector
from headrace.wire.columns import encode_batch
from headrace.wire.errors import ErrorCode, NotLeaderError, ThrottledError
from prometheus_client import CollectorRegistry, generate_latest

FAST = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5}
WAIT = 20


@pytest.fixture
def shown():
    """A collector on a registry of its own; `shown.value(name, **labels)` is what a scrape says."""

    class Shown:
        def __init__(self):
            self.registry = CollectorRegistry()
            self.collector = ClientCollector()
            self.registry.register(self.collector)
            self.watch = self.collector.watch

        def value(self, name, **labels):
            return self.registry.get_sample_value(f"headrace_client_{name}", labels)

    return Shown()


@pytest.fixture
def clicks(fake_cluster):
    fake_cluster.create_topic("clicks")
    return fake_cluster


def fill(fake, *values):
    fake.append("clicks", encode_batch([value.encode() for value in values], base_timestamp_ms=1))


def settings_for(fake):
    return {"bootstrap_servers": fake.address, **FAST}


def read_all(consumer, count):
    deadline = time.monotonic() + WAIT
    while count > 0:
        assert time.monotonic() < deadline
        count -= len(consumer.poll(timeout=1.0))


def test_a_call_falls_into_the_bucket_of_its_time():
    """Bounds belong to the bucket below them, as Prometheus has it."""
    counts = CallCounts()
    for seconds in (0.0, SECONDS[0], SECONDS[0] * 1.01, 99.0):
        counts.took(seconds)
    counts.errors[ErrorCode.THROTTLED] += 2
    stats = counts.stats()
    assert (stats.calls_by_seconds[:2], stats.calls_by_seconds[-1]) == ((2, 1), 1)
    assert stats.sum_seconds == pytest.approx(99.0 + SECONDS[0] * 2.01)
    counts.errors[ErrorCode.THROTTLED] += 1
    assert stats.errors == {ErrorCode.THROTTLED: 2}, "what was given does not change any more"


def test_calls_of_a_producer_are_timed_and_its_errors_counted(clicks, faults, shown):
    """Also of those that a retry recovers from without an error to the application."""
    clicks.faults.extend(
        [faults.refused_with(ThrottledError("slow down")), faults.refused_with(NotLeaderError("moved"))]
    )
    clicks.faults.append(faults.lost_answer)
    with headrace.Producer(**settings_for(clicks)) as producer:
        shown.watch(producer, "billing")
        producer.send("clicks", b"x").result(WAIT)
        assert shown.value("produce_errors_total", client="billing", code="THROTTLED") == 1
        assert shown.value("produce_errors_total", client="billing", code="NOT_LEADER") == 1
        assert sum(producer.calls().errors.values()) == 3
        assert shown.value("produce_retries_total", client="billing") == 3
        assert shown.value("produce_seconds_count", client="billing") == 4
        assert shown.value("produce_seconds_bucket", client="billing", le="+Inf") == 4
        assert shown.value("produce_seconds_sum", client="billing") > 0
        assert shown.value("sent_records_total", client="billing") == 1
        assert shown.value("failed_records_total", client="billing") == 0


def test_fetches_are_timed_and_their_errors_counted(two_brokers, shown):
    """A leader that moved is no error to the application, and is one that can be seen."""
    first, _ = two_brokers
    first.create_topic("clicks")
    fill(first, "a")
    settings = {**settings_for(first), "auto_offset_reset": "earliest", "fetch_max_wait_ms": 50}
    with headrace.Consumer("clicks", **settings) as consumer:
        shown.watch(consumer)
        read_all(consumer, 1)
        first.move_leader("clicks", 2)
        fill(first, "b")
        read_all(consumer, 1)
        assert shown.value("fetch_seconds_count", client="consumer-1") >= 3
        assert shown.value("fetch_errors_total", client="consumer-1", code="NOT_LEADER") >= 1
        assert shown.value("fetch_retries_total", client="consumer-1") >= 1


def test_a_reader_is_shown_too(clicks, shown):
    """It has no lag and no health: it ends where it was told."""
    fill(clicks, "a", "b")
    with headrace.Reader("clicks", **settings_for(clicks)) as reader:
        shown.watch(reader)
        assert len(list(reader)) == 2
        assert shown.value("fetch_seconds_count", client="reader-1") >= 1
        assert shown.value("healthy", client="reader-1") is None


def test_clients_of_asyncio_are_scraped_on_their_loop(clicks, shown):
    """From the thread of a scrape as from the loop itself; a loop that is gone is left out."""
    fill(clicks, "a")

    async def work():
        settings = settings_for(clicks)
        async with (
            headrace.aio.Producer(**settings) as producer,
            headrace.aio.Consumer("clicks", auto_offset_reset="earliest", fetch_max_wait_ms=50, **settings) as consumer,
            headrace.aio.Reader("clicks", **settings) as reader,
        ):
            for client in (producer, consumer, reader):
                shown.watch(client, "app" if client is not reader else "")
            await producer.send_and_wait("clicks", b"b")
            while not len(await consumer.poll(timeout=1.0)):
                pass
            assert len(await reader.read()) >= 1
            asked_on = []
            stats = producer._core.sender.stats
            producer._core.sender.stats = lambda: (asked_on.append(threading.current_thread()), stats())[1]
            here = shown.value("sent_records_total", client="app")
            there = await asyncio.to_thread(shown.value, "sent_records_total", client="app")
            assert (here, there) == (1, 1)
            assert asked_on == [threading.current_thread()] * 2
            assert producer.stats().sent_records == 1
            assert sum(producer.calls().calls_by_seconds) == 1
            for kind, name in (("produce", "app"), ("fetch", "app"), ("fetch", "reader-1")):
                assert shown.value(f"{kind}_seconds_count", client=name) >= 1
            assert shown.value("healthy", client="app") == 1
            return producer, consumer, reader

    clients = asyncio.run(work())
    assert shown.value("sent_records_total", client="app") is None
    assert clients


async def test_a_loop_that_does_not_answer_is_left_out(clicks, shown, monkeypatch):
    """A scrape waits for it no longer than it may, whatever the loop is at."""
    monkeypatch.setattr(metrics, "LOOP_SECONDS", 0.05)
    async with headrace.aio.Producer(**settings_for(clicks)) as producer:
        shown.watch(producer, "app")
        blocking = headrace.Producer(**settings_for(clicks))
        shown.watch(blocking, "batch")
        found = []
        scrape = threading.Thread(target=lambda: found.append(generate_latest(shown.registry).decode()))
        scrape.start()
        scrape.join(WAIT)  # Nothing runs on the loop meanwhile.
        assert 'sent_records_total{client="batch"}' in found[0]
        assert 'client="app"' not in found[0]
        blocking.close()


def test_two_open_clients_do_not_share_a_name(clicks, shown):
    """One would vanish, or a series would be there twice, which no Prometheus takes; a closed one makes room."""
    settings = settings_for(clicks)
    first, second = headrace.Producer(**settings), headrace.Producer(**settings)
    consumer, reader = headrace.Consumer("clicks", **settings), headrace.Reader("clicks", **settings)
    shown.watch(first, "app")
    shown.watch(first, "app")
    shown.watch(consumer, "app")
    for late in (second, reader):
        with pytest.raises(ValueError, match="named 'app' already"):
            shown.watch(late, "app")
    first.close()
    second.send("clicks", b"x").result(WAIT)
    shown.watch(second, "app")
    assert shown.value("sent_records_total", client="app") == 1
    other = headrace.Reader("clicks", **settings)
    shown.watch(other, "reader-1")
    shown.watch(reader)
    assert shown.value("fetch_seconds_count", client="reader-2") is not None
    lines = generate_latest(shown.registry).decode().splitlines()
    series = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert len(series) == len(set(series))
    for client in (second, consumer, reader, other):
        client.close()


def test_what_is_no_client_is_refused(clicks, shown):
    """And an asyncio client from outside of its loop: it could not be read later."""
    with pytest.raises(TypeError, match="not object"):
        shown.watch(object())

    async def make():
        return headrace.aio.Producer(**settings_for(clicks))

    producer = asyncio.run(make())
    with pytest.raises(TypeError, match="event loop"):
        shown.watch(producer)


def test_a_client_that_is_forgotten_is_shown_no_more(clicks, shown):
    """The collector does not keep it."""
    reader = headrace.Reader("clicks", **settings_for(clicks))
    shown.watch(reader, "once")
    assert shown.value("fetch_seconds_count", client="once") is not None
    reader.close()
    del reader
    gc.collect()
    assert shown.value("fetch_seconds_count", client="once") is None
