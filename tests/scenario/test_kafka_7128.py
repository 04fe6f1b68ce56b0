"""KAFKA-7128: a new leader's high watermark lags behind what is committed, and lets a late follower in (H9)."""

from tests.simulation.scenario import Scenario


def test_a_follower_joins_only_at_the_start_of_the_leaders_epoch() -> None:
    """b3 has all that the new leader knows to be committed, and not all that is: it stays out until it has."""
    scenario = Scenario()
    scenario.produce(to=1)
    scenario.until_watermark(1, 2, 3)

    # b3 falls behind and leaves the in-sync set.
    scenario.separate(3, 1, 2)
    behind = [scenario.send(to=1), scenario.send(to=1)]
    scenario.until_in_sync(1, 2)
    scenario.until(lambda: all(sent.acknowledged for sent in behind), "b1 acknowledges without b3")
    scenario.until_watermark(3, 2)

    # Two more are committed, which b2 has and does not know to be committed.
    held = scenario.hold_answers(2)
    later = scenario.send(to=1)
    scenario.until(lambda: bool(held.answers), "the record is on its way to b2")
    scenario.block(1, 2)
    held.release()
    held.deliver()
    scenario.until(lambda: later.acknowledged, "b1 acknowledges it")
    assert scenario.high_watermark(2) == 3
    scenario.kill(1)

    # b2 leads from offset 4. b3 comes back with one record, then with three: the first is below, so is the second.
    scenario.until_leads(2)
    assert scenario.host(2).leadership.start_offset == 4
    assert scenario.high_watermark(2) == 3
    catching_up = scenario.hold_answers(3)
    scenario.reunite(3, 2)
    scenario.until(lambda: bool(catching_up.answers), "b2 answers b3's fetch")
    assert scenario.in_sync == [2]
    catching_up.release()
    catching_up.deliver(len(catching_up.answers) - 1)
    scenario.until_in_sync(2, 3)
    assert scenario.end(3) == 4
    scenario.reunite(3, 1)
    scenario.start(1)
    scenario.finish()


def test_a_follower_at_the_lagging_high_watermark_stays_out() -> None:
    """The follower's log ends just at the high watermark that the new leader knows."""
    scenario = Scenario()
    scenario.produce(to=1)
    scenario.until_watermark(1, 2, 3)
    scenario.separate(3, 1, 2)
    scenario.until_in_sync(1, 2)
    held = scenario.hold_answers(2)
    committed = scenario.send(to=1)
    scenario.until(lambda: bool(held.answers), "the record is on its way to b2")
    scenario.block(1, 2)
    held.release()
    held.deliver()
    scenario.until(lambda: committed.acknowledged, "b1 acknowledges it")
    scenario.kill(1)

    scenario.until_leads(2)
    assert (scenario.high_watermark(2), scenario.end(2), scenario.end(3)) == (1, 2, 1)
    catching_up = scenario.hold_answers(3)
    scenario.reunite(3, 2)
    scenario.until(lambda: bool(catching_up.answers), "b2 answers b3's fetch at offset 1")
    scenario.run_for(500)
    assert scenario.in_sync == [2]
    catching_up.release()
    scenario.reunite(3, 1)
    scenario.start(1)
    scenario.finish()


def test_a_follower_keeps_the_high_watermark_that_it_has_shown() -> None:
    """b3 knows of a committed record, its new leader b2 not yet: b3 takes nothing back from its readers."""
    scenario = Scenario()
    scenario.produce(to=1)
    scenario.until_watermark(1, 2, 3)
    held = scenario.hold_answers(2)
    scenario.send(to=1)
    scenario.until(lambda: bool(held.answers), "the record is on its way to b2")
    scenario.block(1, 2)
    held.release()
    held.deliver()
    scenario.until_watermark(2, 3)
    assert scenario.high_watermark(2) == 1

    scenario.separate(1, 3)
    scenario.elect(2)
    scenario.send(to=2, acks=1)
    scenario.until_end(3, 3)
    assert (scenario.high_watermark(2), scenario.high_watermark(3)) == (1, 2)
    scenario.finish()
