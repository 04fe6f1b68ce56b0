"""Writes of the schema registry whose answers get lost: each is applied once, and said to be (PROTOCOL C2, C3)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from types import SimpleNamespace

import pytest
from headrace_coordinator.core.schemas.compatibility import Compatibility
from headrace_coordinator.core.schemas.errors import RegistryError
from headrace_coordinator.core.schemas.schema import Reference
from headrace_coordinator.rpc import schema_requests
from headrace_coordinator.rpc.schema_routes import RegistryCall
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
        self.parser = parser = SchemaParser(self.view)
        self.store = SchemaStore(parts.writes, source, self.view, parts.keyspace, parser, limits, max_bytes=1 << 20)

    async def fill(self, versions):
        await self.store.set_compatibility(None, Compatibility.NONE, self.parts.deadline)
        for number in range(versions):
            fields = [{"name": f"f{number}", "type": "long"}]
            schema = {"type": "record", "name": "r", "fields": fields}
            await self.store.register("s", NewSchema("AVRO", json.dumps(schema)), self.parts.deadline)

    async def delete(self, version, *, permanent=False):
        return await self.store.delete_version("s", version, self.parts.deadline, permanent=permanent)

    async def get(self, route, query=None, **path):
        """The answer to a caller who may do everything."""
        requests = schema_requests.SchemaRequests(self.view, self.parser, self.store)
        access = SimpleNamespace(
            allows=lambda *_: True, allows_all=lambda *_: True, sees=lambda *_: True, require=lambda *_: None
        )
        (handle,) = (each.handler for each in requests.routes() if (each.method, each.path) == ("GET", route))
        return await handle(RegistryCall(access, path, query or {}, b"", self.parts.deadline))

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


def money(kind):
    return {"type": "record", "name": "Money", "fields": [{"name": "amount", "type": kind}]}


def holder(name, of):
    """A record with a field of another type, and a field that may be left out."""
    fields = [{"name": "held", "type": of}, {"name": "note", "type": "string", "default": ""}]
    return {"type": "record", "name": name, "fields": fields}


@pytest.mark.parametrize("levels", [1, 2])
async def test_a_schema_is_compared_with_what_its_references_say_now(levels):
    """A subject that is deleted permanently begins again with version 1, perhaps of another schema."""
    async with registry(versions=0) as found:
        await found.store.set_compatibility(None, Compatibility.BACKWARD, found.parts.deadline)
        used = Reference("Money", "money", 1) if levels == 1 else Reference("Wallet", "wallet", 1)
        order = holder("Order", used.name)

        async def has_conflicts(kind):
            """Whether an order of whole numbers, and the same order, may follow an order whose money is of a kind."""
            of_money = (Reference("Money", "money", 1),)
            schemas = [("money", money(kind), ()), ("wallet", holder("Wallet", "Money"), of_money)]
            for subject, schema, references in [*schemas[:levels], ("order", order, (used,))]:
                new = NewSchema("AVRO", json.dumps(schema), references)
                assert (await found.store.register(subject, new, found.parts.deadline))[1] == 1
            inside = money("int") if levels == 1 else holder("Wallet", money("int"))
            said = []
            for schema, references in ((holder("Order", inside), ()), (order, (used,))):
                checked = await found.parser.check(NewSchema("AVRO", json.dumps(schema), references))
                versions = found.view.versions("order")
                said.append(bool(await found.parser.find_conflicts(checked, versions, Compatibility.BACKWARD)))
            for subject in ["order", "wallet", "money"] if levels == 2 else ["order", "money"]:
                for permanent in (False, True):
                    await found.store.delete_subject(subject, found.parts.deadline, permanent=permanent)
            return said

        assert await has_conflicts("int") == [False, False]
        assert await has_conflicts("string") == [True, False]
        assert await has_conflicts("int") == [False, False]


GREATEST = 2**31 - 1


async def test_every_id_and_version_that_is_imported_can_be_read():
    """Up to those of ten digits, after which there is no next one."""
    async with registry(versions=0) as found:
        for number, subject in ((999_999_999, "a"), (1_500_000_000, "b"), (GREATEST, "c")):
            await found.store.set_mode(subject, "IMPORT", found.parts.deadline)
            new = NewSchema("AVRO", json.dumps({"type": "fixed", "name": subject, "size": 1}))
            assert await found.store.register(subject, new, found.parts.deadline, schema_id=number, version=number) == (
                number,
                number,
            )
            answer = await found.get("/schemas/ids/{schema_id}/versions", schema_id=str(number))
            assert answer == [{"subject": subject, "version": number}]
            answer = await found.get("/subjects/{subject}/versions/{version}", subject=subject, version=str(number))
            assert (answer["id"], answer["version"]) == (number, number)
        for number in ("2147483648", "99999999999", "0", "x"):
            with pytest.raises(RegistryError, match="Schema not found"):
                await found.get("/schemas/ids/{schema_id}", schema_id=number)
            with pytest.raises(RegistryError, match="is not a valid version id"):
                await found.get("/subjects/{subject}/versions/{version}", subject="a", version=number)
        with pytest.raises(RegistryError, match="The greatest id, 2147483647, is in use"):
            await found.store.register("d", NewSchema("AVRO", '"int"'), found.parts.deadline)
        await found.store.set_mode("c", "", found.parts.deadline)
        known = NewSchema("AVRO", json.dumps({"type": "fixed", "name": "a", "size": 1}))
        with pytest.raises(RegistryError, match="The greatest version of subject 'c', 2147483647, is in use"):
            await found.store.register("c", known, found.parts.deadline)


@pytest.mark.parametrize(("number", "read"), [(None, 0), (-1, 0), (7, 7), (GREATEST, GREATEST)])
def test_numbers_of_a_request(number, read):
    assert schema_requests._read_number({"id": number}, "id") == read


@pytest.mark.parametrize("number", [-2, GREATEST + 1, True, "7", 1.5])
def test_what_is_no_number_of_a_request(number):
    with pytest.raises(RegistryError, match="The field id is no number from 0 to 2147483647"):
        schema_requests._read_number({"id": number}, "id")


async def test_a_page_of_a_list_begins_after_a_subject():
    """Whatever was deleted before it; an offset, which clients send for other registries, does not count then."""
    async with registry(versions=0) as found:
        new = NewSchema("AVRO", '"int"')
        for subject in ("a", "b", "c", "d"):
            await found.store.register(subject, new, found.parts.deadline)
        assert await found.get("/subjects", {"limit": "2"}) == ["a", "b"]
        await found.store.delete_subject("a", found.parts.deadline, permanent=False)
        assert await found.get("/subjects", {"limit": "2", "offset": "2", "after": "b"}) == ["c", "d"]
        listed = await found.get("/schemas", {"latestOnly": "true", "limit": "1", "offset": "2", "after": "b"})
        assert [each["subject"] for each in listed] == ["c"]


async def test_a_list_of_schemas_that_are_large_together_is_refused(monkeypatch):
    """A caller that has no limit must not take a part for the whole, nor stop the coordinator."""
    async with registry(versions=3) as found:
        assert len(await found.get("/schemas")) == 3
        monkeypatch.setattr(schema_requests, "MAX_LISTED_CHARACTERS", 100)
        with pytest.raises(RegistryError, match=r"3 schemas have \d+ characters; request fewer by a limit") as refused:
            await found.get("/schemas")
        assert refused.value.status == 413
        assert len(await found.get("/schemas", {"limit": "1", "offset": "2"})) == 1
