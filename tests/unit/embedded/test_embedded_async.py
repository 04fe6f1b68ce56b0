"""`headrace.aio.open`: the asyncio classes on a directory."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import headrace
import pytest
from headrace import aio
from headrace.client.opened import directory
from headrace.embedded.server import _registry

WAIT = 10


async def test_records_groups_and_tables(tmp_path):
    async with await aio.open(tmp_path / "events") as log:
        await log.admin.create_topic("clicks", partitions=2)
        async with log.producer() as producer:
            futures = [await producer.send("clicks", b"%d" % number) for number in range(100)]
            assert {(await future).topic for future in futures} == {"clicks"}
        async with log.reader("clicks") as reader:
            assert sorted([int(record.value) async for record in reader]) == list(range(100))
        async with log.consumer("clicks", group_id="g", auto_offset_reset="earliest") as consumer:
            found = 0
            while found < 100:
                found += len(await consumer.poll(10))
            await consumer.commit()
        assert sum(each.offset for each in (await log.admin.group_offsets("g")).values()) == 100
        await log.admin.create_topic("users", config={"cleanup_policy": "compact", "table": "yes"})
        async with log.table("users") as users:
            await users.put("u17", {"name": "Ada"})
            assert (await users.get("u17"))["name"] == "Ada"
        assert log.topics() == ["clicks", "users"]


async def test_a_wait_for_records_ends_when_they_come_or_with_its_task(tmp_path):
    async with await aio.open(tmp_path / "events") as log:
        await log.admin.create_topic("clicks")
        async with log.consumer(auto_offset_reset="earliest") as consumer, log.producer(linger_ms=0) as producer:
            await consumer.assign([headrace.TopicPartition("clicks", 0)])
            waiting = asyncio.create_task(consumer.poll(None))
            await asyncio.wait([waiting], timeout=0.1)
            assert not waiting.done()
            await (await producer.send("clicks", b"1"))
            assert [record.value for record in await asyncio.wait_for(waiting, 30)] == [b"1"]
            cancelled = asyncio.create_task(consumer.poll(None))
            await asyncio.wait([cancelled], timeout=0.1)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled


async def test_each_record_has_its_place_whatever_it_is_sent_with(tmp_path):
    """Plain values, keys, headers and times in turn, over many batches: every future has the offset of its record."""
    async with await aio.open(tmp_path / "events") as log:
        await log.admin.create_topic("clicks")
        async with log.producer(batch_records=50, linger_ms=0) as producer:
            futures = []
            for number in range(3_000):
                headers = [("h", b"%d" % number)]
                more = ({}, {}, {"key": b"k%d" % number}, {"headers": headers}, {"timestamp_ms": number})
                futures.append(await producer.send("clicks", b"%d" % number, **more[number % 5]))
            assert [(await future).offset for future in futures] == list(range(3_000))
        with pytest.raises(headrace.ClosedError):
            await producer.send("clicks", b"late")
        with pytest.raises(headrace.ClosedError):
            await producer.send("clicks", b"late", key=b"k")
        async with log.reader("clicks") as reader:
            records = [record async for record in reader]
    assert [record.value for record in records] == [b"%d" % number for number in range(3_000)]
    for number, record in enumerate(records):
        assert record.key == (b"k%d" % number if number % 5 == 2 else None)
        assert bool(record.headers) == (number % 5 == 3)


async def test_a_plain_value_is_appended_without_a_lock(tmp_path, monkeypatch):
    """Only the first record of a batch or of a kind, and one for which there is no room, takes the long way."""
    async with await aio.open(tmp_path / "events") as log:
        await log.admin.create_topic("clicks")
        async with log.producer(linger_ms=10_000) as producer:
            await (await producer.send("clicks", b"first"))
            appended: list[object] = []
            append = producer._core.append
            monkeypatch.setattr(producer._core, "append", lambda record: appended.append(record) or append(record))
            for key in (None, b"k"):
                for _ in range(1_000):
                    await producer.send("clicks", b"x", key)
            assert len(appended) < 20


def is_open(path):
    """Return whether this process has a directory open, to write or to read it."""
    return any(key[0] == path for key in _registry.entries)


@pytest.mark.parametrize("of", ["client", "directory"])
async def test_a_cancelled_close_closes_the_directory(tmp_path, of):
    """Also if no thread was free to begin it."""
    path = str(tmp_path / "events")
    loop, free = asyncio.get_running_loop(), threading.Event()
    opened = await aio.open(path) if of == "directory" else aio.Admin(bootstrap_servers=f"dir:{path}")
    assert is_open(path)
    executor = ThreadPoolExecutor(1)
    loop.set_default_executor(executor)
    executor.submit(free.wait, WAIT)
    closing = asyncio.create_task(opened.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    free.set()
    await loop.run_in_executor(None, _nothing)  # It comes after the close.
    assert not is_open(path)


async def test_a_cancelled_open_leaves_the_directory_closed(tmp_path, monkeypatch):
    """An application that waits for a recovery for a while only can open it later, in another process as well."""
    path = str(tmp_path / "events")
    loop, begun, cancelled, closed = asyncio.get_running_loop(), asyncio.Event(), threading.Event(), asyncio.Event()
    acquire, release = directory.acquire, directory.release

    def acquire_later(*arguments, **options):
        loop.call_soon_threadsafe(begun.set)
        assert cancelled.wait(WAIT)
        return acquire(*arguments, **options)

    threads = []

    def release_and_say(server):
        threads.append(threading.current_thread())
        release(server)
        loop.call_soon_threadsafe(closed.set)

    monkeypatch.setattr(directory, "acquire", acquire_later)
    monkeypatch.setattr(directory, "release", release_and_say)
    opening = asyncio.create_task(aio.open(path))
    await begun.wait()
    opening.cancel()
    await asyncio.wait([opening])
    cancelled.set()
    async with asyncio.timeout(WAIT):
        await closed.wait()
    assert not is_open(path)
    assert threading.current_thread() not in threads, "an fsync would hold up the event loop"


def _nothing() -> None:
    """Take a turn of the executor."""
