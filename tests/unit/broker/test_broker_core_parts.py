"""The replica's parts alone: the leader's table of followers, its proposals, the produces that wait."""

from __future__ import annotations

import itertools

import pytest
from headrace.wire.ids import Offset
from headrace_broker.core.acknowledgements import Acknowledgements
from headrace_broker.core.followers import Follower, FollowerTable
from headrace_broker.core.messages import Propose
from headrace_broker.core.proposals import Proposals
from headrace_server.partition_state import PartitionState, Replica, join
from hypothesis import given
from hypothesis import strategies as st

LAG_MAX_MS = 10_000
STARTED_MS = 1_000
FOLLOWER = Replica(2, 20)
OTHER = Replica(3, 30)


class Table:
    """A table whose log grows as the test says."""

    def __init__(self, *, flushed_only: bool = False) -> None:
        self.table = FollowerTable(STARTED_MS)
        self.flushed_only = flushed_only

    def fetch(
        self, offset: int, at_ms: int, *, end: int, durable: int | None = None, who: Replica = FOLLOWER
    ) -> Follower:
        return self.table.note(
            who,
            Offset(offset),
            Offset(offset if durable is None else durable),
            at_ms,
            log_start_offset=0,
            log_end_offset=Offset(end),
            flushed_only=self.flushed_only,
        )

    def is_late(self, at_ms: int, who: Replica = FOLLOWER) -> bool:
        return self.table.behind([who], at_ms, LAG_MAX_MS) == [who]


# --- followers ---


def test_who_has_everything_is_caught_up_at_its_fetch() -> None:
    """KIP-16: the time that counts is the last one at which the follower had all there was."""
    table = Table()
    table.fetch(5, 4_000, end=5)
    assert not table.is_late(4_000 + LAG_MAX_MS)
    assert table.is_late(4_001 + LAG_MAX_MS)


def test_who_reached_the_end_of_its_last_fetch_was_caught_up_then() -> None:
    """Under steady writes no follower reaches the log end: the log end at its previous fetch counts."""
    table = Table()
    table.fetch(5, 4_000, end=8)
    assert table.is_late(STARTED_MS + LAG_MAX_MS + 1)
    table.fetch(8, 6_000, end=12)
    assert not table.is_late(4_000 + LAG_MAX_MS)
    assert table.is_late(4_001 + LAG_MAX_MS)
    table.fetch(11, 8_000, end=20)  # not all of what was there at 6_000
    assert table.is_late(4_001 + LAG_MAX_MS)


def test_who_never_fetched_is_late_from_the_start_of_the_epoch() -> None:
    """H5: nothing of an earlier epoch counts, and the time to connect is given."""
    table = Table()
    assert not table.is_late(STARTED_MS + LAG_MAX_MS)
    assert table.is_late(STARTED_MS + LAG_MAX_MS + 1)


def test_a_flushed_offset_is_what_counts_where_only_flushed_records_do() -> None:
    """H22: with durability=fsync a follower is as far as its disk."""
    table = Table(flushed_only=True)
    follower = table.fetch(5, 4_000, end=5, durable=3)
    assert follower.acknowledged(flushed_only=True) == 3
    assert follower.acknowledged(flushed_only=False) == 5
    assert table.is_late(STARTED_MS + LAG_MAX_MS + 1)
    table.fetch(5, 5_000, end=5, durable=5)
    assert not table.is_late(5_000 + LAG_MAX_MS)


def test_an_idle_follower_is_caught_up_as_long_as_it_lives() -> None:
    """Its fetch waits at the leader for hours: heartbeats count, of that session, and only with everything."""
    table = Table()
    table.fetch(5, 4_000, end=5)

    def hear(who: Replica, at_ms: int, *, end: int) -> None:
        table.table.note_heard({who: at_ms}, log_end_offset=Offset(end), flushed_only=False)

    hear(FOLLOWER, 50_000, end=5)
    assert not table.is_late(50_000 + LAG_MAX_MS)
    hear(FOLLOWER, 60_000, end=6)  # it lives, and has not got the new record
    hear(Replica(2, 21), 60_000, end=5)  # that is another session
    hear(FOLLOWER, 40_000, end=5)  # time does not go back
    assert table.is_late(50_001 + LAG_MAX_MS)


def test_a_session_is_another_follower_with_the_time_of_the_one_before() -> None:
    """H16, H17: what an earlier session acknowledged does not count; that it was in time does."""
    table = Table()
    table.fetch(5, 50_000, end=5)
    again = Replica(2, 21)
    assert table.table.get(again) is None
    assert not table.is_late(50_000 + LAG_MAX_MS, again)
    assert table.is_late(50_001 + LAG_MAX_MS, again)
    table.fetch(3, 51_000, end=5, who=again)
    assert table.table.get(FOLLOWER) is None
    assert (table.table.last_session(2), table.table.last_session(3)) == (21, -1)
    found = table.table.get(again)
    assert found is not None
    assert (found.offset, found.caught_up_ms) == (3, 50_000)
    assert [each.replica for each in table.table] == [again]


def test_only_those_asked_for_are_judged() -> None:
    table = Table()
    table.fetch(5, 4_000, end=5)
    table.fetch(1, 4_000, end=5, who=OTHER)
    at_ms = STARTED_MS + LAG_MAX_MS + 1
    assert table.table.behind([FOLLOWER, OTHER], at_ms, LAG_MAX_MS) == [OTHER]
    assert table.table.behind([FOLLOWER], at_ms, LAG_MAX_MS) == []


# --- proposals ---

BASE = PartitionState((1, 2, 3), Replica(1, 10), 4, (Replica(1, 10),))
WITH_FOLLOWER = join(BASE, FOLLOWER)
WITH_OTHER = join(BASE, OTHER)


def sent(proposals: Proposals, state: PartitionState) -> Propose:
    return proposals.send(state, 77, (Replica(1, 10),))


def test_a_proposal_counts_from_the_moment_it_is_sent() -> None:
    """I4, H11: who may be in the set already is waited for."""
    proposals = Proposals(itertools.count(1))
    assert (proposals.under_way, proposals.unresolved, proposals.members()) == (False, False, [])
    proposal = sent(proposals, WITH_FOLLOWER)
    assert proposal == Propose(1, WITH_FOLLOWER, 77, (Replica(1, 10),))
    assert (proposals.under_way, proposals.unresolved) == (True, True)
    assert proposals.members() == list(WITH_FOLLOWER.in_sync)


def test_one_at_a_time() -> None:
    """H23: at most one change of a partition is in flight."""
    proposals = Proposals(itertools.count(1))
    sent(proposals, WITH_FOLLOWER)
    with pytest.raises(AssertionError, match="H23"):
        sent(proposals, WITH_OTHER)


def test_without_an_answer_it_counts_on() -> None:
    """C2, C3, H12: neither the silence nor a further proposal undoes it; only a newer version of the key does."""
    proposals = Proposals(itertools.count(1))
    first = sent(proposals, WITH_FOLLOWER)
    assert proposals.take_answer(first.number) == WITH_FOLLOWER
    assert (proposals.under_way, proposals.unresolved) == (False, True)
    second = sent(proposals, WITH_OTHER)
    assert {FOLLOWER, OTHER} <= set(proposals.members())
    assert proposals.take_answer(second.number) == WITH_OTHER
    proposals.discard(second.number)  # it certainly failed, which says nothing of the first
    assert set(proposals.members()) == set(WITH_FOLLOWER.in_sync)
    proposals.clear()
    assert (proposals.unresolved, proposals.members()) == (False, [])


def test_answers_of_old_numbers_say_nothing() -> None:
    """A late answer is of a version that is past, or of a proposal that was given up as unanswered."""
    proposals = Proposals(itertools.count(1))
    first = sent(proposals, WITH_FOLLOWER)
    proposals.clear()
    assert proposals.take_answer(first.number) is None
    second = sent(proposals, WITH_OTHER)
    assert second.number > first.number
    assert proposals.take_answer(first.number) is None
    assert proposals.under_way
    assert proposals.take_answer(second.number) == WITH_OTHER
    assert proposals.take_answer(second.number) is None
    proposals.discard(first.number)
    assert proposals.unresolved


# --- acknowledgements ---


def test_waits_end_in_the_order_of_their_offsets() -> None:
    """I9: at the offset itself, not before; at equal offsets all of them."""
    waiting = Acknowledgements()
    for end_offset, token in [(5, 1), (3, 2), (5, 3), (9, 4)]:
        waiting.add(end_offset, token)
    assert waiting.release(2) == []
    assert waiting.release(3) == [2]
    assert waiting.release(8) == [1, 3]
    assert waiting
    assert waiting.release(9) == [4]
    assert not waiting


def test_dropped_waits_are_not_answered() -> None:
    waiting = Acknowledgements()
    waiting.add(3, 1)
    waiting.add(4, 2)
    waiting.drop(1)
    waiting.drop(99)
    assert waiting.release(3) == []
    assert waiting.take_all() == [2]
    assert (bool(waiting), waiting.release(10)) == (False, [])


def test_a_wait_for_what_is_committed_is_a_bug() -> None:
    waiting = Acknowledgements()
    waiting.add(3, 1)
    waiting.validate(2)
    with pytest.raises(AssertionError, match="I9"):
        waiting.validate(3)
    waiting.drop(1)
    waiting.validate(3)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 30)),
            st.tuples(st.just("drop"), st.integers(0, 20)),
            st.tuples(st.just("release"), st.integers(0, 30)),
        ),
        max_size=40,
    )
)
def test_acknowledgements_agree_with_a_list(steps: list[tuple[str, int]]) -> None:
    """Each wait is answered once, or dropped; never before its offset."""
    waiting, model = Acknowledgements(), dict[int, int]()
    for token, (what, value) in enumerate(steps):
        match what:
            case "add":
                waiting.add(value, token)
                model[token] = value
            case "drop":
                waiting.drop(value)
                model.pop(value, None)
            case _:
                due = sorted((end, token) for token, end in model.items() if end <= value)
                assert waiting.release(value) == [token for _, token in due]
                for _, released in due:
                    del model[released]
        assert bool(waiting) == bool(model)
    assert waiting.take_all() == [token for _, token in sorted((end, token) for token, end in model.items())]
