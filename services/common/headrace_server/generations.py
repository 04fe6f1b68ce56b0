"""Detection of the end of a generation, after an operator began the next one because etcd was restored.

A generation has its own prefix in etcd, so that a process that missed the change reads and writes keys that no other
process uses. The key `superseded` below that prefix stops such a process (PROTOCOL H81).
"""

from __future__ import annotations

import asyncio

from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import MetastoreRolledBackError


async def watch_generation(view: ClusterView) -> None:
    """Wait for the end of the view's generation, until cancelled.

    Raises:
        MetastoreRolledBackError: When it has ended; after a restart the process uses the next generation.
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
