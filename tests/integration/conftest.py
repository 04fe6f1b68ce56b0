"""Real parts for integration tests: an etcd, and broker processes on ports of the kernel, killed whatever happens."""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from headrace.v1 import broker_pb2_grpc
from headrace_devcluster import cluster as cluster_module
from headrace_devcluster import fixtures, service
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_devcluster.etcd import Etcd
from headrace_server.cluster_identity import ClusterIdentity, read_or_create
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.api import Delete, DeletePrefix, Put
from headrace_server.metastore.etcd import EtcdMetastore
from headrace_server.partition_state import PartitionState, Replica, change, decode, encode

from tests.integration import on_directory
from tests.integration.metastore import connected
from tests.integration.replicated import BROKER_SETTINGS, Replicated

if on_directory.IS_ON:
    cluster_module.LocalCluster = on_directory.LocalDirectory  # type: ignore[assignment, misc]
    fixtures.LocalCluster = on_directory.LocalDirectory  # type: ignore[assignment, misc]

    def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
        """Skip what a directory cannot pass."""
        on_directory.exclude(items)


START_SECONDS = 30.0
COMMAND = [sys.executable, "-m", "headrace_broker"]


@pytest.fixture(scope="session")
def broker_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One etcd for all broker tests of the session; each uses a cluster name of its own."""
    with Etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


class BrokerProcess:
    """A broker without a cluster, and a hand in etcd that plays the controller."""

    def __init__(self, etcd: Etcd, directory: Path, *, cluster: str = "", broker_id: int = 1) -> None:
        self.etcd = etcd
        self.directory = directory
        self.data_dir = directory / "data"
        self.cluster = cluster or f"c{secrets.token_hex(4)}"
        self.broker_id = broker_id
        self.overrides: dict[str, object] = {}
        self.address = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: grpc.Channel | None = None

    def arguments(self, **overrides: object) -> list[str]:
        settings = {
            "broker_id": self.broker_id,
            "data_dir": self.data_dir,
            "cluster": self.cluster,
            "etcd_endpoints": self.etcd.endpoint,
            "listen": "127.0.0.1:0",
            "ready_file": self.directory / "ready.json",
            "maintenance_interval_ms": 50,
            "retention_interval_ms": 100,
            "lease_ttl_ms": 3000,
            **self.overrides,
            **overrides,
        }
        return [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]

    def start(self, open_files: int = 0) -> BrokerProcess:
        """Start it, where it is told so with no more open files than these, and wait until it serves."""
        ready = self.directory / "ready.json"
        ready.unlink(missing_ok=True)

        log_file = self.directory / "broker.log"
        if open_files:
            limited = ["sh", "-c", f'ulimit -n {open_files}; exec "$@"', "sh", *COMMAND, *self.arguments()]
            with log_file.open("a") as log:
                self._process = subprocess.Popen(limited, stderr=log)
        else:
            self._process = service.Child("headrace_broker", self.arguments(), {}, log_file)
        wait_until(lambda: ready.exists() or self._process.poll() is not None, "the broker serves", self.log)
        assert ready.exists(), self.log()
        self.address = json.loads(ready.read_text())["address"]
        return self

    def log(self) -> str:
        return (self.directory / "broker.log").read_text()

    @property
    def stub(self) -> broker_pb2_grpc.BrokerServiceStub:
        return broker_pb2_grpc.BrokerServiceStub(self.channel)

    @property
    def channel(self) -> grpc.Channel:
        if self._channel is None:
            self._channel = grpc.insecure_channel(
                self.address,
                options=[("grpc.max_send_message_length", 64 << 20), ("grpc.max_receive_message_length", 64 << 20)],
            )
        return self._channel

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(START_SECONDS)
        self.close()
        return code

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(START_SECONDS)
        self.close()

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    # --- the controller's part ---

    async def _identity(self, metastore: EtcdMetastore) -> ClusterIdentity:
        return await read_or_create(metastore, self.cluster, secrets.token_hex(16))

    async def create_topic(self, name: str, partitions: int = 1, **configs: object) -> bytes:
        """Write a topic whose partitions this broker leads; its id."""
        async with connected(self.etcd.endpoint) as metastore:
            keys = (await self._identity(metastore)).keyspace
            topic_id = secrets.token_bytes(16)
            live = (await metastore.get(keys.broker(self.broker_id))).key_value
            assert live is not None
            me = Replica(self.broker_id, live.create_revision)
            state = PartitionState(replicas=(self.broker_id,), leader=me, leader_epoch=0, in_sync=(me,))
            topic = metadata_pb2.Topic(
                name=name,
                topic_id=topic_id,
                partitions=partitions,
                replication_factor=1,
                configs={key: str(value) for key, value in configs.items()},
            ).SerializeToString()
            operations = [Put(keys.partition(topic_id, number), encode(state)) for number in range(partitions)]
            await metastore.txn([], [*operations, Put(keys.topic_by_id(topic_id), topic), Put(keys.topic(name), topic)])
            return topic_id

    async def set_configs(self, name: str, **configs: object) -> None:
        """Replace a topic's settings."""
        async with connected(self.etcd.endpoint) as metastore:
            keys = (await self._identity(metastore)).keyspace
            found = (await metastore.get(keys.topic(name))).key_value
            topic = metadata_pb2.Topic.FromString(found.value)
            topic.configs.clear()
            topic.configs.update({key: str(value) for key, value in configs.items()})
            await metastore.txn([], [Put(keys.topic(name), topic.SerializeToString())])

    async def delete_topic(self, name: str, topic_id: bytes) -> None:
        """Delete a topic's keys and say that it was deleted, in one transaction."""
        async with connected(self.etcd.endpoint) as metastore:
            keys = (await self._identity(metastore)).keyspace
            topic = metadata_pb2.Topic.FromString((await metastore.get(keys.topic(name))).key_value.value)
            evidence = metadata_pb2.DeletedTopic(topic=topic, deleted_ms=1)
            operations = [
                Put(keys.deleted_topic(topic_id), evidence.SerializeToString()),
                Delete(keys.topic(name)),
                Delete(keys.topic_by_id(topic_id)),
                DeletePrefix(keys.partition_prefix(topic_id)),
            ]
            await metastore.txn([], operations)

    async def elect(self, topic_id: bytes, number: int = 0) -> PartitionState:
        """Do what the controller does after a restart: the live session resumes the one that the key names."""
        async with connected(self.etcd.endpoint) as metastore:
            keys = (await self._identity(metastore)).keyspace
            live = (await metastore.get(keys.broker(self.broker_id))).key_value
            found = (await metastore.get(keys.partition(topic_id, number))).key_value
            state = decode(found.value)
            me = Replica(self.broker_id, live.create_revision)
            message = metadata_pb2.BrokerLive.FromString(live.value)
            (entry,) = state.in_sync
            assert message.clean
            assert 0 < message.resumes <= entry.broker_epoch
            after = change(state, leader=me, in_sync=[me])
            await metastore.txn([], [Put(keys.partition(topic_id, number), encode(after))])
            return after

    async def partition_state(self, topic_id: bytes, number: int = 0) -> PartitionState:
        async with connected(self.etcd.endpoint) as metastore:
            keys = (await self._identity(metastore)).keyspace
            return decode((await metastore.get(keys.partition(topic_id, number))).key_value.value)


def wait_until(condition: Callable[[], bool], what: str, context: Callable[[], str] = str) -> None:
    """Look until `condition` holds, at most START_SECONDS."""
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come: {context()[-3000:]}"
        time.sleep(0.01)


@pytest.fixture
def broker_process(broker_etcd: Etcd, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that is not started yet."""
    process = BrokerProcess(broker_etcd, tmp_path)
    yield process
    process.close()


@pytest.fixture(scope="module")
def broker(broker_etcd: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A running broker that the tests of a module share; each makes its own topic."""
    with contextlib.closing(BrokerProcess(broker_etcd, tmp_path_factory.mktemp("broker"))) as process:
        yield process.start()


@pytest.fixture
def broker_with_own_etcd(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that is not started yet, and an etcd that the test may stop."""
    with Etcd(tmp_path / "etcd") as etcd:
        process = BrokerProcess(etcd, tmp_path)
        yield process
        process.close()


@pytest.fixture(scope="module")
def replicated_cluster() -> Iterator[Replicated]:
    """Three brokers with short times for the tests of a module; `replicated` is what they take."""
    with LocalCluster(LocalClusterSpec(coordinators=1, broker_settings=BROKER_SETTINGS)) as cluster:
        replicated = Replicated(cluster)
        yield replicated
        replicated.close()


@pytest.fixture
def replicated(replicated_cluster: Replicated) -> Iterator[Replicated]:
    """The module's cluster, whole again after the test whatever that did to its parts."""
    yield replicated_cluster
    replicated_cluster.restore()
