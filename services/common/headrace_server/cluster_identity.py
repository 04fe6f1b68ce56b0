"""Who the cluster is: its id, generation and format, made once in etcd and read before anything else.

Every process calls `read_or_create` at its start; the first one creates the key, by a transaction that holds only
while it is absent.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError
from headrace.wire.errors import InvalidConfigError

from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace, meta_key
from headrace_server.metastore.api import Get, Metastore, Put, VersionIs

FORMAT_VERSION = 1
"""Of the keyspace and its values. A release reads its own version and says so when it meets another."""

SECRET_BYTES = 32


class ForeignMetadataError(InvalidConfigError):
    """The metadata in etcd under this cluster's name has an unsupported format version."""


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """The cluster's identity in one generation."""

    cluster: str
    """Its name in the settings, part of every key."""
    cluster_id: str
    """Drawn when it was made; data directories carry it."""
    generation: int
    """Rises when etcd is restored from a backup (PROTOCOL H81)."""
    secret: bytes = field(repr=False)
    """What only the cluster's own processes and etcd have; see `cluster_secret`."""

    @property
    def keyspace(self) -> Keyspace:
        """The keyspace of its keys."""
        return Keyspace(self.cluster, self.generation)


async def read_or_create(metastore: Metastore, cluster: str, new_cluster_id: str) -> ClusterIdentity:
    """Return the identity of `cluster`, making it with `new_cluster_id` where there is none yet.

    Sent again after an unknown outcome it finds what the first attempt made, so a caller may simply try again.

    Raises:
        ForeignMetadataError: another format version, or a value that is none of ours.
        MetastoreUnavailableError: etcd did not answer.
    """
    key = meta_key(cluster)
    found = (await metastore.get(key)).key_value
    if found is None:
        fresh = metadata_pb2.ClusterMeta(
            cluster_id=new_cluster_id,
            generation=1,
            format_version=FORMAT_VERSION,
            secret=secrets.token_bytes(SECRET_BYTES),
        )
        result = await metastore.txn(
            [VersionIs(key, 0)], success=[Put(key, fresh.SerializeToString())], failure=[Get(key)]
        )
        if result.succeeded:
            return ClusterIdentity(cluster, new_cluster_id, 1, fresh.secret)
        (found,) = result.responses[0]
    try:
        meta = metadata_pb2.ClusterMeta.FromString(found.value)
    except DecodeError as error:
        raise _foreign(f"the value of {key} is no ClusterMeta") from error
    if meta.format_version != FORMAT_VERSION:
        raise _foreign(
            f"cluster {cluster} has metadata format {meta.format_version}; this release knows {FORMAT_VERSION}"
        )
    if not meta.cluster_id or meta.generation < 1 or len(meta.secret) != SECRET_BYTES:
        raise _foreign(f"the value of {key} lacks its cluster id, generation or secret")
    return ClusterIdentity(cluster, meta.cluster_id, meta.generation, meta.secret)


def _foreign(message: str) -> ForeignMetadataError:
    return ForeignMetadataError(message, action="Check cluster and etcd_endpoints, or use the release that wrote it.")
