"""Environment of cases: clusters, topics and bare servers, started at first use and stopped together.

A topic that a case writes is removed after it. On a virtual machine the page cache is several times slower with memory
that the machine never used before, so a growing cache would distort results. A topic that cases read is filled once and
kept.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import headrace
import psutil
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from bench.case import BROKER_CPU, CLIENT_CPU, MB, RATE
from bench.limit import BareServer, bare_server
from bench.load import BATCH_HEADER_BYTES, RECORD_OVERHEAD_BYTES, Load

WAIT_SECONDS = 120.0
POLL_SECONDS = 0.02
CREATION_SECONDS = 120.0
FEW_CLIENTS = {"max_connections": 1_000, "max_native_connections": 1_000}
"""Leave the broker more of the limit of open files, so that ten thousand partitions keep theirs open (decision 34)."""
REMOVAL_SECONDS = 300.0
"""For ten thousand partitions on a busy machine."""
WARM_UP = b"warm"
"""Record sent and acknowledged before the clock starts, so that connections, metadata and the producer id exist."""

Thing = TypeVar("Thing")


@dataclass(frozen=True, slots=True)
class Target:
    """Topic of a cluster."""

    cluster: LocalCluster
    topic: str

    @property
    def bootstrap_servers(self) -> str:
        """Bootstrap servers for clients."""
        return self.cluster.bootstrap_servers

    @property
    def client_settings(self) -> dict[str, Any]:
        """Settings of every client of the cluster."""
        return {"bootstrap_servers": self.bootstrap_servers, **self.cluster.client_settings}

    def segments(self) -> list[Path]:
        """Return its segment files, the oldest of a partition first."""
        with headrace.Admin(**self.client_settings) as admin:
            topic_id = admin.describe_topic(self.topic).topic_id
        return sorted(self.cluster.directory.glob(f"*/{topic_id.hex()}-*/*.log"))


class Stage:
    """Owner of all resources that cases use. Context manager for one thread."""

    def __init__(self, records: int) -> None:
        self.records = records
        """Number of records of 200 bytes that a case moves; for other sizes roughly the same bytes."""
        self._stack = ExitStack()
        self._kept: dict[Any, Any] = {}
        self._topics = 0

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def kept(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the value of the context manager from `make`, entered at the first use of `key` until the end."""
        if key not in self._kept:
            self._kept[key] = self._stack.enter_context(make())
        return self._kept[key]

    def load(self, value_bytes: int, share: float = 1.0) -> Load:
        """Return about `share` of the usual load in values of a size, at least 20 of them."""
        records = min(self.records * 200 // value_bytes, self.records * 2)
        return Load(max(20, round(records * share)), value_bytes)

    def cluster(self, brokers: int = 1, *, tls: bool = False) -> LocalCluster:
        """Return a cluster of that number of brokers."""
        spec = LocalClusterSpec(brokers=brokers, coordinators=1, tls=tls, broker_settings=FEW_CLIENTS)
        cluster: LocalCluster = self.kept(("cluster", brokers, tls), lambda: LocalCluster(spec))
        return cluster

    def bare(self) -> BareServer:
        """Return the bare server that measures the limit of gRPC."""
        server: BareServer = self.kept("bare", bare_server)
        return server

    def directory(self) -> Path:
        """Return a directory on the brokers' disk."""
        return self.cluster().directory

    @contextmanager
    def topic(
        self,
        *,
        brokers: int = 1,
        partitions: int = 1,
        replication: int = 1,
        tls: bool = False,
        **config: str,
    ) -> Iterator[Target]:
        """Yield a new topic, removed at the end; acknowledged from the page cache by default."""
        self._topics += 1
        target = Target(self.cluster(brokers, tls=tls), f"bench-{self._topics}")
        settings = {"durability": "async", "file_delete_delay_ms": 0, **config}
        with headrace.Admin(**target.client_settings) as admin:
            admin.create_topic(
                target.topic,
                partitions=partitions,
                replication_factor=replication,
                config=settings,
                timeout=CREATION_SECONDS,
            )
            try:
                wait_until(lambda: _is_served(admin, target.topic), f"{target.topic} is served", CREATION_SECONDS)
                yield target
            finally:
                _remove(admin, target)

    def filled(
        self,
        load: Load,
        *,
        partitions: int = 1,
        codec: Literal["none", "gzip", "lz4", "zstd"] = "none",
        batch_records: int | None = None,
        tls: bool = False,
    ) -> Target:
        """Return a topic of one broker filled with the load, batches round-robin by partition; the same one every time.

        It is in the page cache.
        """

        @contextmanager
        def fill() -> Iterator[Target]:
            with self.topic(partitions=partitions, tls=tls) as target:
                values = load.values(batch_records)
                settings: dict[str, Any] = {} if batch_records is None else {"batch_records": batch_records}
                settings |= target.client_settings
                with headrace.Producer(acks=1, compression_type=codec, **settings) as sender:
                    for turn, start in enumerate(range(0, load.records, len(values))):
                        part = values[: load.records - start]
                        sender.send_many(target.topic, part, partition=turn % partitions)
                yield target

        target: Target = self.kept(("filled", load, partitions, codec, batch_records, tls), fill)
        read_through(target.segments())
        return target


def read_through(files: Iterable[Path]) -> None:
    """Read files to their end, so that they are in the page cache.

    Some kernels evict pages not read for a minute, and a case is measured every few minutes.
    """
    buffer = bytearray(1 << 20)
    for path in files:
        with contextlib.suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _is_served(admin: headrace.Admin, topic: str) -> bool:
    """Return whether the brokers have opened every partition of a topic."""
    try:
        admin.list_offsets(topic)
    except (headrace.NotLeaderError, headrace.LeaderNotAvailableError):
        return False
    return True


def _remove(admin: headrace.Admin, target: Target) -> None:
    """Delete a topic and wait until the brokers have removed its files."""
    topic_id = admin.describe_topic(target.topic).topic_id
    admin.delete_topic(target.topic, timeout=CREATION_SECONDS)
    files = f"*/{topic_id.hex()}-*"
    wait_until(lambda: not any(target.cluster.directory.glob(files)), f"{target.topic} removed", REMOVAL_SECONDS)


def wait_until(condition: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> float:
    """Poll until `condition` holds; return the seconds that took.

    Raises:
        TimeoutError: If the time is over; the message names `what`.
    """
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > seconds:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(POLL_SECONDS)
    return time.monotonic() - started


class Meter:
    """Meter of CPU time and memory of servers and of this process since its creation."""

    def __init__(self, pids: Sequence[int | None]) -> None:
        self._servers = [psutil.Process(pid) for pid in pids if pid is not None]
        for server in self._servers:
            # Linux: 5 resets the peak of the resident memory.
            Path(f"/proc/{server.pid}/clear_refs").write_text("5")
        self._server_seconds = self._seconds()
        self._client_seconds = time.process_time()

    def _seconds(self) -> float:
        return sum(sum(server.cpu_times()[:2]) for server in self._servers)

    def figures(
        self, load: Load, seconds: float, batches: float, client_seconds: float | None = None
    ) -> dict[str, float]:
        """Return the figures of a load moved since the creation; `client_seconds` are those of other processes."""
        gigabytes = load.total_bytes / 1e9
        used = time.process_time() - self._client_seconds if client_seconds is None else client_seconds
        wire_bytes = load.total_bytes + load.records * RECORD_OVERHEAD_BYTES + batches * BATCH_HEADER_BYTES
        return {
            RATE: load.records / seconds,
            MB: wire_bytes / seconds / 1e6,
            BROKER_CPU: (self._seconds() - self._server_seconds) / gigabytes,
            CLIENT_CPU: used / gigabytes,
            "broker_peak_mb": sum(map(_peak_bytes, self._servers)) / 1e6,
        }


def _peak_bytes(process: psutil.Process) -> int:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def broker_pids(cluster: LocalCluster) -> list[int | None]:
    """Return the process ids of the brokers."""
    return [broker.pid for broker in cluster.brokers]
