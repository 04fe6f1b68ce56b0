"""`headrace partition`: lists with problems, moves, which ask on a terminal, progress, elections that ask."""

import json
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.common.arguments import parse_broker_ids, parse_partition, parse_rate
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.session import UsageProblem
from headrace.cli.partition.problems import PartitionProblem
from headrace.cli.partition.reassign_progress import MoveProgress
from headrace.client.admin.replication import LogInfo, Reassignment
from headrace.wire.errors import ConflictError, TimedOutError, UnknownTopicError
from headrace.wire.ids import TopicPartition

FIRST = TopicPartition("clicks", 0)


@pytest.fixture
def four(held: Any) -> Any:
    """Four brokers; three partitions with three replicas each on brokers 1 to 3, 100 records in the first."""
    held.start_brokers(1, 2, 3, 4)
    held.add("clicks", 3, (1, 2, 3), 2)
    for _ in range(100):
        held.append("clicks", 0, b"v")
    return held


def document(headrace: Any, *arguments: str) -> Any:
    return json.loads(headrace("partition", *arguments, "--output", "json").out)


def test_each_problem_is_found_alone(headrace: Any, four: Any) -> None:
    """--problem shows those that have it, several those that have any."""
    four.add("views", 4, (1, 2), 2)
    four.change("clicks", 0, leader_id=-1)
    four.change("clicks", 1, in_sync_replicas=(1,))
    four.change("clicks", 2, replicas=(1, 2, 3, 4), adding_replicas=(4,), removing_replicas=(1,))
    four.change("views", 1, leader_id=2)
    four.change("views", 2, unclean=True)
    expected = {
        "offline": ["clicks-0"],
        "under_min_in_sync": ["clicks-1"],
        "under_replicated": ["clicks-1"],
        "unclean": ["views-2"],
        "moving": ["clicks-2"],
        "not_preferred": ["clicks-2", "views-1"],
    }
    assert list(expected) == [problem.value for problem in PartitionProblem]
    for problem, names in expected.items():
        rows = document(headrace, "list", "--problem", problem)
        assert [f"{row['topic']}-{row['partition']}" for row in rows] == names, problem
        assert all(problem in row["problems"] for row in rows)
    rows = document(headrace, "list", "--problem", "offline", "--problem", "unclean", "--topic", "views")
    assert [row["partition"] for row in rows] == [2]
    four.drained = {1}
    assert document(headrace, "list", "--problem", "not_preferred") == document(headrace, "list")[2:3]


def test_without_a_problem_all_are_shown(headrace: Any, four: Any) -> None:
    """A line each; an unknown topic is not found, an unknown problem is a usage error."""
    assert headrace("partition", "list").out.splitlines()[1].split() == [
        "clicks",
        "0",
        "1",
        "4",
        "1,2,3",
        "1,2,3",
        "-",
    ]
    assert headrace("partition", "list", "--problem", "offline").out == "no partitions\n"
    assert headrace("partition", "list", "--topic", "nope").code == ExitCode.NOT_FOUND
    assert headrace("partition", "list", "--problem", "tired").code == ExitCode.USAGE


def test_a_dry_run_shows_the_plan_and_does_nothing(headrace: Any, four: Any) -> None:
    """Who copies, who gives up, how much; the cluster has checked it."""
    ended = headrace("partition", "reassign", "clicks:0", "--replicas", "4,2,3", "--throttle", "50MiB", "--dry-run")
    assert ended.code == 0
    assert ended.out.splitlines()[1].split() == ["clicks", "0", "1,2,3", "4,2,3", "4", "1", "10000"]
    assert "would start 1 move: 1 replica to copy, 9.8 KiB at no more than 50.0 MiB/s each" in ended.out
    assert four.changes == []
    assert document(headrace, "reassign", "clicks:1", "--replicas", "1,2,3", "--dry-run")["partitions"] == []
    assert "nothing to move" in headrace("partition", "reassign", "clicks:1", "--replicas", "1,2,3", "--dry-run").out


def test_a_move_does_what_the_plan_said(headrace: Any, four: Any) -> None:
    """With the speed; a partition that the cluster refuses is named, and the others go."""
    ended = headrace("partition", "reassign", "clicks:0", "--replicas", "4,2,3", "--throttle", "1000")
    assert ended.out.splitlines()[-1] == ("started 1 move: 1 replica to copy, 9.8 KiB at no more than 1000 B/s each")
    assert four.changes == [("reassign", ({FIRST: (4, 2, 3)}, 1000))]
    assert four.partition(FIRST).adding_replicas == (4,)


def test_a_dry_run_as_json_is_a_plan(headrace: Any, four: Any, tmp_path: Path) -> None:
    """--add-broker plans, --plan carries out the same."""
    planned = headrace("partition", "reassign", "--add-broker", "4", "--output", "json", "--dry-run")
    found = json.loads(planned.out)
    assert (found["dry_run"], found["copies"]) == (True, 2)
    assert all(4 in each["replicas"] for each in found["partitions"])
    (tmp_path / "plan.json").write_text(planned.out)
    assert headrace("partition", "reassign", "--plan", str(tmp_path / "plan.json")).code == 0
    ((_, (targets, _)),) = four.changes
    assert targets == {
        TopicPartition(each["topic"], each["partition"]): tuple(each["replicas"]) for each in found["partitions"]
    }


def test_a_removed_broker_may_be_dead_and_a_drained_one_gets_nothing(headrace: Any, four: Any) -> None:
    """Its replicas go to those that are alive and not draining; what others hold stays."""
    four.start_brokers(1, 2, 4, 5)
    four.drained = {4}
    found = document(headrace, "reassign", "--remove-broker", "3", "--dry-run")
    assert [(each["adding"], each["removing"]) for each in found["partitions"]] == [([5], [3])] * 3
    ended = headrace("partition", "reassign", "--add-broker", "4", "--dry-run")
    assert (ended.code, "undrain" in ended.err) == (ExitCode.FAILED, True)
    four.start_brokers(1, 2)
    ended = headrace("partition", "reassign", "--remove-broker", "3", "--dry-run")
    assert (ended.code, "clicks-0 has 3 replicas and no other broker" in ended.err) == (ExitCode.FAILED, True)


def test_a_broker_that_is_away_gets_nothing_and_keeps_what_it_has(headrace: Any, four: Any) -> None:
    """It would copy only when it comes back; the largest log that is known of a partition says what is copied."""
    four.add("views", 1, (6,))
    four.log_ends |= {(FIRST, 2): 3, (FIRST, 3): 3}
    found = document(headrace, "reassign", "--remove-broker", "1", "--dry-run")
    assert [(each["topic"], each["adding"]) for each in found["partitions"]] == [("clicks", [4])] * 3
    assert found["copy_bytes"] == 10_000


def test_who_holds_a_replica_may_keep_it_though_it_is_away(headrace: Any, four: Any) -> None:
    """That one replica moves is no reason to give up another; to get one, a broker must be there."""
    four.start_brokers(1, 2, 4)
    found = document(headrace, "reassign", "clicks:0", "--replicas", "4,2,3", "--dry-run")
    assert found["partitions"][0]["adding"] == [4]
    ended = headrace("partition", "reassign", "--add-broker", "3", "--dry-run")
    assert (ended.code, "while away or drained" in ended.err) == (ExitCode.FAILED, True)


def test_a_topic_goes_to_some_brokers_alone(headrace: Any, four: Any) -> None:
    """Evenly, and the other topics stay."""
    four.add("views", 4, (1,))
    found = document(headrace, "reassign", "--topic", "views", "--to-brokers", "3,4", "--dry-run")
    assert sorted(each["replicas"][0] for each in found["partitions"]) == [3, 3, 4, 4]
    assert {each["topic"] for each in found["partitions"]} == {"views"}
    ended = headrace("partition", "reassign", "--topic", "views", "--to-brokers", "3,9", "--dry-run")
    assert (ended.code, "broker 9 is not registered" in ended.err) == (ExitCode.NOT_FOUND, True)


def test_a_plan_starts_from_where_moves_under_way_end(headrace: Any, four: Any) -> None:
    """A replica that leaves already is not moved again."""
    for number in range(3):
        four.change("clicks", number, replicas=(1, 2, 4, 3), adding_replicas=(4,), removing_replicas=(3,))
    assert document(headrace, "reassign", "--remove-broker", "3", "--dry-run")["partitions"] == []


def test_a_refused_partition_ends_with_1_and_its_reason(headrace: Any, four: Any, happens: Any) -> None:
    """In a dry run too; the others are done."""
    four.refused[FIRST] = ConflictError("it was changed meanwhile")
    for options, changes in (("--dry-run",), 0), ((), 1):
        ended = headrace("partition", "reassign", "--remove-broker", "1", *options)
        assert (ended.code, len(four.changes)) == (ExitCode.FAILED, changes)
        assert "headrace: clicks-0: it was changed meanwhile" in ended.err
        assert "1 of 3 partitions refused" in ended.err
        assert "REFUSED" in ended.out
        assert "start 2 moves" in ended.out.replace("started", "start")
    finished = {"adding_replicas": (), "removing_replicas": ()}
    happens(lambda held: [held.change("clicks", each, replicas=(4, 2, 3), **finished) for each in (1, 2)])
    ended = headrace("partition", "reassign", "clicks:0", "clicks:1", "--replicas", "1,4", "--watch")
    assert (ended.code, "1 of 1 moves done" in ended.out) == (ExitCode.FAILED, True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("clicks:0",), "requires --replicas"),
        (("--replicas", "1,2"), "requires TOPIC:PARTITION"),
        (("clicks", "--replicas", "1,2"), "is not TOPIC:PARTITION"),
        (("clicks:x", "--replicas", "1,2"), "is not TOPIC:PARTITION"),
        (("clicks:0", "--replicas", "1,1"), "names a broker twice"),
        (("clicks:0", "--replicas", "1;2"), "is not a list of broker ids"),
        (("--to-brokers", "1"), "requires --topic"),
        (("--add-broker", "4", "--plan", "x"), "more than one source of the reassignment"),
        (("--add-broker", "4", "--remove-broker", "4"), "cannot be added and removed"),
        (("--yes",), "nothing to do"),
        (("--cancel", "--throttle", "1MiB"), "--cancel takes partitions"),
        (("--throttle", "fast"), "is not a number of bytes a second"),
    ],
)
def test_a_wrong_move_is_a_usage_error(headrace: Any, four: Any, arguments: tuple[str, ...], says: str) -> None:
    """One line that says what goes together; nothing is asked or changed."""
    ended = headrace("partition", "reassign", *arguments)
    assert (ended.code, ended.err.count("\n")) == (ExitCode.USAGE, 1)
    assert says in ended.err
    assert four.changes == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "is not {"),
        ('{"partitions": [{"topic": "t", "partition": 0}]}', "entry 1 needs topic"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": []}]}', "entry 1 needs topic"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}', "names a broker twice"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [true]}]}', "entry 1 needs topic"),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}, '
            '{"topic": "t", "partition": 0, "replicas": [2]}]}',
            "entry 2: t-0 is there twice",
        ),
    ],
)
def test_a_wrong_plan_names_its_entry(headrace: Any, four: Any, tmp_path: Path, text: str, says: str) -> None:
    """Before anything is asked."""
    (tmp_path / "plan.json").write_text(text)
    ended = headrace("partition", "reassign", "--plan", str(tmp_path / "plan.json"))
    assert (ended.code, says in ended.err) == (ExitCode.USAGE, True), ended.err


def test_a_plan_for_what_is_not_there(headrace: Any, four: Any, tmp_path: Path) -> None:
    """Partitions are checked, and so is that the file is there."""
    (tmp_path / "plan.json").write_text('{"partitions": [{"topic": "clicks", "partition": 7, "replicas": [1]}]}')
    ended = headrace("partition", "reassign", "--plan", str(tmp_path / "plan.json"))
    assert (ended.code, "there is no partition clicks-7" in ended.err) == (ExitCode.NOT_FOUND, True)
    ended = headrace("partition", "reassign", "--plan", str(tmp_path / "other.json"))
    assert (ended.code, "No such file" in ended.err) == (ExitCode.FAILED, True)


def test_bytes_percent_and_time_to_go(headrace: Any, four: Any, happens: Any) -> None:
    """From the logs of the leader and the new replica; ends when nothing is under way."""
    four.log_ends[FIRST, 4] = 0
    four.change("clicks", 2, replicas=(1, 2, 3, 4), adding_replicas=(4,))

    def copied(records: int) -> Any:
        return lambda held: held.log_ends.update({(FIRST, 4): records})

    happens(
        copied(25),
        copied(50),
        lambda held: held.change("clicks", 0, in_sync_replicas=(1, 2, 3, 4)),
        lambda held: held.change("clicks", 0, replicas=(4, 2, 3), adding_replicas=(), removing_replicas=()),
    )
    ended = headrace("partition", "reassign", "clicks:0", "--replicas", "4,2,3", "--watch")
    assert ended.code == 0
    assert [line for line in ended.out.splitlines() if " moves done" in line] == [
        "0 of 1 moves done, 0 B of 9.8 KiB (0 %), -, - to go",
        "0 of 1 moves done, 2.4 KiB of 9.8 KiB (25 %), 2.4 KiB/s, 3s to go",
        "0 of 1 moves done, 4.9 KiB of 9.8 KiB (50 %), 2.4 KiB/s, 2s to go",
        "0 of 1 moves done, 4.9 KiB of 9.8 KiB (50 %), 1.6 KiB/s, 3s to go",
        "1 of 1 moves done, 9.8 KiB of 9.8 KiB (100 %), 2.4 KiB/s, 0s to go",
    ]
    assert "in sync, waits for the others" in ended.out


def seen(progress: MoveProgress, at: float, *moves: Reassignment, ends: dict[tuple[int, int], int]) -> Any:
    """One look at partitions of a topic `t` whose leader is broker 1, with log sizes (partition, broker) -> bytes."""
    progress.observe(
        at,
        moves,
        [
            LogInfo("t", number, broker_id, broker_id == 1, 0, 0, 0, 0, 0, size, 1, "")
            for (number, broker_id), size in ends.items()
        ],
    )
    return progress.report().document


def moving(number: int, adding: tuple[int, ...], in_sync: tuple[int, ...] = (1,)) -> Reassignment:
    return Reassignment("t", number, (*adding, 1), adding, (), in_sync, 1, 0)


def test_percents_are_100_only_when_it_is_in_sync() -> None:
    """A log may be as large as its leader's before the last record is acknowledged, or larger for a moment."""
    progress = MoveProgress([TopicPartition("t", 0)])
    for ends, in_sync, percent in (
        ({(0, 1): 100, (0, 4): 130}, (1,), 99),
        ({(0, 1): 100, (0, 4): 20}, (1,), 20),
        ({(0, 1): 100, (0, 4): 90}, (1, 4), 100),
        ({}, (1,), 90),
    ):
        found = seen(progress, 1.0, moving(0, (4,), in_sync), ends=ends)
        assert (found["copies"][0]["percent"], found["copied_bytes"] <= 100) == (percent, True)
    assert seen(MoveProgress([TopicPartition("t", 0)]), 0.0, moving(0, (4,)), ends={})["copies"][0]["percent"] == 0


def test_only_the_moves_that_are_followed_count() -> None:
    """Others neither show nor hold up the end; one that ended and goes elsewhere then is not done."""
    progress = MoveProgress([TopicPartition("t", 0)])
    ends = {(0, 1): 100, (0, 4): 50, (1, 1): 7}
    found = seen(progress, 0.0, moving(0, (4, 5)), moving(1, (4,)), ends=ends)
    assert (found["partitions"], len(found["copies"]), found["total_bytes"]) == (1, 2, 200)
    found = seen(progress, 1.0, moving(1, (4,)), ends=ends)
    assert (found["done"], found["partitions_done"], found["copied_bytes"]) == (True, 1, 200)
    assert [type(section).__name__ for section in progress.report().sections] == ["Note"]
    found = seen(progress, 2.0, moving(0, (4,)), ends=ends)
    assert (found["done"], [(each["broker_id"], each["done"]) for each in found["copies"]]) == (False, [(4, False)])


def test_moves_under_way_are_shown_once_or_watched(headrace: Any, four: Any, happens: Any) -> None:
    """Without a target; nothing under way is said and ends at once."""
    assert headrace("partition", "reassign").out == "nothing is moving\n"
    assert headrace("partition", "reassign", "--watch").out == "nothing is moving\n"
    four.change("clicks", 0, replicas=(4, 1, 2, 3), adding_replicas=(4,), removing_replicas=(1,))
    four.log_ends[FIRST, 4] = 30
    found = document(headrace, "reassign")
    assert found["copies"][0] == {
        "topic": "clicks",
        "partition": 0,
        "broker_id": 4,
        "copied_bytes": 3000,
        "total_bytes": 10000,
        "percent": 30,
        "bytes_per_second": None,
        "in_sync": False,
        "done": False,
    }
    happens(lambda held: None, lambda held: None)
    ended = headrace("partition", "reassign", "--watch", "--wait-timeout", "1")
    assert (ended.code, "they continue" in ended.err) == (ExitCode.TIMED_OUT, True)
    happens(lambda held: held.change("clicks", 0, adding_replicas=(), removing_replicas=()))
    assert json.loads(headrace("partition", "reassign", "-w", "--output", "json").out.splitlines()[-1])["done"]


def test_watching_moves_outlasts_a_cluster_that_is_away(headrace: Any, four: Any, happens: Any) -> None:
    """It is said once, not each time; a single look fails; a topic that is deleted meanwhile ends it."""
    four.change("clicks", 0, replicas=(4, 1, 2, 3), adding_replicas=(4,), removing_replicas=(1,))
    away = TimedOutError("no answer")

    def comes_back(held: Any) -> None:
        held.failure = None
        held.change("clicks", 0, adding_replicas=(), removing_replicas=())

    happens(lambda held: setattr(held, "failure", away), lambda held: None, comes_back)
    ended = headrace("partition", "reassign", "--watch")
    assert (ended.code, ended.err) == (0, "headrace: still watching: no answer\n")
    assert "1 of 1 moves done" in ended.out
    four.failures["list_reassignments"] = away
    arguments = ("clicks:1", "--replicas", "4,2,3", "--watch", "--wait-timeout", "0")
    ended = headrace("partition", "reassign", *arguments)
    assert (ended.code, "still watching" in ended.err) == (ExitCode.TIMED_OUT, False)
    four.failures.clear()
    four.change("clicks", 0, adding_replicas=(4,))
    happens(lambda held: setattr(held, "failure", UnknownTopicError("gone")), lambda held: None)
    assert headrace("partition", "reassign", "--watch").code == ExitCode.NOT_FOUND


def test_the_speed_of_moves_under_way_is_changed(headrace: Any, four: Any, happens: Any) -> None:
    """To the same target; a dry run changes nothing."""
    four.change("clicks", 0, replicas=(4, 2, 3, 1), adding_replicas=(4,), removing_replicas=(1,))
    assert (
        "would change the speed of 1 move: clicks-0"
        in headrace("partition", "reassign", "--throttle", "1KiB", "--dry-run").out
    )
    assert four.changes == []
    ended = headrace("partition", "reassign", "--throttle", "1KiB")
    assert ended.out == "changed the speed of 1 move: clicks-0\n"
    assert four.changes == [("reassign", ({FIRST: (4, 2, 3)}, 1024))]
    happens(lambda held: held.change("clicks", 0, adding_replicas=(), removing_replicas=()))
    assert "1 of 1 moves done" in headrace("partition", "reassign", "--throttle", "1KiB", "--watch").out


def test_cancel_takes_back_what_is_chosen(headrace: Any, four: Any) -> None:
    """A partition, a topic or all; what does not move is said; a dry run changes nothing."""
    four.add("views", 1, (1, 2))
    for where in (FIRST, TopicPartition("clicks", 2), TopicPartition("views", 0)):
        replicas = four.partition(where).replicas
        four.change(*where, replicas=(4, *replicas), adding_replicas=(4,))
    assert (
        "would cancel 3 moves: clicks-0, clicks-2, views-0"
        in headrace("partition", "reassign", "--cancel", "--dry-run").out
    )
    ended = headrace("partition", "reassign", "--cancel", "clicks:0", "clicks:1")
    assert (ended.code, ended.out) == (0, "cancelled 1 move: clicks-0\n")
    assert "clicks-1 is not moving" in ended.err
    assert four.partition(FIRST).replicas == (1, 2, 3)
    headrace("partition", "reassign", "--cancel", "--topic", "clicks")
    assert [change[1] for change in four.changes] == [[FIRST], [TopicPartition("clicks", 2)]]


def test_preferred_leaders_of_all_or_of_some(headrace: Any, four: Any) -> None:
    """Those that changed are shown; a dry run changes nothing."""
    four.change("clicks", 0, leader_id=2)
    assert "would elect 1 leader of 3 partitions" in headrace("partition", "elect", "--dry-run").out
    assert four.changes == []
    ended = headrace("partition", "elect", "--preferred")
    assert ended.out.splitlines()[1].split() == ["clicks", "0", "1", "5", "yes", "-"]
    assert ended.out.splitlines()[-1] == "elected 1 leader of 3 partitions"
    assert headrace("partition", "elect", "clicks").out == "elected 0 leaders of 3 partitions\n"
    assert four.changes[-1] == ("elect", ("preferred", [TopicPartition("clicks", n) for n in range(3)], None))


def test_a_refusal_ends_with_1_and_its_reason(headrace: Any, four: Any) -> None:
    """The preferred replica is not in sync."""
    four.change("clicks", 1, leader_id=2, in_sync_replicas=(2, 3))
    ended = headrace("partition", "elect", "clicks:1")
    assert (ended.code, ended.err) == (ExitCode.FAILED, "headrace: 1 partition refused\n")
    assert "clicks-1: 1 is not in sync" in ended.out
    assert headrace("partition", "elect", "clicks:1", "--quiet").out == ended.out
    assert headrace("partition", "elect", "clicks:2", "--quiet").out == ""


def test_unclean_shows_what_may_be_lost_and_asks(headrace: Any, four: Any) -> None:
    """The log ends of who is left, and how many records are known to be missing; the topic's name must be typed."""
    four.start_brokers(2, 3)
    four.change("clicks", 0, leader_id=-1, in_sync_replicas=(1,))
    four.log_ends |= {(FIRST, 2): 40, (FIRST, 3): 70}
    arguments = ("partition", "elect", "clicks:0", "--unclean", "--broker", "2")
    ended = headrace(*arguments, stdin=b"yes\n", terminal=True)
    assert (ended.code, ended.out, four.changes) == (ExitCode.FAILED, "", [])
    assert "clicks-0: records from offset 40 on are lost; 30 records are known to have been there." in ended.err
    assert [line.split()[2:4] for line in ended.err.splitlines() if line.startswith("clicks ")] == [
        ["3", "70"],
        ["2", "40"],
    ]
    assert "nothing was elected" in ended.err
    ended = headrace(*arguments, stdin=b"clicks\n", terminal=True)
    assert (ended.code, four.changes) == (0, [("elect", ("unclean", [FIRST], 2))])
    assert four.partition(FIRST).leader_id == 2


def test_unclean_needs_partitions_a_broker_and_an_answer(headrace: Any, four: Any) -> None:
    """Each is a usage error that says what to give; a dry run without a broker shows the candidates."""
    four.start_brokers(2, 3)
    four.change("clicks", 0, leader_id=-1)
    four.log_ends[FIRST, 2] = 40
    elect = ("partition", "elect")
    for arguments, says in (
        (("--unclean",), "name the partitions"),
        (("clicks:0", "--unclean"), "--broker 3, which has the longest log"),
        (("clicks:0", "--unclean", "--broker", "3"), "pass --yes without a terminal"),
        (("clicks:0", "--unclean", "--preferred"), "exclude each other"),
        (("--broker", "3"), "require --unclean"),
    ):
        ended = headrace(*elect, *arguments)
        assert (ended.code, says in ended.err) == (ExitCode.USAGE, True), arguments
    assert four.changes == []
    found = json.loads(headrace(*elect, "clicks:0", "--unclean", "--dry-run", "--output", "json").out)
    assert [(each["broker_id"], each["log_end_offset"]) for each in found["candidates"]] == [(3, 100), (2, 40)]
    assert headrace(*elect, "clicks:0", "--unclean", "--broker", "3", "--yes").code == 0


def test_a_broker_without_the_replica_is_told(headrace: Any, four: Any) -> None:
    """Before the cluster refuses; one that has taken it offline is no candidate."""
    ended = headrace("partition", "elect", "clicks:0", "--unclean", "--broker", "4", "--dry-run")
    assert "clicks-0: broker 4 has no replica that responds." in ended.err
    four.offline[FIRST, 3] = "corrupt"
    found = document(headrace, "elect", "clicks:0", "--unclean", "--dry-run")
    assert [each["broker_id"] for each in found["candidates"]] == [1, 2]


def test_words_that_mean_something() -> None:
    """Partitions, brokers and speeds."""
    assert parse_partition("a.b-c:12") == ("a.b-c", 12)
    assert parse_broker_ids(" 3, 1 ", "--x") == (3, 1)
    speeds = {"50MiB": 50 << 20, "1.5 GiB/s": 3 << 29, "10kb": 10_000, "7": 7, "2 TB": 2 * 10**12, "512B": 512}
    assert {text: parse_rate(text) for text in speeds} == speeds
    for wrong in ("", "MiB", "-1", "0", "0.2B", "1XB", "1iB"):
        with pytest.raises(UsageProblem):
            parse_rate(wrong)


def test_a_plan_is_confirmed_on_a_terminal(headrace: Any, four: Any) -> None:
    """The plan goes to stderr with the question; no answer but yes changes anything, and --yes does not ask."""
    move = ("partition", "reassign", "clicks:0", "--replicas", "4,2,3")
    ended = headrace(*move, stdin=b"\n", terminal=True)
    assert (ended.code, ended.out) == (ExitCode.FAILED, "")
    assert "would start 1 move" in ended.err
    assert ended.err.endswith("Start 1 move? [y/N] headrace: nothing was changed\n")
    assert four.changes == []
    ended = headrace(*move, stdin=b"y\n", terminal=True)
    assert (ended.code, "started 1 move" in ended.out) == (0, True)
    ended = headrace(*move, "--yes", terminal=True)
    assert (ended.code, "[y/N]" in ended.err) == (0, False)
