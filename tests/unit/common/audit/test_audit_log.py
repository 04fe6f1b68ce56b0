"""Events of the audit log: acts with what they name, refusals at a bounded rate, and none lost without a word."""

import json
from dataclasses import replace

from headrace.v1 import cluster_pb2, groups_pb2, topics_pb2
from headrace_server.audit.audit_log import (
    MAX_EVENT_BYTES,
    MAX_REPEATED,
    MAX_TOPICS_OF_USER,
    MAX_WAITING,
    MAX_WAITING_BYTES,
    REPEATED_MS,
    AuditLog,
)
from headrace_server.audit.events import (
    MAX_NAME_CHARACTERS,
    MAX_REQUEST_CHARACTERS,
    MAX_RESOURCES,
    AuditEvent,
    describe_request,
    resources_of,
)
from prometheus_client import CollectorRegistry, Counter

from tests.fakes.manual_clock import ManualClock


def event(time_ms=0, user="ada", method="Fetch", kind="refusal", **fields):
    return AuditEvent(time_ms, "broker-1", user, "API key", "10.0.0.1", method, kind, **fields)


def audit_log(clock=None, *, is_on=True):
    counter = Counter("lost", "-", registry=CollectorRegistry())
    return AuditLog(counter, lambda: is_on, clock or ManualClock())


def counts(log):
    return [(found.kind, found.count) for found in log.take(1_000_000)]


def test_refusals_of_a_second_are_one_event_with_their_number():
    """The first at once, the others after a second, each user and method by itself."""
    clock = ManualClock()
    log = audit_log(clock)
    for number in range(1_000):
        log.note_repeated(event(number))
    log.note_repeated(event(999, user="bob"))
    log.note_repeated(event(999, method="Produce"))
    assert counts(log) == [("refusal", 1)] * 3
    clock.advance(REPEATED_MS - 1)
    log.flush()
    assert counts(log) == []
    clock.advance(1)
    log.flush()
    assert counts(log) == [("refusal", 999)]
    clock.advance(2 * REPEATED_MS)
    log.flush()
    assert not log.holds_repeated
    log.note_repeated(event(4 * REPEATED_MS))
    assert counts(log) == [("refusal", 1)]


def test_data_calls_are_told_apart_from_refusals_and_by_topic():
    """One event a second for each topic that a user reads."""
    clock = ManualClock()
    log = audit_log(clock)
    for number in range(100):
        log.note_repeated(event(number))
        for topic in ("a", "b"):
            log.note_repeated(event(number, kind="data", resources=(f"topic:{topic}",)))
    clock.advance(REPEATED_MS)
    log.flush()
    found = [(each.kind, each.resources, each.count) for each in log.take(100)]
    assert sorted(found) == [
        ("data", ("topic:a",), 1),
        ("data", ("topic:a",), 99),
        ("data", ("topic:b",), 1),
        ("data", ("topic:b",), 99),
        ("refusal", (), 1),
        ("refusal", (), 99),
    ]


def test_many_names_are_told_apart_up_to_a_bound():
    """A stranger cannot fill the memory with names. What is said of all others says nothing of the last one."""
    clock = ManualClock()
    log = audit_log(clock)
    for number in range(3 * MAX_REPEATED):
        log.note_repeated(event(0, user=f"u{number}"))
    clock.advance(REPEATED_MS)
    log.flush()
    found = log.take(1_000_000)
    assert len(found) == MAX_REPEATED + 2
    assert sum(each.count for each in found) == 3 * MAX_REPEATED
    others = AuditEvent(0, "broker-1", "", "", "", "", "refusal")
    assert found[-2:] == [others, replace(others, count=2 * MAX_REPEATED - 1)]


def read(user, topic):
    return event(user=user, kind="data", resources=(f"topic:{topic}",))


def test_a_user_with_many_topics_leaves_room_for_the_reads_of_others():
    """Else it could hide them, and its own, behind topics that it has created. The rest is told of it by number."""
    clock = ManualClock()
    log = audit_log(clock)
    for _ in range(2):
        for number in range(MAX_REPEATED):
            log.note_repeated(read("eve", f"eve-{number}"))
        log.note_repeated(read("bob", "payroll"))
        taken = log.take(1_000_000)
        told = {(each.user, each.resources) for each in taken}
        assert ("bob", ("topic:payroll",)) in told
        assert {user for user, _ in told} == {"eve", "bob"}
        assert len(told) == MAX_TOPICS_OF_USER + 2
        assert sum(each.user == "eve" and not each.resources for each in taken) == 1
        clock.advance(REPEATED_MS)
        log.flush()
        rest = [each.count for each in log.take(1_000_000) if not each.resources]
        assert rest == [MAX_REPEATED - MAX_TOPICS_OF_USER - 1]
        for _ in range(2):
            clock.advance(REPEATED_MS)
            log.flush()
        assert not log.holds_repeated


def test_a_clock_that_is_set_back_holds_no_event():
    clock = ManualClock()
    log = audit_log(clock)
    log.note_repeated(event(clock.now_ms()))
    clock.set_wall(-3_600_000)
    log.note_repeated(event(clock.now_ms()))
    assert counts(log) == [("refusal", 1)]
    clock.advance(REPEATED_MS)
    log.flush()
    assert counts(log) == [("refusal", 1)]


def test_lost_events_are_counted_and_are_an_event():
    log = audit_log()
    for number in range(MAX_WAITING + 3):
        log.note_act(event(number, kind="act"))
    assert len(log) == MAX_WAITING
    assert [found.kind for found in log.take(10)] == ["act"] * 10
    rest = log.take(MAX_WAITING)
    assert (rest[-1].kind, rest[-1].count, rest[-1].server) == ("lost", 3, "broker-1")
    assert log.take(10) == []


def test_large_events_take_bounded_memory():
    """Those beyond it are lost and counted as any; what was taken and given back counts once."""
    log = audit_log()
    large = event(kind="act", request="x" * 4_096)
    size_bytes = len(large.to_json())
    fit = MAX_WAITING_BYTES // size_bytes
    for _ in range(fit + 10):
        log.note_act(large)
    assert len(log) == fit
    taken = log.take(5, 3 * size_bytes)
    assert taken == [large] * 3
    log.give_back(taken)
    assert len(log) == fit
    assert len(log.take(1, 1)) == 1


def test_events_that_were_not_written_come_again_in_order():
    log = audit_log()
    for number in range(5):
        log.note_act(event(number, kind="act"))
    taken = log.take(3)
    log.give_back(taken)
    assert [found.time_ms for found in log.take(10)] == [0, 1, 2, 3, 4]


def test_an_open_cluster_writes_nothing():
    log = audit_log(is_on=False)
    log.note_act(event(kind="act"))
    log.note_repeated(event())
    assert len(log) == 0


def test_an_event_names_topics_and_groups_of_request_and_response():
    """A topic that was deleted by id has its name in the response alone."""
    request = cluster_pb2.DeleteTopicsRequest(topics=[topics_pb2.TopicRef(topic_id=bytes(16))])
    response = cluster_pb2.DeleteTopicsResponse(topics=[cluster_pb2.TopicResult(name="clicks", topic_id=bytes(16))])
    assert resources_of(request, response) == ("topic:clicks",)
    new = cluster_pb2.CreateTopicsRequest(topics=[cluster_pb2.NewTopic(name="a"), cluster_pb2.NewTopic(name="b")])
    assert resources_of(new, None) == ("topic:a", "topic:b")
    assert resources_of(groups_pb2.DeleteGroupsRequest(group_ids=["g", "h"])) == ("group:g", "group:h")


def test_a_record_is_json_and_a_long_request_is_cut():
    new = cluster_pb2.CreateTopicsRequest(topics=[cluster_pb2.NewTopic(name="é")])
    found = json.loads(event(5, kind="act", request=describe_request(new)).to_json())
    assert found["request"] == {"topics": [{"name": "é"}]}
    assert (found["version"], found["time_ms"], found["user"]) == (1, 5, "ada")
    many = cluster_pb2.CreateTopicsRequest(topics=[cluster_pb2.NewTopic(name="x" * 200)] * 50)
    assert len(describe_request(many)) == MAX_REQUEST_CHARACTERS
    too_many = cluster_pb2.CreateTopicsRequest(topics=[cluster_pb2.NewTopic(name=f"t{n}") for n in range(10_000)])
    assert describe_request(too_many) == f"{too_many.ByteSize()} bytes"
    assert len(resources_of(too_many)) == MAX_RESOURCES


def test_a_name_that_no_topic_can_have_is_cut():
    """In the log of the server, too: the name is the caller's, and a call has one of a megabyte."""
    for character, size_bytes in (("x", 1), ("\x01", 6), ("é", 2), ("\U0001f600", 4)):
        names = [f"{number}{character * 10_000}" for number in range(MAX_RESOURCES)]
        request = cluster_pb2.DeleteTopicsRequest(topics=[topics_pb2.TopicRef(name=name) for name in names])
        resources = resources_of(request, None)
        assert {len(found) for found in resources} == {len("topic:...") + MAX_NAME_CHARACTERS}
        assert len(resources) == MAX_RESOURCES
        whole = event(kind="act", resources=resources, request=describe_request(request))
        assert len(whole.to_json()) <= MAX_RESOURCES * (MAX_NAME_CHARACTERS * size_bytes + 20) + 1_000
        assert len(whole.to_json()) <= MAX_EVENT_BYTES
    (cut,) = resources_of(groups_pb2.DeleteGroupsRequest(group_ids=["g" * 1_000_000]))
    assert cut == f"group:{'g' * MAX_NAME_CHARACTERS}..."


def test_an_event_that_no_write_takes_is_lost_and_counted():
    """It would be written again and again, and all later ones would wait for it."""
    log = audit_log()
    log.note_act(event(1, kind="act", request="x" * MAX_EVENT_BYTES))
    assert log.take(10) == []
    log.note_act(event(2, kind="act"))
    assert counts(log) == [("act", 1), ("lost", 1)]
