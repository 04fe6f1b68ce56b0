"""Challenge-response authentication of a follower to a leader by the cluster's secret, with and without TLS.

Cluster id, broker ids and broker epochs are not secret: every client can read them. The cluster's secret is in etcd,
which only brokers and coordinators can access. The leader starts a stream with a challenge of random bytes that it uses
once. The follower responds with an HMAC-SHA-256 (RFC 2104) over the challenge and both brokers, so that the proof is
not valid for another stream, follower or leader. Pure, except for the random bytes.
"""

from __future__ import annotations

import hmac
import secrets
import struct

from headrace_server.cluster_identity import ClusterIdentity
from headrace_server.partition_state import Replica

CHALLENGE_BYTES = 16
_PURPOSE = b"headrace replica stream v1"
_FIELDS = struct.Struct("<qqqq")
"""Generation, follower's broker id and epoch, leader's broker id."""


def make_challenge() -> bytes:
    """Return random bytes for one stream."""
    return secrets.token_bytes(CHALLENGE_BYTES)


def prove(identity: ClusterIdentity, follower: Replica, leader_id: int, challenge: bytes) -> bytes:
    """Return the proof of a follower's session for one leader's challenge, 32 bytes."""
    fields = _FIELDS.pack(identity.generation, follower.broker_id, follower.broker_epoch, leader_id)
    cluster_id = identity.cluster_id.encode()
    message = b"".join((_PURPOSE, fields, len(cluster_id).to_bytes(4, "little"), cluster_id, challenge))
    return hmac.digest(identity.secret, message, "sha256")


def is_proven(identity: ClusterIdentity, follower: Replica, leader_id: int, challenge: bytes, proof: bytes) -> bool:
    """Return whether `proof` is the follower's for this challenge, compared in constant time."""
    return hmac.compare_digest(prove(identity, follower, leader_id, challenge), proof)
