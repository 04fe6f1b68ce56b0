"""`up` on a running cluster: parts that exited are restarted, and one that does not start stops no other."""

import os
import sys
from types import SimpleNamespace

import pytest
from headrace_devcluster import background
from headrace_devcluster.background import OWNER_LOG, restart_in_background
from headrace_devcluster.control import restart_ended
from headrace_devcluster.directory import ClusterDirectory
from headrace_devcluster.errors import PartStartError
from headrace_devcluster.etcd import EtcdStartError
from headrace_devcluster.state import ClusterState, PartState, write_state

from tests.children import running


class ClusterWithoutEtcd:
    """Cluster of which etcd and a broker have ended; etcd does not start."""

    def __init__(self, reason):
        self.etcd_members = [SimpleNamespace(name="etcd", pid=None)]
        self.parts = [SimpleNamespace(name="coordinator-a", pid=7), SimpleNamespace(name="broker-1", pid=None)]
        self.reason = reason
        self.restarted = []

    def restart_etcd(self, _member):
        raise self.reason

    def restart(self, part):
        self.restarted.append(part.name)


def state_of(pid, etcd_pid=0):
    """Return the state of a cluster of which etcd has ended."""
    return ClusterState(pid, "", "", "", (PartState("etcd", "", etcd_pid, "etcd.log"),))


@pytest.mark.parametrize("reason", [EtcdStartError("the data is of etcd 9"), PermissionError(13, "etcd")])
def test_an_etcd_that_does_not_start_stops_no_other_part(capsys, reason):
    """The failure is reported, and the next part is restarted."""
    cluster = ClusterWithoutEtcd(reason)
    restart_ended(cluster)
    assert cluster.restarted == ["broker-1"]
    assert f"etcd cannot be started again: {reason}" in capsys.readouterr().err


@pytest.mark.parametrize("etcd_pid", [0, 2**22 + 1])
def test_a_restart_that_failed_is_reported_also_if_it_failed_before(tmp_path, monkeypatch, etcd_pid):
    """The state is the same then: 0 instead of a process id."""
    owned = ClusterDirectory(tmp_path)
    owned.take()
    try:
        write_state(tmp_path, state_of(os.getpid(), etcd_pid))
        monkeypatch.setattr(background.os, "kill", lambda pid, _signal: write_state(tmp_path, state_of(pid)))
        monkeypatch.setattr(background, "START_TIMEOUT_SECONDS", 1.0)
        with pytest.raises(PartStartError, match=r"etcd cannot be started again; see .*run.log, etcd.log"):
            restart_in_background(tmp_path, state_of(os.getpid(), etcd_pid))
    finally:
        owned.release()


def test_an_owner_that_ends_meanwhile_is_not_waited_for(tmp_path, monkeypatch):
    """Its last error is the message."""
    monkeypatch.setattr(background, "START_TIMEOUT_SECONDS", 1.0)
    (tmp_path / OWNER_LOG).write_text("the cluster is up\nerror: no room\n")
    with running([sys.executable, "-c", "input()"], stdin=-1) as owner:
        write_state(tmp_path, state_of(owner.pid))
        with pytest.raises(PartStartError, match="the cluster has ended: no room"):
            restart_in_background(tmp_path, state_of(owner.pid))
