"""The answer to a compare-and-swap is lost: until the key is seen anew, both outcomes count (C2, C3, H11, H12)."""

from tests.simulation.scenario import Scenario


def _joins_without_an_answer() -> Scenario:
    """b3 is out of the in-sync set; b1 takes it in, which happens, but b1 hears neither the answer nor the news."""
    scenario = Scenario(min_insync_replicas=1)
    scenario.separate(3, 1, 2)
    scenario.until_in_sync(1, 2)
    scenario.blind(1)
    scenario.reunite(3, 1, 2)
    scenario.until_in_sync(1, 2, 3)
    return scenario


def test_who_may_have_joined_counts() -> None:
    """While the write's end is unknown nothing is committed without b3: it may be elected at any moment."""
    scenario = _joins_without_an_answer()
    scenario.block(1, 3)
    scenario.block(3, 1)
    sent = scenario.send(to=1)
    scenario.until_end(2, 1)
    scenario.run_for(1_600)  # b1 has given the write up, and does not take it for one that failed
    assert len(scenario.host(1).replica.state.in_sync) == 2
    assert scenario.host(1).leadership.proposals.unresolved
    assert not sent.acknowledged

    # It was right to wait: b1 and b2 die, and b3 leads.
    scenario.kill(1, 2)
    scenario.until_leads(3)
    assert scenario.end(3) == 0
    scenario.start(1, 2)
    scenario.finish()


def test_while_the_answer_is_awaited_who_is_proposed_counts() -> None:
    """The same before b1 has given up waiting (KIP-497)."""
    scenario = _joins_without_an_answer()
    scenario.separate(1, 3)
    sent = scenario.send(to=1)
    scenario.until_end(2, 1)
    scenario.run_for(300)
    assert scenario.host(1).leadership.proposals.under_way
    assert not sent.acknowledged
    scenario.reunite(1, 3)
    scenario.restore_sight(1)
    scenario.until(lambda: sent.acknowledged, "all three have it")
    scenario.finish()


def test_an_unknown_outcome_is_settled_by_another_write() -> None:
    """The write that takes b3 in was lost on its way, which b1 cannot know: it settles it by another one."""
    scenario = Scenario(min_insync_replicas=1)
    scenario.separate(3, 1, 2)
    scenario.until_in_sync(1, 2)
    scenario.until_known(1)
    scenario.mute(1)
    scenario.reunite(3, 1, 2)
    scenario.until(lambda: scenario.host(1).leadership.proposals.under_way, "b1 takes b3 in")
    scenario.kill(3)
    scenario.run_for(20)
    scenario.unmute(1)
    sent = scenario.send(to=1)
    scenario.until(lambda: sent.acknowledged, "b1 knows that b3 is out")
    assert scenario.in_sync == [1, 2]
    scenario.start(3)
    scenario.finish()


def test_a_lost_answer_is_learnt_from_the_key() -> None:
    """The write that takes b3 in happened; b1 sees it in the key, and the write counts no more."""
    scenario = Scenario(min_insync_replicas=1)
    scenario.separate(3, 1, 2)
    scenario.until_in_sync(1, 2)
    scenario.lose_next_answer()
    scenario.reunite(3, 1, 2)
    scenario.until_in_sync(1, 2, 3)
    scenario.until(lambda: not scenario.host(1).leadership.proposals.unresolved, "nothing is open any more")
    assert len(scenario.host(1).replica.state.in_sync) == 3
    scenario.produce(to=1)
    scenario.finish()
