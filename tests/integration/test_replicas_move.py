"""Replicas that move to other brokers under a producer with acks=all (PROTOCOL H24, H25)."""

from __future__ import annotations

from headrace import TopicPartition

from tests.integration.replicated import Replicated, Writer, until


def move(replicated: Replicated, topic: str, *replicas: int, rate: int = 0) -> None:
    """Ask for it; it is under way, or done already, when this returns."""
    (change,) = replicated.admin.reassign_partitions({TopicPartition(topic, 0): replicas}, copy_bytes_per_second=rate)
    assert change.error is None, change


def wait_moved(replicated: Replicated, topic: str, *replicas: int) -> None:
    replicated.wait_for(
        topic,
        lambda part: tuple(part.replicas) == replicas and set(part.in_sync_replicas) == set(replicas),
        f"{topic} on {replicas}",
    )


def test_a_partition_goes_round_all_brokers(replicated: Replicated) -> None:
    """The leader is among the removed ones again and again; nothing acknowledged is lost, duplicated or reordered."""
    replicated.create("round", [[1, 2]])
    with Writer(replicated.servers, "round", 1) as writer:
        for target in ((2, 3), (3, 1), (1, 2), (3, 2), (1, 3)):
            writer.wait_for(200)
            move(replicated, "round", *target)
            wait_moved(replicated, "round", *target)
            assert replicated.leader("round") in target
        writer.wait_for(200)
    assert not replicated.admin.list_reassignments()
    writer.check(replicated)


def test_a_topic_grows_to_three_replicas_and_shrinks_to_one(replicated: Replicated) -> None:
    """The least number in sync follows when the last replica is there, and refuses no write on the way."""
    replicated.create("grown", [[1]])
    with Writer(replicated.servers, "grown", 1) as writer:
        writer.wait_for(200)
        move(replicated, "grown", 1, 2, 3)
        wait_moved(replicated, "grown", 1, 2, 3)
        replicated.wait_for("grown", lambda part: part.min_insync_replicas == 2, "two in sync demanded")
        writer.wait_for(200)
        move(replicated, "grown", 3)
        wait_moved(replicated, "grown", 3)
        replicated.wait_for("grown", lambda part: part.min_insync_replicas == 1, "one in sync demanded")
        writer.wait_for(200)
    assert replicated.admin.describe_topic("grown").replication_factor == 1
    writer.check(replicated)


def test_a_move_that_does_not_get_on_is_cancelled(replicated: Replicated) -> None:
    """The new broker is paused; the cancel restores the former replicas, and the writer hardly notices."""
    replicated.create("held", [[1, 2]])
    with Writer(replicated.servers, "held", 1) as writer:
        writer.wait_for(200)
        replicated.broker(3).pause()
        move(replicated, "held", 3, 2, rate=1_000_000)
        (under_way,) = replicated.admin.list_reassignments(["held"])
        assert (tuple(under_way.adding), tuple(under_way.removing)) == ((3,), (1,))
        assert under_way.copy_bytes_per_second == 1_000_000
        writer.wait_for(200)
        (cancelled,) = replicated.admin.cancel_reassignment([TopicPartition("held", 0)])
        assert cancelled.error is None
        replicated.wait_for("held", lambda part: set(part.replicas) == {1, 2}, "the replicas there were")
        replicated.broker(3).resume()
        writer.wait_for(200)
    assert not replicated.admin.list_reassignments()
    writer.check(replicated)


def test_a_dead_broker_is_replaced_by_a_move(replicated: Replicated) -> None:
    """Who holds the partition need not live: the new replica copies from those that do, and the dead one goes."""
    replicated.create("replaced", [[1, 2]])
    with Writer(replicated.servers, "replaced", 1) as writer:
        writer.wait_for(200)
        replicated.broker(2).kill()
        move(replicated, "replaced", 1, 3)
        wait_moved(replicated, "replaced", 1, 3)
        writer.wait_for(200)
        replicated.cluster.restart(replicated.broker(2))
        replicated.cluster.wait_until_healthy()
    writer.check(replicated)
    until(lambda: 2 not in replicated.logs("replaced"), "the replaced replica to give up its log")


def test_a_drained_broker_stays_in_sync_and_leads_again(replicated: Replicated) -> None:
    """Leadership leaves it at once and comes back by a word; its replica stays in sync all the time."""
    replicated.create("drained", [[1, 2, 3]])
    with Writer(replicated.servers, "drained", 1) as writer:
        writer.wait_for(200)
        replicated.admin.drain_broker(1)
        replicated.wait_for("drained", lambda part: part.leader_id in (2, 3), "another leader")
        writer.wait_for(200)
        assert set(replicated.partition("drained").in_sync_replicas) == {1, 2, 3}
        replicated.admin.undrain_broker(1)

        def elected() -> bool:  # A hand-over that a busy machine does not finish within its bound is refused.
            (found,) = replicated.admin.elect_leaders("preferred", [TopicPartition("drained", 0)])
            return (found.error, found.leader_id) == (None, 1)

        until(elected, "broker 1 leads again")
        writer.wait_for(200)
    writer.check(replicated)
