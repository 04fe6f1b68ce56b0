"""Schemas of a mirror's topics, between the registries of two real clusters."""

from __future__ import annotations

import asyncio
import json
from itertools import count

import headrace
import headrace.aio
import pytest
from headrace.cli.main import app
from headrace.client.mirror import worker
from headrace.client.mirror.mirrors_async import AsyncMirrors
from headrace.client.mirror.rows import MirrorSettings
from headrace.client.schemas.subjects import RegistrySubjects
from headrace.schemas import Avro, SchemaReference, SchemaRegistry, SchemaRegistryError
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from typer.testing import CliRunner

from .test_mirror import until, working

MONEY = json.dumps({"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "long"}]})
_first_ids = count(1_000_000, 1_000_000)


def order(*more):
    """Return a schema with a field of the type Money, and more fields with defaults."""
    fields = [{"name": "price", "type": "Money"}]
    fields += [{"name": name, "type": "int", "default": 0} for name in more]
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


@pytest.fixture(scope="module")
def pair():
    """The source, and the cluster that has the mirror."""
    spec = LocalClusterSpec(brokers=1, coordinators=1)
    with LocalCluster(spec) as source, LocalCluster(spec) as target:
        yield source, target


@pytest.fixture(autouse=True)
def compares_often(monkeypatch):
    monkeypatch.setattr(worker, "FOLLOW_SECONDS", 0.3)


class Registries:
    """Registries of both clusters. The ids of a test are its own."""

    def __init__(self, source, target):
        self.urls = source.schema_registry_urls[0], target.schema_registry_urls[0]
        self.source, self.target = (SchemaRegistry(url) for url in self.urls)
        self.first_id = next(_first_ids)
        self.take(self.source, self.first_id)

    def take(self, registry, schema_id):
        """Register a schema of no other use with an id."""
        subject, schema = f"taken-{schema_id}", json.dumps({"type": "fixed", "name": f"Taken{schema_id}", "size": 1})
        registry.request("PUT", f"/mode/{subject}", {"mode": "IMPORT"})
        registry.request("POST", f"/subjects/{subject}/versions", {"schema": schema, "id": schema_id})
        return subject

    def schema(self):
        """Return a schema that no other test has: equal schemas have one id."""
        return json.dumps({"type": "fixed", "name": f"Of{self.first_id}", "size": 2})

    def settings(self, source, *topics, **more):
        names = {"bootstrap_servers": source.bootstrap_servers}
        return MirrorSettings(names, topics, source_registry=self.urls[0], registry=self.urls[1], **more)

    def state(self, subject):
        """Return what the mirror has of a subject, but for its mode."""
        return RegistrySubjects(self.target).state(subject)[:-1]

    def is_equal(self, subject):
        theirs, ours = RegistrySubjects(self.source), RegistrySubjects(self.target)
        state = theirs.state(subject)
        return (
            state.versions != ()
            and state[:-1] == ours.state(subject)[:-1]
            and all(theirs.version(subject, each) == ours.version(subject, each) for each in state.versions)
        )


def test_subjects_are_equal_until_they_are_promoted(pair, topic_name):
    """Versions, ids, references, deletions and compatibility follow; no other schema is taken before the promotion."""
    source, target = pair
    registries = Registries(*pair)
    subject, common = f"{topic_name}-value", f"{topic_name}.money"
    money = [SchemaReference("Money", common, 1)]

    async def run():
        async with (
            AsyncMirrors(bootstrap_servers=target.bootstrap_servers) as mirrors,
            headrace.aio.Admin(bootstrap_servers=source.bootstrap_servers) as there,
            working(topic_name[:60], target.bootstrap_servers),
        ):
            here, at_source = registries.target, registries.source
            at_source.register(common, MONEY, "AVRO")
            first = at_source.register(subject, order(), "AVRO", money)
            await there.create_topic(topic_name, partitions=1)
            await mirrors.create(topic_name[:60], registries.settings(source, topic_name))
            send(source, topic_name, Avro(at_source, subject=subject))

            async def equal():
                return all(registries.is_equal(name) for name in (subject, common))

            await until(equal, "both subjects are there")
            assert here.by_id(first).text == order()
            with headrace.Consumer(
                topic_name,
                bootstrap_servers=target.bootstrap_servers,
                value_deserializer=Avro(here),
                auto_offset_reset="earliest",
            ) as consumer:
                assert (await asyncio.to_thread(next, iter(consumer))).value == {"price": {"cents": 5}}
            with pytest.raises(SchemaRegistryError, match="is in import mode"):
                here.register(subject, order("other"), "AVRO", money)

            at_source.register(subject, order("count"), "AVRO", money)
            at_source.request("DELETE", f"/subjects/{subject}/versions/1")
            at_source.request("PUT", f"/config/{subject}", {"compatibility": "FULL"})
            at_source.request("PUT", f"/mode/{common}", {"mode": "READONLY"})
            await until(equal, "changes follow")
            assert registries.state(subject) == ((2,), (1, 2), first + 1, "FULL")
            assert here.by_id(first).text == order()

            async def noted():
                found = {each.name: each.mode for each in (await mirrors.describe(topic_name[:60])).subjects}
                return found == {subject: "", common: "READONLY"}

            await until(noted, "the mode of the source is known")
            await mirrors.promote(topic_name[:60], wait=True)
            assert here.register(subject, order("count", "own"), "AVRO", money) > first + 1
            with pytest.raises(SchemaRegistryError, match="read-only"):
                here.register(common, MONEY.replace("cents", "euros"), "AVRO")
            await mirrors.promote(topic_name[:60])

    asyncio.run(run())


def send(cluster, topic, serializer):
    with headrace.Producer(bootstrap_servers=cluster.bootstrap_servers, value_serializer=serializer) as producer:
        producer.send(topic, {"price": {"cents": 5}})


def test_an_id_that_is_taken_is_reported(pair, topic_name):
    """Nothing is overwritten, the records are copied all the same, and the version follows once its id is free."""
    source, target = pair
    registries = Registries(*pair)
    subject, name, servers = f"{topic_name}-value", topic_name[:60], target.bootstrap_servers
    other = registries.take(registries.target, registries.first_id + 1)

    async def run():
        async with (
            AsyncMirrors(bootstrap_servers=servers) as mirrors,
            headrace.aio.Admin(bootstrap_servers=source.bootstrap_servers) as there,
            working(name, servers),
        ):
            assert registries.source.register(subject, registries.schema(), "AVRO") == registries.first_id + 1
            await there.create_topic(topic_name, partitions=1)
            await mirrors.create(name, registries.settings(source, topic_name))

            async def told():
                return [each.problem for each in (await mirrors.describe(name)).subjects if each.problem]

            (problem,) = await until(told, "the subject is reported")
            assert f"version 1 with id {registries.first_id + 1} is refused here" in problem
            assert "Taken" in registries.target.by_id(registries.first_id + 1).text
            status = await asyncio.to_thread(
                CliRunner().invoke, app, f"mirror status {name} -b {servers} --output json".split()
            )
            assert (status.exit_code, json.loads(status.stdout)["subjects"][0]["state"]) == (5, "failed")
            for query in ("", "?permanent=true"):
                registries.target.request("DELETE", f"/subjects/{other}{query}")

            async def copied():
                return registries.is_equal(subject) and not await told()

            await until(copied, "the version follows")
            await mirrors.delete(name)

    asyncio.run(run())


def test_a_subject_that_exists_here_is_left_alone(pair, topic_name):
    """It is reported, and takes new versions as before; one with the same versions is continued."""
    source, target = pair
    registries = Registries(*pair)
    ours, same, name = f"{topic_name}-value", f"{topic_name}-key", topic_name[:60]

    async def run():
        async with (
            AsyncMirrors(bootstrap_servers=target.bootstrap_servers) as mirrors,
            working(name, target.bootstrap_servers),
        ):
            registries.target.register(ours, '"string"', "AVRO")
            registries.source.register(ours, registries.schema(), "AVRO")
            schema_id = registries.source.register(same, '"long"', "AVRO")
            registries.target.request("PUT", f"/mode/{same}", {"mode": "IMPORT"})
            registries.target.request("POST", f"/subjects/{same}/versions", {"schema": '"long"', "id": schema_id})
            registries.target.request("DELETE", f"/mode/{same}")
            await mirrors.create(name, registries.settings(source, topic_name))

            async def told():
                found = {each.name: each for each in (await mirrors.describe(name)).subjects}
                return len(found) == 2 and found

            found = await until(told, "both are reported")
            assert "version 1 here is not that of the source" in found[ours].problem
            assert (found[same].problem, found[same].is_copied) == ("", True)
            registries.target.request("PUT", f"/config/{ours}", {"compatibility": "NONE"})
            registries.target.register(ours, '"bytes"', "AVRO")
            registries.source.request("PUT", f"/config/{same}", {"compatibility": "NONE"})
            registries.source.register(same, '"bytes"', "AVRO")

            async def continued():
                return registries.is_equal(same)

            await until(continued, "the subject with the same versions is continued")

    asyncio.run(run())


def test_a_registry_that_is_away_stops_no_copy(pair, topic_name):
    """The mirror reports it, and copies the records."""
    source, target = pair
    name = topic_name[:60]

    async def run():
        async with (
            AsyncMirrors(bootstrap_servers=target.bootstrap_servers) as mirrors,
            headrace.aio.Admin(bootstrap_servers=source.bootstrap_servers) as there,
            working(name, target.bootstrap_servers),
        ):
            await there.create_topic(topic_name, partitions=1)
            names = {"bootstrap_servers": source.bootstrap_servers}
            away = {"source_registry": "http://127.0.0.1:1", "registry": target.schema_registry_urls[0]}
            await mirrors.create(name, MirrorSettings(names, (topic_name,), **away))
            with headrace.Producer(bootstrap_servers=source.bootstrap_servers) as producer:
                producer.send(topic_name, b"v")

            async def told():
                described = await mirrors.describe(name)
                reports = [each for topic in described.topics for each in topic.partitions.values()]
                return "schema registry at http://127.0.0.1:1" in described.problem and [
                    each.end_offset for each in reports
                ] == [1]

            await until(told, "copied and reported")

    asyncio.run(run())
