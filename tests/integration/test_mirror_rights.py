"""A worker of a mirror between two clusters that require identities, with the rights that the guide lists."""

from __future__ import annotations

import asyncio
import re
from typing import NamedTuple

import headrace
import headrace.aio
import pytest
from headrace import TopicPartition
from headrace.client.mirror.mirrors_async import AsyncMirrors
from headrace.client.mirror.rows import MirrorSettings
from headrace.client.mirror.worker import MirrorWorker
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from tests.deploy.conftest import ROOT

from .test_mirror import until

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
    return [re.findall(r"headrace grant mirror (\w+) '?([\w:*]+)'?$", block, re.MULTILINE) for block in blocks]


def settings_of(cluster):
    return {"bootstrap_servers": cluster.bootstrap_servers, **cluster.client_settings}


async def key_of(cluster, rights, path):
    """Make the user with these rights; return the settings of its client."""
    async with headrace.aio.Admin(**settings_of(cluster)) as admin:
        await admin.create_user("mirror")
        for role, resource in rights:
            await admin.grant("mirror", role, resource)
        path.write_text((await admin.create_api_key("mirror")).secret)
    return {"bootstrap_servers": cluster.bootstrap_servers, "api_key_file": str(path)}


def test_a_worker_needs_no_more_rights_than_the_guide_lists(pair, tmp_path):
    """Topics, partitions, settings, log starts and offsets of groups follow."""
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
            await mirrors.create("west", MirrorSettings(reads, topics=("orders",)))
            worker = asyncio.create_task(MirrorWorker("west", worker_id="w0", **writes).run())
            try:
                await asyncio.to_thread(fill, settings_of(source))
                first = (await there.describe_config("orders"))["retention_ms"].value
                await there.reset_group_offsets("billing", {TopicPartition("orders", 0): 3})

                async def followed():
                    described = await mirrors.describe("west")
                    problems = [described.problem, *(topic.problem for topic in described.topics)]
                    problems += [each.problem for topic in described.topics for each in topic.partitions.values()]
                    assert not any(problems), problems
                    return await seen(mirrors.admin)

                await until(lambda: same(followed, Seen(10, 0, 3, 1, first)), "copied")
                await there.alter_config("orders", {"retention_ms": 3_600_000})
                await there.delete_records("orders", {0: 5})
                await there.create_partitions("orders", 2)
                await until(lambda: same(followed, Seen(10, 5, 3, 2, "3600000")), "changes follow")
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


def fill(settings):
    with headrace.Producer(**settings) as producer:
        for value in range(10):
            producer.send("orders", b"%d" % value)
            producer.flush()
