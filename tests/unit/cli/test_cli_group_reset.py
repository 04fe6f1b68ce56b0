"""`headrace group reset` and `seek`: every target, offsets within the log, a terminal that asks, refused while live."""

import json
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.session import UsageProblem
from headrace.cli.group import offset_files
from headrace.cli.group import reset as group_reset
from headrace.cli.records.offset_plan import (
    OffsetTarget,
    offsets_file,
    parse_position,
    plan_from_json,
    plan_offset,
)
from headrace.cli.records.offsets import LogBounds
from headrace.wire.errors import GroupNotEmptyError, UnknownPartitionError
from headrace.wire.ids import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cli.conftest import CREATED_MS
from tests.unit.cli.fake_groups import FakeGroup

P = [TopicPartition("clicks", number) for number in range(3)]


@pytest.fixture
def billing(held: Any) -> FakeGroup:
    """Three partitions of 100 records, a second apart; the group is in two of them, and the first ten are gone."""
    held.add("clicks", 3)
    for where in P:
        for _ in range(100):
            held.append("clicks", where.partition, b"v")
        held.starts[where] = 10
    held.groups["billing"] = FakeGroup(offsets={P[0]: 50, P[1]: 90})
    return held.groups["billing"]


def planned(headrace: Any, *arguments: str) -> list[tuple[int, Any, Any]]:
    """(partition, before, offset) of a dry run."""
    ended = headrace("group", "reset", "billing", *arguments, "--output", "json", "--dry-run")
    assert ended.code == 0, ended
    found = json.loads(ended.out)
    assert (found["group_id"], found["dry_run"]) == ("billing", True)
    return [(each["partition"], each["offset_before"], each["offset"]) for each in found["partitions"]]


def iso(milliseconds: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()


@pytest.mark.parametrize(
    ("arguments", "offsets"),
    [
        (["--to-earliest"], [10, 10]),
        (["--to-latest"], [100, 100]),
        (["--to-offset", "60"], [60, 60]),
        (["--to-offset", "5"], [10, 10]),
        (["--to-offset", "500"], [100, 100]),
        (["--to-time", iso(CREATED_MS + 70_000)], [70, 70]),
        (["--to-time", str(CREATED_MS + 70_001)], [71, 71]),
        (["--to-time", "2100-01-01"], [100, 100]),
        (["--by-duration", "1h30m"], [85, 85]),
        (["--shift", "5"], [55, 95]),
        (["--shift", "-45"], [10, 45]),
        (["--shift", "20"], [70, 100]),
        (["--delete"], [None, None]),
    ],
)
def test_each_target_means_one_offset_a_partition(
    headrace: Any, held: Any, billing: FakeGroup, arguments: list[str], offsets: list[int | None], monkeypatch: Any
) -> None:
    """Of the partitions that the group has offsets of; brought into the log; a dry run changes nothing."""
    monkeypatch.setattr(group_reset.time, "time_ns", lambda: (CREATED_MS + 85_000 + 5_400_000) * 1_000_000)
    assert planned(headrace, *arguments) == [(0, 50, offsets[0]), (1, 90, offsets[1])]
    assert held.changes == []
    assert headrace("group", "reset", "billing", *arguments).code == 0
    assert [billing.offsets.get(where) for where in P] == [*offsets, None]


def test_what_is_brought_into_the_log_is_said(headrace: Any, billing: FakeGroup) -> None:
    """The note names what was asked for and what is taken."""
    out = headrace("group", "reset", "billing", "--to-offset", "500", "--dry-run").out
    assert out.count("offset 500 is after the end of the log; 100 is taken") == 2
    assert out.endswith("would store 2 offsets of 2 partitions\n")
    out = headrace("group", "reset", "billing", "--shift", "-45", "--dry-run").out
    assert "offset 5 is before the start of the log; 10 is taken" in out


def test_topics_and_partitions_can_be_named(headrace: Any, held: Any, billing: FakeGroup) -> None:
    """All of a topic or some of its partitions, also those without an offset; each must be there."""
    held.add("views", 1)
    assert planned(headrace, "--to-earliest", "--topic", "clicks") == [(0, 50, 10), (1, 90, 10), (2, None, 10)]
    assert planned(headrace, "--to-earliest", "--topic", "clicks:2,0") == [(0, 50, 10), (2, None, 10)]
    assert planned(headrace, "--to-latest", "--topic", "views", "--topic", "clicks:0") == [(0, 50, 100), (0, None, 0)]
    assert (
        headrace("group", "reset", "billing", "--to-latest", "--topic", "nope", "--dry-run").code == ExitCode.NOT_FOUND
    )
    ended = headrace("group", "reset", "billing", "--to-latest", "--topic", "clicks:3", "--dry-run")
    assert (ended.code, "clicks has the partitions 0 to 2, not 3" in ended.err) == (ExitCode.NOT_FOUND, True)


def test_a_shift_leaves_alone_what_has_no_offset(headrace: Any, held: Any, billing: FakeGroup) -> None:
    """There is nothing to count from; the note says so and nothing is stored."""
    assert planned(headrace, "--shift", "1", "--topic", "clicks:2") == [(2, None, None)]
    ended = headrace("group", "reset", "billing", "--shift", "1", "--topic", "clicks:2")
    assert "no stored offset to shift" in ended.out
    assert held.changes == []


def test_a_group_with_members_is_refused_and_they_are_named(headrace: Any, held: Any, billing: FakeGroup) -> None:
    """In a dry run too; the message names who must stop."""
    billing.join(1, {P[0]: 1})
    billing.join(2, {P[1]: 1}, instance_id="", host="")
    for command in (["reset", "billing", "--to-latest"], ["seek", "billing", "clicks:0", "--to", "5"]):
        for options in ([], ["--dry-run"]):
            ended = headrace("group", *command, *options)
            assert (ended.code, ended.out) == (ExitCode.FAILED, "")
            assert ended.err == (
                "headrace: group billing has 2 members: worker-1 (10.0.0.1, client app), 02020202 (client app). "
                "Stop them first, then try again.\n"
            )
    assert held.changes == []


def test_a_member_that_joins_meanwhile_is_the_coordinators_to_refuse(
    headrace: Any, held: Any, billing: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the change the coordinator compares, so that nothing is stored under a live group."""
    from tests.unit.cli.conftest import FakeAdmin

    def refuse(self: Any, group: str, offsets: Any, **options: Any) -> None:
        raise GroupNotEmptyError(f"group {group} has 1 members")

    monkeypatch.setattr(FakeAdmin, "reset_group_offsets", refuse)
    ended = headrace("group", "reset", "billing", "--to-latest")
    assert (ended.code, "has 1 members. Stop all members of the group first." in ended.err) == (ExitCode.FAILED, True)


def test_a_group_need_not_exist(headrace: Any, held: Any, billing: FakeGroup) -> None:
    """A new group can begin anywhere, with a word in case the name is wrong."""
    ended = headrace("group", "reset", "new", "--to-offset", "20", "--topic", "clicks:0")
    assert (ended.code, "group new does not exist yet" in ended.err) == (0, True)
    assert held.groups["new"].offsets == {P[0]: 20}
    ended = headrace("group", "reset", "newer", "--to-latest", "--dry-run")
    assert (ended.code, "name the partitions by --topic" in ended.err) == (ExitCode.USAGE, True)
    assert headrace("group", "reset", "nope", "--to-file", "x.json", "--dry-run").code == ExitCode.NOT_FOUND


def test_offsets_go_to_a_file_and_come_back(headrace: Any, held: Any, billing: FakeGroup, tmp_path: Path) -> None:
    """--to-file alone keeps what is stored, also of a group with members; with a target it keeps the plan."""
    billing.join(1, {P[0]: 1})
    path = tmp_path / "offsets.json"
    ended = headrace("group", "reset", "billing", "--to-file", str(path), "--dry-run")
    assert (ended.code, ended.out, "wrote 2 offsets" in ended.err) == (0, "", True)
    assert plan_from_json(path.read_text(), "x") == {P[0]: 50, P[1]: 90}
    assert plan_from_json(headrace("group", "reset", "billing", "--to-file", "-", "--dry-run").out, "x") == {
        P[0]: 50,
        P[1]: 90,
    }
    billing.members.clear()
    plan = tmp_path / "plan.json"
    assert headrace("group", "reset", "billing", "--to-earliest", "--to-file", str(plan)).code == 0
    assert plan_from_json(plan.read_text(), "x") == billing.offsets == {P[0]: 10, P[1]: 10}
    assert headrace("group", "reset", "billing", "--from-file", str(path)).code == 0
    assert billing.offsets == {P[0]: 50, P[1]: 90}
    held.changes.clear()
    assert planned(headrace, "--from-file", str(plan), "--topic", "clicks:1,2") == [(1, 90, 10)]
    printed = headrace("group", "reset", "billing", "--to-latest", "--output", "json", "--dry-run").out
    ended = headrace("group", "reset", "billing", "--from-file", "-", stdin=printed.encode())
    assert (ended.code, billing.offsets) == (0, {P[0]: 100, P[1]: 100})


def test_a_group_goes_where_another_is(headrace: Any, held: Any, billing: FakeGroup) -> None:
    """--from-group takes the offsets of a group, live or not."""
    billing.join(1, {P[0]: 1})
    assert headrace("group", "reset", "copy", "--from-group", "billing").code == 0
    assert held.groups["copy"].offsets == billing.offsets
    held.groups["scan"] = FakeGroup(offsets={P[2]: 33})
    assert headrace("group", "reset", "copy", "--from-group", "scan").code == 0
    assert held.groups["copy"].offsets == {P[0]: 50, P[1]: 90, P[2]: 33}
    assert headrace("group", "reset", "copy", "--from-group", "nope", "--dry-run").code == ExitCode.NOT_FOUND


def test_a_group_that_was_in_use_meanwhile_is_not_reset(headrace: Any, billing: FakeGroup) -> None:
    """A member came, read on and went between the look and the change: the plan was made for another place."""

    def come_and_go() -> None:
        billing.group_epoch += 2
        billing.offsets[P[0]] = 77

    billing.before_change = come_and_go
    for command in (["reset", "billing", "--to-latest"], ["seek", "billing", "clicks:0", "--to", "5"]):
        ended = headrace("group", *command)
        assert ended.code != 0
        assert "the members or the offsets of group billing changed" in ended.err
        assert billing.offsets == {P[0]: 77, P[1]: 90}


def test_a_topic_that_is_gone_is_left_out(headrace: Any, held: Any, billing: FakeGroup) -> None:
    """The others continue; a word says which it was."""
    billing.offsets[TopicPartition("gone", 0)] = 5
    ended = headrace("group", "reset", "billing", "--to-latest")
    assert (ended.code, "gone: the topic does not exist" in ended.err) == (0, True)
    assert billing.offsets == {TopicPartition("gone", 0): 5, P[0]: 100, P[1]: 100}


def test_a_refused_partition_is_told_and_the_others_are_done(headrace: Any, held: Any, billing: FakeGroup) -> None:
    """Exit code 1, and a column that says why."""
    held.refused[P[1]] = UnknownPartitionError("no such partition")
    ended = headrace("group", "reset", "billing", "--to-latest")
    assert (ended.code, "no such partition" in ended.out, "1 offset refused" in ended.err) == (1, True, True)
    assert "stored 1 offset of 2 partitions" in ended.out
    assert billing.offsets == {P[0]: 100, P[1]: 90}


def test_what_is_stored_already_is_not_stored_again(headrace: Any, held: Any, billing: FakeGroup) -> None:
    """The others are one call, and so one decision: the call begins an epoch."""
    billing.offsets[P[0]] = 100
    assert headrace("group", "reset", "billing", "--to-latest", "--topic", "clicks").code == 0
    assert [dict(offsets) for _, (_, offsets) in held.changes] == [{P[1]: 100, P[2]: 100}]
    assert headrace("group", "reset", "billing", "--to-latest", "--quiet").out == ""
    assert len(held.changes) == 1


def test_seek_is_of_one_partition(headrace: Any, held: Any, billing: FakeGroup) -> None:
    """Positions as consume has them; a dry run changes nothing."""
    ended = headrace("group", "seek", "billing", "clicks:1", "--to", "-10", "--dry-run")
    assert (ended.code, held.changes) == (0, [])
    assert ended.out.splitlines()[1].split() == ["clicks", "1", "90", "90", "0", "-"]
    assert headrace("group", "seek", "billing", "clicks:1", "--to", "+10").code == 0
    assert billing.offsets == {P[0]: 50, P[1]: 20}
    assert headrace("group", "seek", "billing", "clicks:9", "--to", "start", "--dry-run").code == ExitCode.NOT_FOUND


@pytest.mark.parametrize(
    "arguments",
    [
        ["reset", "billing"],
        ["reset", "billing", "--to-earliest", "--to-latest"],
        ["reset", "billing", "--shift", "1", "--from-group", "other"],
        ["reset", "billing", "--to-offset", "-1"],
        ["reset", "billing", "--to-offset", "9223372036854775808"],
        ["reset", "billing", "--to-time", "yesterday"],
        ["reset", "billing", "--to-time", "-1h"],
        ["reset", "billing", "--to-time", "2026-11-21:2026-11-22"],
        ["reset", "billing", "--to-time", "2026-02-30"],
        ["reset", "billing", "--by-duration", "1 hour"],
        ["reset", "billing", "--by-duration", "1h:"],
        ["reset", "billing", "--to-latest", "--topic", "clicks:"],
        ["reset", "billing", "--to-latest", "--topic", "clicks:a"],
        ["reset", "billing", "--to-latest", "--topic", ":1"],
        ["reset", "billing", "--from-file", "/nowhere/x.json"],
        ["reset", "billing", "--to-latest", "--to-file", "/nowhere/x.json"],
        ["seek", "billing", "clicks", "--to", "start"],
        ["seek", "billing", "clicks:0", "--to", "1:2"],
        ["seek", "billing", "clicks:0", "--to", ":"],
        ["seek", "billing", "clicks:0"],
    ],
)
def test_a_wrong_command_line_changes_nothing(
    headrace: Any, held: Any, billing: FakeGroup, arguments: list[str]
) -> None:
    """Exit code 2 and one line."""
    ended = headrace("group", *arguments)
    assert (ended.code, ended.err.count("\n")) == (ExitCode.USAGE, 1), ended
    assert held.changes == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"partitions": 5}',
        '{"partitions": [5]}',
        '{"partitions": [{"partition": 0, "offset": 1}]}',
        '{"partitions": [{"topic": "t", "partition": -1, "offset": 1}]}',
        '{"partitions": [{"topic": "t", "partition": true, "offset": 1}]}',
        '{"partitions": [{"topic": "t", "partition": 0, "offset": "1"}]}',
        '{"partitions": [{"topic": "t", "partition": 0, "offset": -1}]}',
        '{"partitions": [{"topic": "t", "partition": 0, "offset": 9223372036854775808}]}',
        '{"partitions": [{"topic": "t", "partition": 0, "offset": 1}, {"topic": "t", "partition": 0, "offset": 2}]}',
    ],
)
def test_a_file_that_is_none_is_refused(text: str) -> None:
    """With the name of the file, before anything is asked."""
    with pytest.raises(UsageProblem, match=r"^o\.json"):
        plan_from_json(text, "o.json")


def test_a_file_that_is_no_text_or_too_large_is_refused(
    headrace: Any, held: Any, billing: FakeGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that are no UTF-8, and more than the limit."""
    path = tmp_path / "offsets.json"
    path.write_bytes(b"\xff\xfe")
    ended = headrace("group", "reset", "billing", "--from-file", str(path), "--dry-run")
    assert (ended.code, "is not UTF-8 text" in ended.err) == (ExitCode.USAGE, True)
    monkeypatch.setattr(offset_files, "MAX_FILE_BYTES", 1)
    ended = headrace("group", "reset", "billing", "--from-file", str(path), "--dry-run")
    assert (ended.code, "is larger than" in ended.err) == (ExitCode.USAGE, True)


OFFSETS = st.integers(0, 2**40)


@given(
    OFFSETS, OFFSETS, st.none() | OFFSETS, st.integers(-(2**41), 2**41), st.sampled_from(["shift", "offset", "file"])
)
def test_every_planned_offset_is_within_the_log(
    start: int, length: int, before: int | None, amount: int, kind: str
) -> None:
    """Whatever is asked for; the note is there exactly where something else is taken."""
    bounds = LogBounds(start, start + length)
    if kind == "shift":
        target, wanted = OffsetTarget(shift=amount), None if before is None else before + amount
    elif kind == "file":
        target, wanted = OffsetTarget(offsets={P[0]: abs(amount)}), abs(amount)
    else:
        target, wanted = OffsetTarget(position=parse_position(str(abs(amount)), "--to")), abs(amount)
    found = plan_offset(target, P[0], before, bounds, now_ms=0, offset_at=lambda _: 0)
    if wanted is None:
        assert (found.offset, found.changes) == (None, False)
        return
    assert found.offset is not None
    assert bounds.earliest <= found.offset <= bounds.latest
    assert (found.offset == wanted) == (not found.note)
    assert found.changes == (found.offset != before)


@given(st.dictionaries(st.tuples(st.text("abc", min_size=1), st.integers(0, 99)), OFFSETS))
def test_a_file_gives_back_what_was_written(offsets: dict[tuple[str, int], int]) -> None:
    """Every partition with its offset, and one without none."""
    written = {TopicPartition(*where): offset for where, offset in offsets.items()}
    text = offsets_file("g", [*written.items(), (TopicPartition("zzz", 0), None)])
    assert plan_from_json(text, "x") == written


def test_a_reset_is_confirmed_on_a_terminal(headrace: Any, held: Any, billing: FakeGroup) -> None:
    """The plan goes to stderr with the question; no answer but yes changes anything, and --yes does not ask."""
    for words in (["reset", "billing", "--to-latest"], ["seek", "billing", "clicks:0", "--to", "5"]):
        ended = headrace("group", *words, stdin=b"n\n", terminal=True)
        assert (ended.code, ended.out) == (ExitCode.FAILED, "")
        assert ended.err.endswith("of billing? [y/N] headrace: nothing was changed\n")
        assert "would store" in ended.err
    assert held.changes == []
    assert headrace("group", "reset", "billing", "--to-latest", stdin=b"y\n", terminal=True).code == 0
    assert billing.offsets == {P[0]: 100, P[1]: 100}
    ended = headrace("group", "seek", "billing", "clicks:0", "--to", "50", "--yes", terminal=True)
    assert (ended.code, "[y/N]" in ended.err, billing.offsets[P[0]]) == (0, False, 50)
