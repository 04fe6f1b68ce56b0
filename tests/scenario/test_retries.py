"""A producer sends again what may have been written: it is written once, under the next leader too (H48)."""

from tests.simulation.scenario import Scenario


def test_a_retry_at_the_next_leader_is_recognised() -> None:
    """b1 dies after the record was copied and before it answered; b2 knows it from its copy."""
    story = Scenario()
    sent = story.send(to=1)
    story.until_end(2, 1)
    story.kill(1)
    story.until_leads(2)
    assert not sent.acknowledged
    story.send_again(sent, to=2)
    story.until(lambda: sent.answered, "b2 answers")
    assert (sent.error, sent.offset, story.end(2)) == (None, 0, 1)
    story.start(1)
    story.finish()


def test_a_retry_waits_as_the_original_does() -> None:
    """Only b1 has the record: a retry is answered only when the others have it."""
    story = Scenario()
    story.produce(to=1)
    story.separate(1, 2, 3)
    sent = story.send(to=1)
    story.send_again(sent, to=1)
    story.run_for(300)
    assert not sent.answered
    story.reunite(1, 2, 3)
    story.until(lambda: sent.acknowledged, "all have it")
    assert sent.offset == 1
    story.finish()


def test_a_record_that_was_cut_is_no_duplicate() -> None:
    """b3 stopped in order with a record that it had to cut later: its snapshot of the producers goes with it."""
    story = Scenario()
    story.produce(to=1)
    story.block(1, 2)
    sent = story.send(to=1)
    story.until_end(3, 2)
    story.kill(1)
    story.stop(3)
    story.until_leads(2)
    story.start(3)
    story.until_end(3, 1)
    story.until_in_sync(2, 3)
    story.until_known(2)
    for _ in range(2):
        story.produce(to=2)
    story.until_end(3, 3)
    story.kill(3)
    story.until_in_sync(2)
    story.start(3)
    story.until_in_sync(2, 3)
    story.elect(3)
    story.send_again(sent, to=3)
    story.until(lambda: sent.answered, "b3 answers")
    assert (sent.error, sent.offset) == (None, 3)
    story.start(1)
    story.finish()
