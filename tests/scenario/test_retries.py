"""A producer sends again what may have been written: it is written once, under the next leader too (H48)."""

from tests.simulation.scenario import Scenario


def test_a_retry_at_the_next_leader_is_recognised() -> None:
    """b1 dies after the record was copied and before it answered; b2 knows it from its copy."""
    scenario = Scenario()
    sent = scenario.send(to=1)
    scenario.until_end(2, 1)
    scenario.kill(1)
    scenario.until_leads(2)
    assert not sent.acknowledged
    scenario.send_again(sent, to=2)
    scenario.until(lambda: sent.answered, "b2 answers")
    assert (sent.error, sent.offset, scenario.end(2)) == (None, 0, 1)
    scenario.start(1)
    scenario.finish()


def test_a_retry_waits_as_the_original_does() -> None:
    """Only b1 has the record: a retry is answered only when the others have it."""
    scenario = Scenario()
    scenario.produce(to=1)
    scenario.separate(1, 2, 3)
    sent = scenario.send(to=1)
    scenario.send_again(sent, to=1)
    scenario.run_for(300)
    assert not sent.answered
    scenario.reunite(1, 2, 3)
    scenario.until(lambda: sent.acknowledged, "all have it")
    assert sent.offset == 1
    scenario.finish()


def test_a_record_that_was_cut_is_no_duplicate() -> None:
    """b3 stopped in order with a record that it had to cut later: its snapshot of the producers goes with it."""
    scenario = Scenario()
    scenario.produce(to=1)
    scenario.block(1, 2)
    sent = scenario.send(to=1)
    scenario.until_end(3, 2)
    scenario.kill(1)
    scenario.stop(3)
    scenario.until_leads(2)
    scenario.start(3)
    scenario.until_end(3, 1)
    scenario.until_in_sync(2, 3)
    scenario.until_known(2)
    for _ in range(2):
        scenario.produce(to=2)
    scenario.until_end(3, 3)
    scenario.kill(3)
    scenario.until_in_sync(2)
    scenario.start(3)
    scenario.until_in_sync(2, 3)
    scenario.elect(3)
    scenario.send_again(sent, to=3)
    scenario.until(lambda: sent.answered, "b3 answers")
    assert (sent.error, sent.offset) == (None, 3)
    scenario.start(1)
    scenario.finish()
