"""KAFKA-7128: a new leader's high watermark lags behind what is committed, and lets a late follower in (H9)."""

from tests.simulation.scenario import Scenario


def test_a_follower_joins_only_at_the_start_of_the_leaders_epoch() -> None:
    """b3 has all that the new leader knows to be committed, and not all that is: it stays out until it has."""
    story = Scenario()
    story.produce(to=1)
    story.until(lambda: story.high_watermark(2) == story.high_watermark(3) == 1, "all know that it is committed")

    # b3 falls behind and leaves the in-sync set.
    story.separate(3, 1, 2)
    behind = [story.send(to=1), story.send(to=1)]
    story.until_in_sync(1, 2)
    story.until(lambda: all(sent.acknowledged for sent in behind), "b1 acknowledges without b3")
    story.until(lambda: story.high_watermark(2) == 3, "b2 knows of them")

    # Two more are committed, which b2 has and does not know to be committed.
    held = story.hold_answers(2)
    later = story.send(to=1)
    story.until(lambda: bool(held.answers), "the record is on its way to b2")
    story.block(1, 2)
    held.release()
    held.deliver()
    story.until(lambda: later.acknowledged, "b1 acknowledges it")
    assert story.high_watermark(2) == 3
    story.kill(1)

    # b2 leads from offset 4. b3 comes back with one record, then with three: the first is below, so is the second.
    story.until_leads(2)
    assert story.host(2).replica.start_offset == 4
    assert story.high_watermark(2) == 3
    catching_up = story.hold_answers(3)
    story.reunite(3, 2)
    story.until(lambda: bool(catching_up.answers), "b2 answers b3's fetch")
    assert story.in_sync == [2]
    catching_up.release()
    catching_up.deliver(len(catching_up.answers) - 1)
    story.until_in_sync(2, 3)
    assert story.end(3) == 4
    story.reunite(3, 1)
    story.start(1)
    story.finish()


def test_a_follower_at_the_lagging_high_watermark_stays_out() -> None:
    """The follower's log ends just at the high watermark that the new leader knows."""
    story = Scenario()
    story.produce(to=1)
    story.until(lambda: story.high_watermark(2) == story.high_watermark(3) == 1, "all know that it is committed")
    story.separate(3, 1, 2)
    story.until_in_sync(1, 2)
    held = story.hold_answers(2)
    committed = story.send(to=1)
    story.until(lambda: bool(held.answers), "the record is on its way to b2")
    story.block(1, 2)
    held.release()
    held.deliver()
    story.until(lambda: committed.acknowledged, "b1 acknowledges it")
    story.kill(1)

    story.until_leads(2)
    assert (story.high_watermark(2), story.end(2), story.end(3)) == (1, 2, 1)
    catching_up = story.hold_answers(3)
    story.reunite(3, 2)
    story.until(lambda: bool(catching_up.answers), "b2 answers b3's fetch at offset 1")
    story.run_for(500)
    assert story.in_sync == [2]
    catching_up.release()
    story.reunite(3, 1)
    story.start(1)
    story.finish()


def test_a_follower_keeps_the_high_watermark_that_it_has_shown() -> None:
    """b3 knows of a committed record, its new leader b2 not yet: b3 takes nothing back from its readers."""
    story = Scenario()
    story.produce(to=1)
    story.until(lambda: story.high_watermark(2) == story.high_watermark(3) == 1, "all know that it is committed")
    held = story.hold_answers(2)
    story.send(to=1)
    story.until(lambda: bool(held.answers), "the record is on its way to b2")
    story.block(1, 2)
    held.release()
    held.deliver()
    story.until(lambda: story.high_watermark(3) == 2, "b3 knows that the second one is committed")
    assert story.high_watermark(2) == 1

    story.separate(1, 3)
    story.elect(2)
    story.send(to=2, acks=1)
    story.until_end(3, 3)
    assert (story.high_watermark(2), story.high_watermark(3)) == (1, 2)
    story.finish()
