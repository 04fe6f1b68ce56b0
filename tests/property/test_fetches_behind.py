"""Records arrive once and in order although a fetch is sent before the response in front of it has arrived.

A model of a broker answers fetches at any pace: it announces a response before its batches, completes, refuses or drops
it. The application seeks, pauses and reads meanwhile. What it receives continues where its position was.
"""

import random
from dataclasses import dataclass

from headrace.client.fetch.fetch_plan import FetchPlan
from headrace.client.fetch.fetch_planner import FETCHES_PER_BROKER
from headrace.v1 import broker_pb2
from headrace.wire.errors import ThrottledError, TransportError, to_detail
from headrace.wire.zero_copy import SplicedMessage
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.client.fetch.reading import TOPIC_ID, WHERE, Reading, batch, metadata

RECORDS = 10
BATCHES = 40
LOG_END = RECORDS * BATCHES
SIZE = len(batch(0))


@dataclass(eq=False)
class Flying:
    """A fetch in flight, with the response that it gets."""

    plan: FetchPlan
    response: broker_pb2.FetchResponse
    data: bytes
    after: "Flying | None" = None
    is_announced: bool = False


class Fetching:
    """One reader of one partition, its fetches in flight, and the offset that it must receive next."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        share = self.rng.choice([2, 3, 8])
        self.reading = Reading(max_partition_fetch_bytes=2 * SIZE, prefetch_bytes=2 * SIZE * share)
        self.reading.fetches.is_fast = True
        self.flying = []
        self.expected = 0
        self.ahead = 0

    def response(self, plan):
        """What the broker answers: one or two batches from the offset on."""
        offset = plan.request.topics[0].partitions[0].offset
        count = min(self.rng.choice([1, 2]), (LOG_END - offset) // RECORDS)
        response = broker_pb2.FetchResponse()
        result = response.topics.add(topic_id=TOPIC_ID).partitions.add(partition=0, high_watermark=LOG_END)
        result.next_offset, result.last_epoch = offset + RECORDS * count, 3
        data = b"".join(batch(offset + RECORDS * number) for number in range(count))
        result.batches_size = len(data)
        return response, data

    def plan(self):
        plans = self.reading.fetches.plan(self.reading.now_ms)
        self.flying += [Flying(plan, *self.response(plan)) for plan in plans]

    def announce(self):
        """The message of the next response arrives, its batches do not."""
        first = next((each for each in self.arriving() if not each.is_announced), None)
        if first is None:
            return
        first.is_announced = True
        following = self.reading.fetches.plan_behind(first.plan, first.response, self.reading.now_ms)
        self.ahead += len(following)
        self.flying += [Flying(plan, *self.response(plan), after=first) for plan in following]

    def arriving(self):
        """Responses of one connection arrive in the order of their requests."""
        return [each for each in self.flying if each.after not in self.flying]

    def complete(self):
        """A response arrives, is refused as a whole or for its partition, or is lost."""
        ready = self.arriving()
        if not ready:
            return
        chosen = self.rng.choice(ready)
        self.flying.remove(chosen)
        plan, response, data = chosen.plan, chosen.response, chosen.data
        fate, now_ms = self.rng.random(), self.reading.now_ms
        if fate < 0.1:
            self.reading.fetches.take_failure(plan, TransportError("lost", retriable=True), now_ms)
            return
        if fate < 0.2:
            response.topics[0].partitions[0].error.CopyFrom(to_detail(ThrottledError("later")))
            data = b""
        self.reading.fetches.take_answer(plan, SplicedMessage(response, [[data]]), now_ms)

    def receive(self):
        completed = self.reading.positions.pop(self.reading.now_ms)
        if completed is None:
            return
        end = self.reading.end_of(completed)
        assert completed.offset == self.expected
        assert self.reading.positions.deliver(WHERE, completed.generation, end, 3)
        self.expected = end

    def seek(self):
        self.expected = RECORDS * self.rng.randrange(BATCHES)
        self.reading.positions.seek(WHERE, self.expected)

    def pause(self):
        self.reading.positions.pause(WHERE)
        self.reading.positions.resume(WHERE)

    def wait(self):
        self.reading.later(self.rng.choice([1, 50, 1000]))
        self.reading.cluster_metadata.update(metadata())

    def check(self):
        partition = self.reading.positions.partitions[WHERE]
        assert partition.fetches >= 0
        assert all(0 <= count <= FETCHES_PER_BROKER for count in self.reading.fetches._in_flight.values())
        assert partition.position == self.expected
        assert partition.buffered_bytes <= self.reading.positions.share() + 2 * SIZE


@settings(max_examples=150)
@given(st.integers(0, 1 << 32))
def test_what_is_received_continues_at_the_position(seed):
    fetching = Fetching(seed)
    steps = [
        fetching.plan, fetching.plan, fetching.announce, fetching.announce, fetching.complete, fetching.complete,
        fetching.receive, fetching.receive, fetching.wait,
    ]  # fmt: skip
    for _ in range(150):
        step = fetching.rng.choice(steps)
        if fetching.rng.random() < 0.05:
            step = fetching.rng.choice([fetching.seek, fetching.pause])
        step()
        fetching.check()
    for _ in range(40 * BATCHES):  # Without faults all of it arrives.
        if fetching.expected == LOG_END:
            break
        fetching.wait()
        fetching.plan()
        fetching.rng = random.Random(1 << 40)
        while fetching.flying:
            each = fetching.flying.pop(0)
            response = SplicedMessage(each.response, [[each.data]])
            fetching.reading.fetches.take_answer(each.plan, response, fetching.reading.now_ms)
        fetching.receive()
        fetching.check()
    assert fetching.expected == LOG_END


def test_fetches_do_run_ahead():
    assert sum(_ahead(seed) for seed in range(20)) > 20


def _ahead(seed):
    fetching = Fetching(seed)
    for _ in range(100):
        fetching.rng.choice([fetching.plan, fetching.announce, fetching.complete, fetching.receive])()
    return fetching.ahead
