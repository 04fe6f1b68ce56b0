"""Leaderships that move in order under a producer with acks=1: nothing that was acknowledged is lost (H24)."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.integration.replicated import Replicated, Writer, until

SPREAD = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
MOVES = 6


def lead_as_preferred(replicated: Replicated, topic: str) -> None:
    """Ask for the preferred leaders until each partition has its own: a hand-over may be abandoned under load."""

    def asked() -> bool:
        return all(each.error is None for each in replicated.admin.elect_leaders("preferred"))

    until(asked, "the preferred leaders")
    assert [part.leader_id for part in replicated.admin.describe_topic(topic).partitions] == [1, 2, 3]


def leads_nothing(replicated: Replicated, topic: str, broker_id: int) -> Callable[[], bool]:
    return lambda: all(part.leader_id != broker_id for part in replicated.admin.describe_topic(topic).partitions)


def test_what_one_replica_acknowledged_survives_moves_of_its_leadership(replicated: Replicated) -> None:
    """Drained brokers, preferred elections, and a broker that gets SIGTERM and comes back, while records are sent."""
    topic = "handed-over"
    replicated.create(topic, SPREAD, min_insync_replicas=2, durability="async")
    with Writer(replicated.servers, topic, 3, acks=1) as writer:
        writer.wait_for(500)
        began_at = time.monotonic()
        for move in range(MOVES):
            broker_id = 1 + move % 3
            replicated.admin.drain_broker(broker_id)
            until(leads_nothing(replicated, topic, broker_id), f"nothing led by {broker_id}")
            replicated.admin.undrain_broker(broker_id)
            writer.wait_for(200)
            lead_as_preferred(replicated, topic)
            writer.wait_for(200)
        assert replicated.broker(1).stop() == 0
        writer.wait_for(200)
        replicated.cluster.restart(replicated.broker(1))
        replicated.wait_in_sync(topic)
        lead_as_preferred(replicated, topic)
        writer.wait_for(200)
        print(f"longest time without an acknowledgement: {writer.longest_gap(began_at):.3f} s")
    writer.check(replicated)
    handed_over = [replicated.metric(broker_id, "hand_overs_total") for broker_id in (2, 3)]
    assert min(handed_over) > 0


def test_a_stop_whose_time_is_up_hands_over_while_nothing_is_appended(replicated: Replicated) -> None:
    """A broker without a drain time gets SIGTERM: it refuses calls, and its successors reach the ends of its logs."""
    topic = "hurried"
    replicated.create(topic, SPREAD, min_insync_replicas=2, durability="async")
    replicated.reconfigure(1, drain_timeout_ms=1)
    replicated.wait_in_sync(topic)
    lead_as_preferred(replicated, topic)
    with Writer(replicated.servers, topic, 3, acks=1) as writer:
        writer.wait_for(500)
        assert replicated.broker(1).stop() == 0
        writer.wait_for(200)
        replicated.cluster.restart(replicated.broker(1))
        replicated.wait_in_sync(topic)
        writer.wait_for(200)
    writer.check(replicated)
    logged = replicated.broker(1).log_file.read_text()
    assert "leaderships_not_moved" in logged
    assert "leaderships_not_handed_over" not in logged
