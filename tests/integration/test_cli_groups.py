"""The commands about groups against a real cluster: who is behind, who owns what, resets, readers that report."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import headrace as sdk
import pytest
from headrace import TopicPartition, aio
from headrace.wire.errors import GroupNotEmptyError, UnknownGroupError
from headrace_devcluster.cluster import LocalCluster
from headrace_server.keys import Keyspace

from tests.integration.metastore import connected
from tests.integration.on_directory import LocalDirectory
from tests.integration.test_cli_replicas import CommandLine, Ended

WAIT = 60.0
HOUR_MS = 3_600_000
PARTITIONS = 4


class GroupCommandLine(CommandLine):
    """Runs command lines about groups."""

    def __call__(self, *arguments: str) -> Ended:
        return super().__call__("group", *arguments)

    def partitions(self, group: str) -> dict[int, Any]:
        """What describe says of each partition, by number."""
        return {row["partition"]: row for row in self.document("describe", group)["partitions"]}


@pytest.fixture
def headrace(headrace_cluster: LocalCluster, capsysbinary: pytest.CaptureFixture[bytes]) -> GroupCommandLine:
    return GroupCommandLine(headrace_cluster, capsysbinary)


@pytest.fixture
def topic(headrace_cluster: LocalCluster, topic_name: str) -> str:
    """Four partitions with ten records each, an hour old."""
    with sdk.Admin(bootstrap_servers=headrace_cluster.bootstrap_servers) as admin:
        admin.create_topic(topic_name, PARTITIONS)
    produced_ms = time.time_ns() // 1_000_000 - HOUR_MS
    with sdk.Producer(bootstrap_servers=headrace_cluster.bootstrap_servers) as producer:
        for number in range(10 * PARTITIONS):
            producer.send(topic_name, b"%d" % number, partition=number % PARTITIONS, timestamp_ms=produced_ms)
    return topic_name


@pytest.fixture
def member(headrace_cluster: LocalCluster, topic: str) -> Iterator[Callable[..., sdk.Consumer]]:
    """Makes members of the group that is called as the topic; they leave at the end."""
    members: list[sdk.Consumer] = []

    def make(**settings: Any) -> sdk.Consumer:
        values = {"group_id": topic, "auto_offset_reset": "earliest", "enable_auto_commit": False, **settings}
        members.append(sdk.Consumer(topic, bootstrap_servers=headrace_cluster.bootstrap_servers, **values))
        return members[-1]

    yield make
    for each in members:
        each.close()


def take(consumer: sdk.Consumer, count: int) -> list[int]:
    """The numbers of the next records, `count` or more."""
    found: list[int] = []
    deadline = time.monotonic() + WAIT
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
        found += [int(record.value) for record in consumer.poll(0.1)]
    return found


def test_consume_of_a_group_continues_where_it_stopped(headrace: GroupCommandLine, topic: str) -> None:
    """Each record is printed once by two runs that end after a number of records; the group has committed them."""
    printed: list[str] = []
    for count in ("25", "15"):
        ended = CommandLine.__call__(headrace, "consume", topic, "--group", topic, "-o", "start", "-n", count)
        assert (ended.code, ended.err) == (0, "")
        printed += ended.out.split()
    assert sorted(map(int, printed)) == list(range(10 * PARTITIONS))
    assert {row["lag_records"] for row in headrace.partitions(topic).values()} == {0}


def test_a_live_group_is_described(headrace: GroupCommandLine, topic: str, member: Callable[..., sdk.Consumer]) -> None:
    """Owners with host, client and epoch, what is committed, how many records are left and how old the first is."""
    consumer = member(client_id="worker", group_instance_id="place-1")
    assert len(take(consumer, 10 * PARTITIONS)) == 10 * PARTITIONS
    consumer.commit({TopicPartition(topic, n): 2 * n for n in range(PARTITIONS)})
    found = headrace.document("describe", topic)
    assert (found["state"], found["assignor"], found["unowned"]) == ("stable", "uniform", [])
    (described,) = found["members"]
    assert (described["name"], described["client_id"], described["live"]) == ("place-1", "worker", True)
    assert described["host"]
    rows = headrace.partitions(topic)
    assert [rows[n]["committed_offset"] for n in range(PARTITIONS)] == [0, 2, 4, 6]
    assert [rows[n]["lag_records"] for n in range(PARTITIONS)] == [10, 8, 6, 4]
    assert {(row["owner_name"], row["assignment_epoch"]) for row in rows.values()} == {
        ("place-1", described["member_epoch"])
    }
    assert all(HOUR_MS <= row["lag_ms"] < 2 * HOUR_MS for row in rows.values())
    (listed,) = [row for row in headrace.document("list", "--lag") if row["group_id"] == topic]
    assert (listed["members"], listed["partitions"], listed["lag_records"]) == (1, PARTITIONS, 28)


def test_a_live_group_is_not_reset(headrace: GroupCommandLine, topic: str, member: Callable[..., sdk.Consumer]) -> None:
    """Nor deleted, by the command line or by Admin; its offsets can be kept in a file all the same."""
    consumer = member(group_instance_id="place-1")
    take(consumer, 10 * PARTITIONS)
    consumer.commit()
    ended = headrace("reset", topic, "--to-earliest")
    assert (ended.code, f"group {topic} has 1 member: place-1" in ended.err) == (1, True)
    assert headrace("delete", topic, "--yes").code == 1
    first = TopicPartition(topic, 0)
    with sdk.Admin(bootstrap_servers=headrace.cluster.bootstrap_servers) as admin:
        with pytest.raises(GroupNotEmptyError):
            admin.reset_group_offsets(topic, {first: 0})
        (refused,) = admin.delete_groups([topic])
        assert isinstance(refused.error, GroupNotEmptyError)
        assert admin.group_offsets(topic)[first].offset == 10
    assert headrace.ok("reset", topic, "--to-file", "-", "--dry-run").count('"offset": 10') == PARTITIONS


def test_members_continue_at_the_reset_offsets(
    headrace: GroupCommandLine, topic: str, member: Callable[..., sdk.Consumer], tmp_path: Path
) -> None:
    """Back, forth, from a file, like another group; a dry run moves nothing; deleted, the group begins anew."""
    consumer = member()
    take(consumer, 10 * PARTITIONS)
    consumer.commit()
    consumer.close()
    kept = tmp_path / "offsets.json"
    headrace.ok("reset", topic, "--to-file", str(kept), "--dry-run")
    headrace.ok("reset", topic, "--shift", "-3", "--dry-run")
    assert headrace.document("describe", topic)["lag_records"] == 0, "a dry run changes nothing"
    headrace.ok("reset", topic, "--shift", "-3")
    consumer = member()
    assert sorted(take(consumer, 3 * PARTITIONS)) == list(range(7 * PARTITIONS, 10 * PARTITIONS))
    consumer.close()
    headrace.ok("reset", topic, "--by-duration", "2h", "--topic", f"{topic}:0,1")
    headrace.ok("seek", topic, f"{topic}:2", "--to", "@-30m")
    headrace.ok("seek", topic, f"{topic}:3", "--to", "99")
    rows = headrace.partitions(topic)
    assert [rows[n]["committed_offset"] for n in range(PARTITIONS)] == [0, 0, 10, 10]
    headrace.ok("reset", f"{topic}-copy", "--from-group", topic)
    assert headrace.document("describe", f"{topic}-copy")["lag_records"] == 20
    headrace.ok("reset", topic, "--from-file", str(kept))
    assert headrace.document("describe", topic)["lag_records"] == 0
    headrace.ok("reset", topic, "--delete", "--topic", f"{topic}:1")
    assert sorted(headrace.partitions(topic)) == [0, 2, 3]
    assert "deleted" in headrace.ok("delete", topic, f"{topic}-copy", "--yes")
    assert headrace("describe", topic).code == 4
    assert len(take(member(), 10 * PARTITIONS)) == 10 * PARTITIONS


def test_the_registries_are_keys_of_etcd(
    headrace: GroupCommandLine, topic: str, member: Callable[..., sdk.Consumer]
) -> None:
    """What --verbose names is there, under the group all of it and nothing else; brokers are alive. A directory has
    files in place of etcd, and names what is in them alike."""
    consumer = member()
    take(consumer, 10 * PARTITIONS)
    consumer.commit()
    named = json.loads(headrace.ok("describe", topic, "--verbose", "--output", "json"))["registries"]

    async def keys() -> tuple[set[str], set[str]]:
        async with connected(headrace.cluster.etcd.endpoint) as metastore:
            keyspace = Keyspace(named[0]["key"].split("/")[2], int(named[0]["key"].split("/")[3]))
            of_group = await metastore.range(keyspace.group_prefix(topic))
            alive = await metastore.range(f"{keyspace.prefix}brokers/")
            return {each.key for each in of_group.key_values}, {each.key for each in alive.key_values}

    if isinstance(headrace.cluster, LocalDirectory):
        with sdk.Admin(bootstrap_servers=headrace.cluster.bootstrap_servers) as admin:
            of_group, alive = (
                {each.key for each in admin.dump(prefix)} for prefix in (f"groups/group/{topic}/", "brokers/")
            )
    else:
        of_group, alive = asyncio.run(keys())
    by_registry: dict[str, set[str]] = {}
    for row in named:
        by_registry.setdefault(row["registry"], set()).add(row["key"])
    assert by_registry.pop("brokers") == alive
    assert set(by_registry) == {"consumers", "ownership", "offsets"}
    assert set().union(*by_registry.values()) == of_group


def test_a_reader_that_commits_without_membership_is_seen(headrace: GroupCommandLine, topic: str) -> None:
    """As an empty group, with its lag."""
    name = f"{topic}-scan"
    with sdk.Consumer(
        topic, bootstrap_servers=headrace.cluster.bootstrap_servers, auto_offset_reset="earliest", commit_group=name
    ) as consumer:
        headrace.until(lambda: headrace("describe", name).code == 0, "the group is listed")
        headrace.until(lambda: headrace.document("describe", name)["lag_records"] == 10 * PARTITIONS, "all is unread")
        take(consumer, 10 * PARTITIONS)
        headrace.until(lambda: headrace.document("describe", name)["lag_records"] == 0, "its lag is gone")
        rows = {row["group_id"]: row for row in headrace.document("list", "--lag")}
        assert (rows[name]["state"], rows[name]["lag_records"], rows[name]["partitions"]) == ("empty", 0, PARTITIONS)


def test_names_that_are_none_are_refused(headrace: GroupCommandLine, topic: str) -> None:
    """Too long, or of other characters: one line each, whatever the command."""
    for name in ("x" * 10_000, "a b", ".."):
        for command in (
            ["describe", name],
            ["delete", name, "--yes"],
            ["reset", name, "--to-latest", "--topic", topic],
        ):
            ended = headrace(*command)
            assert (ended.code != 0, ended.err.count("\n"), "a bug" in ended.err) == (True, 1, False), ended.err[:200]
            assert len(ended.err) < 11_000


def test_admin_of_asyncio_does_the_same(headrace: GroupCommandLine, topic: str) -> None:
    """Each group method, on a group that its offsets make."""

    async def work() -> None:
        group, first = f"{topic}-aio", TopicPartition(topic, 0)
        async with aio.Admin(bootstrap_servers=headrace.cluster.bootstrap_servers) as admin:
            with pytest.raises(UnknownGroupError):
                await admin.describe_group(group)
            stored, absent = await admin.reset_group_offsets(group, {first: 4, TopicPartition("no-such", 0): 1})
            assert {(each.topic, each.error is None) for each in (stored, absent)} == {
                (topic, True),
                ("no-such", False),
            }
            assert (await admin.group_offsets(group))[first].offset == 4
            assert (await admin.describe_group(group)).topic_ids == {
                topic: (await admin.describe_topic(topic)).topic_id
            }
            (lag,) = await admin.group_lag(group)
            assert (lag.records, lag.end_offset, (lag.behind_ms or 0) >= HOUR_MS) == (6, 10, True)
            assert {each.group_id: each.state for each in await admin.list_groups()}[group] == "empty"
            (removed,) = await admin.reset_group_offsets(group, {first: -1})
            assert removed.error is None
            assert [each.group_id for each in await admin.delete_groups([group])] == [group]

    asyncio.run(work())
