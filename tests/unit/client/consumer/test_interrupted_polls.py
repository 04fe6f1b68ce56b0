"""A poll, or a reader, that has received records when an error, a cancellation or Ctrl-C comes: none is lost."""

import asyncio
from contextlib import suppress
from itertools import islice

import headrace
import headrace.aio
import pytest
from headrace import TopicPartition
from headrace.client.fetch import decoding
from headrace.client.fetch.dead_letter_producer_async import AsyncDeadLetterProducer
from headrace.wire.errors import InternalError

from tests.unit.client.fetch.test_corrupt_batches import POISON, good

P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
LETTERS = {"on_corrupt_batch": "dead_letter", "dead_letter_topic": "dead"}
WAIT = 30


@pytest.fixture
def poisoned(clicks):
    """Offsets 0 to 9, two that cannot be decoded, 12 to 21."""
    for batch in (good(0), POISON, good(12)):
        clicks.append("clicks", batch)
    return clicks


GOOD = [*range(10), *range(12, 22)]


def settings_for(fake):
    return {"bootstrap_servers": fake.address, "auto_offset_reset": "earliest", "fetch_max_wait_ms": 50}


def reader_of(fake, **settings):
    return headrace.Reader("clicks", bootstrap_servers=fake.address, fetch_max_wait_ms=50, **settings)


async def poll_or_cancel(consumer, is_due, max_records):
    """The offsets that a poll returns; none if it waits while a cancellation is due."""
    polling = asyncio.create_task(consumer.poll(WAIT, max_records))
    while not polling.done() and not is_due():  # noqa: ASYNC110
        await asyncio.sleep(0)
    polling.cancel()
    await asyncio.wait([polling])
    return [] if polling.cancelled() else [record.offset for record in polling.result()]


@pytest.mark.parametrize("max_records", [None, 15])
async def test_a_poll_is_not_cancelled_out_of_records_before_a_corrupt_batch(poisoned, monkeypatch, max_records):
    """The dead letter is written by the next poll, which has received nothing while it waits."""
    writes, stored = [], AsyncDeadLetterProducer.write

    async def write(self, topic, letters):
        writes.append("stored" if writes else "hangs")
        if writes == ["hangs"]:
            await asyncio.get_running_loop().create_future()
        await stored(self, topic, letters)

    monkeypatch.setattr(AsyncDeadLetterProducer, "write", write)
    async with headrace.aio.Consumer("clicks", **settings_for(poisoned), **LETTERS) as consumer:
        found = []
        while len(found) < 20:
            found += await poll_or_cancel(consumer, lambda: writes == ["hangs"], max_records)
            writes[:] = ["cancelled"] if writes == ["hangs"] else writes
    assert found == GOOD
    assert writes == ["cancelled", "stored"]


@pytest.mark.parametrize("name", ["next_fetch", "has_completed_fetches"])
def test_an_error_between_two_fetches_of_a_poll_is_raised_by_the_next(clicks, monkeypatch, name):
    """The records that the poll has received are returned: whether the error comes before it looks for a further fetch
    or as it takes one.
    """
    clicks.append("clicks", good(0))
    clicks.append("clicks", good(0), 1)
    with headrace.Consumer("clicks", **settings_for(clicks)) as consumer:
        fetcher = consumer._core.fetcher
        owner = fetcher if name == "next_fetch" else fetcher.positions
        call = getattr(owner, name)

        def fail_meanwhile(*args, **kwargs):
            if sum(fetcher.positions.position(where) for where in (P0, P1)) == 10:
                fetcher.positions.fail(P1 if fetcher.positions.position(P0) else P0, InternalError("odd"), 0)
            return call(*args, **kwargs)

        monkeypatch.setattr(owner, name, fail_meanwhile)
        found = []
        while len(found) < 20:
            with suppress(InternalError):
                found += [(record.partition, record.offset) for record in consumer.poll(WAIT, max_records=100)]
            if found:
                monkeypatch.setattr(owner, name, call)
    assert sorted(found) == [(partition, offset) for partition in (0, 1) for offset in range(10)]


FAILURES = [(MemoryError, (1, 3)), (MemoryError, (2,)), (KeyboardInterrupt, (1,)), (KeyboardInterrupt, (2, 4))]


@pytest.fixture
def interrupt(clicks, monkeypatch):
    """Two batches of ten records; what raises `kind` in calls of a function, by their numbers, from 1."""
    clicks.append("clicks", good(0))
    clicks.append("clicks", good(10))

    def replace(owner, name, kind, numbers, *, is_after=False):
        call, calls = getattr(owner, name), []

        def interrupted(*args, **kwargs):
            calls.append(None)
            result = call(*args, **kwargs) if is_after else None
            if len(calls) in numbers:
                raise kind
            return result if is_after else call(*args, **kwargs)

        monkeypatch.setattr(owner, name, interrupted)

    return replace


def all_records(kind, read):
    """The offsets that calls of `read` return until there are 20, some of which raise `kind`."""
    found = []
    while len(found) < 20:
        with suppress(kind):
            more = [record.offset for record in read()]
            assert more, f"after {found} there is nothing"
            found += more
    return found


@pytest.mark.parametrize(("kind", "failing"), FAILURES)
def test_records_are_fetched_again_after_what_ends_their_decoding(clicks, interrupt, kind, failing):
    """Ctrl-C in a notebook, or a lack of memory: the next call continues with the record that was not received."""
    interrupt(decoding, "decode_batch", kind, failing)
    with headrace.Consumer("clicks", **settings_for(clicks)) as consumer:
        assert all_records(kind, lambda: consumer.poll(WAIT)) == list(range(20))


@pytest.mark.parametrize("read", [lambda consumer: consumer.poll(WAIT), lambda consumer: islice(consumer, 1)])
@pytest.mark.parametrize("name", ["_receive", "_cut"])
@pytest.mark.parametrize("number", [1, 2])
def test_ctrl_c_after_a_batch_was_taken_loses_no_records(clicks, interrupt, read, name, number):
    """Wherever it comes, also as the position has moved."""
    with headrace.Consumer("clicks", **settings_for(clicks)) as consumer:
        interrupt(consumer._core, name, KeyboardInterrupt, (number,), is_after=True)
        assert all_records(KeyboardInterrupt, lambda: read(consumer)) == list(range(20))


def test_records_of_a_poll_that_ctrl_c_ends_are_not_committed(clicks, groups, interrupt):
    interrupt(decoding, "decode_batch", KeyboardInterrupt, (2,))
    with headrace.Consumer("clicks", group_id="g", enable_auto_commit=False, **settings_for(clicks)) as consumer:
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(WAIT)
        consumer.commit()
        assert groups.offset("clicks", 0) == 0
        assert [record.offset for record in consumer.poll(WAIT)] == list(range(20))


@pytest.mark.parametrize(("kind", "failing"), FAILURES)
def test_a_reader_continues_after_what_ends_its_decoding(clicks, interrupt, kind, failing):
    interrupt(decoding, "decode_batch", kind, failing)
    with reader_of(clicks) as reader:
        assert all_records(kind, lambda: next(reader.batches(WAIT), ())) == list(range(20))


@pytest.mark.parametrize("name", ["read", "to_arrow", "to_pandas"])
@pytest.mark.parametrize(("kind", "failing"), [(MemoryError, (2, 3)), (KeyboardInterrupt, (2,))])
def test_a_reader_returns_all_records_after_a_call_that_failed(clicks, interrupt, name, kind, failing):
    """The records that it had received are not lost with the call: it was to return all of them at once."""
    interrupt(decoding, "decode_batch", kind, failing)
    clicks.append("clicks", good(0), 1)
    with reader_of(clicks, max_poll_bytes=1) as reader:
        with pytest.raises(kind):
            getattr(reader, name)()
        assert len(getattr(reader, name)()) == 30


def test_a_reader_returns_all_records_after_their_table_could_not_be_made(clicks, interrupt):
    with reader_of(clicks) as reader:
        interrupt(reader._core, "table_of", MemoryError, (1,))
        with pytest.raises(MemoryError):
            reader.to_arrow()
        assert reader.to_arrow().num_rows == 20
