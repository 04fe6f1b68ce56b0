"""Order, no loss, no duplicate: `InFlightRequests` against a model of brokers, under any order of answers and faults.

The model appends by the broker's rule for sequences, moves leaders, loses requests and answers, forgets producers, and
lets a request that was given up arrive late. It deletes the topic and makes it anew, and answers questions for metadata
with answers of any age. What the client calls delivered is there once and in order; what it calls definitely failed is
not there (PROTOCOL I20 to I22); nothing is called deleted that is there, and no record goes to another life of its
topic than the one it was sent to (H26).
"""

import random

import pytest
from headrace.client.base.retry import Backoff
from headrace.client.net.cluster_metadata import ClusterMetadata
from headrace.client.producer.futures import PendingBatch
from headrace.client.producer.inflight import InFlightRequests
from headrace.client.producer.partition_queue import PartitionQueue, PartitionResponse, SealedBatch
from headrace.v1 import cluster_pb2
from headrace.wire.batch import read_header
from headrace.wire.columns import decode_batch
from headrace.wire.encoding import batch_parts
from headrace.wire.errors import (
    FencedProducerError,
    HeadraceError,
    InvalidTimestampError,
    LeaderHint,
    NotLeaderError,
    Outcome,
    OutOfOrderSequenceError,
    ThrottledError,
    TimedOutError,
    TransportError,
    UnknownProducerError,
    UnknownTopicError,
    UnknownTopicIdError,
    to_detail,
)
from headrace.wire.ids import TopicPartition
from headrace.wire.zero_copy import BufferVector
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.no_cover

PARTITIONS = 2


def topic_id_of(life):
    return bytes([life]) * 16


class ModelLog:
    """One partition: the broker's rule of PROTOCOL H48 and H49."""

    def __init__(self):
        self.values, self.known, self.leader, self.epoch = [], {}, 1, 0

    def append(self, batch):
        header = read_header(batch)
        if header.producer_id >= 0:
            epoch, expected, ranges = self.known.get(header.producer_id, (-1, None, {}))
            if header.producer_epoch < epoch:
                raise FencedProducerError("an older epoch")
            if header.producer_epoch > epoch:
                if header.base_sequence:
                    raise (UnknownProducerError if epoch < 0 else OutOfOrderSequenceError)("a new epoch starts at 0")
                epoch, expected, ranges = header.producer_epoch, 0, {}
            if header.base_sequence in ranges:
                return ranges[header.base_sequence]
            if header.base_sequence != expected:
                raise OutOfOrderSequenceError(f"expected {expected}")
            ranges = {**ranges, header.base_sequence: len(self.values)}
            self.known[header.producer_id] = (epoch, expected + header.record_count, ranges)
        self.values.extend(decode_batch(batch, max_payload_bytes=1 << 20).values())
        return len(self.values) - header.record_count


class World:
    """Drives `InFlightRequests` with one seed; every step is a choice of the generator."""

    def __init__(self, seed, idempotent, faults):
        self.rng = random.Random(seed)
        self.faults = faults
        self.now_ms = 0
        self.delivery_timeout_ms = self.rng.choice([2000, 10**9])  # With the second, all must end by itself.
        self.life = 0
        self.lives = [[ModelLog() for _ in range(PARTITIONS)]]
        self.history = [self.answer(exists=False)]
        self.stale_answers = self.remade = 0
        self.cluster_metadata = ClusterMetadata()
        self.idempotent = idempotent
        self.in_flight_requests = InFlightRequests(
            self.cluster_metadata, Backoff(5, 50, self.rng), idempotent=idempotent, max_in_flight_requests=5,
            max_request_bytes=1500, request_timeout_ms=100,
        )  # fmt: skip
        self.use_life(0)
        self.flying, self.late = [], []
        self.given_up = 0
        self.finished = {}
        self.sent = 0
        self.contents = {}
        self.order = {}

    @property
    def logs(self):
        """Of the topic's present life."""
        return self.lives[self.life]

    def use_life(self, life):
        """What the producer does that learns of a life of the topic: new records go there."""
        self.used_life = life
        self.partition_queues = [PartitionQueue(TopicPartition("t", n), topic_id_of(life)) for n in range(PARTITIONS)]

    def answer(self, *, exists=True):
        """What a server that is up to date says."""
        revision = self.history[-1].revision + 1 if hasattr(self, "history") else 1
        answer = cluster_pb2.GetMetadataResponse(cluster_id="c", generation=1, revision=revision)
        for broker in (1, 2):
            answer.brokers.add(broker_id=broker, address=f"b{broker}:1")
        if not exists:
            answer.topics.add(name="t", error=to_detail(UnknownTopicError("there is no topic")))
            return answer
        topic = answer.topics.add(name="t", topic_id=topic_id_of(self.life))
        for number, log in enumerate(self.logs):
            topic.partitions.add(partition=number, leader_id=log.leader, leader_epoch=log.epoch)
        return answer

    def metadata(self):
        self.history.append(self.answer())
        if self.rng.random() < self.faults * 0.5:
            self.stale_answers += 1
            self.take(self.rng.choice(self.history))
        else:
            self.take(self.history[-1])

    def take(self, answer):
        self.cluster_metadata.update(answer)
        route = self.cluster_metadata.topic("t")
        if route is not None and route.topic_id != topic_id_of(self.used_life):
            assert route.topic_id > topic_id_of(self.used_life), "no life of the topic comes back"
            self.use_life(route.topic_id[0])
        self.finish(self.in_flight_requests.metadata_changed())

    def make_anew(self):
        """Delete the topic and make it anew; the deleted topic's logs stay unchanged, and no broker serves them."""
        self.remade += 1
        self.history.append(self.answer(exists=False))
        self.life += 1
        self.lives.append([ModelLog() for _ in range(PARTITIONS)])
        self.history.append(self.answer())

    def seal(self):
        number = self.rng.randrange(PARTITIONS)
        values = [b"%d" % (self.sent + index) for index in range(self.rng.randint(1, 4))]
        self.sent += len(values)
        partition_queue = self.partition_queues[number]
        self.in_flight_requests.identity.start(partition_queue)
        step = self.rng.choice([1, 2, 3, 100])
        pending = PendingBatch(partition_queue.where, 0, lambda pending: None, step)
        batch = SealedBatch(partition_queue, pending, len(values), 0, self.now_ms + self.delivery_timeout_ms)
        batch.encoded = [
            BufferVector(batch_parts(values[at : at + step], base_timestamp_ms=0, **batch.stamp.behind(at)._asdict()))
            for at in range(0, len(values), step)
        ]
        assert len(batch.encoded) == batch.count
        if self.rng.random() < 0.5:  # Together, as a run is encoded.
            sizes = [len(encoded) for encoded in batch.encoded]
            batch.encoded = [BufferVector([b"".join(map(bytes, batch.encoded))], sizes)]
        self.in_flight_requests.add(batch)
        self.contents[batch] = (number, values)
        self.order.setdefault((self.used_life, number), []).append(batch)

    def send(self):
        for request in self.in_flight_requests.next_requests(self.now_ms):
            body = [
                (
                    part.partition_queue.topic_id,
                    part.partition_queue.where.partition,
                    part.leader_epoch,
                    [bytes(each) for b in part.batches for encoded in b.encoded for each in encoded.batches()],
                )
                for part in request.parts
            ]
            self.flying.append((request, body))
        if self.in_flight_requests.identity.is_needed:
            self.in_flight_requests.identity.set(self.rng.randrange(1, 1 << 40), 0)
        if self.in_flight_requests.needs_metadata:
            self.metadata()
        self.check_bounds()

    def check_bounds(self):
        """What flies stays within the bounds, and bytes that may have been applied never change."""
        for partition_queue in self.partition_queues:
            assert sum(batch.count for batch in partition_queue.flying) <= 64
            if not self.idempotent:
                assert (
                    len(
                        [
                            1
                            for request, _ in self.flying
                            for part in request.parts
                            if part.partition_queue is partition_queue
                        ]
                    )
                    <= 1
                )
        assert all(count <= 5 for count in self.in_flight_requests._in_flight.values())

    def arrive(self, request, body):
        """What the broker does with a request, whether or not anybody hears of it."""
        answers = []
        for topic_id, number, epoch, batches in body:
            if topic_id != topic_id_of(self.life):
                old: HeadraceError = UnknownTopicIdError("there is no topic with that id")
                if self.rng.random() < self.faults * 0.3:  # A broker that has not seen the deletion.
                    old = NotLeaderError("moved", leader=LeaderHint(self.rng.choice([1, 2, 3]), 1_000, "b1:1"))
                answers.append(PartitionResponse((), old))
                continue
            log = self.logs[number]
            if log.leader != request.broker_id or log.epoch != epoch:
                hint = LeaderHint(log.leader, log.epoch, f"b{log.leader}:1") if self.rng.random() < 0.5 else None
                answers.append(PartitionResponse((), NotLeaderError("moved", leader=hint)))
                continue
            if self.rng.random() < self.faults * 0.2:
                kinds = [
                    ThrottledError("slow"),
                    InvalidTimestampError("bad"),
                    TimedOutError("waited", outcome=Outcome.UNKNOWN),
                ]
                error = self.rng.choice(kinds)
                if self._appends(error, log, batches):
                    for batch in batches:
                        log.append(batch)
                answers.append(PartitionResponse((), error))
                continue
            offsets = []
            try:
                for batch in batches:
                    if offsets and self.rng.random() < self.faults * 0.1:
                        raise self.rng.choice([ThrottledError, InvalidTimestampError])("in the middle")
                    offsets.append(log.append(batch))
                answers.append(PartitionResponse(tuple(offsets), None))
            except HeadraceError as error:
                answers.append(PartitionResponse(tuple(offsets), error))
        return answers

    def _appends(self, error, log, batches):
        """Whether a wait that timed out had appended before: only where the log would take every batch."""
        if error.outcome != Outcome.UNKNOWN or self.rng.random() < 0.5:
            return False
        copy = ModelLog()
        copy.values, copy.known = list(log.values), dict(log.known)
        try:
            for batch in batches:
                copy.append(batch)
        except HeadraceError:
            return False
        return True

    def land(self):
        if not self.flying:
            return
        request, body = self.flying.pop(self.rng.randrange(len(self.flying)) if self.rng.random() < 0.3 else 0)
        fate = self.rng.random()
        if fate < self.faults * 0.15:
            self.late.append((request, body))
            error = TransportError("lost", outcome=Outcome.UNKNOWN, retriable=True)
            self.finish(self.in_flight_requests.failed(request, error, self.now_ms))
        elif fate < self.faults * 0.3:
            self.arrive(request, body)
            error = TransportError("answer lost", outcome=Outcome.UNKNOWN, retriable=True)
            self.finish(self.in_flight_requests.failed(request, error, self.now_ms))
        else:
            self.finish(self.in_flight_requests.answered(request, self.arrive(request, body), self.now_ms))

    def upset(self):
        """Something that happens to the cluster."""
        log = self.rng.choice(self.logs)
        kind = self.rng.randrange(5)
        if kind == 4 and self.rng.random() < 0.3:
            self.make_anew()
        elif kind == 0:
            log.leader, log.epoch = 3 - log.leader, log.epoch + 1
        elif kind == 1 and self.rng.random() < 0.4:
            self.forget(self.logs.index(log))
        elif kind == 2 and self.late:
            self.arrive(*self.late.pop(0))
        elif kind == 3:
            self.now_ms += self.rng.randrange(900, 1500)  # No answer arrives, and the leader moves meanwhile.
            log.leader, log.epoch = 3 - log.leader, log.epoch + 1

    def give_up(self):
        """Unanswered requests, whose leaders have moved; they may still arrive, without an answer."""
        given_up, finished = self.in_flight_requests.give_up_overdue(self.now_ms)
        self.late += [(request, body) for request, body in self.flying if request in given_up]
        self.flying = [(request, body) for request, body in self.flying if request not in given_up]
        self.given_up += len(given_up)
        self.finish(finished)

    def forget(self, number):
        """Lose a partition's producers, as retention may: long after a first batch and its retries (PROTOCOL H49)."""
        partition_queue = self.partition_queues[number]
        unresolved = (*partition_queue.queued, *partition_queue.flying)
        if self.used_life == self.life and not any(batch.stamp.base_sequence == 0 for batch in unresolved):
            self.logs[number].known.clear()
            self.late.clear()

    def finish(self, finished):
        for batch, offsets, error in finished:
            assert batch not in self.finished, "a batch finishes once"
            if isinstance(error, UnknownTopicIdError):
                assert batch.partition_queue.topic_id != topic_id_of(self.life), "what is there is not called deleted"
            self.finished[batch] = (offsets, error)

    def run(self, steps):
        self.history.append(self.answer())
        self.take(self.history[-1])  # A producer has seen a topic before it has records for it.
        for _ in range(steps):
            self.now_ms += self.rng.randrange(20)
            choice = self.rng.random()
            if choice < 0.35:
                self.seal()
            elif choice < 0.6:
                self.send()
            elif choice < 0.95:
                self.land()
            elif self.rng.random() < self.faults:
                self.upset()
            self.give_up()
            self.finish(self.in_flight_requests.expire(self.now_ms))
        self.faults = 0
        for _ in range(4000):
            if not self.in_flight_requests.unresolved:
                break
            self.now_ms += 60
            self.send()
            self.land()
            self.give_up()
            self.finish(self.in_flight_requests.expire(self.now_ms))
        assert not self.in_flight_requests.unresolved, "everything ends once the faults do"
        assert self.in_flight_requests.next_event_ms(self.now_ms) is None


def check(world):
    """What was delivered is there, once and in order; what definitely failed is not."""
    logs = {(life, number): log for life, logs in enumerate(world.lives) for number, log in enumerate(logs)}
    for place, log in logs.items():
        definite = set()
        for batch in world.order.get(place, []):
            offsets, error = world.finished[batch]
            values, step = world.contents[batch][1], batch.pending.batch_records
            if error is None:
                assert len(offsets) == batch.count
                for at, offset in enumerate(offsets):
                    part = values[at * step : (at + 1) * step]
                    assert log.values[offset : offset + len(part)] == part, "what is delivered is there"
            elif error.outcome == Outcome.NOT_APPLIED:
                definite.update(values)
        assert not definite & set(log.values), "what failed definitely is never read"
        assert len(set(log.values)) == len(log.values), "nothing is there twice"
        assert log.values == sorted(log.values, key=int), "in the order of sending"


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 1.0]))
@settings(max_examples=300)
def test_an_idempotent_producer_neither_loses_doubles_nor_reorders(seed, faults):
    """Whatever is lost, late, forgotten or moved, with up to five requests in flight."""
    world = World(seed, idempotent=True, faults=faults)
    world.in_flight_requests.identity.set(7, 0)
    world.run(150)
    check(world)


def test_the_model_gives_requests_up_and_makes_the_topic_anew():
    """The property above includes unanswered requests, old answers and topics that were made anew."""
    worlds = [World(seed, idempotent=True, faults=1.0) for seed in range(30)]
    for world in worlds:
        world.in_flight_requests.identity.set(7, 0)
        world.run(150)
        check(world)
    assert sum(world.given_up for world in worlds)
    assert sum(world.stale_answers for world in worlds)
    assert sum(world.remade for world in worlds)


@given(st.integers(0, 2**32))
@settings(max_examples=60)
def test_without_a_producer_id_order_holds_as_long_as_nothing_is_lost(seed):
    """One request at a time a partition: refusals and moves never reorder."""
    world = World(seed, idempotent=False, faults=0.0)
    world.run(150)
    check(world)
    assert all(error is None for _, error in world.finished.values())
