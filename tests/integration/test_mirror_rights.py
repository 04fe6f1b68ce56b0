"""Workers of mirrors between two clusters that require identities: with the rights that the guide lists, and as
docker-compose.mirror.yml runs them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

import headrace
import headrace.aio
import pytest
import yaml
from headrace import TopicPartition
from headrace.client.mirror.mirrors_async import AsyncMirrors
from headrace.client.mirror.rows import MirrorSettings
from headrace.client.mirror.workers import run_workers
from headrace.client.schemas.subjects import RegistrySubjects
from headrace.schemas import SchemaRegistry
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_devcluster.ports import ReservedPort

from tests.children import running
from tests.deploy.conftest import ROOT

from .test_mirror import WAIT, ends_at, until

GUIDE = ROOT / "docs" / "guides" / "mirror-deployment.md"


@pytest.fixture(scope="module")
def pair():
    """The source, and the cluster that has the mirror."""
    spec = LocalClusterSpec(brokers=1, coordinators=1, identity=True)
    with LocalCluster(spec) as source, LocalCluster(spec) as target:
        yield source, target


def grants():
    """Those of the guide, of the user at the source and of that at the mirror."""
    blocks = re.findall(r"```sh\nheadrace user create mirror\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 2
    return [re.findall(r"headrace grant mirror (\w+) '?([\w:*-]+)'?$", block, re.MULTILINE) for block in blocks]


def settings_of(cluster):
    return {"bootstrap_servers": cluster.bootstrap_servers, **cluster.client_settings}


async def key_of(cluster, rights, path, user="mirror"):
    """Make the user with these rights; return the settings of its client."""
    async with headrace.aio.Admin(**settings_of(cluster)) as admin:
        await admin.create_user(user)
        for role, resource in rights:
            await admin.grant(user, role, resource)
        path.write_text((await admin.create_api_key(user)).secret)
    return {"bootstrap_servers": cluster.bootstrap_servers, "api_key_file": str(path)}


def test_a_worker_needs_no_more_rights_than_the_guide_lists(pair, tmp_path):
    """Topics, partitions, settings, log starts and offsets of groups follow. The operator, who has an API key,
    names the registry where the subjects are promoted."""
    source, target = pair
    at_source, at_target = grants()

    async def run():
        reads = await key_of(source, at_source, tmp_path / "source.key")
        writes = await key_of(target, at_target, tmp_path / "mirror.key")
        async with (
            headrace.aio.Admin(**settings_of(source)) as there,
            AsyncMirrors(**settings_of(target)) as mirrors,
        ):
            await there.create_topic("orders", partitions=1)
            urls = [cluster.schema_registry_urls[0] for cluster in pair]
            registries = [SchemaRegistry(url, **settings_of(cluster)) for url, cluster in zip(urls, pair, strict=True)]
            registries[0].register("orders-value", '"bytes"', "AVRO")
            registries[0].request("PUT", "/config/orders-value", {"compatibility": "FULL"})
            await mirrors.create(
                "west", MirrorSettings(reads, topics=("orders",), source_registry=urls[0], registry=urls[1])
            )
            worker = asyncio.create_task(run_workers(["west"], writes, "w0"))
            try:
                await asyncio.to_thread(fill, settings_of(source))
                first = (await there.describe_config("orders"))["retention_ms"].value
                await there.reset_group_offsets("billing", {TopicPartition("orders", 0): 3})

                async def followed():
                    described = await mirrors.describe("west")
                    problems = [described.problem, *(topic.problem for topic in described.topics)]
                    problems += [each.problem for each in described.subjects]
                    problems += [each.problem for topic in described.topics for each in topic.partitions.values()]
                    assert not any(problems), problems
                    return await seen(mirrors.admin)

                await until(lambda: same(followed, Seen(10, 0, 3, 1, first)), "copied")

                async def has_schema():
                    return RegistrySubjects(registries[1]).state("orders-value") == ((1,), (1,), 1, "FULL", "IMPORT")

                await until(has_schema, "the subject follows")
                await there.alter_config("orders", {"retention_ms": 3_600_000})
                await there.delete_records("orders", {0: 5})
                await there.create_partitions("orders", 2)
                await until(lambda: same(followed, Seen(10, 5, 3, 2, "3600000")), "changes follow")
                with pytest.raises(headrace.ConfigError, match="--registry URL"):
                    await mirrors.promote("west")
                assert RegistrySubjects(registries[1]).state("orders-value").mode == "IMPORT"
                await mirrors.promote("west", registry=urls[1])
                assert not RegistrySubjects(registries[1]).state("orders-value").mode
                await mirrors.delete("west")
            finally:
                worker.cancel()

    asyncio.run(run())


class Seen(NamedTuple):
    end: int
    start: int
    committed: int
    partitions: int
    retention_ms: str


async def seen(admin):
    """Return what the mirror has of the topic; `None` before it exists."""
    zero = TopicPartition("orders", 0)
    try:
        ends = await admin.list_offsets("orders", "latest")
        starts = await admin.list_offsets("orders", "earliest")
        config = await admin.describe_config("orders")
    except headrace.UnknownTopicError:
        return None
    committed = (await admin.group_offsets("billing")).get(zero)
    offset = -1 if committed is None else committed.offset
    return Seen(ends[zero].offset, starts[zero].offset, offset, len(ends), config["retention_ms"].value)


async def same(followed, expected):
    return await followed() == expected


def fill(settings, topic="orders"):
    with headrace.Producer(**settings) as producer:
        for value in range(10):
            producer.send(topic, b"%d" % value)
            producer.flush()


def test_an_operator_needs_no_file_and_no_right_at_the_source(pair, tmp_path):
    """The settings name a file that only the worker's process has: a planned switch, and failing back, go through it.
    The operator is a developer of the table of mirrors and of the topic."""
    source, target = pair
    at_source, at_target = grants()

    async def run():
        reads = await key_of(source, at_source, tmp_path / "source.key", "reads")
        writes = await key_of(target, at_target, tmp_path / "mirror.key", "writes")
        rights = [("developer", "topic:headrace-mirrors"), ("developer", "topic:moved")]
        operates = await key_of(target, rights, tmp_path / "operator.key", "operator")
        settings = MirrorSettings({**reads, "api_key_file": "source.key"}, topics=("moved",))
        command = [str(Path(sys.executable).parent / "headrace"), "mirror", "run", "-b", target.bootstrap_servers]
        environ = {**os.environ, "HEADRACE_API_KEY_FILE": writes["api_key_file"]}
        with running(command, cwd=tmp_path, env=environ):
            async with headrace.aio.Admin(**settings_of(source)) as there:
                await there.create_topic("moved", partitions=1)
                await asyncio.to_thread(fill, settings_of(source), "moved")
            async with AsyncMirrors(**settings_of(target)) as admin:
                await admin.create("moves", settings)
                await ends_at(admin.admin, "moved", {0: 10})
            async with AsyncMirrors(**operates) as mirrors:
                (promoted,) = await mirrors.promote("moves", wait=True)
                assert promoted.is_promoted
                await mirrors.delete("moves")
                found = await mirrors.fail_back("back", settings, ["moved"])
                assert found["moved"] == {0: (10, 10, 10)}
                await mirrors.promote("back", wait=True)

    asyncio.run(run())


def test_the_commands_of_compose_copy(pair, tmp_path):
    """Those of docker-compose.mirror.yml, on these clusters: a mirror is made, a worker copies, and stops in order."""
    source, target = pair
    services = yaml.safe_load((ROOT / "docker-compose.mirror.yml").read_text("utf-8"))["services"]
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")},
        **services["mirror"]["environment"],
        "HEADRACE_BOOTSTRAP_SERVERS": target.bootstrap_servers,
        "HEADRACE_API_KEY_FILE": target.client_settings["api_key_file"],
    }
    port = ReservedPort()
    here = {
        "west-coordinator:7170": source.bootstrap_servers,
        "/etc/headrace-sources/west/api-key": source.client_settings["api_key_file"],
        "127.0.0.1:9464": f"127.0.0.1:{port}",
        "metrics-port=9464": f"metrics-port={port}",
        "0.0.0.0": "127.0.0.1",
    }

    def words(name):
        command = "\n".join(services[name]["command"])
        for told, used in here.items():
            command = command.replace(told, used)
        return [str(Path(sys.executable).parent / "headrace"), *command.split("\n")]

    subprocess.run(words("mirror-create"), env=environ, check=True, timeout=WAIT)
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen(words("mirror"), env=environ, stderr=log)

    async def run():
        async with (
            headrace.aio.Admin(**settings_of(source)) as there,
            headrace.aio.Admin(**settings_of(target)) as admin,
        ):
            await there.create_topic("clicks", partitions=1)
            await asyncio.to_thread(fill, settings_of(source), "clicks")
            await ends_at(admin, "clicks", {0: 10})

            async def page(path):
                try:
                    return await asyncio.to_thread(get, f"http://127.0.0.1:{port}{path}")
                except urllib.error.URLError:
                    return ""

            lag = 'headrace_mirror_lag_records{mirror="west",partition="0",topic="clicks"} 0.0'

            async def shown():
                return lag in await page("/metrics")

            await until(shown, lag)
            assert await page("/health/readiness") == "ok\n"

    try:
        asyncio.run(run())
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(WAIT) == 0
    finally:
        worker.kill()
        worker.wait(WAIT)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text("utf-8").splitlines()]
    assert [lines[0]["event"], lines[-1]["event"]] == ["copying all mirrors; Ctrl-C stops", "stopped"]


def get(url):
    with urllib.request.urlopen(url, timeout=WAIT) as answer:
        return answer.read().decode()
