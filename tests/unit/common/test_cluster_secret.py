"""The proof of a follower: good for one challenge, session and leader of one cluster; the secret shows up nowhere."""

from dataclasses import replace

import pytest
from headrace_server.cluster_identity import ClusterIdentity, ForeignMetadataError, read_or_create
from headrace_server.cluster_secret import is_proven, make_challenge, prove
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import meta_key, value_json
from headrace_server.metastore.api import Put
from headrace_server.partition_state import Replica

from tests.fakes.memory_metastore import MemoryMetastore

IDENTITY = ClusterIdentity("c", "cluster-1", 1, b"s" * 32)
FOLLOWER = Replica(3, 77)


def test_proof_is_good_for_what_it_was_made_for_only():
    """Every input counts: secret, cluster id, generation, follower, its session, leader and challenge."""
    challenge = make_challenge()
    proof = prove(IDENTITY, FOLLOWER, 1, challenge)
    assert is_proven(IDENTITY, FOLLOWER, 1, challenge, proof)
    for identity in (
        replace(IDENTITY, secret=b"t" * 32),
        replace(IDENTITY, cluster_id="cluster-2"),
        replace(IDENTITY, generation=2),
    ):
        assert not is_proven(identity, FOLLOWER, 1, challenge, proof)
    assert not is_proven(IDENTITY, Replica(4, 77), 1, challenge, proof)
    assert not is_proven(IDENTITY, Replica(3, 78), 1, challenge, proof)
    assert not is_proven(IDENTITY, FOLLOWER, 2, challenge, proof)
    assert not is_proven(IDENTITY, FOLLOWER, 1, make_challenge(), proof)
    assert not is_proven(IDENTITY, FOLLOWER, 1, challenge, b"")


async def test_every_process_reads_the_secret_that_the_first_one_made():
    """It is drawn once, is 32 bytes, and is not in the text form of the identity."""
    metastore = MemoryMetastore()
    first = await read_or_create(metastore, "c", "id-1")
    assert await read_or_create(metastore, "c", "id-2") == first
    assert len(first.secret) == 32
    assert repr(first.secret)[2:-1] not in repr(first)
    assert (await read_or_create(metastore, "d", "id-1")).secret != first.secret


async def test_metadata_without_a_secret_is_refused():
    """An empty secret would be one that everybody has."""
    metastore = MemoryMetastore()
    meta = metadata_pb2.ClusterMeta(cluster_id="id", generation=1, format_version=1)
    await metastore.txn([], [Put(meta_key("c"), meta.SerializeToString())])
    with pytest.raises(ForeignMetadataError, match="secret"):
        await read_or_create(metastore, "c", "unused")


def test_dumped_metadata_has_no_secret():
    """A dump of the metadata is not enough to impersonate a broker."""
    meta = metadata_pb2.ClusterMeta(cluster_id="id", generation=1, format_version=1, secret=b"\xaa" * 32)
    text = value_json(IDENTITY.keyspace, meta_key("c"), meta.SerializeToString())
    assert '"cluster_id": "id"' in text
    assert "secret" not in text
    assert "aaaa" not in text
    assert "qqqq" not in text
