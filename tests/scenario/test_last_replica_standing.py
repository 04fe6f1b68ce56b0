"""KIP-966: the replicas fail one after the other, and the last one loses its disk (H14, H15)."""

import errno

import pytest
from headrace.wire.errors import NotEnoughReplicasError

from tests.simulation.scenario import Scenario


def _all_fail_but_the_last() -> Scenario:
    """b3 falls behind; b2 dies after a committed record; b1 alone is in sync and may commit nothing."""
    scenario = Scenario()
    scenario.kill(3)
    scenario.until_in_sync(1, 2)
    scenario.produce(to=1)
    scenario.kill(2)
    scenario.until_in_sync(1)
    scenario.until_known(1)
    assert [entry.broker_id for entry in scenario.state.eligible_leaders] == [2]
    refused = scenario.send(to=1)
    assert isinstance(refused.error, NotEnoughReplicasError)
    assert scenario.send(to=1, acks=1).acknowledged
    assert scenario.high_watermark(1) == 1
    return scenario


def test_who_left_an_in_sync_set_below_its_minimum_may_lead() -> None:
    """b1 finds its log corrupt and leaves. b3, which is behind, may not lead; b2 comes back and does."""
    scenario = _all_fail_but_the_last()
    scenario.until_flushed(1)
    scenario.corruption(1)
    scenario.lose_power(1)
    scenario.start(1)
    scenario.until(lambda: scenario.in_sync == [] and scenario.state.leader is None, "b1 takes itself out")
    assert [entry.broker_id for entry in scenario.state.eligible_leaders] == [2]

    scenario.start(3)
    scenario.run_for(3_000)
    assert scenario.state.leader is None

    scenario.start(2)
    scenario.until_leads(2)
    scenario.until_in_sync(1, 2, 3)
    assert scenario.state.eligible_leaders == ()
    assert scenario.end(2) == 1
    scenario.finish()


def test_the_last_one_in_sync_leads_when_it_comes_back() -> None:
    """b1 only restarts: it has everything, and no other replica is in sync."""
    scenario = _all_fail_but_the_last()
    scenario.kill(1)
    scenario.start(3)
    scenario.run_for(3_000)
    assert scenario.state.leader is None
    scenario.start(1)
    scenario.until_leads(1)
    scenario.start(2)
    scenario.until_in_sync(1, 2, 3)
    scenario.finish()


def test_an_eligible_leader_leads_without_waiting_for_the_last() -> None:
    """b1 stays away: b2 leads from the eligible leaders, though no replica in sync is alive."""
    scenario = _all_fail_but_the_last()
    scenario.kill(1)
    scenario.start(2)
    scenario.until_leads(2)
    assert scenario.end(2) == 1
    scenario.start(1, 3)
    scenario.finish()


@pytest.mark.parametrize("minimum", [1, 2])
def test_no_leader_is_eligible_while_enough_are_in_sync(minimum: int) -> None:
    """Eligible leaders are there only below min_insync_replicas: above it the high watermark moves without them."""
    scenario = Scenario(min_insync_replicas=minimum)
    scenario.kill(3)
    scenario.until_in_sync(1, 2)
    assert scenario.state.eligible_leaders == ()
    scenario.start(3)
    scenario.finish()


def test_an_input_output_error_leaves_the_last_one_named() -> None:
    """b1, alone in sync, fails with its disk, which is sound after a restart: b1 leads again with what it had."""
    scenario = Scenario(min_insync_replicas=1)
    scenario.kill(3, 2)
    scenario.until_in_sync(1)
    scenario.until_known(1)
    scenario.produce(to=1)
    scenario.cluster.brokers[1].filesystem.fail("fsync", errno.EIO, suffix=".log")
    scenario.send(to=1)
    scenario.until(lambda: not scenario.host(1).is_open, "b1 holds its log offline")
    assert scenario.in_sync == [1]
    scenario.until(lambda: scenario.end(1) == -1, "an operator restarts it")
    scenario.until_leads(1)
    scenario.start(2, 3)
    scenario.until_in_sync(1, 2, 3)
    scenario.finish()


def test_a_corrupt_replica_is_not_eligible() -> None:
    """b2 and b1 are in sync when b2 finds its log corrupt: below the minimum it would be eligible, with nothing."""
    scenario = Scenario()
    scenario.kill(3)
    scenario.until_in_sync(1, 2)
    scenario.produce(to=1)
    scenario.until_flushed(2)
    scenario.corruption(2)
    scenario.separate(2, 1)
    scenario.lose_power(2, noticed=False)
    scenario.start(2)
    scenario.until_in_sync(1)
    scenario.until(lambda: scenario.end(2) == 0, "b2 begins anew")
    assert scenario.state.eligible_leaders == ()
    scenario.kill(1)
    scenario.run_for(3_000)
    assert scenario.state.leader is None
    scenario.start(1)
    scenario.until_leads(1)
    scenario.start(3)
    scenario.finish()
