"""A stream's positions, committed without membership: what moved at once, the rest now and then, failures told once."""

import logging
from typing import Any

import pytest
from headrace import TopicPartition
from headrace.client.admin.groups import OffsetResult
from headrace.spark import position_commits
from headrace.spark.position_commits import IDLE_INTERVAL_S, LEAST_INTERVAL_S, StreamCommits
from headrace.wire.errors import HeadraceError, MetastoreUnavailableError, Outcome, UnknownTopicError

P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


class FakeAdmin:
    """Stores offsets, refuses partitions, or fails."""

    def __init__(self) -> None:
        self.asked: list[dict[TopicPartition, int]] = []
        self.refused: dict[TopicPartition, HeadraceError] = {}
        self.failure: HeadraceError | None = None

    def reset_group_offsets(self, group: str, offsets: dict[TopicPartition, int], *, timeout: float) -> Any:
        assert (group, timeout) == ("nightly", LEAST_INTERVAL_S)
        self.asked.append(dict(offsets))
        if self.failure is not None:
            raise self.failure
        return [OffsetResult(*where, offset, self.refused.get(where)) for where, offset in offsets.items()]


class Clock:
    """The time that `position_commits` reads."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def admin() -> FakeAdmin:
    return FakeAdmin()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(position_commits, "time", clock)
    return clock


@pytest.fixture
def commits(admin: Any, clock: Clock) -> StreamCommits:
    return StreamCommits(admin, "nightly")


def test_only_what_moved_is_committed_and_all_of_it_after_an_hour(
    admin: FakeAdmin, clock: Clock, commits: StreamCommits
) -> None:
    """A stream at rest commits nothing until its offsets could expire."""
    commits.done({P0: 5, P1: 5})
    clock.now += LEAST_INTERVAL_S
    commits.done({P0: 6, P1: 5})
    commits.idle()
    assert admin.asked == [{P0: 5, P1: 5}, {P0: 6}]
    clock.now += IDLE_INTERVAL_S
    commits.idle()
    assert admin.asked[2:] == [{P0: 6, P1: 5}]


def test_what_came_just_after_a_commit_is_committed_when_the_stream_rests(
    admin: FakeAdmin, clock: Clock, commits: StreamCommits
) -> None:
    """At most one commit a second; the last position is not lost."""
    commits.done({P0: 5})
    commits.done({P0: 6})
    assert admin.asked == [{P0: 5}]
    clock.now += LEAST_INTERVAL_S
    commits.idle()
    assert admin.asked == [{P0: 5}, {P0: 6}]


@pytest.mark.parametrize("whole", [True, False])
def test_a_failure_is_logged_once_and_tried_again(
    admin: FakeAdmin, clock: Clock, commits: StreamCommits, caplog: pytest.LogCaptureFixture, whole: bool
) -> None:
    """Of the call, or of one partition: the other one is not committed again."""
    if whole:
        admin.failure = MetastoreUnavailableError("etcd is away", outcome=Outcome.UNKNOWN)
    else:
        admin.refused = {P0: UnknownTopicError("there is no topic named 'clicks'")}
    commits.done({P0: 5, P1: 5})
    clock.now += LEAST_INTERVAL_S
    commits.idle()
    assert admin.asked == [{P0: 5, P1: 5}, {P0: 5, P1: 5} if whole else {P0: 5}]
    assert [record.name for record in caplog.records if record.levelno >= logging.WARNING] == ["headrace.spark"]


def test_without_a_group_id_nothing_is_committed(admin: Any, clock: Clock) -> None:
    commits = StreamCommits(admin, "")
    commits.done({P0: 5})
    commits.idle()
    assert admin.asked == []
