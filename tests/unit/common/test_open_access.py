"""What a process leaves open beyond loopback: each by itself, and nothing of a process that is closed."""

import pytest
from headrace.v1 import auth_pb2, process_pb2
from headrace_broker.settings import BrokerSettings
from headrace_coordinator.settings import CoordinatorSettings
from headrace_server.metastore.etcd_login import EtcdLogin
from headrace_server.open_access import open_access

FAR = {"listen": "0.0.0.0:7181", "metrics_listen": "[::]:9464", "etcd_endpoints": ("etcd:2379",)}
TLS = {
    "tls_cert_file": "c", "tls_key_file": "k", "tls_ca_file": "a", "internal_tls_ca_file": "a",
    "etcd_tls_ca_file": "a", "metrics_tls": True,
}  # fmt: skip
REQUIRED, OBSERVE = auth_pb2.POSTURE_REQUIRED, auth_pb2.POSTURE_OBSERVE


def broker(**settings):
    return BrokerSettings(broker_id=1, data_dir="/d", **settings)


def names(settings, posture=REQUIRED, *, has_user=True):
    found = open_access(settings, posture, etcd_requires_user=has_user)
    return [process_pb2.OpenAccess.Name(each).removeprefix("OPEN_ACCESS_").lower() for each in found]


def test_loopback_and_a_closed_process_leave_nothing_open():
    """Whatever the posture is on loopback; beyond it with TLS, identities, and a user in etcd."""
    near = {"metrics_listen": "localhost:9464"}
    assert names(broker(**near), auth_pb2.POSTURE_OPEN, has_user=False) == []
    assert names(broker(**FAR, **TLS)) == []


def test_everything_that_is_open_is_reported():
    """A broker has a listener for servers, a coordinator has none."""
    everything = [
        "clients_without_tls", "servers_without_tls", "etcd_without_tls", "etcd_without_users",
        "metrics_without_identity", "metrics_without_tls",
    ]  # fmt: skip
    assert names(broker(**FAR), OBSERVE, has_user=False) == everything
    coordinator = CoordinatorSettings(coordinator_id="a", **FAR)
    assert names(coordinator, OBSERVE, has_user=False) == [each for each in everything if "servers" not in each]


@pytest.mark.parametrize(
    ("changed", "posture", "has_user", "expected"),
    [
        ({"internal_listen": "127.0.0.1:1", "replication_listen": "0.0.0.0:2"}, REQUIRED, True, "servers_without_tls"),
        ({"listen": "127.0.0.1:1", "metrics_tls": False}, REQUIRED, True, "metrics_without_tls"),
        ({}, OBSERVE, True, "metrics_without_identity"),
        ({}, REQUIRED, False, "etcd_without_users"),
        ({"etcd_tls_ca_file": ""}, REQUIRED, True, "etcd_without_tls"),
    ],
)
def test_each_is_reported_by_itself(changed, posture, has_user, expected):
    """The others are closed."""
    settings = {**FAR, **TLS, **changed}
    if expected == "servers_without_tls":
        settings = {**FAR, **changed, "listen": "127.0.0.1:3", "metrics_listen": "", "etcd_tls_ca_file": "a"}
    assert names(broker(**settings), posture, has_user=has_user) == [expected]


def test_a_login_is_needed_until_etcd_says_otherwise():
    """Before the first one it is assumed: a process that has not reached etcd reports nothing wrong."""
    login = EtcdLogin("headrace", "/f")
    assert login.is_needed
    login._metadata = ()
    assert not login.is_needed
    login._metadata = (("token", "t"),)
    assert login.is_needed
