"""Mirrors between two real clusters: equal logs, settings and groups along, promotion, fail-back, several workers."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager, suppress

import headrace
import headrace.aio
import pytest
from headrace import TopicPartition
from headrace.cli.main import app
from headrace.client.mirror import source_questions_async
from headrace.client.mirror.copying import end_tasks
from headrace.client.mirror.mirrors_async import AsyncMirrors
from headrace.client.mirror.rows import MirrorSettings
from headrace.client.mirror.workers import run_workers
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from typer.testing import CliRunner

from .test_promote_directory import batches_of

WAIT = 60


@pytest.fixture(scope="module")
def source():
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1)) as running:
        yield running


@asynccontextmanager
async def working(name, servers, count=1):
    """Run workers of a mirror; yields their tasks."""
    settings = {"bootstrap_servers": servers}
    tasks = [asyncio.create_task(run_workers([name], settings, f"w{number}")) for number in range(count)]
    try:
        yield tasks
    finally:
        await end_tasks(tasks)


async def until(condition, what):
    """Wait for a condition; `condition` is a coroutine function."""
    deadline = time.monotonic() + WAIT
    while not (found := await condition()):
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.1)
    return found


async def ends_at(admin, topic, ends):
    """Wait until the partitions of a topic end at these offsets."""

    async def reached():
        with suppress(headrace.UnknownTopicError):
            found = await admin.list_offsets(topic, "latest")
            return {tp.partition: at.offset for tp, at in found.items()} == ends

    await until(reached, f"{topic} ends at {ends}")


def fill(servers, topic, values, **settings):
    with headrace.Producer(bootstrap_servers=servers, batch_records=20, **settings) as producer:
        for value in values:
            producer.send(topic, b"%d" % value, key=b"k%d" % (value % 5), partition=value % 2)


async def accepted(servers, topic):
    """Wait until the broker takes a record of a topic, of which it may not have heard yet that it is no mirror."""

    def send():
        with headrace.Producer(bootstrap_servers=servers) as producer, suppress(headrace.ReadOnlyTopicError):
            return producer.send(topic, b"first").result(WAIT)

    await until(lambda: asyncio.to_thread(send), f"{topic} is written")


def from_(cluster, *topics, **more):
    return MirrorSettings({"bootstrap_servers": cluster.bootstrap_servers}, topics=topics, **more)


def test_a_mirror_is_equal_and_is_promoted(source, headrace_cluster, topic_name):
    """New topics, settings, partitions and groups follow; producers are refused before the promotion, copies after."""
    name, servers = topic_name[:60], headrace_cluster.bootstrap_servers
    group = f"{topic_name}-group"

    async def run():
        async with (
            AsyncMirrors(bootstrap_servers=servers) as mirrors,
            headrace.aio.Admin(bootstrap_servers=source.bootstrap_servers) as there,
            working(name, servers),
        ):
            await mirrors.create(name, from_(source, f"{topic_name}*"))
            await there.create_topic(topic_name, partitions=2, config={"max_batch_bytes": 1 << 14})
            await asyncio.to_thread(fill, source.bootstrap_servers, topic_name, range(1000), compression_type="gzip")
            await there.reset_group_offsets(group, {TopicPartition(topic_name, 0): 17})
            await ends_at(mirrors.admin, topic_name, {0: 500, 1: 500})
            for number in range(2):
                theirs = await asyncio.to_thread(
                    batches_of, topic_name, number, 500, bootstrap_servers=source.bootstrap_servers
                )
                ours = await asyncio.to_thread(batches_of, topic_name, number, 500, bootstrap_servers=servers)
                assert ours == theirs != []
            producer = headrace.Producer(bootstrap_servers=servers)
            with pytest.raises(headrace.ReadOnlyTopicError):
                await asyncio.to_thread(producer.send(topic_name, b"mine", partition=0).result, WAIT)
            with pytest.raises(headrace.DeliveryError):
                producer.close()

            await there.alter_config(topic_name, {"retention_ms": 3_600_000})
            await there.create_partitions(topic_name, 3)

            async def followed():
                config = (await mirrors.admin.describe_config(topic_name))["retention_ms"].value
                offsets = await mirrors.admin.group_offsets(group)
                partitions = len((await mirrors.admin.describe_topic(topic_name)).partitions)
                stored = [committed.offset for committed in offsets.values()]
                return (config, partitions, stored) == ("3600000", 3, [17])

            await until(followed, "settings, partitions and groups follow")

            async def reported():
                found = await mirrors.describe(name)
                return len(found.topics) == 1 and len(found.topics[0].partitions) == 3 and found

            described = await until(reported, "each partition is reported")
            assert (described.workers, described.lag, described.problem) == (["w0"], 0, "")
            await asyncio.to_thread(fill, source.bootstrap_servers, topic_name, range(1000, 1100))
            (promoted,) = await mirrors.promote(name, wait=True)
            assert promoted.is_promoted
            with headrace.Producer(bootstrap_servers=servers) as ours:
                sent = await asyncio.to_thread(ours.send(topic_name, b"own", partition=0).result, WAIT)
            assert sent.offset == 550
            await asyncio.to_thread(fill, source.bootstrap_servers, topic_name, range(1100, 1200))
            assert [each.is_promoted for each in await mirrors.promote(name)] == [True]
            with headrace.Producer(bootstrap_servers=servers) as ours:
                sent = await asyncio.to_thread(ours.send(topic_name, b"own", partition=0).result, WAIT)
            assert sent.offset == 551
            await mirrors.delete(name)

    asyncio.run(run())


def test_a_promotion_after_a_disaster_reports_the_records_that_are_lost(own_cluster, headrace_cluster, topic_name):
    """The source is killed while the mirror is behind, and cannot be asked: the number is that of its last answer."""
    name, servers = topic_name[:60], headrace_cluster.bootstrap_servers
    source = own_cluster(brokers=1, coordinators=1)

    async def run():
        async with AsyncMirrors(bootstrap_servers=servers) as mirrors, working(name, servers):
            async with headrace.aio.Admin(bootstrap_servers=source.bootstrap_servers) as there:
                await there.create_topic(topic_name, partitions=2)
            await mirrors.create(name, from_(source, topic_name, bytes_per_second=1))
            await asyncio.to_thread(fill, source.bootstrap_servers, topic_name, range(0, 20, 2))
            await ends_at(mirrors.admin, topic_name, {0: 10, 1: 0})
            await asyncio.to_thread(fill, source.bootstrap_servers, topic_name, range(0, 60, 2))

            async def behind():
                return (await mirrors.describe(name)).lag == 30

            await until(behind, "30 records are reported")
            source.kill()
            (promoted,) = await mirrors.promote(name)
            assert promoted.partitions[0].lag == 30
            with headrace.Producer(bootstrap_servers=servers) as ours:
                sent = await asyncio.to_thread(ours.send(topic_name, b"own", partition=0).result, WAIT)
            assert sent.offset == 10

    asyncio.run(run())


def test_two_workers_share_and_take_over(source, headrace_cluster, topic_name):
    """Each copies some partitions; when one is gone, the other copies all."""
    name, servers = topic_name[:60], headrace_cluster.bootstrap_servers

    async def run():
        async with (
            AsyncMirrors(bootstrap_servers=servers) as mirrors,
            headrace.aio.Admin(bootstrap_servers=source.bootstrap_servers) as there,
            working(name, servers, 2) as tasks,
        ):
            await there.create_topic(topic_name, partitions=8)
            await mirrors.create(name, from_(source, topic_name))

            async def shared():
                found = await mirrors.describe(name)
                reports = [report for topic in found.topics for report in topic.partitions.values()]
                return len(reports) == 8 and {report.worker for report in reports} == {"w0", "w1"}

            await until(shared, "both copy")
            tasks[0].cancel()
            await asyncio.to_thread(fill, source.bootstrap_servers, topic_name, range(100))
            await ends_at(mirrors.admin, topic_name, {0: 50, 1: 50, **dict.fromkeys(range(2, 8), 0)})

    asyncio.run(run())


def test_failing_back_continues_or_says_what_would_be_lost(source, headrace_cluster, topic_name):
    """The old cluster becomes the mirror of the new one from where their logs are equal; its own records are kept."""
    here, there = headrace_cluster.bootstrap_servers, source.bootstrap_servers
    name, back = topic_name[:60], f"back-{topic_name[:60]}"

    async def run():
        async with (
            AsyncMirrors(bootstrap_servers=here) as mirrors,
            AsyncMirrors(bootstrap_servers=there) as old,
            working(back, there),
        ):
            async with working(name, here):
                await old.admin.create_topic(topic_name, partitions=2)
                await mirrors.create(name, from_(source, topic_name))
                await asyncio.to_thread(fill, there, topic_name, range(100))
                await ends_at(mirrors.admin, topic_name, {0: 50, 1: 50})
                await mirrors.promote(name, wait=True)
            await asyncio.to_thread(fill, here, topic_name, range(100, 140))
            await asyncio.to_thread(fill, there, topic_name, range(0, 20, 2))
            with pytest.raises(headrace.DivergedLogError, match="10 records"):
                await old.fail_back(back, from_(headrace_cluster, topic_name), [topic_name])
            await asyncio.to_thread(fill, there, topic_name, [0])
            found = await old.fail_back(back, from_(headrace_cluster, topic_name), [topic_name], discard=True)
            assert found[topic_name] == {0: (50, 61, 70), 1: (50, 50, 70)}
            await ends_at(old.admin, topic_name, {0: 70, 1: 70})
            await asyncio.to_thread(fill, here, topic_name, range(2))
            await ends_at(old.admin, topic_name, {0: 71, 1: 71})
            await old.promote(back, wait=True)
            await mirrors.delete(name)
            async with working(name, here):
                again = await mirrors.fail_back(name, from_(source, topic_name), [topic_name])
            assert again[topic_name] == {0: (71, 71, 71), 1: (71, 71, 71)}

    asyncio.run(run())


def test_an_admin_has_the_mirrors_of_its_cluster(source, headrace_cluster, topic_name):
    """`Admin.mirrors` of both classes creates, lists, describes, promotes, fails back and deletes."""
    here, there = headrace_cluster.bootstrap_servers, source.bootstrap_servers
    name, back = topic_name[:60], f"back-{topic_name[:60]}"

    async def run(mirrors):
        async with headrace.aio.Admin(bootstrap_servers=there) as old, working(name, here), working(back, there):
            await old.create_topic(topic_name, partitions=2)
            await asyncio.to_thread(fill, there, topic_name, range(10))
            await asyncio.to_thread(mirrors.create, name, from_(source, topic_name))
            (promoted,) = await asyncio.to_thread(promote_all, mirrors, name)
            assert promoted.is_promoted
            found = await old.mirrors.fail_back(back, from_(headrace_cluster, topic_name), [topic_name])
            assert found[topic_name] == {0: (5, 5, 5), 1: (5, 5, 5)}
            assert back in [each.name for each in await old.mirrors.list_mirrors()]
            await old.mirrors.delete(back)

    def promote_all(mirrors, name):
        deadline = time.monotonic() + WAIT
        while not mirrors.describe(name).topics:
            assert time.monotonic() < deadline, "a worker reports the topic"
        return mirrors.promote(name, wait=True)

    with headrace.Admin(bootstrap_servers=here) as admin:
        asyncio.run(run(admin.mirrors))
        assert name in [each.name for each in admin.mirrors.list_mirrors()]
        admin.mirrors.delete(name)
        with pytest.raises(headrace.UnknownTopicError):
            admin.mirrors.describe(name)


def test_without_a_worker_that_reaches_the_source_nothing_changes(headrace_cluster, topic_name, monkeypatch):
    """No worker, or one without the files: the error says what to do, and producers are accepted."""
    missing = {"bootstrap_servers": "localhost:1", "security_protocol": "SSL", "ssl_cafile": "/workers/ca.crt"}
    settings, name, servers = MirrorSettings(missing), topic_name[:60], headrace_cluster.bootstrap_servers
    monkeypatch.setattr(source_questions_async, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(source_questions_async, "OTHERS_SECONDS", 0)

    async def run():
        async with AsyncMirrors(bootstrap_servers=servers) as mirrors:
            await mirrors.admin.create_topic(topic_name, partitions=1)
            await mirrors.create(name, settings)
            await mirrors.note_topic(name, topic_name, "01", "")
            for error, message in (
                (headrace.TimedOutError, "no worker.*start one"),
                (
                    headrace.InvalidConfigError,
                    "/workers/ca.crt.*files of its workers",
                ),
            ):
                with pytest.raises(error, match=message):
                    await mirrors.promote(name, wait=True, timeout=source_questions_async.ANSWER_SECONDS)
                assert not (await mirrors.describe(name)).promoted_ms
                with pytest.raises(error, match=message):
                    await mirrors.fail_back(name, settings, [topic_name])
                assert not (await mirrors.admin.describe_config(topic_name))["mirror"].value
                if error is headrace.TimedOutError:
                    monkeypatch.setattr(source_questions_async, "ANSWER_SECONDS", WAIT)
                    worker = asyncio.create_task(run_workers(None, {"bootstrap_servers": servers}))
            await end_tasks([worker])
            await mirrors.delete(name)

    asyncio.run(run())


def test_failing_back_changes_nothing_if_it_fails(source, headrace_cluster, topic_name):
    """Producers are accepted again at all topics, also at those that could be failed back, and none is deleted."""
    here, there = headrace_cluster.bootstrap_servers, source.bootstrap_servers
    name, topics = topic_name[:60], [f"{topic_name}-{number}" for number in range(2)]

    async def run():
        async with (
            AsyncMirrors(bootstrap_servers=here) as mirrors,
            AsyncMirrors(bootstrap_servers=there) as others,
            working(name, here),
        ):
            for topic in topics:
                await mirrors.admin.create_topic(topic, partitions=2)
                await asyncio.to_thread(fill, here, topic, range(10))
            await others.admin.create_topic(topics[0], partitions=2)
            await mirrors.admin.alter_config(topics[0], {"mirror": name})  # By a call that was killed.
            for given, discard, error in (
                (topics[:1], False, headrace.DivergedLogError),
                (topics, True, headrace.UnknownTopicError),
                (topics[::-1], True, headrace.UnknownTopicError),
            ):
                with pytest.raises(error):
                    await mirrors.fail_back(name, from_(source, *given), given, discard=discard)
                for topic in topics:
                    assert not (await mirrors.admin.describe_config(topic))["mirror"].value
                    await accepted(here, topic)
            assert name not in [each.name for each in await mirrors.list_mirrors()]
            await others.admin.create_topic(topics[1], partitions=2)
            found = await mirrors.fail_back(name, from_(source, *topics), topics, discard=True)
            assert {topic: [each.common for each in ends.values()] for topic, ends in found.items()} == {
                topic: [0, 0] for topic in topics
            }
            with pytest.raises(headrace.UnknownTopicError):
                await mirrors.admin.describe_topic(topics[0])

    asyncio.run(run())


def test_topics_are_failed_back_one_after_the_other(source, headrace_cluster, topic_name):
    """Under one name: the first is copied still, and one that was promoted meanwhile is copied again."""
    here, there = headrace_cluster.bootstrap_servers, source.bootstrap_servers
    name, topics = topic_name[:60], [f"{topic_name}-{number}" for number in range(2)]

    async def run():
        async with (
            AsyncMirrors(bootstrap_servers=here) as mirrors,
            headrace.aio.Admin(bootstrap_servers=there) as others,
            working(name, here),
        ):
            for topic in topics:
                for admin in (mirrors.admin, others):
                    await admin.create_topic(topic, partitions=2)
                await mirrors.fail_back(name, from_(source, topic), [topic])
            for topic in topics:
                await asyncio.to_thread(fill, there, topic, range(10))
                await ends_at(mirrors.admin, topic, {0: 5, 1: 5})
            await mirrors.promote(name, topics[1:], wait=True)
            await mirrors.fail_back(name, from_(source, topics[1]), topics[1:])
            for topic in topics:
                await asyncio.to_thread(fill, there, topic, range(10, 20))
                await ends_at(mirrors.admin, topic, {0: 10, 1: 10})
            await mirrors.promote(name, wait=True)

    asyncio.run(run())


def test_failing_back_a_copy_of_another_mirror_is_refused(source, headrace_cluster, topic_name):
    """It would not be copied, and nothing would tell why."""
    servers = headrace_cluster.bootstrap_servers

    async def run():
        async with AsyncMirrors(bootstrap_servers=servers) as mirrors:
            await mirrors.admin.create_topic(topic_name, config={"mirror": "other"})
            with pytest.raises(headrace.InvalidRequestError, match="is a copy of mirror other"):
                await mirrors.fail_back(topic_name[:60], from_(source, topic_name), [topic_name])
            assert (await mirrors.admin.describe_config(topic_name))["mirror"].value == "other"

    asyncio.run(run())


def test_a_topic_of_the_name_is_left_alone(source, headrace_cluster, topic_name):
    """It is reported, and its records stay."""
    name, servers = topic_name[:60], headrace_cluster.bootstrap_servers

    async def run():
        async with (
            AsyncMirrors(bootstrap_servers=servers) as mirrors,
            headrace.aio.Admin(bootstrap_servers=source.bootstrap_servers) as there,
            working(name, servers),
        ):
            await there.create_topic(topic_name, partitions=2)
            await mirrors.admin.create_topic(topic_name, partitions=2)
            await asyncio.to_thread(fill, servers, topic_name, range(10))
            await mirrors.create(name, from_(source, topic_name))

            async def told():
                return [topic.problem for topic in (await mirrors.describe(name)).topics]

            (problem,) = await until(told, "the topic is reported")
            assert "another topic has the name here" in problem
            await ends_at(mirrors.admin, topic_name, {0: 5, 1: 5})

    asyncio.run(run())


@asynccontextmanager
async def mirror_behind(source, servers, topic_name):
    """Yield the mirrors and the source's administrator: of 200 records the mirror of the topic has the first 100."""
    name = topic_name[:60]
    async with (
        AsyncMirrors(bootstrap_servers=servers) as mirrors,
        headrace.aio.Admin(bootstrap_servers=source.bootstrap_servers) as there,
    ):
        await there.create_topic(topic_name, partitions=2)
        await mirrors.create(name, from_(source, topic_name))
        await asyncio.to_thread(fill, source.bootstrap_servers, topic_name, range(100))
        async with working(name, servers):
            await ends_at(mirrors.admin, topic_name, {0: 50, 1: 50})
        await asyncio.to_thread(fill, source.bootstrap_servers, topic_name, range(100, 200))
        yield mirrors, there


def test_what_the_source_does_not_have_any_more(source, headrace_cluster, topic_name):
    """Deleted records are a gap; a topic that was created again is reported, and the copy of the old one stays."""
    name, servers = topic_name[:60], headrace_cluster.bootstrap_servers

    async def run():
        async with mirror_behind(source, servers, topic_name) as (mirrors, there):
            await there.delete_records(topic_name, {0: 73, 1: 20})
            await asyncio.to_thread(fill, source.bootstrap_servers, topic_name, range(200, 220))
            async with working(name, servers):
                await ends_at(mirrors.admin, topic_name, {0: 110, 1: 110})

                async def started():
                    found = await mirrors.admin.list_offsets(topic_name, "earliest")
                    return {tp.partition: at.offset for tp, at in found.items()} == {0: 73, 1: 20}

                await until(started, "the log start follows")
                ours = [(each.partition, each.offset, each.value) for each in await read_all(servers, topic_name)]
                theirs = await read_all(source.bootstrap_servers, topic_name)
                assert sorted(ours) == sorted((each.partition, each.offset, each.value) for each in theirs)
                assert len(ours) == (110 - 73) + (110 - 20)
                await there.delete_topic(topic_name)
                await there.create_topic(topic_name, partitions=2)

                async def told():
                    (topic,) = (await mirrors.describe(name)).topics
                    return topic.problem

                assert "deleted and created again at the source" in await until(told, "it is reported")
                await ends_at(mirrors.admin, topic_name, {0: 110, 1: 110})
                await mirrors.admin.delete_topic(topic_name)
                await ends_at(mirrors.admin, topic_name, {0: 0, 1: 0})

    asyncio.run(run())


def test_a_source_that_is_empty_behind_a_moved_start(source, headrace_cluster, topic_name):
    """It is caught up without a record, so that a planned switch ends; later records of the source fit."""
    name, servers = topic_name[:60], headrace_cluster.bootstrap_servers

    async def run():
        async with mirror_behind(source, servers, topic_name) as (mirrors, there):
            await there.delete_records(topic_name, {0: 100, 1: 100})
            async with working(name, servers):
                await ends_at(mirrors.admin, topic_name, {0: 100, 1: 100})
                await asyncio.to_thread(fill, source.bootstrap_servers, topic_name, range(200, 210))
                await ends_at(mirrors.admin, topic_name, {0: 105, 1: 105})
                (promoted,) = await mirrors.promote(name, wait=True)
                assert promoted.is_promoted
            records = await read_all(servers, topic_name)
            assert sorted(int(each.value) for each in records) == list(range(200, 210))

    asyncio.run(run())


async def read_all(servers, topic):
    async with headrace.aio.Reader(topic, bootstrap_servers=servers) as reader:
        return [record async for record in reader]


def test_the_command_line(source, headrace_cluster, topic_name):
    """Each command's result, exit code and JSON."""
    name, servers = topic_name[:60], headrace_cluster.bootstrap_servers
    runner = CliRunner()

    def headrace_mirror(arguments, *, code=0):
        result = runner.invoke(app, [*f"mirror {arguments} -b {servers}".split(), "--output", "json"])
        assert result.exit_code == code, result.output
        return json.loads(result.stdout) if result.stdout else None

    with headrace.Admin(bootstrap_servers=source.bootstrap_servers) as there:
        there.create_topic(topic_name, partitions=2)
    fill(source.bootstrap_servers, topic_name, range(10))
    headrace_mirror(f"status {name}", code=4)
    headrace_mirror(f"create {name} --source {source.bootstrap_servers} --source-setting nonsense", code=2)
    headrace_mirror(f"create {name} --source {source.bootstrap_servers} --topics {topic_name} --rate 50MB")
    assert headrace_mirror(f"status {name}", code=5)["state"] == "no worker"

    async def run():
        async with working(name, servers), AsyncMirrors(bootstrap_servers=servers) as mirrors:

            async def copied():
                found = await mirrors.describe(name)
                return [report.end_offset for topic in found.topics for report in topic.partitions.values()] == [5, 5]

            await until(copied, "it is copied and reported")
            status = await asyncio.to_thread(headrace_mirror, f"status {name}")
            assert (status["state"], status["lag"]) == ("copying", 0)
            assert [(each["partition"], each["end_offset"]) for each in status["partitions"]] == [(0, 5), (1, 5)]

    asyncio.run(run())
    (promoted,) = headrace_mirror(f"promote {name} --yes")["topics"]
    assert (promoted["topic"], promoted["not_copied"]) == (topic_name, 0)
    assert name in [each["mirror"] for each in headrace_mirror("list")]
    headrace_mirror(f"failback {name}-back --source {source.bootstrap_servers}", code=2)
    back = f"failback {name}-back --source {source.bootstrap_servers} --topic {topic_name}"
    headrace_mirror(f"{back} --wait-timeout 1", code=6)
    headrace_mirror(f"delete {name} --yes")
    headrace_mirror(f"status {name}", code=4)


def test_a_table_follows_and_is_promoted(own_cluster, headrace_cluster, topic_name):
    """Rows, deleted ones too, and versions are those of the source, whose log is compacted; puts are refused before the
    promotion, and continue the versions after it."""
    name, servers = topic_name[:60], headrace_cluster.bootstrap_servers
    source = own_cluster(
        brokers=1, coordinators=1, broker_settings={"compaction_interval_ms": 50, "producer_retry_window_ms": 0}
    )
    config = {
        "cleanup_policy": "compact",
        "table": "yes",
        "min_dirty_percent": 1,
        "segment_bytes": 1 << 16,
        "max_batch_bytes": 1 << 14,
    }

    def write(first, table):
        table.put_many([(f"u{number % 50}", {"n": f"{number:>200}"}) for number in range(first, first + 1_000)])
        table.delete("u7")

    def rows(table):
        return {row.key: {column: (row[column], row.columns[column].version) for column in row} for row in table.scan()}

    async def run():
        async with (
            AsyncMirrors(bootstrap_servers=servers) as mirrors,
            headrace.aio.Admin(bootstrap_servers=source.bootstrap_servers) as there,
            working(name, servers),
        ):
            await there.create_topic(topic_name, partitions=1, config=config)
            with headrace.Table(topic_name, bootstrap_servers=source.bootstrap_servers) as theirs:
                await asyncio.to_thread(write, 0, theirs)

                async def compacted():
                    return all(log.compacted_offset for log in await there.describe_logs(topic_name))

                await until(compacted, "the source has compacted")
                await mirrors.create(name, from_(source, topic_name))
                await asyncio.to_thread(write, 1_000, theirs)
                wanted = await asyncio.to_thread(rows, theirs)
            ends = {tp.partition: at.offset for tp, at in (await there.list_offsets(topic_name, "latest")).items()}
            await ends_at(mirrors.admin, topic_name, ends)
            with headrace.Table(topic_name, bootstrap_servers=servers) as ours:
                assert await asyncio.to_thread(rows, ours) == wanted
                assert b"u7" not in wanted
                assert len(wanted) == 49
                with pytest.raises(headrace.ReadOnlyTopicError):
                    await asyncio.to_thread(ours.put, "u1", {"n": "mine"})
                await mirrors.promote(name, wait=True)
                assert await asyncio.to_thread(ours.put, "u1", {"n": "mine"}) >= ends[0]

    asyncio.run(run())
