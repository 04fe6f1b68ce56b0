"""KIP-101: a follower that truncates to its high watermark throws away what is committed (H1)."""

from tests.simulation.scenario import LARGE, Scenario


def test_a_diverged_follower_keeps_what_is_committed_beyond_its_high_watermark() -> None:
    """A follower's high watermark lags; it has to cut an uncommitted tail and keeps the committed record below it."""
    scenario = Scenario()

    # What b2 says of the first record is held: b3 copies the second one while nothing is committed yet.
    scenario.until(lambda: scenario.host(1).leadership.followers.last_session(2) > 0, "b2's fetch waits at b1")
    scenario.block(2, 1)
    committed = scenario.send(to=1, value=LARGE)
    scenario.until_end(2, 1)
    scenario.until_flushed(2)
    scenario.block(1, 2)
    uncommitted = scenario.send(to=1)
    scenario.until_end(3, 2)
    scenario.block(1, 3)

    # b2 has the first only, by which it is committed. b1 dies before b3 hears of that.
    scenario.unblock(2, 1)
    scenario.until(lambda: committed.acknowledged, "b1 acknowledges the first record")
    scenario.kill(1)
    assert scenario.high_watermark(3) == 0

    # b2 leads; b3 cuts the second record, and only that one.
    scenario.until_leads(2)
    scenario.until_end(3, 1)
    assert not uncommitted.acknowledged

    # It shows when b2 dies too, as soon as b3 has cut: b3 has the record.
    scenario.separate(2, 3)
    scenario.kill(2)
    scenario.until_leads(3)
    assert scenario.end(3) == 1
    scenario.finish()
