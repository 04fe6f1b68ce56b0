"""What becomes of a mirror whose source is another one than before: restored from a backup, or another cluster."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import headrace
from headrace.cli.main import app
from headrace_devcluster.cluster import LocalCluster
from typer.testing import CliRunner

from tests.integration.etcd_backups import (
    export_log_states,
    recover_metadata,
    restore_snapshot,
    save_snapshot,
    start_etcd,
)

from .replicated import until
from .test_mirror import WAIT, ends_at, fill, from_, working


def stopped(cluster: LocalCluster) -> None:
    """Stop the processes of headrace; etcd stays."""
    for part in [*cluster.brokers, *cluster.coordinators]:
        if part.pid is not None:
            part.stop()


def started(cluster: LocalCluster) -> None:
    """Start them again, at the addresses that they had."""
    for part in [*cluster.coordinators, *cluster.brokers]:
        cluster.restart(part)
    cluster.wait_until_healthy()


def records(servers: str, topic: str) -> list[tuple[int, int, bytes | None]]:
    with headrace.Reader(topic, bootstrap_servers=servers) as reader:
        return sorted((each.partition, each.offset, each.value) for each in reader)


def problems(servers: str, name: str) -> list[str]:
    """Those that `headrace mirror status` shows; its exit code says that there are some."""
    result = CliRunner().invoke(app, ["mirror", "status", name, "-b", servers, "--output", "json"])
    document = json.loads(result.stdout)
    found = [document["problem"], *(each.get("problem") for each in document["partitions"])]
    told = [text for text in found if text]
    assert (result.exit_code == 5) == bool(told or not document["workers"])
    return told


def test_a_source_that_was_restored_from_a_backup(
    own_cluster: Callable[..., LocalCluster], headrace_cluster: LocalCluster, topic_name: str, tmp_path: Path
) -> None:
    """Of etcd and of the broker's volume, by the guide of disaster recovery. The copy keeps the records that the source
    lost, and takes none of those that it has in their place; status says so, and what to do."""
    name, here = topic_name[:60], headrace_cluster.bootstrap_servers
    source = own_cluster(brokers=1, coordinators=1)
    there, broker = source.bootstrap_servers, source.brokers[0]
    volume = source.directory / "broker-1"
    with headrace.Admin(bootstrap_servers=here) as admin, headrace.Admin(bootstrap_servers=there) as old:
        old.create_topic(topic_name, partitions=2)
        fill(there, topic_name, range(100))
        admin.mirrors.create(name, from_(source, topic_name))
        before = old.describe_cluster()

        broker.stop()
        save_snapshot(source, tmp_path / "snapshot.db")
        shutil.copytree(volume, tmp_path / "volume")
        source.restart(broker)
        fill(there, topic_name, range(100, 200))

        async def copy_all() -> None:
            async with working(name, here), headrace.aio.Admin(bootstrap_servers=here) as target:
                await ends_at(target, topic_name, {0: 100, 1: 100})

        asyncio.run(copy_all())
        copied = records(here, topic_name)
        assert len(copied) == 200

        stopped(source)
        shutil.rmtree(volume)
        shutil.copytree(tmp_path / "volume", volume)
        restore_snapshot(source, tmp_path / "snapshot.db")
        done = recover_metadata(source, export_log_states(source, tmp_path, [1]), "--apply")
        assert done.returncode == 0, done.stderr
        started(source)

    def both_have(text: str) -> bool:
        return [text in each for each in problems(here, name)] == [True, True]

    async def refused() -> None:
        async with working(name, here):
            await asyncio.to_thread(
                wait_for, lambda: both_have("ends at offset 50 at its source, and the mirror's at 100")
            )
            assert both_have("delete the topic with the other one, and mirror it again")
            for values, end in (range(1000, 1100), 100), (range(1100, 1120), 110):
                await asyncio.to_thread(fill, there, topic_name, values)
                await asyncio.to_thread(wait_for, lambda: both_have("another record than the mirror at offset 99"))
                with headrace.Admin(bootstrap_servers=there) as admin:
                    assert {at.offset for at in admin.list_offsets(topic_name, "latest").values()} == {end}

    with headrace.Admin(bootstrap_servers=there) as old:
        after = old.describe_cluster()
        assert (after.cluster_id, after.generation) == (before.cluster_id, before.generation + 1)
        asyncio.run(refused())
    assert records(here, topic_name) == copied


def test_another_cluster_at_the_address_of_the_source(
    own_cluster: Callable[..., LocalCluster], headrace_cluster: LocalCluster, topic_name: str
) -> None:
    """A new one, with a topic of the name: nothing is copied from it, and status says which cluster it was before."""
    name, here = topic_name[:60], headrace_cluster.bootstrap_servers
    source = own_cluster(brokers=1, coordinators=1)
    there = source.bootstrap_servers
    with headrace.Admin(bootstrap_servers=here) as admin:
        with headrace.Admin(bootstrap_servers=there) as old:
            old.create_topic(topic_name, partitions=2)
            before = old.describe_cluster().cluster_id
        fill(there, topic_name, range(10))
        admin.mirrors.create(name, from_(source, topic_name))

        async def copy_all() -> None:
            async with working(name, here), headrace.aio.Admin(bootstrap_servers=here) as target:
                await ends_at(target, topic_name, {0: 5, 1: 5})

        asyncio.run(copy_all())
        copied = records(here, topic_name)

        stopped(source)
        for member in source.etcd_members:
            member.stop()
            shutil.rmtree(member.directory / "data")
        shutil.rmtree(source.directory / "broker-1")
        start_etcd(source)
        started(source)
        assert source.bootstrap_servers == there
        with headrace.Admin(bootstrap_servers=there) as new:
            new.create_topic(topic_name, partitions=2)
            after = new.describe_cluster().cluster_id
        assert after != before
        fill(there, topic_name, range(100, 140))

        async def refused() -> None:
            async with working(name, here):
                (told,) = await asyncio.to_thread(wait_for, lambda: problems(here, name))
                assert f"the source of mirror {name} is cluster {after}, and was {before}" in told
                assert "for another cluster, make another mirror" in told

        asyncio.run(refused())
        assert records(here, topic_name) == copied
        admin.mirrors.delete(name)


def wait_for(condition):
    return until(condition, "status has it", WAIT)
