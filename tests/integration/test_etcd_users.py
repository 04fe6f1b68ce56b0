"""A cluster whose etcd requires a user: its processes log in, again when etcd has forgotten them, or say why not."""

import stat
import subprocess
import sys

import pytest
from headrace import Admin, Producer, Reader
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_devcluster.etcd import Etcd
from headrace_devcluster.etcd_user import EtcdUser

WAIT_SECONDS = 60


@pytest.mark.parametrize("tls", [False, True])
def test_a_cluster_continues_when_etcd_forgets_its_tokens(tmp_path, tls):
    """With and without TLS: a restarted etcd ends all logins; records, leases and elections continue. A second start
    on the same data needs nothing."""
    spec = LocalClusterSpec(brokers=2, coordinators=1, identity=True, tls=tls, directory=tmp_path / "cluster")
    for start in range(2):
        with LocalCluster(spec) as cluster:
            files = [cluster.directory / name for name in ("etcd.password", "etcd-root.password", "admin.key")]
            assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600] * 3
            clients = {"bootstrap_servers": cluster.bootstrap_servers, **cluster.client_settings}
            with Admin(**clients) as admin, Producer(**clients) as producer:
                if not start:
                    admin.create_topic("orders", partitions=1, replication_factor=2)
                producer.send("orders", f"{start} before".encode()).result(WAIT_SECONDS)
                cluster.etcd.stop()
                producer.send("orders", f"{start} without etcd".encode()).result(WAIT_SECONDS)
                cluster.restart_etcd()
                cluster.broker(1).kill()
                cluster.restart(cluster.broker(1))
                cluster.wait_until_healthy()
                producer.send("orders", f"{start} after".encode()).result(WAIT_SECONDS)
            with Reader("orders", **clients) as reader:
                assert len([record.value for record in reader]) == 3 * (start + 1)
            logs = "".join(part.log_file.read_text() for part in cluster.parts)
            assert not [secret for file in files if (secret := file.read_text()) in logs]


def test_a_service_with_a_wrong_password_ends_with_the_reason(tmp_path):
    """In one sentence with the file and the user, exit code 2; so does one without a user."""
    with Etcd(tmp_path / "etcd") as etcd:
        EtcdUser(tmp_path).require({"etcd_endpoints": etcd.endpoint})
        (tmp_path / "wrong.password").write_text("planted-password")
        arguments = ["coordinator_id=a", "listen=127.0.0.1:0", f"etcd_endpoints={etcd.endpoint}"]
        wrong = ["etcd_user=headrace", f"etcd_password_file={tmp_path}/wrong.password"]
        for given, expected in (
            (wrong, "etcd does not accept the password in"),
            ([], "Set etcd_user and etcd_password_file"),
        ):
            command = [sys.executable, "-m", "headrace_coordinator"]
            command += [part for setting in (*arguments, *given) for part in ("--set", setting)]
            ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=WAIT_SECONDS)
            assert ended.returncode == 2, ended.stderr
            assert expected in ended.stderr
            assert "planted" not in ended.stderr
