"""A poll that has received records when an error, a cancellation or Ctrl-C comes: none is lost."""

import asyncio
from contextlib import suppress

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


@pytest.mark.parametrize(("kind", "failing"), [(MemoryError, (1, 3)), (KeyboardInterrupt, (1,))])
def test_records_are_fetched_again_after_what_ends_their_decoding(clicks, monkeypatch, kind, failing):
    """Ctrl-C in a notebook, or a lack of memory: the next call continues with the record that was not received."""
    clicks.append("clicks", good(0))
    clicks.append("clicks", good(10))
    decode, calls = decoding.decode_batch, []

    def interrupted(*args, **kwargs):
        calls.append(None)
        if len(calls) in failing:
            raise kind
        return decode(*args, **kwargs)

    monkeypatch.setattr(decoding, "decode_batch", interrupted)
    with headrace.Consumer("clicks", **settings_for(clicks)) as consumer:
        found = []
        while len(found) < 20:
            with suppress(kind):
                found += [record.offset for record in consumer.poll(WAIT)]
    assert found == list(range(20))
