"""The directory of a local cluster: one owner, and nothing left of owners that were killed."""

import fcntl
import os
import sys
from pathlib import Path
from typing import IO

import pytest
from headrace_devcluster import directory as directory_module
from headrace_devcluster.__main__ import app
from headrace_devcluster.background import start_in_background
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_devcluster.control import obey
from headrace_devcluster.directory import (
    OWNER_LOCK,
    ClusterDirectory,
    check_removable,
    remove_abandoned_directories,
    remove_data,
)
from headrace_devcluster.errors import ClusterRunningError, ForeignDirectoryError, OtherKindError, PartStartError
from headrace_devcluster.single_part import METASTORE_FILE, check_kind
from headrace_devcluster.state import ClusterState, owner_pid, read_state, write_state
from typer.testing import CliRunner


def test_a_second_cluster_on_the_directory_is_refused(tmp_path: Path) -> None:
    """Two clusters would tear each other's data; the second one hears so before anything is started."""
    with (tmp_path / OWNER_LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ClusterRunningError, match="runs on"):
            LocalCluster(LocalClusterSpec(directory=tmp_path)).start()


def test_abandoned_directories_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed owner left is removed; what has an owner, or is no cluster's, stays."""
    monkeypatch.setattr(directory_module.tempfile, "gettempdir", lambda: str(tmp_path))
    names = ("headrace-cluster-left", "headrace-cluster-held", "headrace-cluster-young", "another")
    left, held, young, other = (tmp_path / name for name in names)
    for directory in (left, held, young, other):
        directory.mkdir()
    for directory in (left, held, other):
        (directory / OWNER_LOCK).touch()
    with (held / OWNER_LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_abandoned_directories()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([held.name, young.name, other.name])


def test_a_directory_that_is_being_taken_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another cluster starts between the creation of the owner's file and its lock."""
    monkeypatch.setattr(directory_module.tempfile, "gettempdir", lambda: str(tmp_path))
    lock = fcntl.flock

    def remove_then_lock(file: IO[str], operation: int) -> None:
        monkeypatch.setattr(directory_module.fcntl, "flock", lock)
        remove_abandoned_directories()
        lock(file, operation)

    monkeypatch.setattr(directory_module.fcntl, "flock", remove_then_lock)
    taken = ClusterDirectory(None)
    taken.take()
    try:
        assert owner_pid(taken.path) == os.getpid()
        remove_abandoned_directories()
        assert [path.name for path in taken.path.iterdir()] == [OWNER_LOCK]
    finally:
        taken.release()
    assert not list(tmp_path.iterdir())


def test_the_state_counts_only_while_its_owner_lives(tmp_path: Path) -> None:
    """A state file that a killed cluster left, or that another process id wrote, is no running cluster."""
    state = ClusterState(42, "2026-01-01T00:00:00+00:00", "127.0.0.1:1", "127.0.0.1:2", ())
    write_state(tmp_path, state)
    assert read_state(tmp_path) is None
    (tmp_path / OWNER_LOCK).write_text("42")
    assert owner_pid(tmp_path) is None
    with (tmp_path / OWNER_LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert owner_pid(tmp_path) == 42
        assert read_state(tmp_path) == state


def test_a_command_for_a_part_that_is_not_there_names_the_parts() -> None:
    """The answer says what there is."""
    assert obey(LocalCluster(), "kill broker-9") == {"error": "no part 'broker-9'; there are etcd"}


def test_a_spec_that_cannot_run_is_refused() -> None:
    """Limits are checked where they are given."""
    with pytest.raises(ValueError, match="1 to 9 brokers"):
        LocalClusterSpec(brokers=0)


def test_racks_go_round() -> None:
    """The racks of a spec are those of its brokers in order, a fourth broker's the first one's; none is no rack."""
    spec = LocalClusterSpec(racks=("a", "b", "c"))
    assert [spec.location(broker_id) for broker_id in (1, 2, 3, 4)] == [("", rack) for rack in "abca"]
    assert LocalClusterSpec().location(1) == ("", "")
    assert LocalClusterSpec(racks=("x/a", "y/")).location(2) == ("y", "")
    assert LocalClusterSpec(racks=("x/a", "y/")).location(1) == ("x", "a")


def test_a_cluster_in_one_process_has_no_etcd_to_command() -> None:
    """A command for etcd is refused like one for any other part that is not there."""
    cluster = LocalCluster(LocalClusterSpec(single=True))
    assert obey(cluster, "kill etcd") == {"error": "no part 'etcd'; there are "}


def test_a_directory_belongs_to_one_kind_of_cluster(tmp_path: Path) -> None:
    """What one kind stored is not started as an empty cluster of the other."""
    (tmp_path / "etcd").mkdir()
    with pytest.raises(OtherKindError, match="Start it without --single"):
        check_kind(tmp_path, is_single=True)
    check_kind(tmp_path, is_single=False)
    (tmp_path / "etcd").rmdir()
    (tmp_path / METASTORE_FILE).touch()
    with pytest.raises(OtherKindError, match="Start it with --single"):
        check_kind(tmp_path, is_single=False)
    check_kind(tmp_path, is_single=True)


@pytest.mark.parametrize("arguments", [("down", "--wipe"), ("up", "--fresh")])
def test_files_of_others_are_not_deleted(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """A directory that has not been a cluster's is refused; in one that has, only the files of clusters are deleted."""
    (tmp_path / "thesis.txt").write_text("years")
    assert CliRunner().invoke(app, [*arguments, "--data-dir", str(tmp_path)]).exit_code != 0
    assert (tmp_path / "thesis.txt").read_text() == "years"


@pytest.mark.parametrize("name", ["tls/mine.pem", "broker-config/a.toml", "run.log"])
def test_a_directory_with_the_names_of_a_cluster_s_files_is_refused(tmp_path: Path, name: str) -> None:
    """They are the user's, and `down --wipe` would delete them. In a directory with a lock they are a cluster's."""
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    with pytest.raises(ForeignDirectoryError, match=file.relative_to(tmp_path).parts[0]):
        ClusterDirectory(tmp_path).take()
    with pytest.raises(ForeignDirectoryError):
        start_in_background(tmp_path, [sys.executable, "-c", ""])
    assert file.read_text() == "mine"
    assert not (tmp_path / OWNER_LOCK).exists()
    (tmp_path / OWNER_LOCK).touch()
    taken = ClusterDirectory(tmp_path)
    taken.take()
    taken.release()


def test_a_directory_whose_cluster_did_not_start_is_still_a_cluster_s(tmp_path: Path) -> None:
    """Whatever its owner did before it ended."""
    for _ in range(2):
        with pytest.raises(PartStartError, match="exit code 3"):
            start_in_background(tmp_path, [sys.executable, "-c", "raise SystemExit(3)"])
    check_removable(tmp_path)


def test_only_the_files_of_clusters_are_deleted(tmp_path: Path) -> None:
    """With them goes the directory, unless something else is in it."""
    directory = tmp_path / "cluster"
    for name in ("etcd", "etcd-b", "broker-1", "tls"):
        (directory / name).mkdir(parents=True)
        (directory / name / "file").touch()
    for name in (OWNER_LOCK, "etcd.log", "coordinator-a.ready.json", "admin.key", "notes", "etcdetera"):
        (directory / name).touch()
    check_removable(directory)
    remove_data(directory)
    assert sorted(each.name for each in directory.iterdir()) == ["etcdetera", "notes"]
    with pytest.raises(ForeignDirectoryError):
        check_removable(directory)
    for name in ("notes", "etcdetera"):
        (directory / name).unlink()
    remove_data(directory)
    assert not directory.exists()
    remove_data(directory)


def test_a_look_at_the_lock_does_not_refuse_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`status`, and `up` that waits, hold a shared lock for a moment."""
    lock, refusals = fcntl.flock, [BlockingIOError(), BlockingIOError()]

    def refuse_twice(file: IO[str], operation: int) -> None:
        if refusals:
            raise refusals.pop()
        lock(file, operation)

    monkeypatch.setattr(directory_module.fcntl, "flock", refuse_twice)
    taken = ClusterDirectory(tmp_path)
    taken.take()
    taken.release()
    assert not refusals
