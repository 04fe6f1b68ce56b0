"""Writes of the schema registry whose answers get lost: each is applied once, and said to be (PROTOCOL C2, C3)."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from headrace_coordinator.core.schemas.compatibility import Compatibility
from headrace_coordinator.core.schemas.errors import RegistryError
from headrace_coordinator.runtime.metadata_limits import GroupBounds, MetadataLimits
from headrace_coordinator.runtime.schema_parser import NewSchema, SchemaParser
from headrace_coordinator.runtime.schema_store import SchemaStore
from headrace_coordinator.runtime.schema_view import LATEST, SchemaView
from headrace_server.clock import SystemClock
from headrace_server.metastore.view import PrefixView

from tests.fakes.lossy_metastore import LOST, NEVER
from tests.unit.coordinator.parts import SECONDS, make_parts


class Registry:
    """A store and its view, on the parts of a coordinator."""

    def __init__(self, parts, source):
        self.parts = parts
        self.view = SchemaView(parts.keyspace, source)
        limits = MetadataLimits(GroupBounds(10, 10, 1 << 20))
        parser = SchemaParser(self.view)
        self.store = SchemaStore(parts.writes, source, self.view, parts.keyspace, parser, limits, max_bytes=1 << 20)

    async def fill(self, versions):
        await self.store.set_compatibility(None, Compatibility.NONE, self.parts.deadline)
        for number in range(versions):
            fields = [{"name": f"f{number}", "type": "long"}]
            schema = {"type": "record", "name": "r", "fields": fields}
            await self.store.register("s", NewSchema("AVRO", json.dumps(schema)), self.parts.deadline)

    async def delete(self, version, *, permanent=False):
        return await self.store.delete_version("s", version, self.parts.deadline, permanent=permanent)

    def versions(self):
        return [(each.version, each.deleted) for each in self.view.versions("s", deleted=True)]


@contextlib.asynccontextmanager
async def registry(versions=3):
    async with make_parts() as parts:
        source = PrefixView(parts.metastore, parts.keyspace.schema_registry_prefix, SystemClock())
        await source.load()
        following = asyncio.create_task(source.run())
        try:
            async with asyncio.timeout(SECONDS):
                found = Registry(parts, source)
                await found.fill(versions)
                yield found
        finally:
            following.cancel()
            await asyncio.wait([following])


@pytest.mark.parametrize("faults", [[], [NEVER], [LOST], [NEVER, LOST]])
@pytest.mark.parametrize("version", [3, LATEST])
async def test_a_version_is_deleted_once_whatever_answers_are_lost(faults, version):
    """`latest` stays the version that it was at first; that it is deleted when an answer was lost is no error."""
    async with registry() as found:
        found.parts.metastore.faults = list(faults)
        assert await found.delete(version) == 3
        assert found.versions() == [(1, False), (2, False), (3, True)]
        for number in (1, 2):
            await found.delete(number)
        found.parts.metastore.faults = list(faults)
        assert await found.delete(version, permanent=True) == 3
        assert found.versions() == [(1, True), (2, True)]


async def test_a_version_that_was_deleted_before_is_refused():
    """An error means that this call has deleted nothing."""
    async with registry() as found:
        await found.delete(3)
        with pytest.raises(RegistryError, match="was soft deleted") as refused:
            await found.delete(3)
        assert refused.value.code == 40406
        await found.delete(3, permanent=True)
        with pytest.raises(RegistryError, match="Version 3 not found"):
            await found.delete(3, permanent=True)
        assert found.versions() == [(1, False), (2, False)]


async def test_of_two_deletions_of_the_latest_version_at_once_none_deletes_the_one_before():
    """Both name the same version, and it is deleted."""
    async with registry() as found:

        async def delete_first(compares, success):
            found.parts.metastore.before_txn = None
            assert await found.delete(LATEST) == 3

        found.parts.metastore.before_txn = delete_first
        assert await found.delete(LATEST) == 3
        assert found.versions() == [(1, False), (2, False), (3, True)]
