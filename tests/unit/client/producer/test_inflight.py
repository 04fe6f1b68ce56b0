"""`InFlightRequests`: what is sent where and when, as leaders move, answer late or not at all. No I/O, no clock."""

import random

import pytest
from headrace.client.base.retry import OVERDUE_MS, Backoff
from headrace.client.net.cluster_metadata import ClusterMetadata
from headrace.client.producer.futures import PendingBatch
from headrace.client.producer.inflight import MAX_BATCHES_IN_FLIGHT, InFlightRequests
from headrace.client.producer.partition_queue import PartitionQueue, PartitionResponse, SealedBatch
from headrace.client.producer.producer_identity import ProducerIdentity
from headrace.client.producer.sequences import MAX_EPOCH, ProducerStamp
from headrace.v1 import cluster_pb2
from headrace.wire.batch import read_header
from headrace.wire.columns import encode_batch
from headrace.wire.encoding import batch_parts
from headrace.wire.errors import (
    FencedLeaderEpochError,
    InvalidTimestampError,
    LeaderHint,
    LeaderNotAvailableError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderError,
    Outcome,
    OutOfOrderSequenceError,
    ShuttingDownError,
    StorageFullError,
    ThrottledError,
    TimedOutError,
    TransportError,
    UnknownLeaderEpochError,
    UnknownProducerError,
    UnknownTopicError,
    UnknownTopicIdError,
    to_detail,
)
from headrace.wire.ids import TopicPartition
from headrace.wire.zero_copy import BufferVector

TOPIC_ID = b"1" * 16
REFUSED = TransportError("connection refused", outcome=Outcome.NOT_APPLIED, retriable=True)
LOST = TransportError("connection reset", outcome=Outcome.UNKNOWN, retriable=True)
BATCH_BYTES = len(encode_batch([b"v"], base_timestamp_ms=0))


def metadata(leaders, topic_id=TOPIC_ID):
    """`leaders` is (broker, leader epoch) a partition."""
    answer = cluster_pb2.GetMetadataResponse()
    for broker in (1, 2, 3):
        answer.brokers.add(broker_id=broker, address=f"b{broker}:1")
    topic = answer.topics.add(name="t", topic_id=topic_id)
    for number, (broker, epoch) in enumerate(leaders):
        topic.partitions.add(partition=number, leader_id=broker, leader_epoch=epoch)
    return answer


class Sending:
    """`InFlightRequests` over some partitions, all led by broker 1 in epoch 5, with a clock of its own."""

    def __init__(self, partitions=1, **settings):
        self.cluster_metadata = ClusterMetadata()
        settings = {"idempotent": True, "max_in_flight_requests": 5, "max_request_bytes": 1 << 20, **settings}
        backoff = Backoff(50, 1000, random.Random(1))
        self.in_flight_requests = InFlightRequests(
            self.cluster_metadata, backoff, request_timeout_ms=30_000, **settings
        )
        if settings["idempotent"] and settings.get("identity") is None:
            self.in_flight_requests.identity.set(7, 0)
        self.partition_queues = [PartitionQueue(TopicPartition("t", n), TOPIC_ID) for n in range(partitions)]
        self.now_ms = 0
        self.leaders([(1, 5)] * partitions)

    def leaders(self, leaders, topic_id=TOPIC_ID):
        self.cluster_metadata.update(metadata(leaders, topic_id))
        return self.in_flight_requests.metadata_changed()

    def add(self, partition=0, encoded=True, deadline_ms=120_000):
        partition_queue = self.partition_queues[partition]
        self.in_flight_requests.identity.start(partition_queue)
        batch = SealedBatch(
            partition_queue, PendingBatch(partition_queue.where, 0, lambda pending: None), 1, 0, deadline_ms
        )
        if encoded:
            batch.encoded = [BufferVector(batch_parts([b"v"], base_timestamp_ms=0, **batch.stamp._asdict()))]
        self.in_flight_requests.add(batch)
        return batch

    def send(self):
        return self.in_flight_requests.next_requests(self.now_ms)

    def send_one(self):
        (request,) = self.send()
        return request

    def answer(self, request, *errors, offsets=()):
        answers = [PartitionResponse(offsets, error) for error in errors or [None]]
        return self.in_flight_requests.answered(request, answers, self.now_ms)

    def fail(self, request, error=LOST):
        return self.in_flight_requests.failed(request, error, self.now_ms)

    def later(self, milliseconds=2000):
        self.now_ms += milliseconds


@pytest.fixture
def sending():
    return Sending()


def sequences(request):
    return [read_header(bytes(batch.encoded[0])).base_sequence for batch in request.parts[0].batches]


# --- leaders that move ---


@pytest.mark.parametrize("hinted", [True, False])
@pytest.mark.parametrize("error_class", [NotLeaderError, FencedLeaderEpochError])
def test_a_newer_leader_is_sent_to_at_once(hinted, error_class, sending):
    """With the leader's name, or when metadata has it: back-off is for the one that failed."""
    sending.add()
    hint = LeaderHint(2, 6, "b2:1") if hinted else None
    assert not sending.answer(sending.send_one(), error_class("moved", leader=hint))
    if not hinted:
        assert not sending.send()
        assert sending.in_flight_requests.needs_metadata
        sending.leaders([(2, 6)])
    request = sending.send_one()
    assert (request.broker_id, request.parts[0].leader_epoch) == (2, 6)


def test_two_moves_in_a_row_cost_no_wait_and_keep_the_order(sending):
    batches = [sending.add() for _ in range(3)]
    sending.answer(sending.send_one(), NotLeaderError("moved", leader=LeaderHint(2, 6, "b2:1")))
    sending.answer(sending.send_one(), NotLeaderError("moved", leader=LeaderHint(3, 7, "b3:1")))
    request = sending.send_one()
    assert request.broker_id == 3
    assert request.parts[0].batches == batches
    assert sequences(request) == [0, 1, 2]


@pytest.mark.parametrize("hint", [None, LeaderHint(2, 6, "b2:1")])
def test_a_leader_of_the_deleted_topic_says_nothing_about_the_new_one(hint, sending):
    """Its epochs begin again: an old broker's answer for the old topic would hide the new leader for good (H26)."""
    sending.add()
    request = sending.send_one()
    sending.leaders([(3, 0)], topic_id=b"2" * 16)
    sending.answer(request, NotLeaderError("moved", leader=hint))
    assert sending.cluster_metadata.leader(TopicPartition("t", 0)) == (3, "b3:1", 0)
    (finished,) = sending.leaders([(3, 0)], topic_id=b"2" * 16)
    assert isinstance(finished.error, UnknownTopicIdError)


def test_a_wrong_hint_is_followed_at_the_pace_of_the_back_off(sending):
    """Brokers that point at each other in one epoch are not asked in a circle; metadata decides."""
    sending.add()
    sending.answer(sending.send_one(), NotLeaderError("not me", leader=LeaderHint(2, 5, "b2:1")))
    assert not sending.send()
    sending.later()
    request = sending.send_one()
    assert request.broker_id == 2
    sending.answer(request, NotLeaderError("not me", leader=LeaderHint(1, 5, "b1:1")))
    assert not sending.send()
    sending.leaders([(3, 6)])
    assert sending.send_one().broker_id == 3


@pytest.mark.parametrize(
    "error",
    [
        REFUSED,
        LOST,
        LeaderNotAvailableError("none"),
        UnknownLeaderEpochError("behind"),
        ShuttingDownError("bye"),
        TimedOutError("slow"),
    ],
)
def test_while_a_leader_is_looked_for_metadata_is_asked_for_at_every_look(error, sending):
    """Until a newer one is known, which is tried at once; the one that failed is tried after the back-off."""
    batch = sending.add()
    sending.fail(sending.send_one(), error)
    for _ in range(3):
        assert sending.in_flight_requests.needs_metadata
        sending.leaders([(1, 5)])
        assert not sending.send()
    sending.leaders([(2, 6)])
    assert sending.send_one().parts[0].batches == [batch]


def test_a_request_is_late_once_its_call_should_have_ended(sending):
    """The times of calls are those of their connections; a call that waits for a session has no connection yet."""
    sending.add()
    request = sending.send_one()
    sending.later(request.timeout_ms + OVERDUE_MS - 1)
    assert sending.in_flight_requests.late(sending.now_ms) == []
    sending.later(1)
    assert sending.in_flight_requests.late(sending.now_ms) == [request]
    assert sending.in_flight_requests.next_event_ms(sending.now_ms) <= sending.now_ms + OVERDUE_MS
    sending.fail(request)
    assert sending.in_flight_requests.late(sending.now_ms) == []


@pytest.mark.parametrize("attempts", [1, 7])
def test_a_refused_connection_is_tried_again_and_nothing_is_in_doubt(attempts, sending):
    """What never left is certainly not there: out of time, the error says so."""
    batch = sending.add(deadline_ms=30_000)
    for _ in range(attempts):
        assert not sending.fail(sending.send_one(), REFUSED)
        sending.later()
    sending.later(30_000)
    ((ended, _, error),) = sending.in_flight_requests.expire(sending.now_ms)
    assert ended is batch
    assert error.outcome == Outcome.NOT_APPLIED
    assert f"{attempts} tries failed, the last one because " in error.message


@pytest.mark.parametrize("error", [ThrottledError("slow", retry_after_ms=40), StorageFullError("full")])
def test_a_full_leader_is_no_reason_for_metadata(error, sending):
    sending.add()
    sending.answer(sending.send_one(), error)
    assert not sending.send()
    assert not sending.in_flight_requests.needs_metadata
    sending.later()
    assert sending.send_one().broker_id == 1


@pytest.mark.parametrize(
    ("error", "outcome_unknown"),
    [(NotEnoughReplicasError("one"), False), (NotEnoughReplicasAfterAppendError("one"), True)],
)
def test_too_few_replicas_are_waited_for_with_the_same_sequence(error, outcome_unknown, sending):
    """After the append the outcome is unknown: only the same bytes may go again (PROTOCOL H13, H51)."""
    batch = sending.add()
    before = batch.encoded
    sending.answer(sending.send_one(), error)
    assert batch.outcome_unknown == outcome_unknown
    sending.later()
    request = sending.send_one()
    assert request.parts[0].batches == [batch]
    assert batch.encoded == before
    assert [entry.base_offsets for entry in sending.answer(request, offsets=(4,))] == [(4,)]


# --- calls without an answer ---


def test_a_call_without_an_answer_is_given_up_for_a_newer_leader(sending):
    """Metadata is asked for once a second while it is overdue; what comes late changes nothing."""
    batch = sending.add()
    stuck = sending.send_one()
    sending.later(OVERDUE_MS - 1)
    assert sending.in_flight_requests.next_event_ms(sending.now_ms) == OVERDUE_MS
    assert sending.in_flight_requests.give_up_overdue(sending.now_ms) == ([], [])
    assert not sending.in_flight_requests.needs_metadata
    sending.later(1)
    assert sending.in_flight_requests.give_up_overdue(sending.now_ms) == ([], [])
    assert sending.in_flight_requests.needs_metadata
    sending.leaders([(1, 5)])
    assert sending.in_flight_requests.give_up_overdue(sending.now_ms) == ([], [])
    assert not sending.in_flight_requests.needs_metadata, "one look a second"
    assert sending.in_flight_requests.next_event_ms(sending.now_ms) == 2 * OVERDUE_MS
    sending.leaders([(2, 6)])
    assert sending.in_flight_requests.give_up_overdue(sending.now_ms) == ([stuck], [])
    assert batch.outcome_unknown
    request = sending.send_one()
    assert (request.broker_id, sequences(request)) == (2, [0])
    assert not sending.answer(stuck, offsets=(0,))
    assert not sending.fail(stuck)
    assert [entry.base_offsets for entry in sending.answer(request, offsets=(3,))] == [(3,)]
    assert sending.in_flight_requests.next_event_ms(sending.now_ms) is None


def test_a_call_is_not_given_up_before_it_is_overdue(sending):
    """After a clean leader change the former leader still answers the call."""
    sending.add()
    sending.send_one()
    sending.leaders([(2, 6)])
    assert sending.in_flight_requests.give_up_overdue(OVERDUE_MS - 1) == ([], [])


def test_one_moved_partition_is_enough_and_the_others_go_again_too():
    sending = Sending(partitions=2)
    sending.add(0)
    sending.add(1)
    stuck = sending.send_one()
    sending.leaders([(2, 6), (1, 5)])
    sending.later(OVERDUE_MS)
    assert sending.in_flight_requests.give_up_overdue(sending.now_ms)[0] == [stuck]
    assert sending.send_one().broker_id == 2, "the one that stayed waits out the back-off"
    sending.later()
    assert sending.send_one().broker_id == 1


def test_a_broker_that_hangs_holds_up_no_other():
    """Requests in flight count a broker."""
    sending = Sending(partitions=2, max_in_flight_requests=1)
    sending.leaders([(1, 5), (2, 5)])
    sending.add(0)
    assert [request.broker_id for request in sending.send()] == [1]
    sending.add(0)
    sending.add(1)
    assert [request.broker_id for request in sending.send()] == [2]


# --- requests: how much, and in which order ---


def test_a_request_is_filled_up_to_its_size_and_the_next_partition_comes_after():
    """No batch that does not fit; one that is larger than all goes alone."""
    sending = Sending(partitions=2, max_request_bytes=BATCH_BYTES + 1)
    first, second = sending.add(0), sending.add(1)
    sizes = [[part.batches for part in request.parts] for request in sending.send()]
    assert sizes == [[[first]], [[second]]]
    alone = Sending(max_request_bytes=1)
    batch = alone.add()
    assert alone.send_one().parts[0].batches == [batch]


def test_a_request_that_is_exactly_full_takes_no_more():
    sending = Sending(partitions=2, max_request_bytes=BATCH_BYTES, max_in_flight_requests=1)
    sending.add(0)
    sending.add(1)
    assert [len(request.parts) for request in sending.send()] == [1]


def test_as_many_batches_fly_as_the_leader_remembers():
    """64, not one more (PROTOCOL H48)."""
    assert MAX_BATCHES_IN_FLIGHT == 64
    sending = Sending()
    for _ in range(MAX_BATCHES_IN_FLIGHT + 1):
        sending.add()
    assert sum(len(request.parts[0].batches) for request in sending.send()) == MAX_BATCHES_IN_FLIGHT


def test_nothing_overtakes_a_batch_that_is_being_encoded(sending):
    first = sending.add(encoded=False)
    second = sending.add()
    assert not sending.send()
    first.encoded = [BufferVector(batch_parts([b"v"], base_timestamp_ms=0, **first.stamp._asdict()))]
    assert sending.send_one().parts[0].batches == [first, second]


def test_a_batch_that_fits_exactly_goes_and_one_byte_less_room_sends_fewer():
    """Room shrinks with each batch."""
    for batches, room in ((3, 3 * BATCH_BYTES), (2, 3 * BATCH_BYTES - 1)):
        sending = Sending(max_request_bytes=room, max_in_flight_requests=1)
        for _ in range(4):
            sending.add()
        assert len(sending.send_one().parts[0].batches) == batches


def test_a_landing_makes_room_for_one_request():
    sending = Sending(partitions=4, max_in_flight_requests=1, max_request_bytes=1)
    for number in range(4):
        sending.add(number)
    request = sending.send_one()
    sending.answer(request, offsets=(0,))
    assert len(sending.send()) == 1


def test_a_success_ends_the_back_off_and_failures_raise_it(sending):
    """Counted a partition: after a success the next failure is a first one."""
    partition_queue = sending.partition_queues[0]
    sending.add()
    for failures in (1, 2, 3):
        sending.fail(sending.send_one(), LOST)
        assert (partition_queue.failures, partition_queue.recovering, partition_queue.seeks_leader) == (
            failures,
            True,
            True,
        )
        sending.later()
    sending.answer(sending.send_one(), offsets=(0,))
    assert (partition_queue.failures, partition_queue.recovering, partition_queue.seeks_leader) == (0, False, False)


def test_a_broker_that_does_not_lead_is_sent_nothing_until_metadata_says_so(sending):
    """Also after the back-off: it would refuse again."""
    sending.add()
    sending.answer(sending.send_one(), NotLeaderError("moved"))
    sending.later()
    assert not sending.send()
    sending.leaders([(1, 5)])
    assert len(sending.send()) == 1


def test_a_requests_time_is_what_its_most_urgent_batch_has_left():
    """At most the request timeout, at least a millisecond."""
    sending = Sending(partitions=2)
    sending.later(100)
    sending.add(0, deadline_ms=120_000)
    assert sending.send_one().timeout_ms == 30_000
    sending.add(0, deadline_ms=9_000)
    sending.add(1, deadline_ms=8_000)
    assert sending.send_one().timeout_ms == 7_900
    sending.add(0, deadline_ms=0)
    assert sending.send_one().timeout_ms == 1


def test_while_it_recovers_one_request_flies_until_one_succeeds(sending):
    """Nothing is sent until all that flew is back, then one at a time: so order holds (PROTOCOL H50)."""
    batches, flying = [], []
    for _ in range(3):
        batches.append(sending.add())
        flying.append(sending.send_one())
    sending.fail(flying[0])
    sending.later()
    assert not sending.send()
    sending.answer(flying[2], OutOfOrderSequenceError("a gap"))
    sending.answer(flying[1], OutOfOrderSequenceError("a gap"))
    sending.later()
    request = sending.send_one()
    assert request.parts[0].batches == batches
    batches.append(sending.add())
    assert not sending.send()
    sending.answer(request, offsets=(0, 1, 2))
    assert sending.send_one().parts[0].batches == batches[3:]


def test_without_a_producer_id_one_request_flies():
    sending = Sending(idempotent=False)
    sending.add()
    request = sending.send_one()
    sending.add()
    assert not sending.send()
    sending.answer(request, offsets=(0,))
    assert len(sending.send()) == 1


# --- what becomes of a batch ---


def test_offsets_that_the_broker_has_forgotten_are_not_made_up(sending):
    """An answer has fewer offsets than batches: the other batches are delivered, at unknown offsets."""
    sending.add()
    sending.add()
    assert [entry.base_offsets for entry in sending.answer(sending.send_one(), offsets=(9,))] == [(9,), ()]


def test_a_batch_behind_the_refused_one_was_not_looked_at(sending):
    """It goes again; the one before it, which was appended though the answer is an error, is in doubt."""
    first, refused, behind = (sending.add() for _ in range(3))
    finished = sending.answer(sending.send_one(), InvalidTimestampError("bad"), offsets=(5,))
    assert [(entry.batch, entry.error.outcome) for entry in finished] == [(refused, Outcome.NOT_APPLIED)]
    assert first.outcome_unknown
    assert not behind.outcome_unknown
    sending.later()
    assert sending.send_one().parts[0].batches == [first], "an epoch follows only when the doubt is resolved"


def test_an_unknown_outcome_puts_every_batch_from_there_on_in_doubt(sending):
    batches = [sending.add() for _ in range(3)]
    sending.answer(sending.send_one(), TimedOutError("waited"))
    assert all(batch.outcome_unknown for batch in batches)


def test_a_new_epoch_numbers_what_is_left_from_the_start(sending):
    """Once nothing flies and nothing is in doubt; the bytes are stamped anew (PROTOCOL H49)."""
    sending.add()
    sending.answer(sending.send_one(), offsets=(0,))
    sending.add()
    sending.answer(sending.send_one(), UnknownProducerError("forgotten"))
    sending.later()
    header = read_header(bytes(sending.send_one().parts[0].batches[0].encoded[0]))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 0)


def test_when_epochs_are_used_up_a_new_producer_id_is_asked_for(sending):
    """Nothing is sent before it has come (PROTOCOL H54)."""
    sending.add()
    sending.partition_queues[0].sequences.epoch = MAX_EPOCH
    sending.answer(sending.send_one(), UnknownProducerError("forgotten"))
    sending.later()
    assert not sending.send()
    assert sending.in_flight_requests.identity.is_needed
    assert sending.in_flight_requests.identity.is_missing
    sending.in_flight_requests.identity.set(8, 0)
    assert not sending.in_flight_requests.identity.is_needed
    header = read_header(bytes(sending.send_one().parts[0].batches[0].encoded[0]))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (8, 0, 0)


def test_a_doubtful_batch_that_was_forgotten_is_never_numbered_anew(sending):
    """It may be in the log: the outcome of its error is UNKNOWN (PROTOCOL H51)."""
    sending.add()
    sending.fail(sending.send_one())
    sending.later()
    (entry,) = sending.answer(sending.send_one(), UnknownProducerError("forgotten"))
    assert entry.error.outcome == Outcome.UNKNOWN
    assert isinstance(entry.error.__cause__, UnknownProducerError)


@pytest.mark.parametrize("error", [UnknownProducerError("who"), OutOfOrderSequenceError("a gap")])
def test_a_batch_that_came_before_the_first_one_waits_for_it(error, sending):
    """The first batch of a producer was refused, so its second is of a producer that the leader does not know."""
    batches = [sending.add()]
    first = sending.send_one()
    batches.append(sending.add())
    second = sending.send_one()
    sending.answer(first, ThrottledError("slow"))
    assert not sending.answer(second, error)
    sending.later()
    request = sending.send_one()
    assert request.parts[0].batches == batches
    assert [read_header(bytes(batch.encoded[0])).producer_epoch for batch in batches] == [0, 0]


@pytest.mark.parametrize("kept", [True, False], ids=["kept identity", "assigned identity"])
@pytest.mark.parametrize("error", [UnknownProducerError("who"), OutOfOrderSequenceError("a gap")])
def test_a_batch_that_overtook_one_that_is_acknowledged_by_now_is_sent_again(error, kept):
    """Requests may arrive in another order, and so may responses. Sent alone, the same error is true."""
    sending = Sending(identity=(7, 0) if kept else None)
    sending.add()
    first = sending.send_one()
    overtaking = sending.add()
    second = sending.send_one()
    assert [entry.error for entry in sending.answer(first, offsets=(0,))] == [None]
    assert not sending.answer(second, error)
    sending.later()
    request = sending.send_one()
    assert request.parts[0].batches == [overtaking]
    header = read_header(bytes(overtaking.encoded[0]))
    assert (header.producer_epoch, header.base_sequence) == (0, 1)
    finished = sending.answer(request, error)
    assert [type(entry.error) for entry in finished] == ([type(error)] if kept else [])
    assert sending.partition_queues[0].needs_epoch


def test_doubt_behind_what_was_certainly_not_applied_holds_up_no_epoch(sending):
    """A leader takes nothing behind a gap: the lost batch was not applied, as the one before it was not."""
    batches = [sending.add()]
    first = sending.send_one()
    batches.append(sending.add())
    lost = sending.send_one()
    sending.fail(lost)
    sending.answer(first, UnknownProducerError("forgotten"))
    assert [batch.outcome_unknown for batch in batches] == [False, True]
    sending.later()
    request = sending.send_one()
    assert request.parts[0].batches == batches
    headers = [read_header(bytes(batch.encoded[0])) for batch in batches]
    assert [(header.producer_epoch, header.base_sequence) for header in headers] == [(1, 0), (1, 1)]


def late_identity(sending):
    """The producer id comes when a batch is queued already."""
    sending.in_flight_requests.identity.set(7, 0)


def new_epoch(sending):
    """A batch is refused for good and leaves its sequence missing."""
    sending.in_flight_requests.identity.set(7, 0)
    sending.answer(sending.send_one(), InvalidTimestampError("no"))
    sending.later()
    sending.add()


def dropped_batch(sending):
    """Two batches cannot be encoded."""
    sending.in_flight_requests.identity.set(7, 0)
    sending.answer(sending.send_one())
    for _ in range(2):
        sending.in_flight_requests.give_up(sending.add(encoded=False), InvalidTimestampError("no"))
    sending.add()


@pytest.mark.parametrize("event", [late_identity, new_epoch, dropped_batch])
def test_after_an_event_that_changes_sequences_later_batches_are_numbered_once(event, sending):
    """Only batches that were sealed before it are stamped anew: for the others that would be a second checksum."""
    sending.in_flight_requests = InFlightRequests(
        sending.cluster_metadata, Backoff(50, 1000, random.Random(1)), idempotent=True, max_in_flight_requests=5,
        max_request_bytes=1 << 20, request_timeout_ms=30_000,
    )  # fmt: skip
    sending.add()
    event(sending)
    sending.answer(sending.send_one())
    later = [sending.add() for _ in range(3)]
    encoded = [batch.encoded[0] for batch in later]
    assert sequences(sending.send_one()) == sorted(batch.stamp.base_sequence for batch in later)
    assert all(batch.encoded[0] is before for batch, before in zip(later, encoded, strict=True))


def test_a_batch_that_cannot_be_encoded_leaves_no_hole(sending):
    """Its sequence was never sent: what follows takes it."""
    broken = sending.add(encoded=False)
    sending.add()
    (entry,) = sending.in_flight_requests.give_up(broken, InvalidTimestampError("cannot"))
    assert entry.batch is broken
    assert sending.in_flight_requests.give_up(broken, InvalidTimestampError("cannot")) == []
    assert sequences(sending.send_one()) == [0]


# --- ends ---


@pytest.mark.parametrize(
    ("change", "obstacle"),
    [
        (lambda sending: sending.leaders([(-1, 6)]), "has no leader that is known"),
        (lambda sending: None, "busy with earlier requests"),
    ],
)
def test_what_is_out_of_time_says_what_it_waited_for(change, obstacle, sending):
    sending.add(deadline_ms=10)
    change(sending)
    assert sending.in_flight_requests.expire(9) == []
    assert sending.in_flight_requests.next_event_ms(9) == 10
    ((_, _, error),) = sending.in_flight_requests.expire(10)
    assert obstacle in error.message


def test_out_of_time_for_want_of_a_producer_id_says_so(sending):
    sending.in_flight_requests.identity = ProducerIdentity(None, is_used=True)
    sending.add(deadline_ms=10)
    assert not sending.send()
    assert sending.in_flight_requests.identity.is_needed
    ((_, _, error),) = sending.in_flight_requests.expire(10)
    assert "no coordinator gave a producer id" in error.message


def test_a_retry_is_due_when_its_back_off_ends(sending):
    sending.add()
    sending.answer(sending.send_one(), ThrottledError("slow", retry_after_ms=700))
    assert sending.in_flight_requests.next_event_ms(0) == 700
    assert sending.in_flight_requests.next_event_ms(700) == 120_000


@pytest.mark.parametrize("created_again", [True, False])
def test_batches_of_a_topic_that_is_gone_end_and_one_that_flies_does_not(created_again, sending):
    """Never by name to another life of the topic (PROTOCOL H26); what flies is answered for by its broker."""
    flying = sending.add()
    sending.send_one()
    queued = sending.add()
    unfinished = sending.add(encoded=False)
    if created_again:
        finished = sending.leaders([(1, 0)], topic_id=b"2" * 16)
    else:
        gone = cluster_pb2.GetMetadataResponse()
        gone.topics.add(name="t", error=to_detail(UnknownTopicError("deleted")))
        sending.cluster_metadata.update(gone)
        finished = sending.in_flight_requests.metadata_changed()
    assert [entry.batch for entry in finished] == [queued]
    assert isinstance(finished[0].error, UnknownTopicIdError)
    assert ("created again" in finished[0].error.message) == created_again
    assert list(sending.in_flight_requests.unresolved) == [flying, unfinished]


@pytest.mark.parametrize("topic_id", [TOPIC_ID, b"2" * 16])
def test_a_topic_that_is_there_again_is_sent_to_in_a_new_epoch(topic_id, sending):
    """After an etcd restore it may be the same topic, whose log still has the old sequences (H51)."""
    sending.add()
    sending.answer(sending.send_one(), offsets=(0,))
    sending.partition_queues = [PartitionQueue(TopicPartition("t", 0), topic_id)]
    sending.leaders([(1, 6)], topic_id=topic_id)
    batches = [sending.add(), sending.add()]
    sending.send_one()
    assert [batch.stamp for batch in batches] == [ProducerStamp(7, 1, 0), ProducerStamp(7, 1, 1)]


def test_an_error_that_says_nothing_of_a_topics_life_ends_no_batch(sending):
    """Only the absence of a topic is evidence against it: its known leader is sent to as before."""
    sending.add()
    away = cluster_pb2.GetMetadataResponse()
    away.topics.add(name="t", error=to_detail(LeaderNotAvailableError("not yet")))
    sending.cluster_metadata.update(away)
    assert sending.in_flight_requests.metadata_changed() == []
    assert sending.in_flight_requests.waiting_topics() == ["t"]
    assert sending.send()


def test_abandoning_ends_all_and_doubts_what_flies(sending):
    flying = sending.add()
    request = sending.send_one()
    queued = sending.add()
    finished = sending.in_flight_requests.abandon(InvalidTimestampError("closed"))
    assert {entry.batch: entry.error.outcome for entry in finished} == {
        flying: Outcome.UNKNOWN,
        queued: Outcome.NOT_APPLIED,
    }
    assert not sending.in_flight_requests.unresolved
    assert not sending.answer(request, offsets=(0,)), "each batch finishes once"
    assert not sending.send()
    assert sending.in_flight_requests.waiting_topics() == []
    assert not sending.partition_queues[0].queued
