"""KIP-966: the replicas fail one after the other, and the last one loses its disk (H14, H15)."""

import errno

import pytest
from headrace.wire.errors import NotEnoughReplicasError

from tests.simulation.scenario import Scenario


def _all_fail_but_the_last() -> Scenario:
    """b3 falls behind; b2 dies after a committed record; b1 alone is in sync and may commit nothing."""
    story = Scenario()
    story.kill(3)
    story.until_in_sync(1, 2)
    story.produce(to=1)
    story.kill(2)
    story.until_in_sync(1)
    story.until_known(1)
    assert [entry.broker_id for entry in story.state.eligible_leaders] == [2]
    refused = story.send(to=1)
    assert isinstance(refused.error, NotEnoughReplicasError)
    assert story.send(to=1, acks=1).acknowledged
    assert story.high_watermark(1) == 1
    return story


def test_who_left_an_in_sync_set_below_its_minimum_may_lead() -> None:
    """b1 finds its log corrupt and leaves. b3, which is behind, may not lead; b2 comes back and does."""
    story = _all_fail_but_the_last()
    story.until_flushed(1)
    story.corruption(1)
    story.lose_power(1)
    story.start(1)
    story.until(lambda: story.in_sync == [] and story.state.leader is None, "b1 takes itself out")
    assert [entry.broker_id for entry in story.state.eligible_leaders] == [2]

    story.start(3)
    story.run_for(3_000)
    assert story.state.leader is None

    story.start(2)
    story.until_leads(2)
    story.until_in_sync(1, 2, 3)
    assert story.state.eligible_leaders == ()
    assert story.end(2) == 1
    story.finish()


def test_the_last_one_in_sync_leads_when_it_comes_back() -> None:
    """b1 only restarts: it has everything, and no other replica is in sync."""
    story = _all_fail_but_the_last()
    story.kill(1)
    story.start(3)
    story.run_for(3_000)
    assert story.state.leader is None
    story.start(1)
    story.until_leads(1)
    story.start(2)
    story.until_in_sync(1, 2, 3)
    story.finish()


def test_an_eligible_leader_leads_without_waiting_for_the_last() -> None:
    """b1 stays away: b2 leads from the eligible leaders, though no replica in sync is alive."""
    story = _all_fail_but_the_last()
    story.kill(1)
    story.start(2)
    story.until_leads(2)
    assert story.end(2) == 1
    story.start(1)
    story.start(3)
    story.finish()


@pytest.mark.parametrize("minimum", [1, 2])
def test_no_leader_is_eligible_while_enough_are_in_sync(minimum: int) -> None:
    """Eligible leaders are there only below min_insync_replicas: above it the high watermark moves without them."""
    story = Scenario(min_insync_replicas=minimum)
    story.kill(3)
    story.until_in_sync(1, 2)
    assert story.state.eligible_leaders == ()
    story.start(3)
    story.finish()


def test_an_input_output_error_leaves_the_last_one_named() -> None:
    """b1, alone in sync, fails with its disk, which is sound after a restart: b1 leads again with what it had."""
    story = Scenario(min_insync_replicas=1)
    story.kill(3)
    story.kill(2)
    story.until_in_sync(1)
    story.until_known(1)
    story.produce(to=1)
    story.cluster.brokers[1].filesystem.fail("fsync", errno.EIO, suffix=".log")
    story.send(to=1)
    story.until(lambda: not story.host(1).is_open, "b1 holds its log offline")
    assert story.in_sync == [1]
    story.until(lambda: story.end(1) == -1, "an operator restarts it")
    story.until_leads(1)
    story.start(2)
    story.start(3)
    story.until_in_sync(1, 2, 3)
    story.finish()


def test_a_corrupt_replica_is_not_eligible() -> None:
    """b2 and b1 are in sync when b2 finds its log corrupt: below the minimum it would be eligible, with nothing."""
    story = Scenario()
    story.kill(3)
    story.until_in_sync(1, 2)
    story.produce(to=1)
    story.until_flushed(2)
    story.corruption(2)
    story.separate(2, 1)
    story.lose_power(2, noticed=False)
    story.start(2)
    story.until_in_sync(1)
    story.until(lambda: story.end(2) == 0, "b2 begins anew")
    assert story.state.eligible_leaders == ()
    story.kill(1)
    story.run_for(3_000)
    assert story.state.leader is None
    story.start(1)
    story.until_leads(1)
    story.start(3)
    story.finish()
