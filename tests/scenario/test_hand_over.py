"""A leadership that moves in order takes along what only its leader has acknowledged (H24)."""

from headrace.wire.errors import ErrorCode, Outcome

from tests.simulation.scenario import LARGE, Scenario, Sent


def lag_behind(story: Scenario, *broker_ids: int) -> Sent:
    """Let followers lack several answers' worth of what their leader b1 has acknowledged; the last record of it."""
    for broker_id in broker_ids:
        story.block(1, broker_id)
    return [story.send(to=1, acks=1, value=LARGE) for _ in range(5)][-1]


def fall_short(story: Scenario, *broker_ids: int) -> None:
    """Unblock these links, and block them again when b1 stops appends for the brokers."""
    for broker_id in broker_ids:
        story.unblock(1, broker_id)
    story.until(lambda: story.refuses_appends(1), "b1 stops appends")
    for broker_id in broker_ids:
        story.block(1, broker_id)


def test_the_successor_has_all_that_the_leader_acknowledged() -> None:
    """b1 acknowledges records that no other replica has, and is asked to hand over: b2 copies them, and then leads."""
    story = Scenario()
    story.produce(to=1)
    sent = [story.send(to=1, acks=1) for _ in range(5)]
    story.ask_hand_over(2)
    assert all(each.acknowledged for each in sent)
    story.until_leads(2)
    assert story.end(2) == 6
    story.promise_all()
    story.finish()


def test_of_several_successors_the_one_that_has_everything_leads() -> None:
    """b2 comes first in order and lacks records; b3 has them: the leader knows that, and names b3."""
    story = Scenario()
    story.produce(to=1)
    story.block(1, 2)
    story.send(to=1, acks=1)
    story.until_end(3, 2)
    story.announce_stop(1)
    story.until_leads(3)
    assert story.in_sync == [2, 3], "and b1, which stops, has left the in-sync set with the same write"
    story.unblock(1, 2)
    story.stop(1)
    story.start(1)
    story.promise_all()
    story.finish()


def test_appends_stop_for_the_successor_and_go_on_without_it() -> None:
    """b2 fetches, and its answers do not come: appends are refused for a moment, then the hand-over is abandoned."""
    story = Scenario()
    story.produce(to=1)
    before = lag_behind(story, 2)
    story.ask_hand_over(2)
    fall_short(story, 2)
    refused = story.send(to=1, acks=1)
    assert refused.error is not None
    assert (refused.error.code, refused.error.outcome) == (ErrorCode.LEADER_NOT_AVAILABLE, Outcome.NOT_APPLIED)
    story.until(lambda: not story.refuses_appends(1), "b1 accepts appends again")
    assert story.in_sync == [1, 2, 3], "it does not wait until b2 is late"
    after = story.send(to=1, acks=1)
    assert before.acknowledged
    story.until(lambda: after.acknowledged, "b1 appends again")
    story.until(lambda: not story.state.successors, "b1 says that it leads on")
    assert story.leads(1)
    story.unblock(1, 2)
    story.promise_all()
    story.finish()


def test_the_controller_repeats_its_request() -> None:
    """A leader that stops and abandons is asked again, and hands over once its successor is fast enough."""
    story = Scenario()
    story.produce(to=1)
    lag_behind(story, 2, 3)
    story.announce_stop(1)
    fall_short(story, 2, 3)
    story.until(lambda: not story.refuses_appends(1), "b1 accepts appends again")
    story.send(to=1, acks=1)
    story.unblock(1, 2)
    story.unblock(1, 3)
    story.until(lambda: story.leads(2) or story.leads(3), "another leads")
    story.stop(1)
    story.start(1)
    story.promise_all()
    story.finish()


def test_appends_go_on_where_etcd_does_not_answer() -> None:
    """H84: the write that names b2 gets no answer; b1 does not wait for etcd, and what becomes of it is seen later."""
    story = Scenario()
    story.produce(to=1)
    story.mute(1)
    story.ask_hand_over(2)
    story.until(lambda: story.refuses_appends(1), "b1 stops appends and names b2")
    story.until(lambda: not story.refuses_appends(1), "b1 gets no answer, and accepts appends again")
    assert story.send(to=1, acks=1).acknowledged
    story.unmute(1)
    story.finish()


def test_a_leader_that_dies_while_it_hands_over_is_succeeded_by_election() -> None:
    """Its successor has not been named: the controller elects, and what was asked for is void."""
    story = Scenario()
    story.produce(to=1)
    lag_behind(story, 2)
    story.ask_hand_over(2)
    fall_short(story, 2)
    story.kill(1)
    story.until_leads(2)
    assert story.state.successors == ()
    story.unblock(1, 2)
    story.start(1)
    story.finish()


def test_a_controller_that_dies_after_its_request_is_not_missed() -> None:
    """The key says what was asked for, and the leader names the next one itself."""
    story = Scenario()
    story.produce(to=1)
    story.send(to=1, acks=1)
    story.ask_hand_over(2)
    for coordinator in story.cluster.coordinators:
        coordinator.kill()
    story.until_leads(2)
    story.promise_all()
    story.finish()


def test_a_leader_that_stops_alone_in_sync_waits_for_who_may_succeed_it() -> None:
    """b2 and b3 lag, left and stay eligible: one of them would be elected at once, without what only b1 has."""
    story = Scenario(min_insync_replicas=3)
    story.promise_all()
    story.separate(1, 2, 3)
    story.break_streams(1, 2)
    story.break_streams(1, 3)
    story.until_in_sync(1)
    sent = story.send(to=1, acks=1)
    story.until(lambda: sent.acknowledged, "b1 acknowledges it alone")
    node = story.cluster.brokers[1]
    broker = node.broker
    assert broker is not None
    node.wanted = False
    broker.stop()
    story.run_for(500)
    assert node.broker is broker, "it waits"
    story.reunite(1, 2, 3)
    story.until(lambda: node.broker is None, "b1 has stopped")
    story.until(lambda: story.cluster.leader_host(story.key) is not None, "a leader is elected")
    story.start(1)
    story.until_in_sync(1, 2, 3)
    story.until_end(1, 1)
    story.finish()
