"""The end of a generation: after a restore of etcd an operator begins the next one, and every process leaves this one.

A generation has its own prefix in etcd, so a process that has missed the change reads and writes keys that no other
process reads. The key `superseded` below that prefix ends such a process (PROTOCOL H81).
"""

from __future__ import annotations

import asyncio

from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import MetastoreRolledBackError


async def watch_generation(view: ClusterView) -> None:
    """Wait for the end of the view's generation, until cancelled.

    Raises:
        MetastoreRolledBackError: it has ended; the next start works in the one that followed.
    """
    changed = asyncio.Event()
    unsubscribe = view.subscribe(lambda _revision, _keys: changed.set())
    try:
        while view.source.get(view.keyspace.superseded()) is None:
            changed.clear()
            await changed.wait()
    finally:
        unsubscribe()
    raise MetastoreRolledBackError(
        f"generation {view.keyspace.generation} of cluster {view.keyspace.cluster} has ended: etcd was restored from a "
        "backup",
        action="Start this process again: it then works in the new generation.",
    )
