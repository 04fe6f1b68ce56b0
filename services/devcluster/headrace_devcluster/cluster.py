"""Complete cluster on this machine, by default one etcd, two coordinators and three brokers; or one process.

    with LocalCluster() as cluster:                 # or: async with LocalCluster() as cluster
        headrace.Producer(bootstrap_servers=cluster.bootstrap_servers)
        cluster.broker(1).kill()
        cluster.restart(cluster.broker(1))
        cluster.add_broker()

Without a given directory it uses a temporary one, which it removes. Its child processes end with this process in any
case; a temporary directory that a killed process could not remove is removed by the next cluster (`directory.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import grpc
from headrace_server.identity.api_keys import make_api_key

from headrace_devcluster.certificates import ClusterCertificates
from headrace_devcluster.cluster_health import Metadata, what_is_missing
from headrace_devcluster.directory import ClusterDirectory
from headrace_devcluster.errors import ClusterNotHealthyError
from headrace_devcluster.etcd import Etcd, make_members
from headrace_devcluster.etcd_user import EtcdUser
from headrace_devcluster.secret_files import keep_secret
from headrace_devcluster.service import POLL_SECONDS, LocalService, ServiceSpec, check_port_is_free
from headrace_devcluster.single_part import FIXED_PORTS, check_kind, make_single
from headrace_devcluster.single_part import NAME as SINGLE_NAME

Answer = TypeVar("Answer")

COORDINATOR_IDS = "abcdefgh"
COORDINATOR_PORT = 7170
BROKER_PORT = 7181
ETCD_PORT = 7190
METRICS_PORT_STEP = 100
"""Offset of a part's fixed metrics port from its port."""
SCHEMA_REGISTRY_PORT_STEP = 200
"""Offset of the schema registry's fixed port from its coordinator's."""
MAX_BROKERS = 9
MAX_ETCD_MEMBERS = 5
HEALTHY_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalClusterSpec:
    """Composition of the cluster."""

    brokers: int = 3
    coordinators: int = 2
    etcd_members: int = 1
    """Three keep quorum when one is lost. Members find each other by port, so that a persistent data directory
    needs `fixed_ports`."""
    directory: Path | None = None
    """Directory of data and logs; `None` means a temporary directory that is removed with the cluster."""
    fixed_ports: bool = False
    """Use the default ports (coordinators 7170.., brokers 7181..); otherwise the kernel chooses them."""
    fsync_etcd: bool = False
    """Whether etcd's data survives a crash of the machine; slower."""
    broker_settings: Mapping[str, object] = field(default_factory=dict)
    """Settings of every broker in addition to the defaults, by name."""
    coordinator_settings: Mapping[str, object] = field(default_factory=dict)
    """Settings of every coordinator in addition to the defaults, by name."""
    tls: bool = False
    """Use TLS everywhere, with client certificates; `LocalCluster.client_settings` has the settings of clients."""
    identity: bool = False
    """Require an identity of every caller, and in etcd; `LocalCluster.client_settings` has the API key of an
    administrator."""
    single: bool = False
    """One process with a broker, a coordinator and their metastore, and no etcd, whatever the numbers say."""
    racks: tuple[str, ...] = ()
    """Racks of the brokers 1, 2, ..., repeated if there are more brokers; empty means that no broker has a rack.
    `DATA_CENTER/RACK` names the data center, too."""

    def __post_init__(self) -> None:
        """Check the composition."""
        if not (1 <= self.brokers <= MAX_BROKERS and 1 <= self.coordinators <= len(COORDINATOR_IDS)):
            raise ValueError("a local cluster has 1 to 9 brokers and 1 to 8 coordinators")
        if not 1 <= self.etcd_members <= MAX_ETCD_MEMBERS:
            raise ValueError("a local cluster has 1 to 5 members of etcd")
        if self.single and self.racks:
            raise ValueError("a cluster in one process has no racks")
        if self.etcd_members > 1 and self.directory is not None and not self.fixed_ports:
            raise ValueError("several members of etcd in a directory that is kept need fixed ports")

    def location(self, broker_id: int) -> tuple[str, str]:
        """Return the data center and the rack of a broker (1, 2, ...); empty if it has none."""
        if not self.racks:
            return "", ""
        data_center, _, rack = self.racks[(broker_id - 1) % len(self.racks)].rpartition("/")
        return data_center, rack


class LocalCluster:
    """Owner of the processes, a blocking and asyncio context manager. Any thread may call it, one at a time."""

    def __init__(self, spec: LocalClusterSpec | None = None) -> None:
        self.spec = spec or LocalClusterSpec()
        self._directory = ClusterDirectory(self.spec.directory)
        self.coordinators: list[LocalService] = []
        self.brokers: list[LocalService] = []
        self.etcd_members: list[Etcd] = []
        self._certificates: ClusterCertificates | None = None
        # Linux ends a child when the thread that started it ends, so one persistent thread starts all children.
        self._spawner = ThreadPoolExecutor(1, thread_name_prefix="headrace-devcluster")

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    async def __aenter__(self) -> LocalCluster:
        starting = asyncio.create_task(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):  # The caller receives the cancellation instead.
                await starting
            await asyncio.to_thread(self.stop)
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self.stop)

    @property
    def directory(self) -> Path:
        """Directory of data and logs, after the start."""
        return self._directory.path

    @property
    def etcd(self) -> Etcd:
        """First etcd process, after the start."""
        assert self.etcd_members, "the cluster was never started"
        return self.etcd_members[0]

    @property
    def etcd_endpoints(self) -> str:
        """host:port of every etcd member, separated by commas, after the start."""
        return ",".join(member.endpoint for member in self.etcd_members)

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of the coordinators, for clients."""
        return ",".join(coordinator.address for coordinator in self.coordinators)

    @property
    def schema_registry_urls(self) -> list[str]:
        """URLs of the schema registry, one for each coordinator that runs."""
        scheme = "http" if self._certificates is None else "https"
        return [f"{scheme}://{part.schema_registry_address}" for part in self.coordinators if part.pid is not None]

    @property
    def certificates(self) -> ClusterCertificates:
        """Certificates of a cluster with TLS, after the start."""
        assert self._certificates is not None, "the cluster has no TLS, or was never started"
        return self._certificates

    @property
    def client_settings(self) -> dict[str, str]:
        """Client settings in addition to `bootstrap_servers`, after the start."""
        tls = {} if self._certificates is None else self._certificates.client_settings()
        return {**tls, "api_key_file": str(self._api_key_file)} if self.spec.identity else tls

    @property
    def _api_key_file(self) -> Path:
        return self.directory / "admin.key"

    def broker(self, broker_id: int) -> LocalService:
        """Return a broker by id: 1, 2, ..."""
        return self.brokers[broker_id - 1]

    def coordinator(self, coordinator_id: str) -> LocalService:
        """Return a coordinator by id: a, b, ..."""
        return self.coordinators[COORDINATOR_IDS.index(coordinator_id)]

    @property
    def parts(self) -> list[LocalService]:
        """Coordinators, then brokers; the one process that is both once."""
        return [*self.coordinators, *(part for part in self.brokers if part not in self.coordinators)]

    def part(self, name: str) -> LocalService:
        """Return a part by name, such as `broker-1` or `coordinator-a`.

        Raises:
            KeyError: If there is none.
        """
        return {part.name: part for part in self.parts}[name]

    def start(self) -> None:
        """Start all parts and wait until every broker is registered and a controller is elected.

        Raises:
            EtcdNotFoundError, EtcdStartError, PartStartError, PortInUseError, ClusterRunningError,
            ClusterNotHealthyError: If it fails; all parts are then stopped.
        """
        try:
            self._directory.take()
            check_kind(self.directory, is_single=self.spec.single)
            self._check_fixed_ports()
            if self.spec.tls:
                self._certificates = ClusterCertificates(self.directory / "tls")
            if self.spec.identity:
                keep_secret(self._api_key_file, make_api_key)
            if not self.spec.single:
                self._start_etcd()
            self._make_parts()
            for part in self.parts:
                self._spawn(part.launch)
            for part in self.parts:
                part.wait_until_ready()
            self.wait_until_healthy()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop all parts, cleanly if the data is kept, otherwise at once."""
        if self._directory.temporary:
            self.kill()
            return
        try:
            for group in (self.brokers, self.coordinators):
                for part in group:
                    part.terminate()
                for part in group:
                    part.stop()
            for member in self.etcd_members:
                member.stop()
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill all parts and release the directory."""
        # First wait for starts in the spawner's thread, then kill the parts.
        self._spawner.shutdown(wait=True, cancel_futures=True)
        for part in self.parts:
            part.kill()
        for member in self.etcd_members:
            member.kill()
        self._directory.release()

    def restart(self, part: LocalService) -> None:
        """Restart a stopped or killed part with its data and port; return when it serves."""
        self._spawn(part.launch)
        part.wait_until_ready()

    def add_broker(self, **settings: object) -> LocalService:
        """Start a broker with the next id, and return when the coordinators see it. It gets replicas of new topics and
        reassigned ones. `settings` override those of the spec.

        Raises:
            PartStartError, PortInUseError: If it does not start; it is then not part of the cluster.
            ClusterNotHealthyError: If it runs but the coordinators do not see it.
        """
        assert not self.spec.single, "a cluster in one process has one broker"
        broker_id = len(self.brokers) + 1
        assert broker_id <= MAX_BROKERS, f"a local cluster has up to {MAX_BROKERS} brokers"
        broker = self._make_broker(broker_id, settings)
        self.brokers.append(broker)
        try:
            self._spawn(broker.launch)
            broker.wait_until_ready()
        except BaseException:
            self.brokers.remove(broker)
            broker.kill()
            raise
        self.wait_until_healthy()
        return broker

    def restart_etcd(self, member: Etcd | None = None) -> None:
        """Restart etcd, or one member, after `stop()` or `kill()`, with its data and ports."""
        self._spawn((member or self.etcd).start)

    def wait_until_healthy(self, timeout_seconds: float = HEALTHY_TIMEOUT_SECONDS) -> None:
        """Wait until the coordinators see every running broker and a controller.

        Raises:
            ClusterNotHealthyError: If it is not healthy in time; the message has the reason.
        """
        deadline = time.monotonic() + timeout_seconds
        wanted = {number for number, broker in enumerate(self.brokers, 1) if broker.pid is not None}
        missing = "no coordinator runs"
        for coordinator in self.coordinators:
            if coordinator.pid is None:
                continue
            while (
                missing := what_is_missing(coordinator.address, wanted, self._credentials(), self._metadata())
            ) and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS * 5)
            if missing:
                break
        if missing:
            raise ClusterNotHealthyError(
                f"not healthy within {timeout_seconds:g} s: {missing}",
                action=f"Look into the logs in {self.directory}.",
            )

    def _credentials(self) -> grpc.ChannelCredentials | None:
        if self._certificates is None:
            return None
        client, authority = self._certificates.client, self._certificates.services.ca_file
        return grpc.ssl_channel_credentials(
            authority.read_bytes(), client.key_file.read_bytes(), client.cert_file.read_bytes()
        )

    def _metadata(self) -> Metadata:
        if not self.spec.identity:
            return ()
        return (("authorization", f"Bearer {self._api_key_file.read_text()}"),)

    def _spawn(self, start: Callable[[], Answer]) -> Answer:
        return self._spawner.submit(start).result()

    def _check_fixed_ports(self) -> None:
        if self.spec.fixed_ports and self.spec.single:
            for port in FIXED_PORTS:
                check_port_is_free(port, SINGLE_NAME)
        elif self.spec.fixed_ports:
            for port, part in [
                *((ETCD_PORT + n, "etcd") for n in range(2 * self.spec.etcd_members)),
                *(
                    (COORDINATOR_PORT + n + step, f"coordinator-{COORDINATOR_IDS[n]}")
                    for n in range(self.spec.coordinators)
                    for step in (0, SCHEMA_REGISTRY_PORT_STEP)
                ),
                *((BROKER_PORT + n, f"broker-{n + 1}") for n in range(self.spec.brokers)),
            ]:
                check_port_is_free(port, part)

    def _start_etcd(self) -> None:
        self.etcd_members = make_members(
            self.directory,
            self.spec.etcd_members,
            first_port=self._port(ETCD_PORT),
            fsync=self.spec.fsync_etcd,
            tls=None if self._certificates is None else self._certificates.etcd,
        )
        for member in self.etcd_members:
            self._spawn(member.launch)
        for member in self.etcd_members:
            member.wait_until_healthy()
        if self.spec.identity:
            self._spawn(partial(EtcdUser(self.directory).require, self._etcd_settings("local")))

    def _etcd_settings(self, name: str) -> dict[str, object]:
        """Return the settings by which a process reaches etcd, and those of TLS."""
        tls = {} if self._certificates is None else self._certificates.settings(name)
        return {"etcd_endpoints": self.etcd_endpoints, **tls, **EtcdUser(self.directory).settings}

    def _make_parts(self) -> None:
        if self.spec.single:
            tls = {} if self._certificates is None else self._certificates.single_settings(SINGLE_NAME)
            given = {**tls, **self.spec.coordinator_settings, **self.spec.broker_settings}
            key_file = self._api_key_file if self.spec.identity else None
            single = make_single(self.directory, given, fixed_ports=self.spec.fixed_ports, api_key_file=key_file)
            self.coordinators, self.brokers = [single], [single]
            return
        self.coordinators = [self._make_coordinator(index) for index in range(self.spec.coordinators)]
        self.brokers = [self._make_broker(number, {}) for number in range(1, self.spec.brokers + 1)]

    def _make_coordinator(self, index: int) -> LocalService:
        identity = COORDINATOR_IDS[index]
        key = {"admin_api_key_file": self._api_key_file} if self.spec.identity else {}
        port = COORDINATOR_PORT + index + SCHEMA_REGISTRY_PORT_STEP
        registry = {"schema_registry_listen": f"127.0.0.1:{self._port(port)}"}
        own = {"coordinator_id": identity, **registry, **key, **self.spec.coordinator_settings}
        return self._make_part(f"coordinator-{identity}", "headrace_coordinator", COORDINATOR_PORT + index, own)

    def _make_broker(self, broker_id: int, settings: Mapping[str, object]) -> LocalService:
        data_center, rack = self.spec.location(broker_id)
        own = {
            "broker_id": broker_id,
            "data_dir": self.directory / f"broker-{broker_id}",
            **({"data_center": data_center} if data_center else {}),
            **({"rack": rack} if rack else {}),
            **self.spec.broker_settings,
            **settings,
        }
        return self._make_part(f"broker-{broker_id}", "headrace_broker", BROKER_PORT + broker_id - 1, own)

    def _make_part(self, name: str, module: str, fixed_port: int, own: Mapping[str, object]) -> LocalService:
        posture = {"posture": "required"} if self.spec.identity else {}
        common = {**self._etcd_settings(name), "log_format": "console", **posture}
        settings = {**common, **self._metrics(fixed_port), **own}
        key_file = self._api_key_file if self.spec.identity else None
        return LocalService(
            ServiceSpec(name, module, self.directory, self._port(fixed_port), settings, api_key_file=key_file)
        )

    def _port(self, fixed: int) -> int:
        return fixed if self.spec.fixed_ports else 0

    def _metrics(self, port: int) -> dict[str, object]:
        return {"metrics_listen": f"127.0.0.1:{port + METRICS_PORT_STEP}"} if self.spec.fixed_ports else {}
