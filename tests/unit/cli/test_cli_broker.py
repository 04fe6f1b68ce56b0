"""`headrace broker`: what a broker leads and holds, draining it with progress and a time-out, and the way back."""

import json
import socket
from typing import Any

import pytest
from headrace.cli.common.exit_codes import ExitCode
from headrace.client.admin.replication import UnclaimedLogInfo
from headrace.wire.errors import FencedBrokerError, StorageFullError


@pytest.fixture
def three(held: Any) -> Any:
    """Three brokers, a topic of three partitions, all led by broker 1."""
    held.start_brokers(1, 2, 3, racks="abc")
    held.add("clicks", 3, (1, 2, 3), 2)
    held.append("clicks", 0, b"v")
    return held


def test_list_counts_what_each_leads_and_lacks(headrace: Any, three: Any) -> None:
    """Leaders, replicas, and those of them that are not in sync."""
    three.change("clicks", 1, leader_id=2, in_sync_replicas=(2, 3))
    rows = json.loads(headrace("broker", "list", "--output", "json").out)
    assert [(each["broker_id"], each["leads"], each["replicas"], each["not_in_sync"]) for each in rows] == [
        (1, 2, 3, 1),
        (2, 1, 3, 0),
        (3, 0, 3, 0),
    ]


def test_describe_shows_replicas_and_disk(headrace: Any, three: Any) -> None:
    """Everything that one broker is part of."""
    three.change("clicks", 1, replicas=(1, 2, 3, 4), adding_replicas=(3,), removing_replicas=(1,))
    found = json.loads(headrace("broker", "describe", "3", "--output", "json").out)
    assert (found["rack"], found["leads"], found["disk_free_bytes"], found["size_bytes"]) == ("c", 0, 1 << 30, 100)
    assert [each["moving"] for each in found["replicas"]] == [None, "here", None]
    out = headrace("broker", "describe", "1").out
    assert "1.0 GiB free of 4.0 GiB" in out
    assert "away" in out


def test_a_broker_that_is_away_is_shown_with_what_others_know(headrace: Any, three: Any) -> None:
    """Which replicas wait for it; one that is not registered is not found; a silent one leaves gaps."""
    three.start_brokers(2, 3)
    ended = headrace("broker", "describe", "1", "--output", "json")
    found = json.loads(ended.out)
    assert (ended.code, found["registered"], len(found["replicas"]), found["size_bytes"]) == (0, False, 3, None)
    assert headrace("broker", "describe", "9").code == ExitCode.NOT_FOUND
    three.failures["describe_logs"] = StorageFullError("full")
    ended = headrace("broker", "describe", "2")
    assert (ended.code, ended.err.count("sizes are missing: broker 2 did not respond: full")) == (0, 1)


@pytest.fixture
def unclaimed(three: Any) -> Any:
    """Broker 3 keeps two logs that may go, and one that may not."""
    a, b = b"a" * 16, b"b" * 16
    three.broker_logs[3] = [
        UnclaimedLogInfo("clicks", a, 0, 1 << 20, ""),
        UnclaimedLogInfo("views", b, 4, 1 << 20, ""),
        UnclaimedLogInfo("", bytes(16), 1, 7, "the log stays: no topic has its id"),
    ]
    return three


def test_unclaimed_logs_are_described_with_their_bytes(headrace: Any, unclaimed: Any) -> None:
    """And with why one has to stay; a broker without any shows no table of them."""
    found = json.loads(headrace("broker", "describe", "3", "--output", "json").out)["unclaimed_logs"]
    assert [(each["topic"], each["size_bytes"], each["kept_because"]) for each in found] == [
        ("clicks", 1 << 20, None),
        ("views", 1 << 20, None),
        (None, 7, "the log stays: no topic has its id"),
    ]
    assert "KEPT BECAUSE" in headrace("broker", "describe", "3").out
    assert "KEPT BECAUSE" not in headrace("broker", "describe", "2").out
    unclaimed.failures["describe_unclaimed_logs"] = FencedBrokerError("the broker is starting")
    ended = headrace("broker", "describe", "3")
    assert (ended.code, "unclaimed logs are missing: the broker is starting" in ended.err) == (0, True)
    assert "clicks" in ended.out


def test_delete_unclaimed_deletes_what_may_go(headrace: Any, unclaimed: Any) -> None:
    """A dry run deletes nothing; --topic limits it; a log that stays is an error with the reason."""
    ended = headrace("broker", "delete-unclaimed", "3", "--dry-run")
    assert (ended.code, ended.out) == (0, "would delete 2 unclaimed logs, 2.0 MiB, of broker 3\n")
    assert "no topic has its id" in ended.err
    assert len(unclaimed.broker_logs[3]) == 3
    ended = headrace("broker", "delete-unclaimed", "3", "--topic", "clicks", "--output", "json")
    assert (ended.code, [each["topic"] for each in json.loads(ended.out)["deleted"]]) == (0, ["clicks"])
    unclaimed.stuck_topics = {"views"}
    ended = headrace("broker", "delete-unclaimed", "3", "--yes")
    assert ended.code == ExitCode.FAILED
    assert "kept views-4: in use" in ended.err
    assert len(unclaimed.broker_logs[3]) == 2


def test_delete_unclaimed_asks_first_on_a_terminal(headrace: Any, unclaimed: Any) -> None:
    """Any other answer than yes deletes nothing."""
    ended = headrace("broker", "delete-unclaimed", "3", stdin=b"n\n", terminal=True)
    assert (ended.code, "Delete 2 unclaimed logs, 2.0 MiB, of broker 3" in ended.err) == (ExitCode.FAILED, True)
    assert len(unclaimed.broker_logs[3]) == 3


def test_drain_says_what_is_left(headrace: Any, three: Any) -> None:
    """A second drain changes nothing; undrain ends it and says so, also of one that was not drained."""
    assert headrace("broker", "drain", "1").out == "drained broker 1; it leads 3 partitions\n"
    assert headrace("broker", "drain", "1").out == "already drained: broker 1; it leads 3 partitions\n"
    assert headrace("broker", "undrain", "1", "--dry-run").out == "would undrain broker 1\n"
    assert three.drained == {1}
    assert headrace("broker", "undrain", "1").out == "undrained broker 1\n"
    assert headrace("broker", "undrain", "1").out == "broker 1 was not drained\n"
    assert headrace("broker", "undrain", "1", "--dry-run").out == "broker 1 was not drained\n"


def test_a_dry_drain_names_what_cannot_move(headrace: Any, three: Any) -> None:
    """Partitions without another broker in sync, alive and not draining; nothing is changed."""
    three.change("clicks", 0, in_sync_replicas=(1,))
    three.change("clicks", 1, in_sync_replicas=(1, 2))
    three.drained = {2}
    ended = headrace("broker", "drain", "1", "--dry-run")
    assert (ended.code, ended.out) == (0, "would drain broker 1; it leads 3 partitions\n")
    assert ended.err == (
        "headrace: warning: no other broker that is in sync can lead clicks-0, clicks-1; bring back or add replicas\n"
    )
    assert three.changes == []
    assert headrace("broker", "drain", "9", "--dry-run").code == ExitCode.NOT_FOUND


def test_waiting_shows_progress_and_ends_when_it_leads_nothing(headrace: Any, three: Any, happens: Any) -> None:
    """Each change is a line; what did not change is not said again."""
    happens(
        lambda held: held.change("clicks", 0, leader_id=2),
        lambda held: None,
        lambda held: [held.change("clicks", each, leader_id=3) for each in (1, 2)],
    )
    ended = headrace("broker", "drain", "1", "--wait")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        "broker 1 is drained and leads 3 partitions of 3",
        "broker 1 is drained and leads 2 partitions of 3",
        "broker 1 is drained and leads nothing",
    ]


def test_waiting_ends_with_the_time(headrace: Any, three: Any, happens: Any) -> None:
    """Exit code 6, the broker stays drained, and what is stuck is named; quiet says only that."""
    three.change("clicks", 0, in_sync_replicas=(1,))
    happens(*[lambda held: [held.change("clicks", each, leader_id=3) for each in (1, 2)]] * 9)
    ended = headrace("broker", "drain", "1", "--wait", "--wait-timeout", "1", "--output", "json")
    assert ended.code == ExitCode.TIMED_OUT
    assert [json.loads(line)["leads"] for line in ended.out.splitlines()] == [3, 1]
    assert ended.err.splitlines() == [
        "headrace: warning: no other broker that is in sync can lead clicks-0; bring back or add replicas",
        "headrace: broker 1 still leads 1 partition; it stays drained",
    ]
    assert three.drained == {1}
    happens(lambda held: None)
    ended = headrace("broker", "drain", "1", "--wait", "--wait-timeout", "0", "--quiet")
    assert (ended.code, ended.out, ended.err.count("\n")) == (ExitCode.TIMED_OUT, "", 1)


def test_brokers_that_hold_replicas_are_not_removable(headrace: Any, three: Any) -> None:
    """Those named, or all from one on; whether they live is not asked."""
    three.start_brokers(1, 2)
    ended = headrace("broker", "check-removal", "--from", "3", "--output", "json")
    assert ended.code == ExitCode.FAILED
    assert json.loads(ended.out) == {
        "removable": False,
        "holding": [{"broker_id": 3, "replicas": 3, "partitions": ["clicks-0", "clicks-1", "clicks-2"]}],
    }
    assert "broker 3 still holds 3 replicas: move them first" in ended.err
    assert "--remove-broker 3 --watch" in ended.err
    assert headrace("broker", "check-removal", "--from", "4").out == "they hold no replica and can be removed\n"
    assert headrace("broker", "check-removal", "1", "2").err.startswith("headrace: brokers 1, 2 still hold 6 replicas")
    assert headrace("broker", "check-removal").code == ExitCode.USAGE


def test_nobody_knows_what_an_undecodable_value_names(headrace: Any, three: Any) -> None:
    """It may be a topic with replicas anywhere, so that no broker is removable; one that holds some is not anyway."""
    three.undecodable_keys = 1
    ended = headrace("broker", "check-removal", "--from", "4", "--output", "json")
    assert (ended.code, json.loads(ended.out)) == (ExitCode.FAILED, {"removable": None, "holding": []})
    assert "cannot decode 1 value of the metadata" in ended.err
    assert "still holds 3 replicas" in headrace("broker", "check-removal", "3").err


def test_topics_that_are_not_shown_may_have_replicas(headrace: Any, three: Any) -> None:
    """A removal or a stop is never said to be safe then; the commands end with 1, though all that is shown is moved."""
    three.add("__audit", 1, (3, 2, 1))
    three.hidden_topics = {"__audit"}
    for each in range(3):
        three.change("clicks", each, replicas=(1, 2), in_sync_replicas=(1, 2))
    ended = headrace("broker", "check-removal", "3", "--output", "json")
    assert (ended.code, json.loads(ended.out)) == (ExitCode.FAILED, {"removable": None, "holding": []})
    assert "1 topic of the cluster is not shown to you and may have replicas there: let an administrator" in ended.err
    ended = headrace("broker", "drain", "3", "--wait")
    assert (ended.code, ended.out) == (ExitCode.FAILED, "broker 3 is drained and leads nothing that is shown to you\n")
    assert "it is unknown whether broker 3 leads any" in ended.err
    for arguments in (("--dry-run",), ("--watch", "--yes")):
        ended = headrace("partition", "reassign", "--remove-broker", "3", *arguments)
        assert ended.code == ExitCode.FAILED
        assert "1 topic of the cluster is not shown to you, and broker 3 may hold replicas of them" in ended.err


WARNING = "headrace: warning: 1 topic of the cluster is not shown to you, and "


@pytest.mark.parametrize(
    ("command", "effect"),
    [
        ("broker list", "their replicas are not counted"),
        ("broker describe 3", "broker 3 may lead and hold replicas of them"),
        ("partition list --problem offline", "their partitions may have problems"),
        ("cluster balance --dry-run", "the plan neither counts nor moves their replicas"),
        ("partition reassign --add-broker 3 --dry-run", "the plan neither counts nor moves their replicas"),
    ],
)
def test_what_counts_replicas_warns_of_topics_that_are_not_shown(
    headrace: Any, three: Any, command: str, effect: str
) -> None:
    """No warning where all topics are shown."""
    assert WARNING not in headrace(*command.split()).err
    three.add("__audit", 1, (3, 2, 1))
    three.hidden_topics = {"__audit"}
    ended = headrace(*command.split())
    assert (ended.code, WARNING + effect in ended.err) == (0, True), ended.err


def test_a_broker_that_is_away_may_hold_the_only_copy_of_a_topic_that_is_not_shown(headrace: Any, three: Any) -> None:
    """Exit code 1: whether there is such a broker is unknown."""
    three.add("__audit", 1, (9, 2, 1))
    three.hidden_topics = {"__audit"}
    ended = headrace("broker", "describe", "9")
    assert (ended.code, "it is unknown whether it holds replicas" in ended.err) == (ExitCode.FAILED, True)


@pytest.mark.parametrize(
    ("answers", "ended", "said"),
    [
        ((socket.EAI_NONAME,), ExitCode.OK, "DNS knows no log.svc: nothing is installed there yet"),
        ((None,), ExitCode.FAILED, "broker 3 still holds 3 replicas"),
        ((socket.EAI_AGAIN,), ExitCode.FAILED, "broker 3 still holds 3 replicas"),
        ((socket.EAI_NONAME, None), ExitCode.FAILED, "broker 3 still holds 3 replicas"),
    ],
    ids=["unknown", "known", "DNS does not answer", "one of two is known"],
)
def test_where_nothing_is_installed_nothing_is_held(
    headrace: Any, three: Any, monkeypatch: pytest.MonkeyPatch, answers: tuple[int | None, ...], ended: int, said: str
) -> None:
    """Only where DNS says that there is no such name; else the cluster is asked, and must answer."""
    left = list(answers)

    def resolve(host: str, _port: object) -> list[object]:
        answer = left.pop(0)
        if answer is not None:
            raise socket.gaierror(answer, f"no {host}")
        return []

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    servers = ",".join(["log.svc:7170", "other.svc:7170"][: len(answers)])
    done = headrace("broker", "check-removal", "--from", "3", "--allow-missing", "--bootstrap-servers", servers)
    assert done.code == ended
    assert said in done.out + done.err


def test_servers_that_are_no_addresses_are_not_taken_for_unknown_names(headrace: Any) -> None:
    """A slip in the guard's servers must not pass it."""
    done = headrace("broker", "check-removal", "--from", "3", "--allow-missing", "--bootstrap-servers", "localhost")
    assert done.code != ExitCode.OK
    assert "'localhost' is not host:port" in done.err
