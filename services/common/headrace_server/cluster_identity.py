"""Identity of the cluster: id, generation and format version, created once in etcd and read before anything else.

Every process calls `read_or_create` at its start. The first one creates the key, by a transaction that succeeds only
if the key is absent.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError
from headrace.wire.errors import InvalidConfigError

from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace, meta_key
from headrace_server.metastore.api import Get, Metastore, Put, VersionIs

FORMAT_VERSION = 1
"""Format version of the keyspace and its values. A release supports only this version."""

SECRET_BYTES = 32


class ForeignMetadataError(InvalidConfigError):
    """The metadata in etcd under this cluster's name has an unsupported format version."""


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """Identity of the cluster in one generation."""

    cluster: str
    """Name in the settings, part of every key."""
    cluster_id: str
    """Random id from the creation of the cluster, also stored in data directories."""
    generation: int
    """Number of the generation, which rises after a restore of etcd from a backup (PROTOCOL H81)."""
    secret: bytes = field(repr=False)
    """Secret of the cluster's processes, stored only in etcd; see `cluster_secret`."""

    @property
    def keyspace(self) -> Keyspace:
        """Keyspace of this generation."""
        return Keyspace(self.cluster, self.generation)


async def read_or_create(
    metastore: Metastore, cluster: str, new_cluster_id: str, check_new: Callable[[], object] | None = None
) -> ClusterIdentity:
    """Return the identity of `cluster`; create it with `new_cluster_id` if there is none.

    After an unknown outcome the caller may retry: the retry finds the identity of an earlier attempt. `check_new` is
    called before a cluster is created; what it raises prevents that.

    Raises:
        ForeignMetadataError: If the format version is another one, or the value cannot be decoded.
        MetastoreUnavailableError: If etcd does not respond.
    """
    key = meta_key(cluster)
    found = (await metastore.get(key)).key_value
    if found is None:
        if check_new is not None:
            check_new()
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
