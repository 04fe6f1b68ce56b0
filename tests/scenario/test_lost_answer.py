"""The answer to a compare-and-swap is lost: until the key is seen anew, both outcomes count (C2, C3, H11, H12)."""

from tests.simulation.scenario import Scenario


def _joins_without_an_answer() -> Scenario:
    """b3 is out of the in-sync set; b1 takes it in, which happens, but b1 hears neither the answer nor the news."""
    story = Scenario(min_insync_replicas=1)
    story.separate(3, 1, 2)
    story.until_in_sync(1, 2)
    story.blind(1)
    story.reunite(3, 1, 2)
    story.until_in_sync(1, 2, 3)
    return story


def test_who_may_have_joined_counts() -> None:
    """While the write's end is unknown nothing is committed without b3: it may be elected at any moment."""
    story = _joins_without_an_answer()
    story.block(1, 3)
    story.block(3, 1)
    sent = story.send(to=1)
    story.until_end(2, 1)
    story.run_for(1_600)  # b1 has given the write up, and does not take it for one that failed
    assert len(story.host(1).replica.state.in_sync) == 2
    assert story.host(1).replica.proposals.unresolved
    assert not sent.acknowledged

    # It was right to wait: b1 and b2 die, and b3 leads.
    story.kill(1)
    story.kill(2)
    story.until_leads(3)
    assert story.end(3) == 0
    story.start(1)
    story.start(2)
    story.finish()


def test_while_the_answer_is_awaited_who_is_proposed_counts() -> None:
    """The same before b1 has given up waiting (KIP-497)."""
    story = _joins_without_an_answer()
    story.separate(1, 3)
    sent = story.send(to=1)
    story.until_end(2, 1)
    story.run_for(300)
    assert story.host(1).replica.proposals.under_way
    assert not sent.acknowledged
    story.reunite(1, 3)
    story.restore_sight(1)
    story.until(lambda: sent.acknowledged, "all three have it")
    story.finish()


def test_an_unknown_outcome_is_settled_by_another_write() -> None:
    """The write that takes b3 in was lost on its way, which b1 cannot know: it settles it by another one."""
    story = Scenario(min_insync_replicas=1)
    story.separate(3, 1, 2)
    story.until_in_sync(1, 2)
    story.until_known(1)
    story.mute(1)
    story.reunite(3, 1, 2)
    story.until(lambda: story.host(1).replica.proposals.under_way, "b1 takes b3 in")
    story.kill(3)
    story.run_for(20)
    story.unmute(1)
    sent = story.send(to=1)
    story.until(lambda: sent.acknowledged, "b1 knows that b3 is out")
    assert story.in_sync == [1, 2]
    story.start(3)
    story.finish()


def test_a_lost_answer_is_learnt_from_the_key() -> None:
    """The write that takes b3 in happened; b1 sees it in the key, and the write counts no more."""
    story = Scenario(min_insync_replicas=1)
    story.separate(3, 1, 2)
    story.until_in_sync(1, 2)
    story.lose_next_answer()
    story.reunite(3, 1, 2)
    story.until_in_sync(1, 2, 3)
    story.until(lambda: not story.host(1).replica.proposals.unresolved, "nothing is open any more")
    assert len(story.host(1).replica.state.in_sync) == 3
    story.produce(to=1)
    story.finish()
