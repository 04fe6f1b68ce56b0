"""The cluster's secret is replaced while brokers and coordinators run and a producer writes."""

import hmac
import time

import grpc
import pytest
from headrace.v1 import broker_pb2_grpc, cluster_pb2
from headrace.wire.errors import ErrorCode
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_server.identity.callers import Proof
from headrace_server.identity.identification import SERVER_KEY
from headrace_server.identity.session_tokens import sign_session
from headrace_server.internal_v1 import metadata_pb2

from tests.integration.etcd_backups import command
from tests.integration.replicated import BROKER_SETTINGS, Replicated, Writer, follower_at, until

WAIT_SECONDS = 1
"""Time for all processes to see a step; etcd tells them within milliseconds."""


def token_by(secret: bytes) -> str:
    """Return the token of a broker that knows `secret`."""
    now_ms = time.time_ns() // 1_000_000
    claims = metadata_pb2.SessionClaims(
        user="broker-9", proof=Proof.SERVER, issued_ms=now_ms, expires_ms=now_ms + 900_000
    )
    return sign_session(claims, SERVER_KEY, hmac.digest(secret, b"headrace server tokens v1", "sha256"))


def is_accepted(address: str, token: str) -> bool:
    """Return whether a broker takes the caller for a server of its cluster."""
    with grpc.insecure_channel(address) as channel:
        stub = broker_pb2_grpc.BrokerServiceStub(channel)
        try:
            metadata = (("authorization", f"Bearer {token}"),)
            stub.GetMetadata(cluster_pb2.GetMetadataRequest(), timeout=20, metadata=metadata)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
                raise
            return False
        return True


@pytest.fixture
def replicated():
    with LocalCluster(LocalClusterSpec(coordinators=2, broker_settings=BROKER_SETTINGS)) as cluster:
        found = Replicated(cluster)
        try:
            yield found
        finally:
            found.close()


def test_the_secret_of_a_running_cluster_is_replaced(replicated):
    """No record is lost and no process restarts; at the end the old secret opens neither a stream nor a call."""
    cluster, old = replicated.cluster, replicated.identity()
    replicated.create("events", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    processes = [part.pid for part in cluster.parts]
    token, broker_epoch = token_by(old.secret), replicated.register_hand(9)
    assert is_accepted(cluster.broker(1).address, token)
    with Writer(replicated.servers, "events", 3) as writer:
        writer.wait_for(300)
        done = command(
            "headrace_coordinator", "replace-secret", "--wait", WAIT_SECONDS, **cluster.coordinators[0].spec.settings
        )
        assert done.returncode == 0, done.stderr
        writer.wait_for(300)
    writer.check(replicated)
    assert [line.split(";")[0] for line in done.stdout.splitlines()] == [
        "the new secret is accepted",
        "the new secret is used, and the old one is still accepted",
        "the old secret is refused",
    ]
    new = replicated.identity()
    assert new.secret != old.secret
    assert not {old.secret.hex(), new.secret.hex()} & {*done.stdout.split(), *done.stderr.split()}
    assert [part.pid for part in cluster.parts] == processes
    logs = [part.log_file for part in cluster.coordinators]
    until(
        lambda: sum(log.read_text().count("ReplaceSecret") for log in logs) == 3, "the controller has noted all steps"
    )
    for broker in cluster.brokers:
        until(lambda address=broker.address: not is_accepted(address, token), "the old secret is refused")
        assert is_accepted(broker.address, token_by(new.secret))
    for identity, code in ((old, ErrorCode.NOT_AUTHORIZED), (new, None)):
        with follower_at(cluster.broker(1).replication_address) as follower:
            follower.identify(identity, 9, broker_epoch)
            if code is not None:
                assert follower.end().code == code
    cluster.broker(2).kill()
    cluster.restart(cluster.broker(2))
    replicated.check_replicas_equal("events", 3)
