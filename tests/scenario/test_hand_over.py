"""A leadership that moves in order takes along what only its leader has acknowledged (H24)."""

from headrace.wire.errors import ErrorCode, Outcome

from tests.simulation.scenario import LARGE, Scenario, Sent


def lag_behind(scenario: Scenario, *broker_ids: int) -> Sent:
    """Let followers lack several answers' worth of what their leader b1 has acknowledged; the last record of it."""
    for broker_id in broker_ids:
        scenario.block(1, broker_id)
    return [scenario.send(to=1, acks=1, value=LARGE) for _ in range(5)][-1]


def fall_short(scenario: Scenario, *broker_ids: int) -> None:
    """Unblock these links, and block them again when b1 stops appends for the brokers."""
    for broker_id in broker_ids:
        scenario.unblock(1, broker_id)
    scenario.until(lambda: scenario.refuses_appends(1), "b1 stops appends")
    for broker_id in broker_ids:
        scenario.block(1, broker_id)


def test_the_successor_has_all_that_the_leader_acknowledged() -> None:
    """b1 acknowledges records that no other replica has, and is asked to hand over: b2 copies them, and then leads."""
    scenario = Scenario()
    scenario.produce(to=1)
    sent = [scenario.send(to=1, acks=1) for _ in range(5)]
    scenario.ask_hand_over(2)
    assert all(each.acknowledged for each in sent)
    scenario.until_leads(2)
    assert scenario.end(2) == 6
    scenario.promise_all()
    scenario.finish()


def test_of_several_successors_the_one_that_has_everything_leads() -> None:
    """b2 comes first in order and lacks records; b3 has them: the leader knows that, and names b3."""
    scenario = Scenario()
    scenario.produce(to=1)
    scenario.block(1, 2)
    scenario.send(to=1, acks=1)
    scenario.until_end(3, 2)
    scenario.announce_stop(1)
    scenario.until_leads(3)
    assert scenario.in_sync == [2, 3], "and b1, which stops, has left the in-sync set with the same write"
    scenario.unblock(1, 2)
    scenario.stop(1)
    scenario.start(1)
    scenario.promise_all()
    scenario.finish()


def test_appends_stop_for_the_successor_and_go_on_without_it() -> None:
    """b2 fetches, and its answers do not come: appends are refused for a moment, then the hand-over is abandoned."""
    scenario = Scenario()
    scenario.produce(to=1)
    before = lag_behind(scenario, 2)
    scenario.ask_hand_over(2)
    fall_short(scenario, 2)
    refused = scenario.send(to=1, acks=1)
    assert refused.error is not None
    assert (refused.error.code, refused.error.outcome) == (ErrorCode.LEADER_NOT_AVAILABLE, Outcome.NOT_APPLIED)
    scenario.until(lambda: not scenario.refuses_appends(1), "b1 accepts appends again")
    assert scenario.in_sync == [1, 2, 3], "it does not wait until b2 is late"
    after = scenario.send(to=1, acks=1)
    assert before.acknowledged
    scenario.until(lambda: after.acknowledged, "b1 appends again")
    scenario.until(lambda: not scenario.state.successors, "b1 says that it leads on")
    assert scenario.leads(1)
    scenario.unblock(1, 2)
    scenario.promise_all()
    scenario.finish()


def test_the_controller_repeats_its_request() -> None:
    """A leader that stops and abandons is asked again, and hands over once its successor is fast enough."""
    scenario = Scenario()
    scenario.produce(to=1)
    lag_behind(scenario, 2, 3)
    scenario.announce_stop(1)
    fall_short(scenario, 2, 3)
    scenario.until(lambda: not scenario.refuses_appends(1), "b1 accepts appends again")
    scenario.send(to=1, acks=1)
    scenario.unblock(1, 2)
    scenario.unblock(1, 3)
    scenario.until(lambda: scenario.leads(2) or scenario.leads(3), "another leads")
    scenario.stop(1)
    scenario.start(1)
    scenario.promise_all()
    scenario.finish()


def test_appends_go_on_where_etcd_does_not_answer() -> None:
    """H84: the write that names b2 gets no answer; b1 does not wait for etcd, and what becomes of it is seen later."""
    scenario = Scenario()
    scenario.produce(to=1)
    scenario.mute(1)
    scenario.ask_hand_over(2)
    scenario.until(lambda: scenario.refuses_appends(1), "b1 stops appends and names b2")
    scenario.until(lambda: not scenario.refuses_appends(1), "b1 gets no answer, and accepts appends again")
    assert scenario.send(to=1, acks=1).acknowledged
    scenario.unmute(1)
    scenario.finish()


def test_a_leader_that_dies_while_it_hands_over_is_succeeded_by_election() -> None:
    """Its successor has not been named: the controller elects, and what was asked for is void."""
    scenario = Scenario()
    scenario.produce(to=1)
    lag_behind(scenario, 2)
    scenario.ask_hand_over(2)
    fall_short(scenario, 2)
    scenario.kill(1)
    scenario.until_leads(2)
    assert scenario.state.successors == ()
    scenario.unblock(1, 2)
    scenario.start(1)
    scenario.finish()


def test_a_controller_that_dies_after_its_request_is_not_missed() -> None:
    """The key says what was asked for, and the leader names the next one itself."""
    scenario = Scenario()
    scenario.produce(to=1)
    scenario.send(to=1, acks=1)
    scenario.ask_hand_over(2)
    for coordinator in scenario.cluster.coordinators:
        coordinator.kill()
    scenario.until_leads(2)
    scenario.promise_all()
    scenario.finish()


def test_a_leader_that_stops_alone_in_sync_waits_for_who_may_succeed_it() -> None:
    """b2 and b3 lag, left and stay eligible: one of them would be elected at once, without what only b1 has."""
    scenario = Scenario(min_insync_replicas=3)
    scenario.promise_all()
    scenario.separate(1, 2, 3)
    scenario.break_streams(1, 2)
    scenario.break_streams(1, 3)
    scenario.until_in_sync(1)
    sent = scenario.send(to=1, acks=1)
    scenario.until(lambda: sent.acknowledged, "b1 acknowledges it alone")
    node = scenario.cluster.brokers[1]
    broker = node.broker
    assert broker is not None
    node.wanted = False
    broker.stop()
    scenario.run_for(500)
    assert node.broker is broker, "it waits"
    scenario.reunite(1, 2, 3)
    scenario.until(lambda: node.broker is None, "b1 has stopped")
    scenario.until(lambda: scenario.cluster.leader_host(scenario.key) is not None, "a leader is elected")
    scenario.start(1)
    scenario.until_in_sync(1, 2, 3)
    scenario.until_end(1, 1)
    scenario.finish()
