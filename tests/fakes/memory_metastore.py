"""An in-memory metastore with etcd's semantics: revisions, versions, leases, compaction, watches.

For tests and simulations: the store of a cluster in one process, without a journal. It passes the contract tests that
etcd passes (tests/contract). Everything happens on one event loop, at the moment of the call: nothing is random and no
real time passes. Leases follow the injected clock and end when `expire_leases` is called or the next call comes. Faults
are injected from outside, by wrapping.
"""

from __future__ import annotations

from headrace_server.clock import Clock, SystemClock
from headrace_server.metastore.local import LocalLeaseRenewer, LocalMetastore
from headrace_server.metastore.state import MetastoreState


class MemoryMetastore(LocalMetastore):
    """The fake. Several services may share one instance, as several clients share one etcd."""

    def __init__(self, *, clock: Clock | None = None, cluster_id: int = 0xFA4E) -> None:
        super().__init__(MetastoreState(), now_ms=(clock or SystemClock()).boottime_ms, cluster_id=cluster_id)


MemoryLeaseRenewer = LocalLeaseRenewer
