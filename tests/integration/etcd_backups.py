"""What operators do to etcd and after it: copies of its data, snapshots by its own tools, `recover-metadata`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from headrace_devcluster.cluster import LocalCluster
from headrace_devcluster.etcd_program import find_etcd

from tests.fork_server import run_command


def tool(name: str, *arguments: object) -> None:
    """Run etcdctl or etcdutl, from the folder of etcd."""
    adjacent = find_etcd().resolve().parent / name
    program = str(adjacent) if adjacent.exists() else shutil.which(name)
    if program is None:
        pytest.skip(f"no {name} next to etcd or on PATH")
    subprocess.run([program, *map(str, arguments)], check=True, capture_output=True, timeout=60)


def command(module: str, verb: str, *arguments: object, **settings: object) -> subprocess.CompletedProcess[str]:
    """A command of a service."""
    options = [f"--set={name}={value}" for name, value in settings.items()]
    return run_command(module, verb, *map(str, arguments), *options)


# --- backups ---


def copy_data(cluster: LocalCluster, backup: Path) -> None:
    """Copy the data of all members, which are paused meanwhile."""
    for member in cluster.etcd_members:
        member.stop()
    for member in cluster.etcd_members:
        shutil.copytree(member.directory / "data", backup / member.name)
    start_etcd(cluster)


def put_back_data(cluster: LocalCluster, backup: Path) -> None:
    """Put what `copy_data` copied in the place of the members' data."""
    _throw_away_data(cluster)
    for member in cluster.etcd_members:
        shutil.copytree(backup / member.name, member.directory / "data")
    start_etcd(cluster)


def save_snapshot(cluster: LocalCluster, snapshot: Path) -> None:
    """As the guide says."""
    tool("etcdctl", f"--endpoints={cluster.etcd.endpoint}", "snapshot", "save", snapshot)


def restore_snapshot(cluster: LocalCluster, snapshot: Path) -> None:
    """As the guide says: new data directories from the snapshot, on all members."""
    _throw_away_data(cluster)
    for member in cluster.etcd_members:
        options = [
            argument
            for argument in member._arguments()
            if argument.startswith(("--name=", "--data-dir=", "--initial-cluster=", "--initial-advertise-peer-urls="))
        ]
        tool("etcdutl", "snapshot", "restore", snapshot, *options)
    start_etcd(cluster)


def start_etcd(cluster: LocalCluster) -> None:
    """Start all members together: one of several is not healthy alone."""
    for member in cluster.etcd_members:
        cluster._spawn(member.launch)
    for member in cluster.etcd_members:
        member.wait_until_healthy()


def _throw_away_data(cluster: LocalCluster) -> None:
    for member in cluster.etcd_members:
        member.stop()
    for member in cluster.etcd_members:
        shutil.rmtree(member.directory / "data")


# --- the way back ---


def export_log_states(cluster: LocalCluster, directory: Path, broker_ids: Sequence[int]) -> list[Path]:
    """Ask the disks of these brokers, which do not run, what they hold."""
    found = []
    for broker_id in broker_ids:
        told = command("headrace_broker", "export-log-state", **cluster.broker(broker_id).spec.settings)
        assert told.returncode == 0, told.stderr
        found.append(directory / f"broker-{broker_id}.json")
        found[-1].write_text(told.stdout)
    return found


def recover_metadata(
    cluster: LocalCluster, log_states: Sequence[Path], *arguments: object
) -> subprocess.CompletedProcess[str]:
    """Run `headrace-coordinator recover-metadata`."""
    options = [f"--log-state={path}" for path in log_states]
    own = cluster.coordinators[0].spec.settings
    return command("headrace_coordinator", "recover-metadata", *options, *arguments, **own)
