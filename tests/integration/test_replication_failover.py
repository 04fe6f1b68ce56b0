"""Leaders killed, stopped or paused under a producer with acks=all: nothing acknowledged is lost or duplicated."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

import headrace
import pytest
from headrace.v1 import broker_pb2 as pb
from headrace.wire.errors import ErrorCode, Outcome
from headrace_devcluster.cluster import LocalCluster

from tests.integration.gates import Gate
from tests.integration.replicated import (
    BROKER_SETTINGS,
    Follower,
    Replicated,
    Writer,
    append,
    fetch,
    produce,
    until,
)

SPREAD = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
ROUNDS = int(os.environ.get("HEADRACE_TEST_KILLS", "0"))
"""How many leaders are killed one after another, by `make chaos`."""


@pytest.mark.parametrize("durability", ["fsync", "async"])
def test_kill_of_a_leader(replicated: Replicated, durability: str) -> None:
    """I1, I15, I20, I21: kill -9 of a leader; the others continue, and the log has what was acknowledged, in order."""
    topic = f"killed-{durability}"
    replicated.create(topic, SPREAD, min_insync_replicas=2, durability=durability)
    with Follower(replicated.servers, topic, 3) as follower:
        with Writer(replicated.servers, topic, 3) as writer:
            writer.wait_for(1_000)
            killed_at = time.monotonic()
            replicated.broker(1).kill()
            replicated.wait_for(topic, lambda part: part.leader_id == 2, "the next leader")
            print(f"elected after {time.monotonic() - killed_at:.2f} s")
            writer.wait_for(1_000)
            print(f"longest time without an acknowledgement: {writer.longest_gap(killed_at - 1):.2f} s")
            replicated.cluster.restart(replicated.broker(1))
            writer.wait_for(1_000)
        follower.wait_for(len(writer.futures))
    writer.check(replicated)
    follower.check(writer)


def test_stop_of_a_leader(replicated: Replicated) -> None:
    """KIP-841: a leader that shuts down cleanly hands its leaderships over first, and comes back in sync."""
    replicated.create("stopped", SPREAD, min_insync_replicas=2)
    with Writer(replicated.servers, "stopped", 3) as writer:
        writer.wait_for(1_000)
        stopped_at = time.monotonic()
        assert replicated.broker(1).stop() == 0
        replicated.wait_for("stopped", lambda part: part.leader_id in (2, 3), "another leader in a coordinator's view")
        writer.wait_for(1_000)
        print(f"longest time without an acknowledgement: {writer.longest_gap(stopped_at - 1):.2f} s")
        replicated.cluster.restart(replicated.broker(1))
        writer.wait_for(1_000)
    assert "leaderships_moved" in replicated.broker(1).log_file.read_text()
    writer.check(replicated)


def test_ten_moves_of_leadership(replicated: Replicated) -> None:
    """H24, I21: a producer and a consumer go through ten moves of the lead without noticing more than a delay."""
    replicated.create("moved", SPREAD, min_insync_replicas=2)
    with Follower(replicated.servers, "moved", 3) as follower:
        with Writer(replicated.servers, "moved", 3) as writer:
            for _ in range(10):
                writer.wait_for(200)
                before = replicated.partition("moved")
                replicated.admin.drain_broker(before.leader_id)
                replicated.wait_for(
                    "moved",
                    lambda part, epoch=before.leader_epoch: part.leader_epoch > epoch and part.leader_id >= 0,  # type: ignore[misc]
                    "another leader",
                )
                replicated.admin.undrain_broker(before.leader_id)
            writer.wait_for(200)
        follower.wait_for(len(writer.futures))
    writer.check(replicated)
    follower.check(writer)


@pytest.mark.parametrize(("power", "order"), [(True, (1, 2, 3)), (False, (3, 2, 1))])
def test_all_brokers_at_once(replicated: Replicated, order: tuple[int, ...], power: bool) -> None:
    """I15, I16: with durability=fsync all of them die and come back, in any order, and continue where they were."""
    topic = f"all-{'killed' if power else 'without-power'}"
    replicated.create(topic, SPREAD, min_insync_replicas=2)
    with Writer(replicated.servers, topic, 3) as writer:
        writer.wait_for(500)
        if power:
            for broker_id in order:
                replicated.broker(broker_id).kill()
        else:
            replicated.lose_power(order)
        for broker_id in order:
            replicated.cluster.restart(replicated.broker(broker_id))
        writer.wait_for(500)
    writer.check(replicated)


@pytest.mark.parametrize("power", [True, False])
def test_all_brokers_at_once_without_fsync(replicated: Replicated, power: bool) -> None:
    """H14, H21: killed processes leave everything with the kernel; after a power cut an administrator has the word."""
    topic = f"async-{'killed' if power else 'without-power'}"
    topic_id = replicated.create(topic, [[1, 2, 3]], min_insync_replicas=2, durability="async")
    values = [b"%d" % number for number in range(20)]
    for value in values:
        append(replicated.broker(1).address, topic_id, value)
    until(lambda: {log.log_end_offset for log in replicated.logs(topic).values()} == {20}, "copied")
    if power:
        for broker_id in (1, 2, 3):
            replicated.broker(broker_id).kill()
    else:
        replicated.lose_power((1, 2, 3))
    for broker_id in (1, 2, 3):
        replicated.cluster.restart(replicated.broker(broker_id))
    if not power:
        part = replicated.wait_for(
            topic, lambda part: part.leader_id == -1 and not part.in_sync_replicas, "no replica is trusted"
        )
        assert part.eligible_leaders == ()
        answer = until(lambda: produce(replicated.broker(1).address, topic_id, b"never").error, "a refusal")
        assert (answer.code, answer.outcome, answer.retriable) == (ErrorCode.NOT_LEADER, Outcome.NOT_APPLIED, True)
        (change,) = replicated.admin.elect_leaders("unclean", [headrace.TopicPartition(topic, 0)], broker_id=2)
        assert (change.error, change.leader_id) == (None, 2)
    append(lambda: replicated.leader_address(topic), topic_id, b"after")
    replicated.check_replicas_equal(topic)
    # This machine lived on, so nothing was really lost.
    assert replicated.values(1, topic) == [*values, b"after"]


@pytest.mark.skipif(not ROUNDS, reason="HEADRACE_TEST_KILLS says how many; see make chaos")
@pytest.mark.timeout(300 + 30 * ROUNDS)
def test_kills_one_after_another(replicated: Replicated) -> None:
    """I15, L1: each broker is killed while it leads and comes back in sync before the next one goes."""
    replicated.create("rolling", SPREAD, min_insync_replicas=2)
    with Writer(replicated.servers, "rolling", 3) as writer:
        for turn in range(ROUNDS):
            writer.wait_for(200)
            killed = replicated.leader("rolling", turn % 3)
            replicated.broker(killed).kill()
            replicated.wait_for(
                "rolling",
                lambda part, gone=killed: part.leader_id not in (-1, gone),
                "another leader",
                turn % 3,  # type: ignore[misc]
            )
            replicated.cluster.restart(replicated.broker(killed))
            replicated.wait_in_sync("rolling")
        writer.wait_for(200)
    writer.check(replicated)


def test_too_few_in_sync(replicated: Replicated) -> None:
    """H13, I22: below min_insync_replicas acks=all is NOT_APPLIED; acks=1 and 0 succeed, seen once committed."""
    topic_id = replicated.create("few", [[1, 2, 3]], min_insync_replicas=2)
    address = replicated.broker(1).address
    assert append(address, topic_id, b"all before") == 0
    for broker_id in (2, 3):
        replicated.broker(broker_id).stop()
    replicated.wait_for("few", lambda part: part.in_sync_replicas == (1,), "the leader alone in sync")
    until(lambda: replicated.metric(1, "under_min_insync"), "the leader knows it")
    refused = until(lambda: refusal(produce(address, topic_id, b"never")), "a refusal")
    assert (refused.code, refused.retriable, refused.outcome) == (
        ErrorCode.NOT_ENOUGH_REPLICAS,
        True,
        Outcome.NOT_APPLIED,
    )
    assert append(address, topic_id, b"leader", acks=pb.ACKS_LEADER) == 1
    produce(address, topic_id, b"none", acks=pb.ACKS_NONE)
    until(lambda: replicated.logs("few")[1].log_end_offset == 3, "all appended")
    assert fetch(address, topic_id, 0).high_watermark == 1
    replicated.cluster.restart(replicated.broker(2))
    assert append(address, topic_id, b"all after") == 3
    replicated.cluster.restart(replicated.broker(3))
    replicated.check_replicas_equal("few")
    assert replicated.values(3, "few") == [b"all before", b"leader", b"none", b"all after"]


def refusal(answer: pb.PartitionProduceResult) -> pb.PartitionProduceResult | None:
    return answer.error if answer.HasField("error") else None


def test_paused_followers_delay_acknowledgements(replicated: Replicated) -> None:
    """I9, H52: acks=all waits for every member of the in-sync set; a wait that ends before says that it is unknown."""
    topic_id = replicated.create("held-back", [[1, 2, 3]], min_insync_replicas=2)
    address = replicated.broker(1).address
    for broker_id in (2, 3):
        replicated.broker(broker_id).pause()
    error = produce(address, topic_id, b"waits", timeout_ms=300).error
    assert (error.code, error.outcome) == (ErrorCode.TIMED_OUT, Outcome.UNKNOWN)
    assert fetch(address, topic_id, 0).high_watermark == 0
    for broker_id in (2, 3):
        replicated.broker(broker_id).resume()
    until(lambda: fetch(address, topic_id, 0).high_watermark == 1, "committed after all")
    replicated.check_replicas_equal("held-back")


def test_a_paused_follower(replicated: Replicated) -> None:
    """H23: a paused follower leaves the in-sync set, acknowledgements continue, and it rejoins by itself."""
    replicated.create("paused", [[1, 2, 3]], min_insync_replicas=2)
    with Writer(replicated.servers, "paused", 1) as writer:
        writer.wait_for(500)
        replicated.broker(3).pause()
        replicated.wait_for("paused", lambda part: part.in_sync_replicas == (1, 2), "the set without broker 3")
        writer.wait_for(500)
        assert replicated.partition("paused").leader_epoch == 0
        replicated.broker(3).resume()
        replicated.wait_for("paused", lambda part: part.in_sync_replicas == (1, 2, 3), "broker 3 in sync again")
        writer.wait_for(500)
    assert replicated.metric(1, "in_sync_expands_total") >= 1
    writer.check(replicated)


def test_a_paused_leader(replicated: Replicated) -> None:
    """H20, L5: a paused leader is replaced after its lease ends; resumed, it follows its successor."""
    replicated.create("paused-leader", [[1, 2, 3]], min_insync_replicas=2)
    with Writer(replicated.servers, "paused-leader", 1) as writer:
        writer.wait_for(500)
        replicated.broker(1).pause()
        replicated.wait_for("paused-leader", lambda part: part.leader_id == 2, "another leader")
        writer.wait_for(500)
        replicated.broker(1).resume()
        replicated.wait_for("paused-leader", lambda part: len(part.in_sync_replicas) == 3, "the old one in sync")
        writer.wait_for(500)
    writer.check(replicated)


def test_what_only_the_old_leader_had(replicated: Replicated) -> None:
    """H1, H20: records that a leader took alone are cut when it meets its successor; the committed ones stay."""
    topic_id = replicated.create("alone", [[1, 2, 3]], min_insync_replicas=2)
    address = replicated.broker(1).address
    cut_before = replicated.metric(1, "truncations_total")
    append(address, topic_id, b"committed")
    until(lambda: {log.high_watermark for log in replicated.logs("alone").values()} == {1}, "committed everywhere")
    for broker_id in (2, 3):
        replicated.broker(broker_id).kill()
    assert append(address, topic_id, b"alone", acks=pb.ACKS_LEADER) == 1
    replicated.broker(1).pause()
    for broker_id in (2, 3):
        replicated.cluster.restart(replicated.broker(broker_id))
    replicated.wait_for("alone", lambda part: part.leader_id in (2, 3), "another leader")
    assert append(lambda: replicated.leader_address("alone"), topic_id, b"after") == 1
    replicated.broker(1).resume()
    replicated.check_replicas_equal("alone")
    assert replicated.values(1, "alone") == [b"committed", b"after"]
    assert replicated.metric(1, "truncations_total") > cut_before


def test_a_leader_that_its_followers_do_not_reach(replicated: Replicated) -> None:
    """H27, H13: it cannot acknowledge alone, keeps what was committed, and continues when they reach it again."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    with Gate(listen) as gate:
        replicated.reconfigure(1, replication_listen=listen, replication_advertised_address=gate.address)
        try:
            topic_id = replicated.create("unreached", [[1, 2, 3]], min_insync_replicas=2)
            address = replicated.broker(1).address
            append(address, topic_id, b"before")
            gate.shut()
            replicated.wait_for("unreached", lambda part: part.in_sync_replicas == (1,), "the leader alone in sync")
            # Who left while enough replicas stayed in sync is not eligible any more (KIP-966).
            eligible = set(replicated.partition("unreached").eligible_leaders)
            assert eligible in ({2, 3}, {2}, {3})
            refused = produce(address, topic_id, b"never").error
            assert (refused.code, refused.outcome) == (ErrorCode.NOT_ENOUGH_REPLICAS, Outcome.NOT_APPLIED)
            gate.open()
            replicated.wait_in_sync("unreached")
            append(address, topic_id, b"after")
            replicated.check_replicas_equal("unreached")
            assert replicated.values(3, "unreached") == [b"before", b"after"]
        finally:
            gate.open()
            replicated.reconfigure(1, replication_listen="", replication_advertised_address="")


def test_the_controller_is_paused_while_a_leader_dies(own_cluster: Callable[..., LocalCluster]) -> None:
    """H19, L5: another coordinator becomes controller and elects; the first one, awake again, changes nothing."""
    settings = {"lease_ttl_ms": 2_000}
    replicated = Replicated(own_cluster(broker_settings=BROKER_SETTINGS, coordinator_settings=settings))
    try:
        replicated.create("uncontrolled", SPREAD, min_insync_replicas=2)
        controller = replicated.cluster.coordinator(replicated.admin.describe_cluster().controller_id)
        other = next(each for each in replicated.cluster.coordinators if each is not controller)
        servers = other.address
        with Writer(servers, "uncontrolled", 3) as writer, headrace.Admin(bootstrap_servers=servers) as admin:
            writer.wait_for(500)
            controller.pause()
            replicated.broker(1).kill()
            until(lambda: admin.describe_topic("uncontrolled").partitions[0].leader_id in (2, 3), "another leader")
            writer.wait_for(500)
            controller.resume()
            replicated.cluster.restart(replicated.broker(1))
            writer.wait_for(500)
        writer.check(replicated)
    finally:
        replicated.close()
