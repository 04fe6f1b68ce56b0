"""Followers that were away, are new, or see their topic change under them: they end with the leader's log."""

from __future__ import annotations

import shutil

import headrace
import pytest
from headrace.v1 import broker_pb2 as pb
from headrace.wire.errors import ErrorCode

from tests.integration.replicated import Replicated, Writer, append, produce, until

SMALL = {"max_batch_bytes": 1 << 16, "file_delete_delay_ms": 0}
"""For topics of small segments, which a batch must fit into."""


@pytest.mark.parametrize("segment_bytes", [1 << 30, 1 << 16])
def test_the_log_start_passes_a_follower(replicated: Replicated, segment_bytes: int) -> None:
    """H8: what a follower lacks is gone at the leader too: it begins anew at the leader's log start."""
    topic = f"passed-{segment_bytes}"
    topic_id = replicated.create(topic, [[1, 2, 3]], min_insync_replicas=2, segment_bytes=segment_bytes, **SMALL)
    address = replicated.broker(1).address
    for number in range(10):
        append(address, topic_id, b"%d" % number * 10_000)
    replicated.broker(3).kill()
    for number in range(10, 30):
        append(address, topic_id, b"%02d" % number * 5_000)
    # A crash of broker 3 is known to the cluster before acknowledgements continue, so all of it is committed.
    (deleted,) = replicated.admin.delete_records(topic, {0: 25})
    assert deleted.log_start_offset == 25
    replicated.cluster.restart(replicated.broker(3))
    append(address, topic_id, b"after")
    replicated.check_replicas_equal(topic)
    log = replicated.logs(topic)[3]
    assert (log.log_start_offset, log.log_end_offset) == (25, 31)
    assert "log_reset" in replicated.broker(3).log_file.read_text()


def test_followers_forget_what_the_leader_forgot(replicated: Replicated) -> None:
    """I18: the log start of the leader becomes that of its followers, and their segments go too."""
    topic_id = replicated.create("forgotten", [[1, 2, 3]], segment_bytes=1 << 16, **SMALL)
    for number in range(30):
        append(replicated.broker(1).address, topic_id, b"%02d" % number * 5_000)
    assert replicated.logs("forgotten")[2].segments > 4
    replicated.admin.delete_records("forgotten", {0: 30})
    assert {log.log_start_offset for log in replicated.logs("forgotten").values()} == {30}
    until(lambda: {log.segments for log in replicated.logs("forgotten").values()} <= {1, 2}, "old segments gone")
    replicated.check_replicas_equal("forgotten")


def test_deleted_records_stay_deleted_under_the_next_leader(replicated: Replicated) -> None:
    """I18: nothing is sent after DeleteRecords, and the leader is killed: the next one begins where that one did."""
    topic = "erased"
    topic_id = replicated.create(topic, [[1, 2, 3]], min_insync_replicas=2)
    append(replicated.broker(1).address, topic_id, *(b"secret %d" % number for number in range(10)))
    until(lambda: {log.high_watermark for log in replicated.logs(topic).values()} == {10}, "nothing is on its way")
    assert [each.log_start_offset for each in replicated.admin.delete_records(topic, {0: 10})] == [10]
    replicated.broker(1).kill()
    replicated.wait_for(topic, lambda part: part.leader_id == 2, "the next leader")
    earliest = replicated.admin.list_offsets(topic, "earliest")
    assert [each.offset for each in earliest.values()] == [10]
    assert replicated.values(2, topic) == []
    replicated.cluster.restart(replicated.broker(1))
    replicated.check_replicas_equal(topic)


def test_a_topic_goes_while_it_is_followed(replicated: Replicated) -> None:
    """H26: a deleted topic is copied no more; one made anew under its name is another, and starts empty."""
    followed_before = replicated.metric(2, "follower_partitions")
    with Writer(replicated.servers, "gone", 3, delivery_timeout_ms=3_000, request_timeout_ms=1_000) as writer:
        old = replicated.create("gone", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        writer.wait_for(200)
        replicated.admin.delete_topic("gone")
        until(lambda: writer.failure is not None, "an error for the producer")
    assert isinstance(writer.failure, headrace.HeadraceError)
    until(lambda: replicated.metric(2, "follower_partitions") == followed_before, "nothing of it is followed")
    new = replicated.create("gone", [[1, 2, 3]])
    assert new != old
    append(replicated.broker(1).address, new, b"new")
    refused = produce(replicated.broker(1).address, old, b"late")
    assert refused.error.code == ErrorCode.UNKNOWN_TOPIC_ID
    replicated.check_replicas_equal("gone")
    assert replicated.values(2, "gone") == [b"new"]


def test_partitions_are_added_while_the_others_are_written(replicated: Replicated) -> None:
    """New partitions are copied like the first ones, which do not notice."""
    topic_id = replicated.create("grown", [[1, 2, 3]], min_insync_replicas=2)
    with Writer(replicated.servers, "grown", 1) as writer:
        writer.wait_for(200)
        replicated.admin.create_partitions("grown", 3, assignments=[[2, 3, 1], [3, 1, 2]])
        replicated.wait_in_sync("grown")
        for number, leader in ((1, 2), (2, 3)):
            append(replicated.broker(leader).address, topic_id, b"x", partition=number)
        writer.wait_for(200)
    writer.check(replicated)
    replicated.check_replicas_equal("grown", 3)


def test_settings_change_while_it_is_followed(replicated: Replicated) -> None:
    """H15, H30: durability, segments and min_insync_replicas apply to leader and followers without a restart."""
    topic_id = replicated.create("changed", [[1, 2, 3]], min_insync_replicas=1, durability="async", **SMALL)
    with Writer(replicated.servers, "changed", 1) as writer:
        for settings in (
            {"durability": "fsync"},
            {"segment_bytes": 1 << 16},
            {"durability": "async", "flush_messages": 10},
            {"flush_messages": 2**63 - 1, "min_insync_replicas": 3},
            {"durability": "fsync"},
        ):
            writer.wait_for(200)
            replicated.admin.alter_config("changed", settings)
        until(lambda: all(log.segments > 2 for log in replicated.logs("changed").values()), "small segments everywhere")
    writer.check(replicated)
    replicated.broker(3).kill()
    replicated.wait_for("changed", lambda part: 3 not in part.in_sync_replicas, "the set without broker 3")
    refused = until(lambda: produce(replicated.broker(1).address, topic_id, b"x").error, "a refusal")
    assert refused.code == ErrorCode.NOT_ENOUGH_REPLICAS


def test_a_drained_broker_follows(replicated: Replicated) -> None:
    """An administrator's drain takes the lead, not the place in the in-sync set."""
    topic_id = replicated.create("drained", [[1, 2, 3]], min_insync_replicas=3)
    try:
        replicated.admin.drain_broker(1)
        leader = replicated.wait_for("drained", lambda part: part.leader_id in (2, 3), "another leader").leader_id
        append(replicated.broker(leader).address, topic_id, b"needs all three")
        assert set(replicated.partition("drained").in_sync_replicas) == {1, 2, 3}
    finally:
        replicated.admin.undrain_broker(1)
    replicated.check_replicas_equal("drained")


def empty_disk(replicated: Replicated, broker_id: int) -> None:
    """Kill a broker and give it a new disk."""
    replicated.broker(broker_id).kill()
    shutil.rmtree(replicated.cluster.directory / f"broker-{broker_id}")
    replicated.cluster.restart(replicated.broker(broker_id))


def test_a_follower_with_an_empty_disk(replicated: Replicated) -> None:
    """H17, H42: a broker that comes back with another disk is out of the set until it has copied everything."""
    replicated.create("empty", [[1, 2, 3]], min_insync_replicas=2)
    with Writer(replicated.servers, "empty", 1) as writer:
        writer.wait_for(500)
        empty_disk(replicated, 3)
        writer.wait_for(500)
        replicated.wait_in_sync("empty")
        # Now it may lead: the others are taken away.
        for broker_id in (1, 2):
            replicated.broker(broker_id).kill()
        replicated.wait_for("empty", lambda part: part.leader_id == 3, "the new disk's broker leads")
        for broker_id in (1, 2):
            replicated.cluster.restart(replicated.broker(broker_id))
        writer.wait_for(500)
    writer.check(replicated)


def test_a_leader_with_an_empty_disk(replicated: Replicated) -> None:
    """H17: a leader that comes back empty at once is not the leader any more, whatever its id."""
    replicated.create("lost-disk", [[1, 2, 3]], min_insync_replicas=2)
    with Writer(replicated.servers, "lost-disk", 1) as writer:
        writer.wait_for(500)
        empty_disk(replicated, 1)
        replicated.wait_for("lost-disk", lambda part: part.leader_id in (2, 3), "another leader")
        writer.wait_for(500)
    writer.check(replicated)


def test_a_broker_with_an_empty_disk_does_not_lead(replicated: Replicated) -> None:
    """H14: the last in-sync replica comes back empty: an eligible leader leads in its place, and nothing is lost."""
    topic_id = replicated.create("last-standing", [[1, 2]], min_insync_replicas=2)
    append(replicated.broker(1).address, topic_id, b"committed")
    replicated.broker(2).kill()
    replicated.wait_for("last-standing", lambda part: part.eligible_leaders == (2,), "an eligible leader")
    append(replicated.broker(1).address, topic_id, b"not committed", acks=pb.ACKS_LEADER)
    empty_disk(replicated, 1)
    replicated.wait_for("last-standing", lambda part: part.leader_id == -1 and not part.in_sync_replicas, "no leader")
    replicated.cluster.restart(replicated.broker(2))
    replicated.wait_for("last-standing", lambda part: part.leader_id == 2, "the eligible one leads")
    append(replicated.broker(2).address, topic_id, b"after")
    replicated.check_replicas_equal("last-standing")
    assert replicated.values(1, "last-standing") == [b"committed", b"after"]


@pytest.mark.parametrize("dies", [1, 3])
def test_a_broker_dies_during_a_move(replicated: Replicated, dies: int) -> None:
    """H25: a move from broker 1 to 3 ends as wanted, whether the leader (1) or the new replica (3) is killed."""
    topic = f"moves-{dies}"
    where = headrace.TopicPartition(topic, 0)
    topic_id = replicated.create(topic, [[1, 2]], min_insync_replicas=1)
    values = [b"%03d" % number * 2_000 for number in range(60)]
    for value in values:
        append(replicated.broker(1).address, topic_id, value)
    (change,) = replicated.admin.reassign_partitions({where: [3, 2]}, copy_bytes_per_second=20_000)
    assert change.error is None
    until(lambda: 3 in replicated.logs(topic), "the new replica")
    assert 3 not in replicated.partition(topic).in_sync_replicas
    replicated.broker(dies).kill()
    if dies == 1:
        replicated.wait_for(topic, lambda part: part.leader_id == 2, "another leader")
    # The same move again, as fast as it can.
    (change,) = replicated.admin.reassign_partitions({where: [3, 2]})
    assert change.error is None
    replicated.cluster.restart(replicated.broker(dies))
    replicated.wait_for(topic, lambda part: part.replicas == (3, 2) and not part.removing_replicas, "the move's end")
    assert replicated.admin.list_reassignments([topic]) == []
    append(lambda: replicated.leader_address(topic), topic_id, b"after")
    replicated.check_replicas_equal(topic)
    assert replicated.values(3, topic) == [*values, b"after"]
    until(lambda: set(replicated.logs(topic)) == {2, 3}, "nothing of it at broker 1")
