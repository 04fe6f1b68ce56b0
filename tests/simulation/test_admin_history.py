"""The checker of administrators' requests finds each planted violation, and nothing in good histories."""

import pytest

from tests.simulation.admin_history import (
    CONFIGURE,
    CREATE,
    DELETE,
    GROW,
    MOVE,
    OK,
    REFUSED,
    UNKNOWN,
    Change,
    Replicas,
    TopicVersion,
    check_moves,
    check_topic,
)


def create(begin, end, mark, topic_id=b"", outcome=OK, error=""):
    return Change("a", CREATE, begin, end, outcome, error, "t", mark, {"mark": mark}, topic_id=topic_id)


def configure(begin, end, mark, outcome=OK, error="", **settings):
    return Change("a", CONFIGURE, begin, end, outcome, error, "t", mark, {"mark": mark, **settings})


def delete(begin, end, outcome=OK, error=""):
    return Change("a", DELETE, begin, end, outcome, error, "t")


def version(order, topic_id=b"", partitions=1, **settings):
    return TopicVersion(order, topic_id, partitions if topic_id else 0, settings)


CHANGES = [
    create(1, 4, "1", b"x"),
    create(2, 5, "2", outcome=REFUSED, error="TOPIC_ALREADY_EXISTS"),
    configure(10, 15, "3", least="2"),
    configure(11, 16, "4", size="9"),
    configure(17, 18, "5", REFUSED, least="3"),
    Change("a", GROW, 20, 22, OK, topic="t", partitions=2),
    configure(23, 24, "6", UNKNOWN, least="3"),
    delete(30, 40),
    delete(31, 41),
    delete(42, 43, REFUSED, "UNKNOWN_TOPIC"),
    create(50, 51, "7", outcome=UNKNOWN),
]
VERSIONS = [
    version(0),
    version(3, b"x", mark="1"),
    version(13, b"x", mark="4", size="9"),
    version(14, b"x", mark="3", size="9", least="2"),
    version(21, b"x", 2, mark="3", size="9", least="2"),
    version(26, b"x", 2, mark="6", size="9", least="3"),
    version(35),
    version(55, b"y", mark="7"),
]


def test_a_good_history_of_a_topic_has_no_problem():
    assert check_topic(CHANGES, VERSIONS, "mark") == []


@pytest.mark.parametrize(
    ("changes", "versions", "what"),
    [
        ([configure(60, 62, "8", least="2")], [], "acknowledged and not applied"),
        ([configure(60, 62, "8")], [version(63, b"y", mark="8")], "was stored after"),
        ([configure(60, 62, "8", REFUSED)], [version(61, b"y", mark="8")], "was stored after"),
        ([configure(60, 70, "8"), configure(61, 71, "9", n="1")],
         [version(62, b"y", mark="9", n="1"), version(63, b"y", mark="8")], "was stored after"),
        ([], [version(61, b"y", 3, mark="7")], "asked for by no request"),
        ([], [version(61, b"y", 2, mark="7")], "asked for by a grow"),
        ([], [version(61)], "asked for by a delete"),
        ([delete(60, 62)], [], "acknowledged and not applied"),
        ([delete(60, 62, REFUSED, "UNKNOWN_TOPIC")], [], "refused without a reason"),
        ([delete(60, 61), create(63, 66, "8", b"", UNKNOWN, "TOPIC_ALREADY_EXISTS")],
         [version(60), version(64, b"z", mark="8")], "refused without a reason"),
        ([delete(60, 64), create(62, 66, "8", b"z", REFUSED, "TOPIC_ALREADY_EXISTS")],
         [version(61), version(63, b"z", mark="8")], "was stored after"),
        ([delete(60, 64), create(65, 66, "8", b"", REFUSED, "TOPIC_ALREADY_EXISTS")],
         [version(61)], "refused without a reason"),
        ([delete(60, 64), create(65, 67, "8", b"v")], [version(61), version(66, b"z", mark="8")], "not applied"),
        ([Change("a", GROW, 60, 62, OK, topic="t", partitions=2)], [], "acknowledged and not applied"),
    ],
)  # fmt: skip
def test_each_violation_of_a_topic_is_told(changes, versions, what):
    found = check_topic([*CHANGES, *changes], [*VERSIONS, *versions], "mark")
    assert any(what in problem for problem in found), found


def test_a_stale_read_may_refuse_what_is_there():
    late = [*CHANGES, delete(60, 62, REFUSED, "UNKNOWN_TOPIC")]
    assert check_topic(late, VERSIONS, "mark", has_stale_reads=True) == []


def move(begin, end, rate, *replicas, outcome=OK):
    return Change("a", MOVE, begin, end, outcome, mark=rate, replicas=frozenset(replicas))


def replicas(order, rate, *target):
    return Replicas(order, 0, frozenset(target), rate)


MOVES = [move(1, 3, "1", 1, 2), move(5, 6, "2", 2, 3, outcome=UNKNOWN), move(10, 11, "3", 1, 3, outcome=REFUSED)]
PLACES = [replicas(0, "", 1, 3), replicas(2, "1", 1, 2), replicas(4, "1", 1, 2), replicas(9, "2", 2, 3)]


def test_a_good_history_of_moves_has_no_problem():
    assert check_moves(MOVES, PLACES) == []


@pytest.mark.parametrize(
    ("moves", "places", "what"),
    [
        ([move(20, 22, "4", 1, 2)], [], "acknowledged and not applied"),
        ([move(20, 22, "4", 1, 2)], [replicas(23, "4", 1, 2)], "was stored, and asked for by a move"),
        ([], [replicas(12, "3", 1, 3)], "was stored, and asked for by a move"),
        ([], [replicas(12, "9", 1, 3)], "asked for by no request"),
    ],
)
def test_each_violation_of_moves_is_told(moves, places, what):
    found = check_moves([*MOVES, *moves], [*PLACES, *places])
    assert any(what in problem for problem in found), found
