"""A test's own connection to etcd."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from headrace_server.metastore.etcd import EtcdMetastore


@contextlib.asynccontextmanager
async def connected(*endpoints: str) -> AsyncIterator[EtcdMetastore]:
    """A metastore that is closed in the end."""
    metastore = EtcdMetastore(endpoints)
    try:
        yield metastore
    finally:
        await metastore.close()
