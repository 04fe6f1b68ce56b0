"""Gates for servers and handlers in tests: one that serves everybody, and one over keys that a test writes."""

from __future__ import annotations

from headrace.v1 import auth_pb2
from headrace_server.cluster_identity import ClusterIdentity
from headrace_server.identity.callers import ANONYMOUS, Caller, Identity, Proof
from headrace_server.identity.decision_counts import DecisionCounts
from headrace_server.identity.gate import Access, IdentityGate
from headrace_server.identity.identity_view import IdentityView
from headrace_server.instruments import CommonMetrics
from headrace_server.keys import Keyspace
from prometheus_client import CollectorRegistry

from tests.fakes.manual_clock import ManualClock
from tests.fakes.written_keys import WrittenKeys

CLUSTER = ClusterIdentity("c", "cluster-id", 1, bytes(32))


def gate_over(
    keys: WrittenKeys, clock: ManualClock, posture: auth_pb2.Posture, registry: CollectorRegistry | None = None
) -> IdentityGate:
    """Return a gate over keys."""
    metrics = CommonMetrics("x", registry or CollectorRegistry())
    counts = DecisionCounts(metrics.refused_calls, metrics.observed_refusals, metrics.quota_held_seconds)
    view = IdentityView(Keyspace("c", 1), keys)
    return IdentityGate(
        view,
        CLUSTER,
        clock,
        counts,
        "broker-1",
        metrics.audit_events_lost,
        least_posture=posture,
        rights_max_age_ms=300_000,
    )


def open_gate() -> IdentityGate:
    """Return a gate with the posture `open`."""
    return gate_over(WrittenKeys(), ManualClock(), auth_pb2.POSTURE_OPEN)


def open_access(user: str = "") -> Access:
    """Return the access of a call of `user`, or of one without an identity, that such a gate has admitted."""
    return Access(open_gate(), Caller(Identity(user, Proof.API_KEY)) if user else ANONYMOUS, "test")
