"""The command `headrace-coordinator replace-secret`: another secret of the cluster while all its processes run.

By the secret brokers and coordinators prove to each other that they belong to the cluster. It is replaced by three
writes to etcd, which every process watches: the new secret is accepted, then it is used, then it is the only one. After
each of the first two the command waits until every process has seen it: one that has been without etcd for longer than
that reconnects later. After an interruption the next run continues. No secret is in the output. The controller writes
each step to the audit log (`IdentityMaintenance`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from headrace.wire.errors import ConflictError, InvalidConfigError
from headrace_server.cluster_identity import SECRET_BYTES
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace, meta_key
from headrace_server.metastore.api import Metastore, ModRevisionIs, Put, VersionIs
from headrace_server.metastore.etcd import EtcdMetastore
from headrace_server.telemetry import configure_logging
from headrace_server.tls import read_tls

from headrace_coordinator.core.cluster_secrets import next_secrets, step_of
from headrace_coordinator.settings import CoordinatorSettings

WAIT_SECONDS = 120
"""As for signing keys: servers that are behind, or without etcd for a minute, have seen a write after this time."""


async def run_replacement(settings: CoordinatorSettings, wait_seconds: float, report: Callable[[str], None]) -> None:
    """Replace the secret, and report each step.

    Raises:
        InvalidConfigError: If etcd has no such cluster.
        ConflictError: If the metadata was written meanwhile.
        MetastoreUnavailableError: If etcd does not answer; run it again.
    """
    configure_logging(settings.log_level, settings.log_format)
    metastore = EtcdMetastore(settings.etcd_endpoints, identity=read_tls(settings).etcd, login=settings.etcd_login)
    try:
        is_begun = False
        while True:
            stored = await _read(metastore, settings.cluster)
            if not is_begun and (stored.secrets.next or stored.secrets.previous):
                report(f"an earlier run was interrupted; waiting {wait_seconds:g} s before its next step")
                await asyncio.sleep(wait_seconds)
                stored = await _read(metastore, settings.cluster)
            is_begun = True
            written = next_secrets(stored.secrets, secrets.token_bytes(SECRET_BYTES))
            await _write(metastore, settings.cluster, stored, written)
            if not (written.next or written.previous):
                report(step_of(written))
                return
            report(f"{step_of(written)}; waiting {wait_seconds:g} s")
            await asyncio.sleep(wait_seconds)
    finally:
        await metastore.close()


@dataclass(frozen=True, slots=True)
class _Stored:
    """What is in etcd, with the revisions that a write compares."""

    key: str
    meta: metadata_pb2.ClusterMeta
    secrets: metadata_pb2.ClusterSecrets
    conditions: list[ModRevisionIs | VersionIs]


async def _read(metastore: Metastore, cluster: str) -> _Stored:
    found = (await metastore.get(meta_key(cluster))).key_value
    if found is None:
        raise InvalidConfigError(
            f"there is no cluster {cluster} in this etcd", action="Check cluster and etcd_endpoints."
        )
    meta = metadata_pb2.ClusterMeta.FromString(found.value)
    key = Keyspace(cluster, meta.generation).cluster_secrets()
    replaced = (await metastore.get(key)).key_value
    stored = metadata_pb2.ClusterSecrets(used=meta.secret)
    if replaced is not None:
        stored = metadata_pb2.ClusterSecrets.FromString(replaced.value)
    conditions = [
        ModRevisionIs(meta_key(cluster), found.mod_revision),
        VersionIs(key, 0) if replaced is None else ModRevisionIs(key, replaced.mod_revision),
    ]
    return _Stored(key, meta, stored, conditions)


async def _write(metastore: Metastore, cluster: str, stored: _Stored, written: metadata_pb2.ClusterSecrets) -> None:
    stored.meta.secret = written.used  # For processes that start.
    result = await metastore.txn(
        stored.conditions,
        [Put(meta_key(cluster), stored.meta.SerializeToString()), Put(stored.key, written.SerializeToString())],
    )
    if not result.succeeded:
        raise ConflictError("the cluster's metadata was written meanwhile", action="Run the command again, once.")
