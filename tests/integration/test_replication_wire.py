"""ReplicaFetch on the wire: what a leader answers to a follower that is wrong, behind, parted, foreign or silent.

A follower by hand plays broker 3, which was killed after it had led epoch 0; broker 1 leads epoch 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from headrace.wire.batch import iter_batches
from headrace.wire.errors import ErrorCode, HeadraceError, Outcome
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_server.cluster_secret import prove
from headrace_server.partition_state import Replica

from tests.integration.replicated import BROKER_SETTINGS, HandFollower, Replicated, append, fetch, follower_at, produce

# One cluster for all of them: they run in one worker, in order.

EPOCH_START = 6
"""Where epoch 1 begins: three batches of two records are of epoch 0, two of epoch 1."""
END = 10


@dataclass
class Setting:
    """The partition that the tests fetch from."""

    replicated: Replicated
    topic_id: bytes
    address: str
    replication_address: str
    broker_epoch: int
    crcs: list[int]

    def follower(self, broker_id: int = 3) -> HandFollower:
        follower = HandFollower(self.replication_address)
        follower.identify(self.replicated.identity(), broker_id, self.broker_epoch)
        return follower


@pytest.fixture(scope="module")
def setting() -> Iterator[Setting]:
    with LocalCluster(LocalClusterSpec(coordinators=1, broker_settings=BROKER_SETTINGS)) as cluster:
        replicated = Replicated(cluster)
        try:
            topic_id = replicated.create("wire", [[3, 1, 2]])
            for _ in range(3):
                append(cluster.broker(3).address, topic_id, b"a", b"b")
            cluster.broker(3).kill()
            replicated.wait_for(
                "wire", lambda part: part.leader_id == 1 and len(part.in_sync_replicas) == 2, "broker 1"
            )
            broker_epoch = replicated.register_hand(3)
            address = cluster.broker(1).address
            for _ in range(2):
                append(address, topic_id, b"c", b"d")
            batches = fetch(address, topic_id, 0).batches
            crcs = [header.crc for header, _ in iter_batches(batches)]
            yield Setting(replicated, topic_id, address, cluster.broker(1).replication_address, broker_epoch, crcs)
        finally:
            replicated.close()


@pytest.fixture
def follower(setting: Setting) -> Iterator[HandFollower]:
    follower = setting.follower()
    yield follower
    follower.close()


def refusal(follower: HandFollower) -> HeadraceError:
    """The error that ended the stream."""
    error = follower.end()
    assert error is not None, "the stream ended without an error"
    return error


def test_a_follower_is_given_the_log(setting: Setting, follower: HandFollower) -> None:
    """Whole batches from the offset on, unchanged, with the high watermark; the answer names the token."""
    answer = follower.ask(setting.topic_id, leader_epoch=1, token=5, offset=0)
    assert (answer.token, answer.leader_epoch, answer.high_watermark, answer.more) == (5, 1, END, False)
    assert [header.crc for header, _ in iter_batches(answer.batches)] == setting.crcs
    assert answer.batches == fetch(setting.address, setting.topic_id, 0).batches


def test_wrong_leader_epochs(setting: Setting, follower: HandFollower) -> None:
    """H4: a lower epoch is fenced, a higher one unknown; both are definite, tell who leads, and end no stream."""
    answers = [follower.ask(setting.topic_id, leader_epoch=epoch, offset=0).error for epoch in (0, 2)]
    assert [answer.code for answer in answers] == [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH]
    assert all(answer.outcome == Outcome.NOT_APPLIED for answer in answers)
    assert all((answer.leader.leader_id, answer.leader.leader_epoch) == (1, 1) for answer in answers)
    assert follower.ask(setting.topic_id, leader_epoch=1, offset=0).batches


def test_a_follower_without_an_epoch(setting: Setting, follower: HandFollower) -> None:
    """H4: what a client may leave open (-1), a follower may not: every fetch is verified."""
    assert follower.ask(setting.topic_id, leader_epoch=-1, offset=0).error.code == ErrorCode.INVALID_REQUEST


def test_a_broker_without_a_replica(setting: Setting) -> None:
    """A broker that the key does not name gets nothing of the partition."""
    with follower_at(setting.replication_address) as follower:
        follower.identify(setting.replicated.identity(), 9, setting.replicated.register_hand(9))
        answer = follower.ask(setting.topic_id, leader_epoch=1, offset=0)
    setting.replicated.unregister_hand(9)
    assert answer.error.code == ErrorCode.INVALID_REQUEST
    assert "broker 9 holds no replica" in answer.error.message
    assert not answer.batches


@pytest.mark.parametrize("other", [{"cluster_id": "another"}, {"generation": 7}])
def test_a_follower_of_another_cluster(setting: Setting, other: dict[str, object]) -> None:
    """H42, H81: a broker of another cluster, or of another generation of this one, is not let in."""
    with follower_at(setting.replication_address) as follower:
        follower.identify(setting.replicated.identity(), 3, setting.broker_epoch, **other)
        error = refusal(follower)
    assert error.code == ErrorCode.INVALID_REQUEST
    assert "is of cluster" in str(error)


def test_a_follower_that_is_this_broker(setting: Setting) -> None:
    """Two brokers with one id, or an address that is one's own: refused."""
    with follower_at(setting.replication_address) as follower:
        follower.identify(setting.replicated.identity(), 1, 2**40)
        assert refusal(follower).code == ErrorCode.INVALID_REQUEST


def test_a_stale_session_is_not_let_in(setting: Setting) -> None:
    """H17: a broker known in a later session is fenced, and the later session's own stream continues."""
    with follower_at(setting.replication_address) as follower:
        follower.identify(setting.replicated.identity(), 2, setting.replicated.broker_epoch(2) - 1)
        assert refusal(follower).code == ErrorCode.FENCED_BROKER
    assert setting.replicated.metric(1, "connected_followers") >= 1


def test_unproven_or_unregistered_follower_is_refused(setting: Setting) -> None:
    """Broker ids and sessions are public: without the cluster's secret no client fetches as a replica.

    A proof is good for one challenge, one session and one leader. With the secret the session must be exactly the
    registered one: neither a later one, nor that of an unregistered broker.
    """
    identity = setting.replicated.identity()
    own = Replica(3, setting.broker_epoch)
    with follower_at(setting.replication_address) as other:
        foreign = prove(identity, own, 1, other.challenge())
    forged = dataclasses.replace(identity, secret=bytes(32))
    for proof in (b"", foreign, prove(forged, own, 1, b"")):
        with follower_at(setting.replication_address) as follower:
            follower.identify(identity, 3, setting.broker_epoch, proof=proof)
            assert refusal(follower).code == ErrorCode.NOT_AUTHORIZED
    with follower_at(setting.replication_address) as follower:
        follower.identify(identity, 3, setting.broker_epoch, leader_id=2)
        assert refusal(follower).code == ErrorCode.NOT_AUTHORIZED
    for broker_id, session in ((3, setting.broker_epoch + 5), (77, 1)):
        with follower_at(setting.replication_address) as follower:
            follower.identify(identity, broker_id, session)
            assert refusal(follower).code == ErrorCode.FENCED_BROKER
    with follower_at(setting.replication_address) as follower:
        follower.identify(identity, 3, setting.broker_epoch)
        assert follower.ask(setting.topic_id, leader_epoch=1, offset=0).batches


def test_a_stream_without_identity(setting: Setting) -> None:
    """The first message says who follows."""
    with follower_at(setting.replication_address) as follower:
        follower.fetch(setting.topic_id, leader_epoch=1, offset=0)
        assert refusal(follower).code == ErrorCode.INVALID_REQUEST


def test_an_older_stream_of_the_same_broker_ends(setting: Setting, follower: HandFollower) -> None:
    """One stream a follower and leader: the one that comes later is the follower's."""
    assert follower.ask(setting.topic_id, leader_epoch=1, offset=0).batches
    again = setting.follower()
    try:
        assert again.ask(setting.topic_id, leader_epoch=1, offset=0).batches
        assert follower.end(alive=True) is None
        assert again.ask(setting.topic_id, leader_epoch=1, token=2, offset=0).batches
    finally:
        again.close()


def test_an_unknown_partition(setting: Setting, follower: HandFollower) -> None:
    """A partition or topic that is not here is answered with a retriable error without ending the stream."""
    for topic_id, number in ((setting.topic_id, 7), (bytes(16), 0)):
        answer = follower.ask(topic_id, number, leader_epoch=1, offset=0)
        assert (answer.error.code, answer.error.retriable) == (ErrorCode.NOT_LEADER, True)


def test_a_broker_that_does_not_lead(setting: Setting) -> None:
    """A follower asked for data says who leads."""
    with follower_at(setting.replicated.broker(2).replication_address) as follower:
        follower.identify(setting.replicated.identity(), 3, setting.broker_epoch, leader_id=2)
        answer = follower.ask(setting.topic_id, leader_epoch=1, offset=0)
    assert (answer.error.code, answer.error.leader.leader_id) == (ErrorCode.NOT_LEADER, 1)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"offset": 8, "last_epoch": 0}, (0, EPOCH_START)),  # went on in an epoch that had ended (KIP-101)
        ({"offset": END + 4, "last_epoch": 1}, (1, END)),  # has more of the leader's epoch than the leader
        (
            {"offset": EPOCH_START, "last_epoch": 0, "last_crc": 1},
            (0, EPOCH_START - 2),
        ),  # the same epoch, other records
        ({"offset": 3, "last_epoch": 0, "last_crc": 1}, (0, 2)),  # not between batches
        ({"offset": 40, "last_epoch": -1}, (-1, END)),  # claims no batches and an end beyond the leader's
    ],
)
def test_logs_that_part(
    setting: Setting, follower: HandFollower, fields: dict[str, int], where: tuple[int, int]
) -> None:
    """H1, H2, H7: the answer names the largest common epoch and its end, and has neither data nor high watermark."""
    answer = follower.ask(setting.topic_id, leader_epoch=1, **fields)
    assert (answer.diverged.leader_epoch, answer.diverged.end_offset) == where
    assert (answer.batches, answer.high_watermark, answer.HasField("error")) == (b"", 0, False)


def test_every_fetch_is_verified(setting: Setting, follower: HandFollower) -> None:
    """H3: a good fetch does not excuse the next one."""
    good = {"leader_epoch": 1, "offset": EPOCH_START, "last_epoch": 0, "last_crc": setting.crcs[2]}
    assert follower.ask(setting.topic_id, **good).batches
    assert follower.ask(setting.topic_id, token=2, leader_epoch=1, offset=7, last_epoch=0).HasField("diverged")
    assert follower.ask(setting.topic_id, token=3, **good).batches


def test_an_answer_ahead(setting: Setting, follower: HandFollower) -> None:
    """The answer begins at `read_offset`; what it is verified by, and acknowledges, is `offset`."""
    good = {"leader_epoch": 1, "offset": EPOCH_START, "last_epoch": 0, "last_crc": setting.crcs[2]}
    whole = follower.ask(setting.topic_id, **good)
    (first, _), (second, _), *_ = iter_batches(whole.batches)
    ahead = follower.ask(setting.topic_id, token=2, read_offset=second.base_offset, **good)
    assert ahead.batches == whole.batches[first.batch_bytes :]
    fetched = next(f for f in setting.replicated.logs("wire")[1].followers if f.broker_id == 3)
    assert fetched.log_end_offset == EPOCH_START
    parted = follower.ask(setting.topic_id, token=3, leader_epoch=1, offset=7, last_epoch=0, read_offset=9)
    assert parted.HasField("diverged")


@pytest.mark.parametrize(
    "fields", [{"offset": 2, "durable_offset": 4}, {"offset": -1}, {"offset": 2, "durable_offset": -1}]
)
def test_offsets_that_contradict_each_other(setting: Setting, follower: HandFollower, fields: dict[str, int]) -> None:
    """What a follower has on its disk lies within what it has."""
    answer = follower.ask(setting.topic_id, leader_epoch=1, last_epoch=0, **fields)
    assert answer.error.code == ErrorCode.INVALID_REQUEST


def test_a_fetch_waits_and_is_answered_once(setting: Setting, follower: HandFollower) -> None:
    """H6: a later fetch takes the place of one that waits, even with the same token; each answer answers one fetch."""
    topic_id = setting.topic_id
    end = setting.replicated.logs("wire")[1].log_end_offset
    last = {"leader_epoch": 1, "last_epoch": 1, "last_crc": last_crc(setting), "high_watermark": end}
    follower.fetch(topic_id, token=7, offset=end, **last)
    follower.fetch(topic_id, token=8, offset=end, **last)
    follower.fetch(topic_id, token=8, offset=end, **last)
    # The stream is in order: once this one is answered, those before have been taken in.
    assert follower.ask(bytes(16), leader_epoch=1, offset=0).HasField("error")
    append(setting.address, topic_id, b"new")
    answer = follower.answer()
    assert answer.token == 8
    assert [header.base_offset for header, _ in iter_batches(answer.batches)] == [end]
    # Nothing of the two fetches before is left: the next answer is the next fetch's.
    assert follower.ask(topic_id, token=9, leader_epoch=1, offset=0).token == 9


def last_crc(setting: Setting) -> int:
    return [header.crc for header, _ in iter_batches(fetch(setting.address, setting.topic_id, 0).batches)][-1]


@pytest.mark.parametrize("durability", ["fsync", "async"])
def test_what_counts_as_copied(setting: Setting, durability: str) -> None:
    """I8, I9, H22: with fsync what a member of the in-sync set has on its disk, else what it has; its word is enough.

    The test acts as broker 2 in its session, while that broker is paused.
    """
    replicated = setting.replicated
    replicated.unregister_hand(3)
    topic_id = replicated.create(f"copied-{durability}", [[1, 2]], min_insync_replicas=2, durability=durability)
    session = replicated.broker_epoch(2)
    identity = replicated.identity()
    replicated.broker(2).pause()
    try:
        with follower_at(setting.replication_address) as follower, ThreadPoolExecutor(1) as pool:
            follower.identify(identity, 2, session)
            produced = pool.submit(produce, setting.address, topic_id, b"x")
            (header,) = [header for header, _ in iter_batches(follower.ask(topic_id, leader_epoch=0, offset=0).batches)]
            fields = {"leader_epoch": 0, "offset": 1, "last_epoch": 0, "last_crc": header.crc}
            follower.fetch(topic_id, token=2, durable_offset=0, **fields)
            assert follower.ask(bytes(16), leader_epoch=1, offset=0).HasField("error")
            if durability == "fsync":
                assert not produced.done()
                assert fetch(setting.address, topic_id, 0).high_watermark == 0
                follower.fetch(topic_id, token=3, durable_offset=1, **fields)
            assert follower.answer().high_watermark == 1
            assert not produced.result(30).HasField("error")
    finally:
        replicated.broker(2).resume()
    replicated.wait_in_sync(f"copied-{durability}")
    setting.broker_epoch = replicated.register_hand(3)


def test_a_silent_stream_is_ended(setting: Setting, follower: HandFollower) -> None:
    """A follower that sends no heartbeat is given up; its waiting fetch with it."""
    assert follower.ask(setting.topic_id, leader_epoch=1, offset=0).batches
    assert follower.end() is None


def test_below_the_log_start(setting: Setting, follower: HandFollower) -> None:
    """A follower whose log ends below the leader's log start begins there, with the chain's digest at that offset."""
    topic_id = setting.topic_id
    setting.replicated.admin.delete_records("wire", {0: 4})
    answer = follower.ask(topic_id, leader_epoch=1, offset=2, last_epoch=0, last_crc=setting.crcs[0])
    assert (answer.restart.offset, answer.restart.previous_crc) == (4, setting.crcs[1])
    assert not answer.batches
    assert follower.ask(topic_id, token=2, leader_epoch=1, offset=4, last_crc=setting.crcs[1]).batches
