"""`headrace cluster health`: every problem with its remedy, notices that are no problems, watching until healthy."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from headrace.cli.common import watching
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.watching import RateWindow, eta_text
from headrace.client.base.errors import NoBrokersAvailableError
from headrace.wire.errors import MetastoreUnavailableError, NotAuthorizedError, UnsupportedVersionError
from headrace.wire.ids import TopicPartition


@pytest.fixture
def three(held: Any) -> Any:
    """Three brokers and a topic of two partitions with three replicas each, two in sync asked for."""
    held.start_brokers(1, 2, 3)
    held.add("clicks", 2, (1, 2, 3), 2)
    return held


def kinds(headrace: Any, which: str = "problems") -> list[str]:
    return [each["check"] for each in json.loads(headrace("cluster", "health", "--output", "json").out)[which]]


def test_a_healthy_cluster_is_one_line(headrace: Any, three: Any) -> None:
    """Nothing is wrong and nothing is worth to know."""
    assert headrace("cluster", "health").out == "healthy: 3 brokers, 1 coordinators, 1 topics, 2 partitions\n"


def test_too_few_in_sync_is_graver_than_not_all_in_sync(headrace: Any, three: Any) -> None:
    """One replica missing costs safety, two the writes; a dead broker should be brought back, a live one awaited."""
    three.change("clicks", 0, in_sync_replicas=(1, 3))
    ended = headrace("cluster", "health")
    assert (ended.code, kinds(headrace)) == (ExitCode.UNHEALTHY, ["under_replicated"])
    assert "* 1 partition has not all replicas in sync: clicks-0\n  -> Wait for broker 2 to catch up" in ended.out
    three.change("clicks", 0, in_sync_replicas=(1,))
    three.start_brokers(1, 3)
    assert kinds(headrace) == ["under_min_in_sync", "under_replicated"]
    assert "acks=all is refused: clicks-0\n  -> Bring back broker 2." in headrace("cluster", "health").out


def test_too_few_replicas_for_the_minimum_cannot_be_awaited(headrace: Any, held: Any) -> None:
    """All replicas are in sync and still too few: the topic is wrong, not a broker."""
    held.add("clicks", 1, (1,), 2)
    assert "Give the topic more replicas, or lower its min_insync_replicas." in headrace("cluster", "health").out


def test_etcd_away_is_told_though_the_coordinators_answer(headrace: Any, three: Any) -> None:
    """They remember the cluster; only a read of etcd itself shows that it is away."""
    three.failures["drained_brokers"] = MetastoreUnavailableError("etcd does not answer")
    assert kinds(headrace) == ["etcd_unavailable"]
    assert "reach etcd, so nothing is elected or changed: etcd does not answer" in headrace("cluster", "health").out


def test_health_needs_no_right_of_an_administrator(headrace: Any, three: Any) -> None:
    """Monitors and operators may not dump the metadata; older coordinators are well."""
    three.drained = {3}
    three.failures["dump"] = NotAuthorizedError("no grant of admin on the cluster")
    assert (headrace("cluster", "health").code, kinds(headrace)) == (0, [])
    assert kinds(headrace, "notices") == ["drained_broker"]
    assert headrace("broker", "undrain", "3", "--dry-run").out == "would undrain broker 3\n"
    three.failures["drained_brokers"] = UnsupportedVersionError("an older coordinator")
    assert (headrace("cluster", "health").code, kinds(headrace)) == (0, [])


def test_topics_that_are_not_shown_are_counted(headrace: Any, three: Any) -> None:
    """Their failures have no names; that not all is checked is a notice."""
    three.add("__audit", 2, (1, 2, 3))
    three.hidden_topics = {"__audit"}
    assert (kinds(headrace), kinds(headrace, "notices")) == ([], ["hidden_topics"])
    three.change("__audit", 0, leader_id=-1, in_sync_replicas=(1,))
    three.change("__audit", 1, in_sync_replicas=(1, 2))
    three.change("clicks", 0, leader_id=-1, in_sync_replicas=(1,))
    ended = headrace("cluster", "health")
    assert (ended.code, kinds(headrace)) == (
        ExitCode.UNHEALTHY,
        ["offline_partitions", "offline_partitions", "under_replicated"],
    )
    assert "* 1 partition has no leader, in topics that are not shown to you" in ended.out
    assert "* 2 partitions have not all replicas in sync, in topics that are not shown to you" in ended.out


def test_a_last_resort_is_named_where_there_is_one(headrace: Any, three: Any) -> None:
    """No broker that has all records lives, but a replica does; where none does, there is nothing to take."""
    three.change("clicks", 0, leader_id=-1, in_sync_replicas=(1,), eligible_leaders=(2,))
    three.start_brokers(3)
    ended = headrace("cluster", "health")
    assert "Bring back brokers 1, 2, which hold their replicas. If they are lost for good: `headrace" in ended.out
    three.change("clicks", 0, in_sync_replicas=(1, 3))
    assert "lost for good" not in headrace("cluster", "health").out


def test_moves_drains_and_leaders_elsewhere_are_no_problems(headrace: Any, three: Any) -> None:
    """Exit code 0, each with what to do; a replica that a move adds is not expected to be in sync."""
    three.drained = {3, 7}
    three.brokers = (*three.brokers[:1], three.brokers[1], three.brokers[2])
    three.change("clicks", 0, leader_id=2)
    three.change("clicks", 1, replicas=(1, 2, 3, 4), adding_replicas=(4,), removing_replicas=(3,), unclean=True)
    ended = headrace("cluster", "health")
    assert (ended.code, ended.out.splitlines()[0].split(":")[0]) == (0, "healthy")
    assert kinds(headrace) == []
    assert kinds(headrace, "notices") == [
        "drained_broker",
        "drained_broker",
        "moves_under_way",
        "unclean_leader",
        "leader_imbalance",
    ]
    assert "- broker 3 is drained: it leads 0 partitions" in ended.out
    assert "`headrace broker undrain 7`" in ended.out
    assert "1 of 2 partitions not led by the preferred replica (broker 1 leads 1, broker 2 leads 1)" in ended.out


def test_a_leader_elsewhere_is_no_imbalance_where_the_preferred_cannot_lead(headrace: Any, three: Any) -> None:
    """An election would change nothing while it is not in sync."""
    three.change("clicks", 0, leader_id=2, in_sync_replicas=(2, 3))
    assert kinds(headrace, "notices") == []


def test_how_far_replicas_have_to_go(headrace: Any, three: Any) -> None:
    """One that has not fetched yet lacks the whole log; one that a move removes is not awaited."""
    for _ in range(10):
        three.append("clicks", 0, b"v")
    three.log_ends[TopicPartition("clicks", 0), 2] = -1
    three.log_ends[TopicPartition("clicks", 0), 3] = 4
    three.change("clicks", 0, in_sync_replicas=(1,), removing_replicas=(3,))
    document = json.loads(headrace("cluster", "health", "--output", "json").out)
    assert document["catching_up"] == {"replicas": 1, "records": 10}


def test_a_broker_that_stops_is_not_called_drained(headrace: Any, three: Any) -> None:
    """An administrator has nothing to undrain there, and it is not expected to lead."""
    three.brokers = tuple(
        type(each)(each.broker_id, each.address, "", "", 5, each.broker_id == 1, "0.1.0") for each in three.brokers
    )
    three.change("clicks", 0, leader_id=2)
    assert kinds(headrace, "notices") == ["stopping_broker"]


def test_watching_shows_changes_and_ends_when_healthy(headrace: Any, three: Any, happens: Any) -> None:
    """What did not change is not printed again; the records behind and the time to go are."""
    where = TopicPartition("clicks", 0)
    for _ in range(100):
        three.append("clicks", 0, b"v")
    three.log_ends[where, 2] = 40
    three.change("clicks", 0, in_sync_replicas=(1, 3))
    happens(
        lambda held: None,
        lambda held: held.log_ends.update({(where, 2): 70}),
        lambda held: held.change("clicks", 0, in_sync_replicas=(1, 2, 3)),
    )
    ended = headrace("cluster", "health", "--exit-when-healthy", "--interval", "1")
    assert ended.code == 0
    said = [line for line in ended.out.splitlines() if line.startswith(("catching", "healthy", "unhealthy"))]
    assert said == [
        "unhealthy: 3 brokers, 1 coordinators, 1 topics, 2 partitions",
        "catching up: 1 replica, 60 records behind, - to go",
        "unhealthy: 3 brokers, 1 coordinators, 1 topics, 2 partitions",
        "catching up: 1 replica, 30 records behind, 2s to go",
        "healthy: 3 brokers, 1 coordinators, 1 topics, 2 partitions",
    ]


def test_watching_outlasts_a_cluster_that_is_away(headrace: Any, three: Any, happens: Any) -> None:
    """A restart is what one watches; as JSON there is one document a line."""
    three.failure = NoBrokersAvailableError({"a:1": "refused"})
    happens(lambda held: setattr(held, "failure", None))
    ended = headrace("cluster", "health", "--watch", "--exit-when-healthy", "--output", "json")
    documents = [json.loads(line) for line in ended.out.splitlines()]
    assert (ended.code, [each["healthy"] for each in documents]) == (0, [False, True])
    assert documents[0]["problems"][0]["check"] == "unreachable"
    assert documents[0]["brokers"] is None


def test_the_end_of_the_time_is_the_code_of_the_last_look(headrace: Any, three: Any, happens: Any) -> None:
    """5 when something is wrong, 3 without an answer, 0 when all is well; without watching a look is one look."""
    arguments = ("cluster", "health", "--watch", "--interval", "2", "--wait-timeout", "3", "--quiet")
    happens(lambda held: held.lose_leader("clicks", 1), lambda held: None)
    assert headrace(*arguments).code == ExitCode.UNHEALTHY
    happens(lambda held: setattr(held, "failure", NoBrokersAvailableError({"a:1": "refused"})), lambda held: None)
    assert headrace(*arguments).code == ExitCode.UNREACHABLE
    ended = headrace("cluster", "health")
    assert (ended.code, ended.out, ended.err.count("\n")) == (ExitCode.UNREACHABLE, "", 1)
    three.failure = None
    three.change("clicks", 1, leader_id=1, replicas=(1, 2, 3), in_sync_replicas=(1, 2, 3))
    happens(lambda held: None, lambda held: None)
    assert headrace(*arguments).code == 0


def test_an_interrupt_that_a_sleep_missed_is_noticed_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal before the system call does not end it: no sleep is as long as `--interval` may be."""
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        now[0] += seconds
        slept.append(seconds)

    monkeypatch.setattr(watching, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    assert list(watching.rounds(60.0, 90.5)) == [0.0, 60.0, 90.5]
    assert max(slept) <= 1.0


def test_an_interrupt_ends_watching_quietly(headrace: Any, three: Any, happens: Any) -> None:
    """Exit code 130, what was shown stays, no traceback."""
    happens()
    ended = headrace("cluster", "health", "--watch")
    assert (ended.code, ended.err, ended.out.count("healthy")) == (ExitCode.INTERRUPTED, "", 1)


def test_on_a_terminal_a_picture_replaces_the_one_before(
    headrace: Any, three: Any, happens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cleared once at the start, then drawn from the top."""
    monkeypatch.setattr("headrace.cli.common.watching.sys.stdout.isatty", lambda: True)
    happens(lambda held: held.lose_leader("clicks", 1), lambda held: None)
    out = headrace("cluster", "health", "--watch").out
    assert out.startswith("\x1b[2J\x1b[H\x1b[Jhealthy")
    assert out.count("\x1b[H\x1b[J") == 2


def test_rates_forget_and_begin_anew() -> None:
    """A rate is that of the last seconds; what goes back starts again; without a rate there is no time to go."""
    rate = RateWindow(10)
    assert (rate.per_second, rate.seconds_for(0), rate.seconds_for(5)) == (None, 0.0, None)
    for at, done in ((0, 0), (10, 1000), (20, 1100), (30, 1200)):
        rate.add(at, done)
    assert (rate.per_second, rate.seconds_for(50)) == (10, 5)
    rate.add(31, 3)
    assert rate.per_second is None
    rate.add(91, 63)
    assert rate.per_second == 1
    assert [eta_text(each) for each in (None, 0.2, 61.4, 7200)] == ["-", "0s", "1m1s", "2h"]
