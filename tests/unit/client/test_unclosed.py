"""Clients that are dropped without `close`: a warning, and nothing of them stays."""

import asyncio
import gc
import threading
import time

import headrace
import headrace.aio
import pytest
from headrace.wire.columns import encode_batch

from tests.fakes.groups import fake_groups

WAIT = 20


@pytest.fixture
def clicks(fake_cluster):
    fake_cluster.create_topic("clicks", 1)
    fake_cluster.append("clicks", encode_batch([b"a", b"b"], base_timestamp_ms=5))
    return fake_cluster


@pytest.fixture
def await_threads():
    """Wait until no thread of a client of the test runs; the thread that closes one may start others."""
    before = {*threading.enumerate()}

    def wait():
        await_end(before)

    return wait


def await_end(before):
    deadline = time.monotonic() + WAIT
    while threads := [t for t in threading.enumerate() if t not in before and t.name.startswith("headrace-")]:
        threads[0].join(deadline - time.monotonic())
        assert time.monotonic() < deadline, f"{threads[0]} still runs"


def read_all(address):
    assert len(headrace.Reader("clicks", bootstrap_servers=address).read(WAIT)) == 2


def consume(address, **settings):
    consumer = headrace.Consumer("clicks", bootstrap_servers=address, auto_offset_reset="earliest", **settings)
    assert len(consumer.poll(WAIT)) == 2


def list_topics(address):
    assert headrace.Admin(bootstrap_servers=address).list_topics() == ["clicks"]


@pytest.mark.parametrize(("use", "name"), [(read_all, "Reader"), (consume, "Consumer"), (list_topics, "Admin")])
def test_a_dropped_client_warns_and_its_threads_end(clicks, use, name, await_threads):
    """One ResourceWarning names the class, and no thread of the client stays."""
    with pytest.warns(ResourceWarning, match=f"unclosed .*{name}"):
        use(clicks.address)
    await_threads()


def test_a_dropped_producer_delivers_what_it_took(clicks, await_threads):
    """Records that linger are sent before the producer's threads end."""

    def send():
        headrace.Producer(bootstrap_servers=clicks.address, linger_ms=60_000).send("clicks", b"c")
        gc.collect()  # The producer and its open batch refer to each other.

    with pytest.warns(ResourceWarning, match=r"unclosed .*Producer"):
        send()
    with clicks.appended:
        assert clicks.appended.wait_for(lambda: clicks.topics["clicks"].partitions[0].end == 3, WAIT)
    await_threads()


def test_a_dropped_consumer_leaves_its_group(clicks, await_threads):
    """Others need not wait for the session's timeout."""
    with fake_groups(clicks) as coordinator:
        coordinator.assign(("clicks", 0))
        with pytest.warns(ResourceWarning, match=r"unclosed .*Consumer"):
            consume(coordinator.address, group_id="g")
        await_threads()
        assert coordinator.left == coordinator.members


def test_a_closed_client_does_not_warn(clicks, recwarn):
    """Nor does one that was made and never used, or with wrong settings."""
    with headrace.Reader("clicks", bootstrap_servers=clicks.address) as reader:
        reader.read(WAIT)
    with headrace.Consumer("clicks", bootstrap_servers=clicks.address) as consumer:
        consumer.poll(0)
    with headrace.Producer(bootstrap_servers=clicks.address) as producer:
        producer.send("clicks", b"c")
    with headrace.Admin(bootstrap_servers=clicks.address) as admin:
        admin.list_topics()
    headrace.Producer(bootstrap_servers=clicks.address)
    with pytest.raises(headrace.ConfigError):
        headrace.Reader("clicks", bootstrap_server="x")
    del reader, consumer, producer, admin
    gc.collect()
    assert [warning for warning in recwarn if warning.category is ResourceWarning] == []


async def read_all_async(address):
    assert len(await (await headrace.aio.Reader("clicks", bootstrap_servers=address).__aenter__()).read(WAIT)) == 2


async def consume_async(address):
    consumer = headrace.aio.Consumer("clicks", bootstrap_servers=address, auto_offset_reset="earliest")
    await consumer.__aenter__()
    assert len(await consumer.poll(WAIT)) == 2


async def produce_async(address):
    await headrace.aio.Producer(bootstrap_servers=address).send_and_wait("clicks", b"c")


@pytest.mark.parametrize(
    ("use", "name"), [(read_all_async, "Reader"), (consume_async, "Consumer"), (produce_async, "Producer")]
)
async def test_a_dropped_asyncio_client_warns_and_its_tasks_end(clicks, use, name):
    """As for the blocking classes, while the loop runs."""
    before = asyncio.all_tasks()
    with pytest.warns(ResourceWarning, match=f"unclosed .*{name}"):
        await use(clicks.address)
    async with asyncio.timeout(WAIT):
        while tasks := asyncio.all_tasks() - before:
            await asyncio.wait(tasks)
