"""Whom a leader lets follow: who has the cluster's secret and is registered in just the session that it names (A8)."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from headrace.wire.errors import FencedBrokerError, HeadraceError, InvalidRequestError, NotAuthorizedError
from headrace_broker.runtime.follower_fetch_session import FollowerFetchSession
from headrace_broker.runtime.replication import Replication
from headrace_server.cluster_identity import ClusterIdentity
from headrace_server.cluster_secret import prove
from headrace_server.handshakes import own_handshake
from headrace_server.internal_v1 import replication_pb2
from headrace_server.partition_state import Replica

LEADER = 1
FOLLOWER = Replica(3, 30)
IDENTITY = ClusterIdentity("main", "an-id", 2, bytes(range(32)))
CHALLENGE = b"challenge of one"
SECRETS = [IDENTITY.secret]
"""Accepted by the leader."""


class Metric:
    """Takes what it is told."""

    def set(self, value: float) -> None:
        self.value = value


@pytest.fixture
def leader() -> Replication:
    """Broker 1, which knows of broker 3 in session 30."""
    view = SimpleNamespace(
        identity=IDENTITY, keyspace=IDENTITY.keyspace, brokers={3: SimpleNamespace(broker_epoch=FOLLOWER.broker_epoch)}
    )
    clock = SimpleNamespace(monotonic_ms=lambda: 0)
    metrics = SimpleNamespace(follower_partitions=Metric(), connected_followers=Metric())
    context = SimpleNamespace(broker_id=LEADER, clock=clock, metrics=metrics)
    failure_detector = SimpleNamespace(on_heartbeat=lambda broker_id, now_ms: None)
    made: Any = (view, None, context, failure_detector, None, None, lambda: SECRETS)
    SECRETS[:] = [IDENTITY.secret]
    return Replication(*made)


def follow(leader: Replication, follower: Replica = FOLLOWER, *, proof: bytes | None = None) -> FollowerFetchSession:
    """Open a stream as `follower`; `proof`: what it answers to the challenge, where that is not the right answer."""
    identity = replication_pb2.FollowerIdentity(
        cluster_id=IDENTITY.cluster_id,
        generation=IDENTITY.generation,
        broker_id=follower.broker_id,
        broker_epoch=follower.broker_epoch,
        handshake=own_handshake(),
        proof=prove(IDENTITY, follower, LEADER, CHALLENGE) if proof is None else proof,
    )
    return leader.open_stream(identity, CHALLENGE, lambda key: None)


def test_a_registered_follower_with_the_secret_is_let_in(leader: Replication) -> None:
    """The later of two streams is the follower's."""
    first, second = follow(leader), follow(leader)
    assert (first.follower, second.follower) == (FOLLOWER, FOLLOWER)
    leader.close_stream(first)
    assert leader._streams == {FOLLOWER.broker_id: second}


def test_a_secret_is_replaced_while_followers_are_there(leader: Replication) -> None:
    """Both are accepted meanwhile; the streams that the old one has opened end with it, and no new ones begin."""
    old, new = IDENTITY.secret, b"n" * 32
    SECRETS[:] = [old, new]
    assert follow(leader).follower == FOLLOWER
    SECRETS[:] = [new, old]
    leader.close_unproven()
    assert leader._streams
    SECRETS[:] = [new]
    leader.close_unproven()
    assert not leader._streams
    with pytest.raises(NotAuthorizedError):
        follow(leader)
    follow(leader, proof=prove(dataclasses.replace(IDENTITY, secret=new), FOLLOWER, LEADER, CHALLENGE))
    leader.close_unproven()
    assert leader._streams


@pytest.mark.parametrize(
    "proof",
    [
        b"",
        prove(dataclasses.replace(IDENTITY, secret=bytes(32)), FOLLOWER, LEADER, CHALLENGE),
        prove(IDENTITY, FOLLOWER, LEADER, b"of another one.."),
        prove(IDENTITY, FOLLOWER, 2, CHALLENGE),
        prove(IDENTITY, Replica(3, 31), LEADER, CHALLENGE),
    ],
    ids=["none", "another secret", "another challenge", "for another leader", "of another session"],
)
def test_a_caller_without_a_proof_is_refused(leader: Replication, proof: bytes) -> None:
    """Ids and sessions are public: naming them is not enough to fetch as a replica."""
    with pytest.raises(NotAuthorizedError):
        follow(leader, proof=proof)
    assert leader._streams == {}


@pytest.mark.parametrize(
    ("follower", "error"),
    [
        (Replica(3, 29), FencedBrokerError),
        (Replica(3, 31), FencedBrokerError),
        (Replica(77, 1), FencedBrokerError),
        (Replica(LEADER, 10), InvalidRequestError),
    ],
    ids=["an earlier session", "a later session", "not registered", "the leader itself"],
)
def test_a_session_that_is_not_registered_is_refused(
    leader: Replication, follower: Replica, error: type[HeadraceError]
) -> None:
    """A later session than the registered one would shut that out; an unregistered one would be believed, too."""
    with pytest.raises(error):
        follow(leader, follower)
    assert leader._streams == {}
