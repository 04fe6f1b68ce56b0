"""Brokers, coordinators, clients and Spark of an earlier state and of this one together, under load: nothing fails.

The earlier state is the newest release, by its tag; before the first one, the commit that `upgrade_baseline.txt` names.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
import tarfile
from contextlib import ExitStack
from pathlib import Path

import headrace
import pytest
from headrace.wire.errors import CorruptBatchError
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_devcluster.service import LocalService

from tests.children import running
from tests.integration.replicated import BROKER_SETTINGS, Replicated, until
from tests.integration.upgrade_client import GROUP

ROOT = Path(__file__).parents[2]
BASELINE = Path(__file__).parent / "upgrade_baseline.txt"
PACKAGES = ("sdk", "services/common", "services/broker", "services/coordinator")
TOPIC, PARTITIONS = "clicks", 6
CLIENT = Path(__file__).parent / "upgrade_client.py"
SPARK = Path(__file__).parent / "upgrade_spark.py"
BEFORE_TYPED = "282912bbae075533491240cfa27add22c0e9421f"
"""Last commit whose brokers do not know typed topics."""
MORE = 100
"""Records of each client between two restarts."""
SPARK_SECONDS = 240

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def baseline(root: Path = ROOT) -> str:
    """Return the newest tag of a release below the last commit, or the commit that the file names."""
    command = ["git", "-C", str(root), "describe", "--abbrev=0", "--match", "v[0-9]*", "HEAD~"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else BASELINE.read_text().strip()


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of a process of the earlier commit."""
    return environment_of(baseline(), tmp_path_factory.mktemp("older"))


def environment_of(commit: str, root: Path) -> dict[str, str]:
    """Return the environment of a process of a commit, whose files are put below `root`."""
    command = ["git", "-C", str(ROOT), "archive", commit, *PACKAGES]
    archive = subprocess.run(command, capture_output=True, check=False)
    assert archive.returncode == 0, archive.stderr.decode()
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(root, filter="data")
    environment = {"PYTHONPATH": os.pathsep.join(str(root / package) for package in PACKAGES)}
    imported = subprocess.run(
        [sys.executable, "-c", "import headrace, headrace_broker as b; print(headrace.__file__, b.__file__)"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(each.startswith(str(root)) for each in imported.stdout.split()), imported.stdout
    return environment


class SkewedCluster(LocalCluster):
    """Cluster whose processes start with these variables."""

    environment: dict[str, str]

    def _make_part(self, *arguments, **options):
        part = super()._make_part(*arguments, **options)
        part.spec = dataclasses.replace(part.spec, environment=self.environment)
        return part


class Clients:
    """Producers and members of one group, by the older SDK and by this one."""

    def __init__(self, stack: ExitStack, servers: str, older: dict[str, str]) -> None:
        self._servers = servers
        self._processes = {}
        for name, environment in (("older", older), ("newer", {})):
            self._processes[name] = stack.enter_context(
                running(
                    [sys.executable, CLIENT, servers, TOPIC, name],
                    env={**os.environ, **environment},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )

    def wait_for_more(self) -> None:
        """Wait until there are more records, and the group has read those that were there before."""
        with headrace.Admin(bootstrap_servers=self._servers) as admin:
            before = sum(self._ends(admin))
            until(lambda: sum(self._ends(admin)) >= before + 2 * MORE, "records are sent", 60)
            until(lambda: self._committed(admin) >= before, "records are read", 60)

    def wait_until_read(self) -> None:
        """Wait until the group has read everything."""
        with headrace.Admin(bootstrap_servers=self._servers) as admin:
            until(lambda: self._committed(admin) == sum(self._ends(admin)), "everything is read", 60)

    def ask(self, line: str) -> dict[str, object]:
        """Send a line to each, and return what each answers."""
        for process in self._processes.values():
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
        return {name: json.loads(process.stdout.readline()) for name, process in self._processes.items()}

    def _ends(self, admin: headrace.Admin) -> list[int]:
        return [at.offset for at in admin.list_offsets(TOPIC, "latest").values()]

    def _committed(self, admin: headrace.Admin) -> int:
        return sum(each.offset for each in admin.group_offsets(GROUP).values())


def test_a_cluster_is_upgraded_and_back_under_load(older: dict[str, str]) -> None:
    """Each coordinator and broker up, one by one, and down again: no send fails, none is lost or there twice."""
    spec = LocalClusterSpec(brokers=3, coordinators=2, broker_settings=BROKER_SETTINGS)
    cluster = SkewedCluster(spec)
    cluster.environment = older
    with cluster, ExitStack() as stack:
        replicated = Replicated(cluster)
        stack.callback(replicated.close)
        replicated.admin.create_topic(TOPIC, PARTITIONS, 3, {"min_insync_replicas": 2})
        clients = Clients(stack, replicated.servers, older)
        up = [*cluster.coordinators, *cluster.brokers]
        for parts, environment in ((up, {}), (up[::-1], older)):
            for part in parts:
                clients.wait_for_more()
                restarted(cluster, part, environment)
                replicated.wait_in_sync(TOPIC)
        clients.wait_for_more()
        stopped = clients.ask("stop")
        print(stopped)
        clients.wait_until_read()
        read = clients.ask("end")
        assert {name: told["failed"] for name, told in stopped.items()} == {"older": [], "newer": []}
        sent = sorted(f"{name}-{number}" for name, told in stopped.items() for number in range(told["sent"]))
        with headrace.Reader(TOPIC, bootstrap_servers=replicated.servers) as reader:
            assert sorted(record.value.decode() for record in reader) == sent
        assert set(read["older"]) | set(read["newer"]) == set(sent)
        assert min(map(len, read.values())) > 0, "each member reads a share"
        for part in cluster.parts:
            assert "Traceback" not in part.log_file.read_text(), part.name


def test_typed_topics_take_rows_at_each_step_of_an_upgrade(older: dict[str, str]) -> None:
    """Up and down again, with both replicas needed for each acknowledgement."""
    cluster = SkewedCluster(LocalClusterSpec(brokers=2, coordinators=1, broker_settings=BROKER_SETTINGS))
    cluster.environment = older
    with cluster, ExitStack() as stack:
        replicated = Replicated(cluster)
        stack.callback(replicated.close)
        replicated.create(TOPIC, [[1, 2], [2, 1]], columns="a int64 required", min_insync_replicas=2)
        up, count = [*cluster.coordinators, *cluster.brokers], 0
        with headrace.Producer(bootstrap_servers=replicated.servers, acks="all") as producer:
            for parts, environment in ((up, {}), (up[::-1], older)):
                for part in parts:
                    restarted(cluster, part, environment)
                    replicated.wait_in_sync(TOPIC)
                    for partition in range(2):
                        producer.send(TOPIC, {"a": count}, partition=partition).result(timeout=30)
                        count += 1
        with headrace.Reader(TOPIC, bootstrap_servers=replicated.servers) as reader:
            assert sorted(reader.to_arrow()["a"].to_pylist()) == list(range(count))


@pytest.mark.parametrize("servers", ["older", "newer"])
def test_spark_reads_and_writes_topics_of_the_other_release(older: dict[str, str], servers: str) -> None:
    """By the data source of each, in its driver and in its tasks."""
    cluster = SkewedCluster(LocalClusterSpec(brokers=1, coordinators=1))
    cluster.environment, spark = (older, {}) if servers == "older" else ({}, older)
    values = [str(number) for number in range(1_000)]
    with cluster:
        with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            for topic in (TOPIC, "copied"):
                admin.create_topic(topic, PARTITIONS)
        with headrace.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            producer.send_many(TOPIC, [value.encode() for value in values])
        done = subprocess.run(
            [sys.executable, SPARK, cluster.bootstrap_servers, TOPIC, "copied"],
            env={**os.environ, **spark, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=SPARK_SECONDS,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-5_000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["values"] == sorted(values)
    root = spark.get("PYTHONPATH", str(ROOT)).partition(os.pathsep)[0]
    assert len(told["paths"]) > 1, "the driver and a task"
    assert all(path.startswith(root) for path in told["paths"]), told["paths"]


@pytest.mark.parametrize("transport", [pytest.param("native", marks=pytest.mark.native), "grpc"])
def test_brokers_from_before_typed_topics_refuse_rows(tmp_path: Path, transport: str) -> None:
    """With an error that names the flag, and nothing is appended. Followers copy rows as they are, and serve them."""
    cluster = SkewedCluster(LocalClusterSpec(brokers=2, coordinators=1, broker_settings=BROKER_SETTINGS))
    cluster.environment = {}
    with cluster, ExitStack() as stack:
        replicated = Replicated(cluster)
        stack.callback(replicated.close)
        part = cluster.broker(2)
        restarted(cluster, part, environment_of(BEFORE_TYPED, tmp_path / "before"))
        replicated.create(TOPIC, [[1, 2], [2, 1]], columns="a int64 required", min_insync_replicas=1)
        client = {"bootstrap_servers": replicated.servers, "transport": transport}
        with pytest.raises(headrace.DeliveryError), headrace.Producer(**client) as producer:
            with pytest.raises(CorruptBatchError, match="reserved flags are set: 0x0100"):
                producer.send(TOPIC, {"a": 1}, partition=1).result(timeout=30)
        with headrace.Producer(**client) as producer:
            assert producer.send(TOPIC, {"a": 2}, partition=0).result(timeout=30).offset == 0
        replicated.wait_in_sync(TOPIC)
        assert cluster.broker(1).stop() == 0
        until(lambda: replicated.leader(TOPIC) == 2, "the older broker leads")
        with headrace.Reader(TOPIC, columns=["a"], **client) as reader:
            assert reader.to_arrow().column("a").to_pylist() == [2]
        cluster.restart(cluster.broker(1))
        restarted(cluster, part, {})
        replicated.wait_in_sync(TOPIC)
        with headrace.Producer(**client) as producer:
            assert producer.send(TOPIC, {"a": 1}, partition=1).result(timeout=30).offset == 0
        with headrace.Reader(TOPIC, **client) as reader:
            assert sorted(record.value["a"] for record in reader) == [1, 2]


def restarted(cluster: LocalCluster, part: LocalService, environment: dict[str, str]) -> None:
    """Stop a process and start it with these variables."""
    assert part.stop() == 0, part.log_file.read_text()
    part.spec = dataclasses.replace(part.spec, environment=environment)
    cluster.restart(part)
    cluster.wait_until_healthy()
