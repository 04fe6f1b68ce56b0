"""Failure detection in a real cluster: the peers of a paused broker suspect it until it resumes."""

from __future__ import annotations

from headrace_server.cluster_identity import ClusterIdentity
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.etcd import EtcdMetastore

from tests.integration.replicated import Replicated, until

SILENT = 2


def suspected_by(replicated: Replicated) -> dict[int, list[int]]:
    """Whom each registered broker suspects."""

    async def read(metastore: EtcdMetastore, identity: ClusterIdentity) -> dict[int, list[int]]:
        found = {}
        for broker_id in (1, 2, 3):
            key_value = (await metastore.get(identity.keyspace.broker(broker_id))).key_value
            if key_value is not None:
                found[broker_id] = list(metadata_pb2.BrokerLive.FromString(key_value.value).suspected_brokers)
        return found

    return replicated.in_etcd(read)


def test_a_paused_broker_is_suspected_before_its_lease_ends(replicated: Replicated) -> None:
    """Issue 3, 3: its peers publish it, the metric and the description of followers show it, and it passes."""
    replicated.reconfigure(SILENT, lease_ttl_ms=60_000)
    replicated.create("watched", [[1, 2, 3]])
    leader = replicated.leader("watched")
    broker = replicated.broker(SILENT)
    broker.pause()
    try:
        until(lambda: suspected_by(replicated)[leader] == [SILENT], "the leader suspects the broker that is silent")
        assert suspected_by(replicated)[SILENT] == []
        assert replicated.metric(leader, f'peer_phi{{peer="{SILENT}"}}') >= 8
        (log,) = replicated.admin.describe_logs("watched", brokers=[leader])
        assert {each.broker_id for each in log.followers if each.phi >= 8} == {SILENT}
    finally:
        broker.resume()
    until(lambda: not any(suspected_by(replicated).values()), "no broker is suspected any more")
