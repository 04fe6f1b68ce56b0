"""A fetch reply that comes late: "diverged" of a fetch long answered must not cut what is committed since (H6)."""

from tests.simulation.scenario import HeldAnswers, Scenario


def _b3_has_to_cut() -> tuple[Scenario, HeldAnswers]:
    """b2 leads epoch 1 without the record that b3 copied from b1; its answer to b3's first fetch is on its way."""
    story = Scenario()
    story.produce(to=1)
    story.block(1, 2)
    story.send(to=1)
    story.until_end(3, 2)
    story.kill(1)
    held = story.hold_answers(3)
    story.until_leads(2)
    story.until(lambda: any(each.leader_epoch == story.state.leader_epoch for each in held.answers), "b2 answers b3")
    return story, held


def test_an_answer_of_a_stream_that_is_gone_is_not_used() -> None:
    """b3 asked again on a new stream, has cut, caught up and acknowledged; then the first answer arrives."""
    story, held = _b3_has_to_cut()
    last = len(held.answers) - 1
    held.release()
    story.break_streams(3, 2)
    story.until_end(3, 1)
    story.produce(to=2)
    story.until(lambda: story.high_watermark(3) == 2, "b3 has the next record")
    held.deliver(last)
    assert story.end(3) == 2
    story.start(1)
    story.finish()


def test_an_answer_is_used_once() -> None:
    """The same answer comes twice: the second time it cuts nothing."""
    story, held = _b3_has_to_cut()
    last = len(held.answers) - 1
    held.release()
    held.deliver(last)
    assert story.end(3) == 1
    story.produce(to=2)
    story.until_end(3, 2)
    held.deliver(last)
    assert story.end(3) == 2
    story.start(1)
    story.finish()


def test_an_answer_of_an_old_leader_is_not_used() -> None:
    """b3 follows b2 when an answer of b1, whom it followed before, arrives with records of the old epoch."""
    story = Scenario()
    story.produce(to=1)
    story.until(lambda: story.high_watermark(2) == story.high_watermark(3) == 1, "all know that it is committed")
    story.block(1, 2)
    held = story.hold_answers(3)
    story.send(to=1)
    story.until(lambda: bool(held.answers), "b1 answers b3 with the second record")
    story.block(2, 3)
    story.elect(2)
    story.until(lambda: story.host(3).replica.leader_epoch == story.state.leader_epoch, "b3 follows b2")
    held.deliver(0)
    assert story.end(3) == 1
    held.release()
    story.unblock(2, 3)
    story.finish()
