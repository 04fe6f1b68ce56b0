"""A test's own connection to etcd."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from headrace_server.metastore.etcd import EtcdMetastore
from headrace_server.metastore.etcd_login import EtcdLogin


@contextlib.asynccontextmanager
async def connected(*endpoints: str, login: EtcdLogin | None = None) -> AsyncIterator[EtcdMetastore]:
    """A metastore that is closed in the end."""
    metastore = EtcdMetastore(endpoints, login=login)
    try:
        yield metastore
    finally:
        await metastore.close()
