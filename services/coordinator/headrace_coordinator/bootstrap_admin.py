"""The command `headrace-coordinator bootstrap-admin`: the first administrator, or another one if all are lost.

It is a command of the coordinator, whose settings contain the endpoints and certificates of etcd: a process that may
write there needs no other right. The API key is in its output, or in a file of mode 0600, and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from headrace.wire.errors import HeadraceError, InvalidConfigError, Outcome
from headrace_server.clock import SystemClock
from headrace_server.cluster_identity import read_or_create
from headrace_server.identity import api_keys
from headrace_server.identity.identity_view import IdentityView
from headrace_server.keys import Keyspace, meta_key
from headrace_server.metastore.api import Metastore
from headrace_server.metastore.etcd import EtcdMetastore
from headrace_server.metastore.view import PrefixView
from headrace_server.settings import SettingsError
from headrace_server.telemetry import configure_logging
from headrace_server.tls import read_tls
from prometheus_client import CollectorRegistry

from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.runtime.ambiguous_writes import AmbiguousWriteResolver
from headrace_coordinator.runtime.first_administrator import bootstrap
from headrace_coordinator.runtime.identity_writes import IdentityWrites
from headrace_coordinator.settings import CoordinatorSettings

TIMEOUT_SECONDS = 30.0


async def run_bootstrap(settings: CoordinatorSettings, user: str, out: Path | None, *, recover: bool) -> Iterator[str]:
    """Create the administrator, write its API key to `out` if given, and return the lines to print.

    Raises:
        SettingsError: If `out` exists or cannot be written.
        InvalidConfigError: If etcd has no such cluster.
        ConflictError: If there is an administrator, without `recover`.
        MetastoreUnavailableError: If etcd does not answer; run it again.
    """
    configure_logging(settings.log_level, settings.log_format)
    metastore = EtcdMetastore(settings.etcd_endpoints, identity=read_tls(settings).etcd, login=settings.etcd_login)
    try:
        return await bootstrap_in(metastore, settings, user, out, recover=recover)
    finally:
        await metastore.close()


async def bootstrap_in(
    metastore: Metastore, settings: CoordinatorSettings, user: str, out: Path | None, *, recover: bool
) -> Iterator[str]:
    """Run the command with a connected etcd."""
    if (await metastore.get(meta_key(settings.cluster))).key_value is None:
        raise InvalidConfigError(
            f"there is no cluster {settings.cluster} in this etcd",
            action="Start its first coordinator or broker before.",
        )
    identity = await read_or_create(metastore, settings.cluster, str(uuid.uuid4()))
    text = api_keys.make_api_key()
    api_key = api_keys.parse_api_key(text)
    assert api_key is not None, "it was made a moment ago"
    async with _identity_writes(metastore, identity.keyspace, settings) as writes:
        with _written(out, text):
            deadline = asyncio.get_running_loop().time() + TIMEOUT_SECONDS
            await bootstrap(writes, user, api_key, deadline, recover=recover)
    if out is None:
        return iter((text,))
    return iter((f"the API key of {user} is in {out}",))


@contextlib.asynccontextmanager
async def _identity_writes(
    metastore: Metastore, keyspace: Keyspace, settings: CoordinatorSettings
) -> AsyncIterator[IdentityWrites]:
    clock = SystemClock()
    source = PrefixView(metastore, keyspace.identity_prefix, clock)
    await source.load()
    view = IdentityView(keyspace, source)
    following = asyncio.create_task(source.run())
    metrics = CoordinatorMetrics(CollectorRegistry())
    writes = AmbiguousWriteResolver(metastore, keyspace, metrics, max_inflight=1)
    try:
        yield IdentityWrites(
            writes, source, view, keyspace, clock, accepts_certificates=settings.tls_client_auth == "required"
        )
    finally:
        following.cancel()
        await asyncio.wait([following])
        view.close()


@contextlib.contextmanager
def _written(out: Path | None, text: str) -> Iterator[None]:
    """Write the key before it is valid, so that it cannot be lost; remove it if it did not become valid."""
    if out is None:
        yield
        return
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise SettingsError(f"cannot write {out}: {error.strerror}", action="Name a new file in --out.") from error
    try:
        yield
    except HeadraceError as error:
        if error.outcome is Outcome.NOT_APPLIED:
            out.unlink(missing_ok=True)
        raise
