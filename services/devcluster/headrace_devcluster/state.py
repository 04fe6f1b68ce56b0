"""State of a background cluster: one JSON file in its data directory.

Written by `run` when the cluster is healthy, read by `up`, `down` and `status`. The lock on `owner.lock`, which
ends with its owner, and not this file, shows whether the cluster is alive.
"""

from __future__ import annotations

import fcntl
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from headrace_devcluster.cluster import LocalCluster
from headrace_devcluster.directory import OWNER_LOCK

STATE_FILE = "cluster.json"


@dataclass(frozen=True, slots=True)
class PartState:
    """One process."""

    name: str
    address: str
    pid: int
    log_file: str


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A running cluster."""

    pid: int
    """Of the process that owns the cluster; SIGTERM stops everything."""
    started_at: str
    """ISO 8601, UTC."""
    bootstrap_servers: str
    etcd: str
    parts: tuple[PartState, ...]
    client_settings: dict[str, str] = field(default_factory=dict)
    """The client settings besides `bootstrap_servers`."""


def owner_pid(directory: Path) -> int | None:
    """The process that holds the data directory; `None` means that none does."""
    try:
        with (directory / OWNER_LOCK).open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(lock.read() or 0) or None
    except FileNotFoundError:
        return None
    return None


def describe_state(cluster: LocalCluster, *, pid: int, started_at: str) -> ClusterState:
    """The state of a running cluster."""
    parts = [
        PartState("etcd", member.endpoint, member.pid or 0, str(member.log_file)) for member in cluster.etcd_members
    ]
    parts += [PartState(part.name, part.address, part.pid or 0, str(part.log_file)) for part in cluster.parts]
    return ClusterState(
        pid, started_at, cluster.bootstrap_servers, cluster.etcd_endpoints, tuple(parts), cluster.client_settings
    )


def state_json(state: ClusterState) -> str:
    """As it is written."""
    return json.dumps(asdict(state))


def write_state(directory: Path, state: ClusterState) -> None:
    """Write it whole or not at all."""
    partial = directory / f".{STATE_FILE}"
    partial.write_text(state_json(state) + "\n")
    partial.replace(directory / STATE_FILE)


def read_state(directory: Path) -> ClusterState | None:
    """The state of the cluster that runs on the directory; None where none runs, or it is not healthy yet."""
    pid = owner_pid(directory)
    try:
        content = json.loads((directory / STATE_FILE).read_text())
    except (FileNotFoundError, ValueError):
        return None
    if pid is None or content["pid"] != pid:
        return None
    return ClusterState(**{**content, "parts": tuple(PartState(**part) for part in content["parts"])})
