"""Settings, files and state of a cluster in one process, for the commands that start it and for itself.

In its directory are `metastore.sqlite`, the metastore of broker and coordinator, and `broker-1`, the broker's data. A
directory belongs to one kind of cluster: the broker's data names the cluster that its metastore has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from headrace_devcluster.errors import OtherKindError
from headrace_devcluster.service import LocalService, ServiceSpec
from headrace_devcluster.state import ClusterState, PartState

NAME = "single"
"""Name of the only part."""
MODULE = "headrace_devcluster.single"
PORT = 7170
NATIVE_PORT = 7171
METRICS_PORT = 7270
SCHEMA_REGISTRY_PORT = 7370
FIXED_PORTS = (PORT, NATIVE_PORT, METRICS_PORT, SCHEMA_REGISTRY_PORT)
METASTORE_FILE = "metastore.sqlite"
OWNER_LOG = "run.log"


def single_settings(directory: Path, *, fixed_ports: bool, api_key_file: Path | None) -> dict[str, object]:
    """Return the settings of the process other than `listen` and `ready_file`.

    With an API key, that of the administrator, it refuses callers without an identity.
    """
    identity = {} if api_key_file is None else {"posture": "required", "admin_api_key_file": api_key_file}
    return {
        "broker_id": 1,
        "coordinator_id": "a",
        "data_dir": directory / "broker-1",
        "metastore_file": directory / METASTORE_FILE,
        "default_replication_factor": 1,
        "log_format": "console",
        "schema_registry_listen": local(SCHEMA_REGISTRY_PORT if fixed_ports else 0),
        **({"native_listen": local(NATIVE_PORT), "metrics_listen": local(METRICS_PORT)} if fixed_ports else {}),
        **identity,
    }


def make_single(
    directory: Path, given: Mapping[str, object], *, fixed_ports: bool, api_key_file: Path | None
) -> LocalService:
    """Return the process as a part of a `LocalCluster`; `given` are further settings."""
    settings = {**single_settings(directory, fixed_ports=fixed_ports, api_key_file=api_key_file), **given}
    port = PORT if fixed_ports else 0
    return LocalService(ServiceSpec(NAME, MODULE, directory, port, settings, api_key_file=api_key_file))


def check_kind(directory: Path, *, is_single: bool) -> None:
    """Check that a directory holds no cluster of the other kind.

    Raises:
        OtherKindError: If it does.
    """
    if is_single and any(directory.glob("etcd*")) and not (directory / METASTORE_FILE).exists():
        raise OtherKindError(
            f"{directory} holds a cluster of several processes",
            action="Start it without --single, delete its data with --fresh, or name another --data-dir.",
        )
    if not is_single and (directory / METASTORE_FILE).exists():
        raise OtherKindError(
            f"{directory} holds a cluster in one process",
            action="Start it with --single, delete its data with --fresh, or name another --data-dir.",
        )


def state_of(
    directory: Path, addresses: Mapping[str, object], *, started_at: str, client_settings: Mapping[str, str]
) -> ClusterState:
    """Return the state of this process, which owns its directory, from its addresses."""
    pid, address = os.getpid(), str(addresses["address"])
    scheme = "https" if "ssl_cafile" in client_settings else "http"
    return ClusterState(
        pid,
        started_at,
        address,
        "",
        (PartState(NAME, address, pid, str(directory / OWNER_LOG)),),
        dict(client_settings),
        f"{scheme}://{addresses['schema_registry_address']}",
    )


def local(port: int) -> str:
    """Return the address of a port of this machine."""
    return f"127.0.0.1:{port}"
