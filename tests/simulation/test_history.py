"""The history checker names every anomaly: hand-made histories, one good, the others broken in one way each."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tests.simulation import history
from tests.simulation.history import ANOMALIES, FAIL, OK, UNKNOWN, Final, Poll, Send, check


def send(*values, offset, outcome=OK, process="w0", promised=True, at=0):
    return Send(process, 0, values, outcome, offset, promised, at, at + 1)


def poll(start, *values, process="r0", offsets=None):
    return Poll(process, 0, start, tuple(zip(offsets or range(start, start + len(values)), values, strict=True)))


def final(*values, replica="b1", start=0, offsets=None):
    return Final(replica, 0, start, tuple(zip(offsets or range(start, start + len(values)), values, strict=True)))


def names(sends, polls, finals, **options):
    """All may be removed, unless `options` say otherwise."""
    return [anomaly.name for anomaly in check(sends, polls, finals, **{"removable": {0: 9}, **options})]


SENDS = [send("a", "b", offset=0, at=1), send("c", offset=2, at=2), send("d", offset=3, outcome=UNKNOWN, at=3)]
POLLS = [poll(0, "a"), poll(1, "b", "c"), poll(3, "d")]


def test_a_good_history_has_no_anomaly():
    """What was acknowledged is there, where it was said to be, in order; an unknown send may be there or not."""
    assert names(SENDS, POLLS, [final("a", "b", "c", "d"), final("a", "b", "c", "d", replica="b2")]) == []
    assert names(SENDS, POLLS[:2], [final("a", "b", "c")]) == []


def test_what_retention_took_is_not_missed():
    """Records below the log start are gone by right, also those that readers saw."""
    assert names(SENDS, POLLS, [final("d", start=3)]) == []


DELETING = [send("~:1", "~-:2", "c", offset=0)]
PLANTED = [
    ("lost-postfix", SENDS, [], [final("a", "b")]),
    ("lost-write", SENDS, [], [final("a", "x", "c"), final("a", "x", "c", replica="b2")]),
    ("duplicate", SENDS, [], [final("a", "b", "c", "a")]),
    ("phantom", SENDS, [], [final("a", "b", "c", "e")]),
    ("aborted-read", [send("a", offset=-1, outcome=FAIL)], [], [final("a")]),
    ("ack-offset-mismatch", [send("a", offset=1), send("b", offset=0)], [], [final("a", "b")]),
    ("nonmonotonic-send", [send("a", offset=1, at=1), send("b", offset=0, at=2)], [], [final("b", "a")]),
    ("divergence-by-replica", SENDS, [], [final("a", "b", "c"), final("a", "b", "d", replica="b2")]),
    ("divergence-by-replica", SENDS, [], [final("a", "b", "c"), final("a", "b", "c", "d", replica="b2")]),
    ("gap", SENDS, [], [final("a", "b", "c", offsets=(0, 1, 3))]),
    ("gap", SENDS, [], [final("a", "b", "c"), final("b", "c", replica="b2", offsets=(1, 2))]),
    ("inconsistent-offset", SENDS, [poll(0, "a"), poll(1, "x")], [final("a", "b", "c")]),
    ("inconsistent-offset", SENDS, [poll(3, "d")], [final("a", "b", "c")]),
    ("poll-skip", SENDS, [poll(0, "a", "c", offsets=(0, 2))], [final("a", "b", "c")]),
    ("poll-skip", SENDS, [poll(1, "c", offsets=(2,))], [final("a", "b", "c")]),
    ("poll-skip", SENDS, [poll(0, "a"), poll(2, "c")], [final("a", "b", "c")]),
    ("nonmonotonic-poll", SENDS, [poll(0, "a", "b"), poll(1, "b")], [final("a", "b", "c")]),
    ("nonmonotonic-poll", SENDS, [poll(1, "a", offsets=(0,))], [final("a", "b", "c")]),
    ("resurrection", DELETING, [], [final("~:1", "~-:2", "c"), final("~:1", "c", replica="b2", offsets=(0, 2))]),
]


@pytest.mark.parametrize(("expected", "sends", "polls", "finals"), PLANTED)
def test_each_anomaly_is_named(expected, sends, polls, finals):
    """One broken promise gives its own name."""
    assert expected in names(sends, polls, finals)


def test_every_anomaly_is_planted():
    """None is looked for that no history here has; a lost prefix is planted below."""
    assert {row[0] for row in PLANTED} | {"lost-prefix"} == {*ANOMALIES, "lost-postfix"}


def test_unnumbered_records_may_be_stored_twice():
    """With acks=0 a retry may repeat a record, and change its place; it is still no phantom."""
    sends = [send(each, offset=-1, promised=False)._replace(numbered=False) for each in "ab"]
    assert names(sends, [], [final("b", "a", "b")]) == []
    assert names(sends, [], [final("a", "c")]) == ["phantom"]


COMMITTED = ("a", "b", "c", "d", "e")
LATER = [*SENDS, send("e", offset=4, at=4)]


def test_what_was_committed_and_removed_by_right_is_no_anomaly():
    """Records below the log start were judged by what was committed there, and may be gone where they were to be."""
    whole = final(*COMMITTED, replica="committed")
    assert names(LATER, POLLS, [final("d", "e", start=3)], committed=[whole], removable={0: 3}) == []
    assert names(LATER, POLLS, [final("d", "e", start=3)], committed=[whole]) == []


@pytest.mark.parametrize(
    ("expected", "sends", "polls", "committed"),
    [
        ("lost-write", LATER, [], ("a", "b", "x", "d", "e")),
        ("lost-write", [*LATER, send("f", offset=-1, at=5)], [], COMMITTED),
        ("duplicate", LATER, [], ("a", "a", "c", "d", "e")),
        ("phantom", LATER, [], ("a", "b", "x", "d", "e")),
        ("aborted-read", [*LATER, send("x", offset=-1, outcome=FAIL, at=5)], [], ("a", "b", "x", "d", "e")),
        ("ack-offset-mismatch", LATER, [], ("b", "a", "c", "d", "e")),
        ("nonmonotonic-send", LATER, [], ("a", "c", "b", "d", "e")),
        ("inconsistent-offset", LATER, [poll(0, "a", "x")], COMMITTED),
        ("divergence-by-replica", LATER, [], ("a", "b", "c", "d", "x")),
        ("divergence-by-replica", LATER, [], ("a", "b", "c", "d")),
        ("gap", LATER, [], ("a", "c", "d", "e")),
    ],
)
def test_each_anomaly_below_the_log_start_is_named(expected, sends, polls, committed):
    """What retention removed is judged as what is there: a broken promise below the lowest log start is named."""
    offsets = (0, 2, 3, 4) if expected == "gap" else range(len(committed))
    whole = final(*committed, replica="committed", offsets=offsets)
    assert expected in names(sends, polls, [final("d", "e", start=3)], committed=[whole], removable={0: 3})


def test_what_was_not_to_be_removed_is_lost():
    """A replica that begins above what anybody asked to remove has lost what lies between."""
    whole = final(*COMMITTED, replica="committed")
    replicas = [final("d", "e", start=3), final("e", start=4, replica="b2")]
    assert names(LATER, [], replicas, committed=[whole], removable={0: 3}) == ["lost-prefix"]
    assert names(LATER, [], replicas, committed=[whole], removable={0: 4}) == []


def test_what_a_forgotten_producer_sent_again_is_no_duplicate_and_nothing_else():
    """Its first place orders it; another record that is stored there twice is reported."""
    again = [send("a", offset=3, at=1), send("b", offset=1, at=2)]
    whole = final("a", "b", "c", "a", replica="committed")
    replicas = [final("c", "a", start=2)]
    assert names([*again, send("c", offset=2, at=3)], [], replicas, committed=[whole], resent=[(0, 3, 4)]) == []
    assert "duplicate" in names([*again, send("c", offset=2, at=3)], [], replicas, committed=[whole])
    assert "duplicate" in names(again, [], [final("b", "b", "c")], committed=[whole], resent=[(0, 3, 4)])


def test_what_only_readers_saw_is_judged():
    """A refused record, or one that was never sent, is an anomaly if a reader got it and the log lacks it."""
    sends = [*LATER, send("x", offset=-1, outcome=FAIL, at=5)]
    lost = [(0, 1, 3)]
    assert "aborted-read" in names(sends, [poll(0, "a", "x")], [final(*COMMITTED)], lost=lost)
    assert "phantom" in names(LATER, [poll(0, "a", "y")], [final(*COMMITTED)], lost=lost)
    assert names([*LATER, send("z", offset=1, at=5)], [poll(0, "a", "z")], [final(*COMMITTED)], lost=lost) == []


def test_a_reader_has_everything_up_to_its_end_but_what_was_replaced():
    """Compaction may have removed the last records before its end since it asked for that."""
    values = ("a", "~:1", "~:2")
    sends = [send(*values, offset=0)]
    ended = Poll("r0", 0, 1, (), end=2)
    assert names(sends, [poll(0, "a"), ended], [final(*values)]) == []
    assert names(sends, [poll(0, "a"), ended._replace(end=3)], [final(*values)]) == ["poll-skip"]
    assert names(sends, [ended._replace(start=0, end=1)], [final(*values)]) == ["poll-skip"]


def test_a_deletion_may_go_with_what_it_deletes_where_it_is_not_kept():
    """Until then it is a record as others, which replicas have and readers see."""
    whole = final("~:1", "~-:2", "c", replica="committed")
    polls = [poll(0, "~:1"), poll(1, "c", offsets=(2,))]
    without = [final("c", start=0, offsets=(2,))]
    assert names(DELETING, polls, without, committed=[whole], deletions_go=True) == []
    assert names(DELETING, [], [final("~-:2", "c", offsets=(1, 2))], committed=[whole]) == []
    assert names(DELETING, [], without, committed=[whole]) == ["gap"]
    assert "poll-skip" in names(DELETING, polls, [whole])


def test_what_an_administrator_gave_up_is_not_lost():
    """Records in the range of an unclean election may be gone or replaced."""
    sends = [*SENDS, send("e", offset=2, at=4)]
    polls = [poll(0, "a", "b", "c")]
    assert names(sends, polls, [final("a", "b", "e")]) != []
    assert names(sends, polls, [final("a", "b", "e")], lost=[(0, 2, 3)]) == []


def test_an_acknowledgement_that_promises_nothing_may_be_lost():
    """With acks 0 or 1 a record may go; what stays is at its acknowledged offset, once, in order."""
    assert names([send("a", offset=0, promised=False)], [], [final()]) == []


def test_the_checker_imports_nothing_of_headrace():
    """It imports the standard library only: it cannot share a mistake with what it judges."""
    tree = ast.parse(Path(history.__file__).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert {str(module).partition(".")[0] for module in modules} <= set(sys.stdlib_module_names)
