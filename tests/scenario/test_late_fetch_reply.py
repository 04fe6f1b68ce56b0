"""A fetch reply that comes late: "diverged" of a fetch long answered must not cut what is committed since (H6)."""

from tests.simulation.scenario import HeldAnswers, Scenario


def _b3_has_to_cut() -> tuple[Scenario, HeldAnswers]:
    """b2 leads epoch 1 without the record that b3 copied from b1; its answer to b3's first fetch is on its way."""
    scenario = Scenario()
    scenario.produce(to=1)
    scenario.block(1, 2)
    scenario.send(to=1)
    scenario.until_end(3, 2)
    scenario.kill(1)
    held = scenario.hold_answers(3)
    scenario.until_leads(2)
    scenario.until(
        lambda: any(each.leader_epoch == scenario.state.leader_epoch for each in held.answers), "b2 answers b3"
    )
    return scenario, held


def test_an_answer_of_a_stream_that_is_gone_is_not_used() -> None:
    """b3 asked again on a new stream, has cut, caught up and acknowledged; then the first answer arrives."""
    scenario, held = _b3_has_to_cut()
    last = len(held.answers) - 1
    held.release()
    scenario.break_streams(3, 2)
    scenario.until_end(3, 1)
    scenario.produce(to=2)
    scenario.until_watermark(2, 3)
    held.deliver(last)
    assert scenario.end(3) == 2
    scenario.start(1)
    scenario.finish()


def test_an_answer_is_used_once() -> None:
    """The same answer comes twice: the second time it cuts nothing."""
    scenario, held = _b3_has_to_cut()
    last = len(held.answers) - 1
    held.release()
    held.deliver(last)
    assert scenario.end(3) == 1
    scenario.produce(to=2)
    scenario.until_end(3, 2)
    held.deliver(last)
    assert scenario.end(3) == 2
    scenario.start(1)
    scenario.finish()


def test_an_answer_of_an_old_leader_is_not_used() -> None:
    """b3 follows b2 when an answer of b1, whom it followed before, arrives with records of the old epoch."""
    scenario = Scenario()
    scenario.produce(to=1)
    scenario.until_watermark(1, 2, 3)
    scenario.block(1, 2)
    held = scenario.hold_answers(3)
    scenario.send(to=1)
    scenario.until(lambda: bool(held.answers), "b1 answers b3 with the second record")
    scenario.block(2, 3)
    scenario.elect(2)
    scenario.until(lambda: scenario.host(3).replica.leader_epoch == scenario.state.leader_epoch, "b3 follows b2")
    held.deliver(0)
    assert scenario.end(3) == 1
    held.release()
    scenario.unblock(2, 3)
    scenario.finish()
