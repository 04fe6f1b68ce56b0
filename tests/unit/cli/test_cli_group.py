"""`headrace group list`, `describe`, `delete`: lags that say what they are, owners and members, registries."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.names import group_names
from headrace.cli.group.options import member_list
from headrace.client.base.errors import NoBrokersAvailableError
from headrace.wire.errors import TimedOutError
from headrace.wire.ids import TopicPartition

from tests.unit.cli.fake_groups import FakeGroup

P = [TopicPartition("clicks", number) for number in range(4)]


@pytest.fixture
def billing(held: Any) -> FakeGroup:
    """Four partitions of 10 records; two members own three of them, one of which is asked to give one up."""
    held.add("clicks", 4)
    for where in P:
        for _ in range(10):
            held.append("clicks", where.partition, b"v")
    group = FakeGroup(offsets={P[0]: 4, P[1]: 10, P[2]: 7}, unowned=[P[3]])
    group.join(1, {P[0]: 2, P[1]: 3}, target=[P[0]], revoking_ms=61_500)
    group.join(2, {P[2]: 3}, target=[P[1], P[2]], instance_id="", live=False)
    held.groups["billing"] = group
    return group


def document(headrace: Any, *arguments: str) -> Any:
    ended = headrace("group", *arguments, "--output", "json")
    assert ended.code == 0, ended
    return json.loads(ended.out)


def test_groups_are_listed(headrace: Any, held: Any, billing: FakeGroup) -> None:
    """One line each; the lag only on request, since that asks every broker."""
    held.groups["scan"] = FakeGroup(offsets={P[0]: 9})
    assert headrace("group", "list").out.splitlines()[1].split() == ["billing", "stable", "2", "3", "uniform"]
    row, _ = document(headrace, "list")
    assert (row["lag_records"], row["lag_ms"]) == (None, None)
    rows = document(headrace, "list", "--lag")
    assert [(each["group_id"], each["state"], each["lag_records"], each["lag_ms"]) for each in rows] == [
        ("billing", "stable", 9, 6_000),
        ("scan", "empty", 1, 1_000),
    ]
    assert rows[0]["lag_unknown_partitions"] == 1
    assert headrace("group", "list", "--lag").out.splitlines()[1].split()[-2:] == ["9", "6s"]
    held.groups.clear()
    assert headrace("group", "list").out == "no groups\n"


def test_one_group_whose_lag_cannot_be_said_hides_no_other(headrace: Any, held: Any, billing: FakeGroup) -> None:
    """It is told on stderr; a cluster that is not there ends the command."""
    held.groups["audit"] = FakeGroup(lag_failure=TimedOutError("broker 1 is silent"))
    ended = headrace("group", "list", "--lag")
    assert [line.split()[-2:] for line in ended.out.splitlines()[1:]] == [["-", "-"], ["9", "6s"]]
    assert "audit: broker 1 is silent" in ended.err
    held.groups["audit"].lag_failure = NoBrokersAvailableError({"a:1": "refused"})
    assert headrace("group", "list", "--lag").code == ExitCode.UNREACHABLE


def test_describe_says_who_owns_what_since_when_and_how_far_it_is_behind(
    headrace: Any, held: Any, billing: FakeGroup
) -> None:
    """Each partition with its owner and epoch, the next owner where that is another; sums for members and the group."""
    lines = headrace("group", "describe", "billing").out.splitlines()
    assert "Lag:          9 records, 6s behind" in lines
    heading = next(index for index, line in enumerate(lines) if line.startswith("TOPIC"))
    assert [line.split() for line in lines[heading + 1 : heading + 5]] == [
        ["clicks", "0", "4", "10", "6", "6s", "worker-1", "2", "-"],
        ["clicks", "1", "10", "10", "0", "0ms", "worker-1", "3", "02020202"],
        ["clicks", "2", "7", "10", "3", "3s", "02020202", "3", "-"],
        ["clicks", "3", "-", "10", "-", "-", "-", "-", "-"],
    ]
    text = "\n".join(lines)
    assert "1 partition without an owner now: clicks:3" in text
    assert "must release partitions that it still owns: worker-1 for 1m1s" in text
    assert "1 partition without a committed offset: auto_offset_reset" in text
    found = document(headrace, "describe", "billing")
    assert [(each["name"], each["lag_records"], each["lag_ms"], each["live"]) for each in found["members"]] == [
        ("worker-1", 6, 6_000, True),
        ("02020202", 3, 3_000, False),
    ]
    assert found["members"][0]["owned"][1] == {"topic": "clicks", "partition": 1, "assignment_epoch": 3}
    assert (found["partitions"][1]["owner_name"], found["partitions"][1]["next_owner"]) == ("worker-1", "02" * 16)
    assert found["partitions"][0]["next_owner"] is None
    assert found["unowned"] == [{"topic": "clicks", "partition": 3}]
    assert "registries" not in found


def test_a_member_without_a_heartbeat_is_shown(headrace: Any, billing: FakeGroup) -> None:
    """Within or not for its session timeout; host and client are named."""
    lines = headrace("group", "describe", "billing").out.splitlines()
    heading = next(index for index, line in enumerate(lines) if line.startswith("MEMBER"))
    assert lines[heading + 1].split() == ["worker-1", "10.0.0.1", "app", "3", "2", "6", "6s", "within", "30s", "1m1s"]
    assert lines[heading + 2].split() == ["02020202", "10.0.0.2", "app", "3", "1", "3", "3s", "not", "for", "30s", "-"]


def test_without_times_no_batch_is_read(headrace: Any, billing: FakeGroup) -> None:
    """--no-time leaves the age of what is behind open; what is level is level."""
    found = document(headrace, "describe", "billing", "--no-time")
    assert [each["lag_ms"] for each in found["partitions"]] == [None, 0, None, None]
    assert found["lag_records"] == 9


def test_a_topic_alone_is_shown_alone(headrace: Any, held: Any, billing: FakeGroup) -> None:
    """Partitions, sums and notes are then of that topic."""
    held.add("views", 1)
    billing.offsets[TopicPartition("views", 0)] = 0
    assert [each["topic"] for each in document(headrace, "describe", "billing")["partitions"]][-1] == "views"
    found = document(headrace, "describe", "billing", "--topic", "views")
    assert [(each["topic"], each["lag_records"]) for each in found["partitions"]] == [("views", 0)]
    assert (found["lag_records"], found["unowned"]) == (0, [])


def test_what_the_figures_do_not_say_is_said(headrace: Any, held: Any, billing: FakeGroup) -> None:
    """Records deleted unread, an offset after the end, a partition that cannot be asked."""
    held.starts = {P[0]: 6}
    billing.offsets[P[1]] = 12
    billing.problems = {P[2]: "the partition has no leader now"}
    out = headrace("group", "describe", "billing").out
    assert "records deleted before they were read, not counted as lag: clicks:0 2" in out
    assert "the offset is after the end of the log, as after an unclean election: clicks:1" in out
    assert "clicks:2: the partition has no leader now" in out
    found = document(headrace, "describe", "billing")
    assert [each["missed_records"] for each in found["partitions"]] == [2, 0, 0, 0]
    assert (found["partitions"][2]["end_offset"], found["lag_unknown_partitions"]) == (None, 2)


def test_the_papers_four_registries_have_names(headrace: Any, held: Any, billing: FakeGroup) -> None:
    """--verbose gives the keys in etcd: brokers, live consumers, ownership, offsets; they are those of the keyspace."""
    from headrace_server.keys import Keyspace

    keys = Keyspace("c1", 1)
    rows = json.loads(headrace("group", "describe", "billing", "-v", "--output", "json").out)["registries"]
    topic_id = held.topics["clicks"].topic_id
    assert [(row["registry"], row["key"]) for row in rows] == [
        ("brokers", keys.broker(1)),
        ("consumers", keys.group_member("billing", b"\x01" * 16)),
        ("ownership", keys.group("billing")),
        ("ownership", keys.group_assignment("billing", b"\x01" * 16)),
        ("ownership", keys.group_assignment("billing", b"\x02" * 16)),
        *(("offsets", keys.group_offset("billing", topic_id, number)) for number in range(3)),
    ]
    out = headrace("group", "describe", "billing", "--verbose").out
    assert "worker-1 owns clicks:0,clicks:1" in out
    assert "clicks:2 continues at 7" in out
    held.brokers = ()
    assert headrace("group", "describe", "billing", "-v").out.endswith("no keys\n")


def test_an_unknown_group_is_not_found(headrace: Any) -> None:
    """One line that says how to see all groups."""
    ended = headrace("group", "describe", "nope")
    assert (ended.code, ended.out) == (ExitCode.NOT_FOUND, "")
    assert "`headrace group list` shows all groups" in ended.err


def test_groups_are_deleted_and_those_in_use_are_not(headrace: Any, held: Any, billing: FakeGroup) -> None:
    """Each is told; the exit code says what became of one, or that some were refused."""
    held.groups |= {"old": FakeGroup(), "older": FakeGroup()}
    ended = headrace("group", "delete", "old", "billing")
    assert (ended.code, ended.out) == (ExitCode.FAILED, "deleted old\n")
    assert "group billing has members. Stop all members of the group first." in ended.err
    ended = headrace("group", "delete", "nope", "billing", "--yes")
    assert (ended.code, ended.err.splitlines()[-1]) == (ExitCode.FAILED, "headrace: 2 groups not deleted")
    assert headrace("group", "delete", "nope").code == ExitCode.NOT_FOUND
    ended = headrace("group", "delete", "nope", "older", "--if-exists")
    assert (ended.code, ended.out) == (0, "deleted older (not there: nope)\n")
    assert sorted(held.groups) == ["billing"]


def test_a_deletion_can_be_tried_without_doing_it(headrace: Any, held: Any, billing: FakeGroup) -> None:
    """--dry-run ends as the deletion would."""
    held.groups["old"] = FakeGroup()
    for arguments, code in (("old",), 0), (("billing",), ExitCode.FAILED), (("nope",), ExitCode.NOT_FOUND):
        assert headrace("group", "delete", *arguments, "--dry-run").code == code
    assert headrace("group", "delete", "old", "--dry-run").out == "would delete old\n"
    assert sorted(held.groups) == ["billing", "old"]


def test_a_deletion_asks_on_a_terminal(headrace: Any, held: Any) -> None:
    """Without a yes nothing is deleted."""
    held.groups["old"] = FakeGroup()
    ended = headrace("group", "delete", "old", stdin=b"\n", terminal=True)
    assert (ended.code, "old" in held.groups, "nothing was deleted" in ended.err) == (ExitCode.FAILED, True, True)
    assert headrace("group", "delete", "old", "none", "--if-exists", stdin=b"y\n", terminal=True).code == 0
    assert not held.groups


def test_many_members_are_not_all_named(billing: FakeGroup) -> None:
    """Five, and how many more; a member that says nothing of itself is its name alone."""
    group = FakeGroup()
    for number in range(1, 8):
        group.join(number, {}, host="", client_id="")
    assert member_list(group.members) == "worker-1, worker-2, worker-3, worker-4, worker-5 and 2 more"
    assert member_list(group.members[:1]) == "worker-1"


class FakeCompletion:
    """What typer gives to a completion: the clients and what was typed."""

    def __init__(self, clients: Any, **params: Any) -> None:
        self.obj = clients
        self.params = params


def test_group_names_are_completed(held: Any, billing: FakeGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that begin so, asked for where the line or the environment says; nothing without an answer."""
    from tests.unit.cli.conftest import FakeClients

    held.groups["bin"] = FakeGroup()
    held.groups["audit"] = FakeGroup()
    clients: Any = FakeClients(held)
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", "env:1")
    completion: Any = FakeCompletion(clients, bootstrap_servers="line:1")
    assert group_names(completion, "bi") == ["billing", "bin"]
    completion.params.clear()
    assert len(group_names(completion, "")) == 3
    assert [each["bootstrap_servers"] for each in held.settings] == ["line:1", "env:1"]
    assert held.settings[0]["request_timeout_ms"] == 1_000
    held.failure = NoBrokersAvailableError({"a:1": "refused"})
    assert group_names(completion, "") == []


@pytest.mark.parametrize("words", ["group describe ", "group delete ", "group reset b --from-group ", "group seek "])
def test_the_shell_is_offered_groups_where_a_group_is_due(
    headrace: Any,
    billing: FakeGroup,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    """Every argument that names a group has the completion."""
    monkeypatch.setenv("_HEADRACE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"headrace {words}")
    monkeypatch.setenv("COMP_CWORD", str(1 + len(words.split())))
    with pytest.raises(SystemExit):
        headrace()
    assert capsysbinary.readouterr().out.split() == [b"billing"]


def test_a_shell_hears_nothing_where_no_cluster_is() -> None:
    """No error line in the middle of what is typed."""
    environment = {
        **os.environ,
        "_HEADRACE_COMPLETE": "complete_bash",
        "COMP_WORDS": "headrace group describe ",
        "COMP_CWORD": "3",
        "HEADRACE_BOOTSTRAP_SERVERS": "127.0.0.1:1",
    }
    ended = subprocess.run(
        [sys.executable, "-m", "headrace.cli"], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, "", "")
