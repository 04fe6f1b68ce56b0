"""State of a background cluster: one JSON file in its data directory.

Written by `run` when the cluster is healthy, read by `up`, `down` and `status`. Not this file but the lock on
`owner.lock`, which ends with its owner, shows whether the cluster runs.
"""

from __future__ import annotations

import fcntl
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from headrace_devcluster.directory import OWNER_LOCK
from headrace_devcluster.etcd_program import describe_etcd

if TYPE_CHECKING:
    from headrace_devcluster.cluster import LocalCluster

STATE_FILE = "cluster.json"


@dataclass(frozen=True, slots=True)
class PartState:
    """State of one process."""

    name: str
    address: str
    pid: int
    """Process id; `0` means that it has ended."""
    log_file: str


@dataclass(frozen=True, slots=True)
class ClusterState:
    """State of a running cluster."""

    pid: int
    """Process id of the cluster's owner; SIGTERM to it stops the cluster."""
    started_at: str
    """Start time in ISO 8601, UTC."""
    bootstrap_servers: str
    etcd: str
    """Endpoints of etcd; empty for a cluster in one process."""
    parts: tuple[PartState, ...]
    client_settings: dict[str, str] = field(default_factory=dict)
    """Client settings in addition to `bootstrap_servers`."""
    schema_registry: str = ""
    """URLs of the schema registry, separated by commas."""
    etcd_program: str = ""
    """Version and path of etcd, and a warning if it has one; empty for a cluster in one process."""


def owner_pid(directory: Path) -> int | None:
    """Return the id of the process that locks the data directory, or `None`."""
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
    """Return the state of a running cluster."""
    parts = [
        PartState("etcd", member.endpoint, member.pid or 0, str(member.log_file)) for member in cluster.etcd_members
    ]
    programs = dict.fromkeys(member.binary for member in cluster.etcd_members if member.binary is not None)
    parts += [PartState(part.name, part.address, part.pid or 0, str(part.log_file)) for part in cluster.parts]
    return ClusterState(
        pid,
        started_at,
        cluster.bootstrap_servers,
        cluster.etcd_endpoints,
        tuple(parts),
        cluster.client_settings,
        ",".join(cluster.schema_registry_urls),
        "\n".join(map(describe_etcd, programs)),
    )


def state_json(state: ClusterState) -> str:
    """Return the state as JSON, as in the file."""
    return json.dumps(asdict(state))


def write_state(directory: Path, state: ClusterState) -> None:
    """Write the state file atomically."""
    partial = directory / f".{STATE_FILE}"
    partial.write_text(state_json(state) + "\n")
    partial.replace(directory / STATE_FILE)


def read_state(directory: Path) -> ClusterState | None:
    """Return the state of the cluster that runs on the directory, or `None` if there is none that is healthy."""
    pid = owner_pid(directory)
    try:
        content = json.loads((directory / STATE_FILE).read_text())
    except (FileNotFoundError, ValueError):
        return None
    if pid is None or content["pid"] != pid:
        return None
    return ClusterState(**{**content, "parts": tuple(PartState(**part) for part in content["parts"])})
