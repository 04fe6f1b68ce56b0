"""Steps of a replacement of the cluster's secret. Pure."""

from __future__ import annotations

from headrace_server.internal_v1 import metadata_pb2


def next_secrets(stored: metadata_pb2.ClusterSecrets, fresh: bytes) -> metadata_pb2.ClusterSecrets:
    """Return what follows the `stored` secrets in a replacement, for which `fresh` is a new one."""
    if stored.next:
        return metadata_pb2.ClusterSecrets(used=stored.next, previous=stored.used)
    if stored.previous:
        return metadata_pb2.ClusterSecrets(used=stored.used)
    return metadata_pb2.ClusterSecrets(used=stored.used, next=fresh)


def step_of(stored: metadata_pb2.ClusterSecrets) -> str:
    """Return what the last step has done, as the command reports it and the audit log has it."""
    if stored.next:
        return "the new secret is accepted"
    if stored.previous:
        return "the new secret is used, and the old one is still accepted"
    return "the old secret is refused"
