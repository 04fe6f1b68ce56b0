"""A real local cluster: it comes up, its parts fail and come back, it ends without a trace, and a shell can run it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import headrace
import psutil
import pytest
from headrace import testing
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_devcluster.cluster_health import describe_cluster
from headrace_devcluster.errors import PartStartError
from headrace_devcluster.etcd_program import FIRST_SAFE_VERSION_TO_KILL, describe_etcd, find_etcd
from headrace_devcluster.process_state import process_state

from tests.children import running

COMMAND = [sys.executable, "-m", "headrace_devcluster"]


def produce_and_read(bootstrap_servers: str, topic: str, values: list[bytes]) -> list[bytes]:
    with headrace.Producer(bootstrap_servers=bootstrap_servers) as producer:
        for value in values:
            producer.send(topic, value)
        producer.flush(timeout=30)
    with headrace.Reader(topic, bootstrap_servers=bootstrap_servers) as reader:
        return [record.value for record in reader.read(timeout=30)]


def test_a_cluster_comes_up_whole(headrace_cluster: LocalCluster) -> None:
    """Every coordinator sees all brokers and one and the same controller."""
    answers = [describe_cluster(coordinator.address) for coordinator in headrace_cluster.coordinators]
    assert [sorted(broker.broker_id for broker in answer.brokers) for answer in answers] == [[1, 2, 3]] * 2
    assert len({answer.controller_id for answer in answers}) == 1


def test_records_go_in_and_out(headrace_cluster: LocalCluster, topic_name: str) -> None:
    """What is produced is read back, through the addresses that the cluster gives."""
    values = [b"%d" % n for n in range(1_000)]
    with headrace.Admin(bootstrap_servers=headrace_cluster.bootstrap_servers) as admin:
        admin.create_topic(topic_name, partitions=1)
    assert produce_and_read(headrace_cluster.bootstrap_servers, topic_name, values) == values


def test_a_killed_broker_comes_back_with_its_records(own_cluster: Callable[..., LocalCluster]) -> None:
    """`kill -9` of the broker loses nothing that was acknowledged, and its address stays."""
    cluster = own_cluster(brokers=1, coordinators=1, broker_settings={"lease_ttl_ms": 2_000})
    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic("kept", partitions=1)
    before = [b"before %d" % n for n in range(500)]
    assert produce_and_read(cluster.bootstrap_servers, "kept", before) == before
    broker = cluster.broker(1)
    address = broker.address
    broker.kill()
    cluster.restart(broker)
    assert broker.address == address
    after = [b"after %d" % n for n in range(500)]
    assert produce_and_read(cluster.bootstrap_servers, "kept", after) == before + after


def test_a_broker_joins_a_running_cluster(own_cluster: Callable[..., LocalCluster]) -> None:
    """A broker that is added is registered with its rack and takes a partition over, with all its records."""
    cluster = own_cluster(brokers=1, coordinators=1, racks=("a", "b"))
    with pytest.raises(PartStartError, match="broker-2 ended"):
        cluster.add_broker(lease_ttl_ms=1)
    assert [broker.name for broker in cluster.brokers] == ["broker-1"]
    values = [b"%d" % n for n in range(500)]
    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic("moved", assignments=[[1]])
        assert produce_and_read(cluster.bootstrap_servers, "moved", values) == values
        assert cluster.add_broker().name == "broker-2"
        seen = {broker.broker_id: broker.rack for broker in describe_cluster(cluster.coordinator("a").address).brokers}
        assert seen == {1: "a", 2: "b"}
        admin.reassign_partitions({headrace.TopicPartition("moved", 0): [2]})
        deadline = time.monotonic() + 60
        while admin.describe_topic("moved").partitions[0].replicas != (2,):
            assert time.monotonic() < deadline, admin.describe_topic("moved")
    cluster.broker(1).kill()
    assert produce_and_read(cluster.bootstrap_servers, "moved", [b"new"]) == [*values, b"new"]


def test_etcd_comes_back_with_its_data(own_cluster: Callable[..., LocalCluster]) -> None:
    """etcd, stopped and started again, still knows the topics, and the cluster finds itself."""
    cluster = own_cluster(brokers=1, coordinators=1)
    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic("remembered", partitions=1)
        if cluster.etcd.version() >= FIRST_SAFE_VERSION_TO_KILL:
            cluster.etcd.kill()
        else:
            cluster.etcd.stop()
        cluster.restart_etcd()
        cluster.wait_until_healthy()
        assert admin.list_topics() == ["remembered"]


def test_an_asyncio_program_can_own_a_cluster() -> None:
    """`async with` starts and stops it next to the event loop; nothing is left."""

    async def main() -> tuple[Path, list[int]]:
        async with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1)) as cluster:
            return cluster.directory, [part.pid or 0 for part in cluster.parts]

    directory, pids = asyncio.run(main())
    assert not directory.exists()
    assert {process_state(pid) for pid in pids} == {"stopped"}


def test_kept_data_is_there_again(tmp_path: Path) -> None:
    """A cluster with a directory shuts down cleanly and finds its topics and records when it starts again."""
    spec = LocalClusterSpec(brokers=1, coordinators=1, directory=tmp_path)
    values = [b"%d" % n for n in range(100)]
    with LocalCluster(spec) as cluster:
        with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topic("kept", partitions=1)
        assert produce_and_read(cluster.bootstrap_servers, "kept", values) == values
    logs = {part.name: part.log_file.read_text() for part in cluster.parts}
    assert "clean=True" in logs["broker-1"].splitlines()[-1]
    assert not any("stop_forced" in log for log in logs.values())
    with LocalCluster(spec) as cluster:
        assert produce_and_read(cluster.bootstrap_servers, "kept", [b"new"]) == [*values, b"new"]


def test_up_status_down(tmp_path: Path) -> None:
    """`up` returns when it is healthy, a second one says so and starts what was killed; an etcd that does
    not start is reported and stops no other part. `down` ends them all."""
    options = ["--data-dir", str(tmp_path)]

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=90)

    try:
        first = command("up", *options, "--brokers", "1", "--coordinators", "1", "--any-port", "--racks", "x,y")
        assert first.returncode == 0, first.stderr
        assert "bootstrap_servers=127.0.0.1:" in first.stdout
        assert "\nexport HEADRACE_BOOTSTRAP_SERVERS=127.0.0.1:" in first.stdout
        which = describe_etcd(find_etcd())
        assert which in first.stdout.splitlines()
        assert which in command("status", *options).stdout.splitlines()
        assert "already running" in command("up", *options).stdout
        with headrace.Admin(bootstrap_servers=first.stdout.split("bootstrap_servers=")[1].split()[0]) as admin:
            admin.create_topic("two", partitions=2)
            deadline = time.monotonic() + 30
            while any(part.leader_id < 0 for part in admin.describe_topic("two").partitions):
                assert time.monotonic() < deadline, admin.describe_topic("two")
        state = json.loads(command("status", *options, "--json").stdout)
        assert [part["name"] for part in state["parts"]] == ["etcd", "coordinator-a", "broker-1"]
        assert state["leadership"] == {
            "topics": 1,
            "partitions": 2,
            "offline_partitions": 0,
            "under_replicated_partitions": 0,
            "leaders": {"1": 2},
        }
        assert "2 partitions of 1 topics: 0 without a leader" in command("status", *options).stdout
        assert [broker.rack for broker in describe_cluster(state["parts"][1]["address"]).brokers] == ["x"]
        pids = [state["pid"], *(part["pid"] for part in state["parts"])]
        assert all(psutil.pid_exists(pid) for pid in pids)
        broker = state["parts"][2]
        os.kill(broker["pid"], signal.SIGKILL)
        psutil.wait_procs([psutil.Process(broker["pid"])], timeout=30)
        restarted = command("up", *options)
        assert "restarted: broker-1" in restarted.stdout, restarted.stderr
        again = json.loads(command("status", *options, "--json").stdout)["parts"][2]
        assert (again["address"], process_state(again["pid"])) == (broker["address"], "running")
        pids.append(again["pid"])
        os.kill(pids[1], signal.SIGTERM)
        psutil.wait_procs([psutil.Process(pids[1])], timeout=30)
        release = tmp_path / "etcd" / "release"
        last = release.read_text()
        release.write_text("99.0.0")
        for _ in range(2):  # The second failure leaves the state as it is.
            failed = command("up", *options)
            assert (failed.returncode, "etcd cannot be started again" in failed.stderr) == (1, True), failed
        assert "cannot open" in (tmp_path / "run.log").read_text()
        assert process_state(again["pid"]) == "running"
        release.write_text(last)
        assert "restarted: etcd" in command("up", *options).stdout
        pids.append(json.loads(command("status", *options, "--json").stdout)["parts"][0]["pid"])
    finally:
        down = command("down", *options)
    assert down.stdout == "stopped\n"
    assert {process_state(pid) for pid in pids} == {"stopped"}
    assert command("status", *options).returncode == 3
    assert command("down", *options).stdout == "no cluster is running\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_owner(number: signal.Signals) -> None:
    """Ctrl-C, SIGTERM and SIGKILL of the owner end every part; the first two leave no directory either."""
    command = [*COMMAND, "run", "--any-port", "--brokers", "1", "--coordinators", "1"]
    with running(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}) as owner:
        assert owner.stdout is not None
        assert "the cluster is up" in owner.stdout.readline()
        children = psutil.Process(owner.pid).children()
        directories = {Path(child.cmdline()[-1].partition("=")[2]) for child in children}
        assert len(children) == 3
        owner.send_signal(number)
        owner.wait(60)
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []
    if number != signal.SIGKILL:
        assert not any(path.parent.exists() for path in directories if path.is_absolute())


def test_users_of_the_sdk_get_the_same() -> None:
    """`headrace.testing` starts a cluster as a child, forwards commands for its parts, and ends it."""
    with testing.cluster(brokers=1, coordinators=1) as cluster:
        with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topic("mine", partitions=1)
        assert produce_and_read(cluster.bootstrap_servers, "mine", [b"1"]) == [b"1"]
        cluster.kill("broker-1")
        cluster.restart("broker-1")
        assert produce_and_read(cluster.bootstrap_servers, "mine", [b"2"]) == [b"1", b"2"]
        with pytest.raises(testing.TestClusterError, match="no part 'broker-7'"):
            cluster.kill("broker-7")
