"""The renewer of a thread logs in by itself where etcd requires a token for a renewal."""

import grpc
import pytest
from headrace.wire.errors import MetastoreUnavailableError
from headrace_server.metastore import etcd3_stubs as stubs
from headrace_server.metastore.etcd_lease import EtcdLeaseRenewer
from headrace_server.metastore.etcd_login import EtcdLogin

from tests.fakes.failed_call import FailedCallError

LEASE = 7


class Call(list):
    """Call of a stream whose answers are there."""

    def cancel(self):
        """Do nothing: it has ended."""


class FakeEtcd:
    """Lease and Auth service of one member; `token` is the one that it accepts, `None` means any."""

    def __init__(self):
        self.token = None
        self.logins = 0
        self.failure = None

    def LeaseKeepAlive(self, requests, timeout, metadata):
        (request,) = requests
        if self.token is not None and metadata != (("token", self.token),):
            raise FailedCallError(grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token")
        return Call([stubs.rpc_pb2.LeaseKeepAliveResponse(ID=request.ID, TTL=10)])

    def Authenticate(self, request, timeout):
        if self.failure is not None:
            raise self.failure
        assert (request.name, request.password) == ("headrace", "planted")
        self.logins += 1
        return stubs.rpc_pb2.AuthenticateResponse(token=self.token)


@pytest.fixture
def etcd():
    return FakeEtcd()


@pytest.fixture
def renewer(etcd, tmp_path):
    (tmp_path / "password").write_text("planted\n")
    made = EtcdLeaseRenewer(["127.0.0.1:1"], login=EtcdLogin("headrace", str(tmp_path / "password")))
    made._stubs, made._auth_stubs = [etcd], [etcd]
    yield made
    made.close()


def test_a_renewal_logs_in_only_where_a_token_is_required(etcd, renewer):
    """Once for a token, and again when it has ended."""
    assert renewer.renew(LEASE, 5) == 10_000
    assert etcd.logins == 0
    for number in (1, 2):
        etcd.token = f"token-{number}"
        for _ in range(2):
            assert renewer.renew(LEASE, 5) == 10_000
        assert etcd.logins == number


def test_a_login_that_fails_is_a_failed_renewal(etcd, renewer):
    """The thread tries again later, with another member."""
    etcd.token, etcd.failure = "token", FailedCallError(grpc.StatusCode.UNAVAILABLE, "no leader")
    with pytest.raises(MetastoreUnavailableError, match="no leader"):
        renewer.renew(LEASE, 5)
    etcd.failure = None
    assert renewer.renew(LEASE, 5) == 10_000


def test_without_a_login_a_required_token_is_a_failed_renewal(etcd, renewer):
    renewer._login, etcd.token = None, "token"
    with pytest.raises(MetastoreUnavailableError, match="invalid auth token"):
        renewer.renew(LEASE, 5)
