"""A coordinator's parts for identity over any metastore: the view follows it, the stores write to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from headrace.v1 import auth_pb2
from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.runtime.ambiguous_writes import AmbiguousWriteResolver
from headrace_coordinator.runtime.first_administrator import bootstrap
from headrace_coordinator.runtime.identity_policies import IdentityPolicies
from headrace_coordinator.runtime.identity_store import IdentityStore
from headrace_coordinator.runtime.identity_writes import IdentityWrites
from headrace_coordinator.runtime.metadata_limits import GroupBounds, MetadataLimits
from headrace_server.identity.api_keys import ApiKey, make_api_key, parse_api_key
from headrace_server.identity.identity_view import IdentityView
from headrace_server.keys import Keyspace
from headrace_server.metastore.view import PrefixView
from prometheus_client import CollectorRegistry

from tests.fakes.manual_clock import ManualClock

SECONDS = 20


@dataclass
class IdentityParts:
    """Parts of one coordinator. Another one over the same metastore is another coordinator of the cluster."""

    metastore: Any
    keyspace: Keyspace
    source: PrefixView
    view: IdentityView
    clock: ManualClock
    limits: MetadataLimits
    writes: IdentityWrites
    store: IdentityStore
    policies: IdentityPolicies
    metrics: CoordinatorMetrics

    @property
    def deadline(self) -> float:
        """Return a deadline that no test reaches."""
        return asyncio.get_running_loop().time() + SECONDS

    async def see(self, revision: int) -> None:
        """Wait until the view shows a write."""
        await self.source.wait_for(revision, SECONDS)

    async def put_user(self, name: str, **fields: Any) -> None:
        """Create or change a user."""
        await self.see((await self.store.put_user(auth_pb2.User(name=name, **fields), self.deadline))[1])

    async def add_key(self, user: str, lifetime_ms: int = 0) -> str:
        """Create an API key, and return its id."""
        created = await self.store.create_api_key(user, "", lifetime_ms, self.deadline)
        await self.see(created.revision)
        return created.stored.key_id

    async def grant(self, principal: str, role: str = "admin", resource: str = "cluster", **fields: Any) -> None:
        """Grant a role."""
        grant = auth_pb2.Grant(principal=principal, role=role, resource=resource, **fields)
        await self.see((await self.store.put_grant(grant, "test", self.deadline))[1])

    async def administrator(self, name: str) -> str:
        """Create an administrator, and return the id of its API key."""
        await self.put_user(name)
        key_id = await self.add_key(name)
        await self.grant(name)
        return key_id

    async def bootstrap(self, name: str = "admin", *, recover: bool = False) -> ApiKey:
        """Do what the command does."""
        api_key = parse_api_key(make_api_key())
        assert api_key is not None
        await bootstrap(self.writes, name, api_key, self.deadline, recover=recover)
        await self.source.load()
        return api_key


@contextlib.asynccontextmanager
async def identity_parts(
    metastore: Any, cluster: str = "c", *, clock: ManualClock | None = None, accepts_certificates: bool = False
) -> AsyncIterator[IdentityParts]:
    """The parts, with their view following the metastore."""
    keyspace, clock = Keyspace(cluster, 1), clock or ManualClock()
    source = PrefixView(metastore, keyspace.identity_prefix, clock)
    await source.load()
    view = IdentityView(keyspace, source)
    metrics = CoordinatorMetrics(CollectorRegistry())
    resolver = AmbiguousWriteResolver(metastore, keyspace, metrics, max_inflight=8)
    writes = IdentityWrites(resolver, source, view, keyspace, clock, accepts_certificates=accepts_certificates)
    limits = MetadataLimits(GroupBounds(1, 1, 1))
    following = asyncio.create_task(source.run())
    try:
        yield IdentityParts(
            metastore,
            keyspace,
            source,
            view,
            clock,
            limits,
            writes,
            IdentityStore(writes, limits),
            IdentityPolicies(writes, limits),
            metrics,
        )
    finally:
        following.cancel()
        await asyncio.wait([following])
        view.close()
