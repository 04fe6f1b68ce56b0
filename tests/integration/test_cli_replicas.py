"""The commands about replicas against a real cluster: moves with progress, drains, elections, health while it heals."""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import headrace as sdk
import pytest
from headrace.cli.common.session import SdkClients
from headrace.cli.main import run
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from tests.integration.replicated import Replicated

WAIT = "60"
RECORDS = 4_000
FAST = {"lease_ttl_ms": 2000, "replica_lag_max_ms": 2000}


class Ended(NamedTuple):
    """What a command line did."""

    code: int
    out: str
    err: str


class CommandLine:
    """Runs command lines in this process against a cluster."""

    def __init__(self, cluster: LocalCluster, capture: pytest.CaptureFixture[bytes]) -> None:
        self.cluster = cluster
        self._capture = capture

    def __call__(self, *arguments: str) -> Ended:
        code = run([*arguments, "-b", self.cluster.bootstrap_servers], SdkClients())
        captured = self._capture.readouterr()
        return Ended(int(code), captured.out.decode(), captured.err.decode())

    def ok(self, *arguments: str) -> str:
        ended = self(*arguments)
        assert ended.code == 0, ended
        return ended.out

    def create(self, *arguments: str) -> None:
        """Create a topic; on a busy machine a broker of the shared cluster may be without its short lease just now."""
        arguments = ("topic", "create", *arguments, "--if-not-exists")
        self.until(lambda: self(*arguments).code == 0, f"{arguments[2]} is created")

    def document(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--output", "json"))

    def last(self, *arguments: str) -> Any:
        """The last document of a command that watches."""
        return json.loads(self.ok(*arguments, "--output", "json").splitlines()[-1])

    def replicas(self) -> list[list[int]]:
        return [row["replicas"] for row in self.document("partition", "list")]

    def healthy(self) -> None:
        """Wait until nothing is wrong."""
        self.ok("cluster", "health", "--exit-when-healthy", "--interval", "0.1", "--wait-timeout", WAIT)

    def until(self, shows: Callable[[], bool], what: str) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + float(WAIT)
        while not shows():
            assert time.monotonic() < deadline, what


@pytest.fixture(scope="module")
def fast_cluster() -> Iterator[Replicated]:
    """Three brokers that notice a death in two seconds."""
    with LocalCluster(LocalClusterSpec(broker_settings=FAST)) as cluster:
        replicated = Replicated(cluster)
        yield replicated
        replicated.close()


@pytest.fixture
def headrace(fast_cluster: Replicated, capsysbinary: pytest.CaptureFixture[bytes]) -> Iterator[CommandLine]:
    """A command line of the shared cluster, which is whole and empty again after the test."""
    yield CommandLine(fast_cluster.cluster, capsysbinary)
    fast_cluster.restore()
    for topic in fast_cluster.admin.list_topics():
        fast_cluster.admin.delete_topic(topic)


def produce(cluster: LocalCluster, topic: str, first: int = 0, count: int = RECORDS) -> None:
    """Records of a kilobyte, numbered from `first`."""
    with sdk.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for number in range(first, first + count):
            producer.send(topic, b"%d " % number + b"x" * 1000, key=b"%d" % number)


def read(cluster: LocalCluster, topic: str) -> list[int]:
    """The numbers of all records, ascending."""
    with sdk.Reader(topic, bootstrap_servers=cluster.bootstrap_servers) as reader:
        return sorted(int((record.value or b"").split()[0]) for record in reader)


def test_a_broker_comes_and_another_goes(
    own_cluster: Callable[..., LocalCluster], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Added, it gets an even share; removed, one has nothing left; no record is lost, and the bytes are counted."""
    headrace = CommandLine(own_cluster(brokers=3, broker_settings=FAST), capsysbinary)
    headrace.create("clicks", "-p", "6")
    produce(headrace.cluster, "clicks")
    assert "nothing to move" in headrace.ok("partition", "reassign", "--add-broker", "3", "--dry-run")
    headrace.cluster.add_broker()
    before = headrace.replicas()
    planned = headrace.document("partition", "reassign", "--add-broker", "4", "--dry-run")
    assert headrace.replicas() == before, "a dry run moves nothing"
    assert planned["copies"] == 4
    added = headrace.last(
        "partition", "reassign", "--add-broker", "4", "--watch", "--interval", "0.05", "--wait-timeout", WAIT
    )
    assert (added["done"], added["partitions_done"]) == (True, 4)
    assert added["copied_bytes"] == added["total_bytes"] > RECORDS * 300
    assert sum(4 in replicas for replicas in headrace.replicas()) == 4
    removed = headrace.last(
        "partition", "reassign", "--remove-broker", "1", "--throttle", "100MiB", "--watch",
        "--interval", "0.05", "--wait-timeout", WAIT,
    )  # fmt: skip
    assert removed["done"]
    assert [sorted(replicas) for replicas in headrace.replicas()] == [[2, 3, 4]] * 6
    headrace.healthy()
    assert headrace.document("broker", "describe", "1")["replicas"] == []
    assert read(headrace.cluster, "clicks") == list(range(RECORDS))


def test_a_move_is_shown_and_taken_back(
    own_cluster: Callable[..., LocalCluster], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A move is under way while its new replica is paused; cancelling restores the former replicas."""
    headrace = CommandLine(own_cluster(brokers=3), capsysbinary)
    headrace.create("clicks", "-p", "1", "-r", "2")
    produce(headrace.cluster, "clicks")
    (before,) = headrace.replicas()
    (new,) = {1, 2, 3} - set(before)
    target = f"{before[0]},{new}"
    headrace.cluster.broker(new).pause()
    try:
        quick = ("--timeout", "0.5")
        headrace.ok("partition", "reassign", "clicks:0", "--replicas", target, "--throttle", "1GiB", *quick)
        ended = headrace("partition", "reassign", "--watch", "--wait-timeout", "0.1", *quick)
        assert (ended.code, "they continue" in ended.err) == (6, True)
        (copy,) = headrace.document("partition", "reassign", *quick)["copies"]
        assert (copy["broker_id"], copy["done"], copy["percent"]) == (new, False, 0)
        assert [row["problems"] for row in headrace.document("partition", "list", "--problem", "moving")] == [
            ["moving"]
        ]
        health = json.loads(headrace("cluster", "health", "--output", "json", *quick).out)
        assert [each["check"] for each in health["notices"]] == ["moves_under_way"]
        assert "cancelled 1 move: clicks-0" in headrace.ok("partition", "reassign", "--cancel")
        assert headrace.ok("partition", "reassign") == "nothing is moving\n"
        assert sorted(headrace.replicas()[0]) == sorted(before)
    finally:
        headrace.cluster.broker(new).resume()
    headrace.healthy()
    headrace.ok("partition", "reassign", "clicks:0", "--replicas", target, "--watch", "--wait-timeout", WAIT)
    assert headrace.replicas() == [[before[0], new]]
    assert read(headrace.cluster, "clicks") == list(range(RECORDS))


def test_a_drained_broker_leads_nothing_until_it_is_back(headrace: CommandLine) -> None:
    """Draining ends when nothing is led; health says so without alarm; an election brings it back."""
    headrace.create("clicks", "-p", "6")

    def leads() -> int:
        return int(headrace.document("broker", "describe", "2")["leads"])

    assert leads() == 2
    assert headrace.ok("broker", "drain", "2", "--dry-run") == "would drain broker 2; it leads 2 partitions\n"
    assert leads() == 2
    assert headrace.last("broker", "drain", "2", "--wait", "--wait-timeout", WAIT)["leads"] == 0
    health = headrace.document("cluster", "health")
    assert [each["check"] for each in health["notices"]] == ["drained_broker"]
    assert health["healthy"]
    assert headrace.ok("broker", "undrain", "2") == "undrained broker 2\n"
    assert len(headrace.document("partition", "list", "--problem", "not_preferred")) == 2
    assert "elected 2 leaders of 6 partitions" in headrace.ok("partition", "elect")
    headrace.until(lambda: leads() == 2, "the preferred leaders lead again")
    assert headrace("broker", "drain", "9").code == 4


def test_health_watches_a_broker_die_and_come_back(headrace: CommandLine) -> None:
    """What is wrong is said while it is wrong; what a replica lacks is shown; it ends when nothing is."""
    cluster = headrace.cluster
    headrace.create("clicks", "-p", "3")
    produce(cluster, "clicks")
    cluster.broker(2).kill()
    headrace.until(lambda: headrace("cluster", "health").code == 5, "the death is noticed")
    headrace.until(
        lambda: (
            [row["in_sync_replicas"] for row in headrace.document("topic", "describe", "clicks")["partitions"]]
            == [
                row["in_sync_replicas"]
                for row in headrace.document("partition", "list", "--problem", "under_replicated")
            ]
        ),
        "the dead replica leaves every in-sync set",
    )
    problems = json.loads(headrace("cluster", "health", "--output", "json").out)["problems"]
    assert [each["check"] for each in problems] == ["under_replicated"]
    assert "Bring back broker 2." in problems[0]["action"]
    produce(cluster, "clicks", RECORDS)
    (found, *_) = headrace.document("topic", "describe", "clicks")["partitions"]
    dead = next(each for each in found["replica_logs"] if each["broker_id"] == 2)
    assert (dead["in_sync"], dead["size_bytes"]) == (False, None)
    assert found["high_watermark"] == found["log_end_offset"] > 0
    coming_back = threading.Thread(target=cluster.restart, args=(cluster.broker(2),))
    coming_back.start()
    try:
        headrace.healthy()
    finally:
        coming_back.join()
    for row in headrace.document("topic", "describe", "clicks")["partitions"]:
        assert [each["lag_records"] for each in row["replica_logs"]] == [0, 0, 0]
    assert read(cluster, "clicks") == list(range(2 * RECORDS))


def test_an_unclean_election_shows_the_loss_and_makes_it(headrace: CommandLine) -> None:
    """The last replica in sync is gone for good: the other one leads at a word, and what it lacks is lost."""
    cluster = headrace.cluster
    headrace.create("clicks", "-p", "1", "-r", "2", "--config", "min_insync_replicas=1")
    produce(cluster, "clicks", 0, 100)
    (row,) = headrace.document("partition", "list")
    leader, follower = row["replicas"]
    cluster.broker(follower).kill()
    headrace.until(
        lambda: headrace.document("partition", "list")[0]["in_sync_replicas"] == [leader], "the follower leaves"
    )
    produce(cluster, "clicks", 100, 50)
    cluster.broker(leader).kill()
    cluster.restart(cluster.broker(follower))
    headrace.until(lambda: headrace.document("partition", "list")[0]["leader"] is None, "no leader")
    ended = headrace("cluster", "health")
    assert (ended.code, "`headrace partition elect --unclean`" in ended.out) == (5, True)
    elect = ("partition", "elect", "clicks:0", "--unclean")
    assert headrace("partition", "elect", "clicks:0").code == 1
    (candidate,) = headrace.document(*elect, "--dry-run")["candidates"]
    assert (candidate["broker_id"], candidate["log_end_offset"]) == (follower, 100)
    ended = headrace(*elect, "--broker", str(follower), "--yes")
    assert (ended.code, "records from offset 100 on are lost" in ended.err) == (0, True)
    assert "elected 1 leader of 1 partition" in ended.out
    assert [each["check"] for each in json.loads(headrace("cluster", "health", "--output", "json").out)["notices"]] == [
        "unclean_leader"
    ]
    assert read(cluster, "clicks") == list(range(100))
    cluster.restart(cluster.broker(leader))
    headrace.healthy()
    assert headrace(*elect, "--broker", str(leader), "--yes").code == 1, "who is complete lives"


def test_etcd_away_is_reported(headrace: CommandLine) -> None:
    """Nothing else is wrong: producing succeeds."""
    headrace.create("clicks", "-p", "1")
    headrace.cluster.etcd.pause()
    try:
        ended = headrace("cluster", "health", "--timeout", "2", "--output", "json")
        assert [each["check"] for each in json.loads(ended.out)["problems"]] == ["etcd_unavailable"]
        assert ended.code == 5
    finally:
        headrace.cluster.etcd.resume()


def test_a_throttle_holds_a_move_and_is_lifted(headrace: CommandLine) -> None:
    """At a byte a second a move does not end; given another speed on its way it does."""
    headrace.create("clicks", "-p", "1", "-r", "2")
    filler = random.Random(1).randbytes(8_000)
    with sdk.Producer(bootstrap_servers=headrace.cluster.bootstrap_servers, compression_type="none") as producer:
        for _ in range(4_000):
            producer.send("clicks", filler)
    (before,) = headrace.replicas()
    (new,) = {1, 2, 3} - set(before)
    headrace.ok("partition", "reassign", "clicks:0", "--replicas", f"{before[0]},{new}", "--throttle", "1")
    ended = headrace("partition", "reassign", "--watch", "--wait-timeout", "2", "--interval", "0.2")
    assert (ended.code, "they continue" in ended.err) == (6, True)
    headrace.ok("partition", "reassign", "--throttle", "1GiB", "--watch", "--wait-timeout", WAIT)
    assert headrace.replicas() == [[before[0], new]]
