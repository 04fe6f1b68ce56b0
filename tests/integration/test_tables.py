"""Tables on a real cluster: rows by their keys, in order, under conditions, from every replica, after failures."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import chain

import headrace
import pytest
from headrace import ABSENT, Admin, ConfigError, InvalidRequestError, Table, VersionConflictError, aio
from headrace.client.table import table_operations
from headrace.client.table.purges import PurgedPartition
from headrace.wire.errors import NotEnoughReplicasError, Outcome
from headrace.wire.partitioning import partition_for_key
from headrace.wire.table_keys import table_key
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from tests.integration.on_directory import IS_ON, command_line, restart_all
from tests.integration.replicated import BROKER_SETTINGS, until
from tests.integration.writers import writing

SETTINGS = {**BROKER_SETTINGS, "compaction_interval_ms": 100, "producer_retry_window_ms": 0}
TABLE = {"cleanup_policy": "compact", "table": "yes", "segment_bytes": 1 << 16, "max_batch_bytes": 1 << 14}


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(LocalClusterSpec(brokers=3, coordinators=1, broker_settings=SETTINGS)) as running:
        yield running


@pytest.fixture
def create(cluster, request):
    """Create a table of a name of its own."""

    def make(partitions=2, **config):
        name = request.node.name.replace("[", ".").strip("]")
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            settings = {"partitions": partitions, "replication_factor": 3, "config": TABLE | config, "exist_ok": True}
            until(lambda: admin.create_topic(name, **settings), "three brokers live")
        return name

    return make


@pytest.fixture
def users(cluster, create):
    with Table(create(), bootstrap_servers=cluster.bootstrap_servers) as table:
        yield table


def test_rows_are_put_read_and_deleted(users):
    version = users.put("u17", {"name": "Ada", "plan": "pro"})
    row = users.get("u17")
    assert dict(row) == {"name": "Ada", "plan": "pro"}
    assert (row.key, row.version) == (b"u17", version)
    assert users.get("u18") is None
    later = users.put("u17", {"plan": "free", "city": "London"})
    assert later > version
    row = users.get("u17")
    assert dict(row) == {"city": "London", "name": "Ada", "plan": "free"}
    assert row.columns["name"].version < row.columns["plan"].version <= row.version == later
    assert dict(users.get("u17", ["plan", "none"])) == {"plan": "free"}
    assert users.get("u17", ["plan"]).version == later
    users.put("u17", {"plan": None})
    assert dict(users.get("u17")) == {"city": "London", "name": "Ada"}
    users.delete("u17", ["city"])
    assert dict(users.get("u17")) == {"name": "Ada"}
    users.delete("u17")
    users.delete("u17")
    assert users.get("u17") is None
    assert users.count() == (0, 0)


def test_a_slice_of_a_row_has_its_limits(users):
    users.put("inbox", {f"m{number:04}": str(number) for number in range(500)})
    row = users.get("inbox", start="m0100", end="m0103")
    assert dict(row) == {"m0100": "100", "m0101": "101", "m0102": "102"}
    assert row.next_column is None
    row = users.get("inbox", start="m0490", limit=7)
    assert list(row) == [f"m{number:04}" for number in range(490, 497)]
    assert row.next_column == "m0497"
    assert list(users.get("inbox", start=row.next_column)) == ["m0497", "m0498", "m0499"]
    assert users.count() == (1, 500)


def test_large_values_come_in_parts(users):
    """A row, and many rows, of more bytes than an answer has."""
    for number in range(400):
        users.put("wide", {f"c{number:03}": "x" * 10_000})
    names, start = [], ""
    while start is not None:
        row = users.get("wide", start=start)
        names += row
        start = row.next_column
    assert names == [f"c{number:03}" for number in range(400)]
    for number in range(400):
        users.put(f"r{number:03}", {"v": "y" * 10_000})
    keys = [f"r{number:03}" for number in reversed(range(400))]
    assert [row.key.decode() for row in users.get_many(keys)] == keys
    assert sorted(row.key.decode() for row in users.scan(prefix="r")) == sorted(keys)
    assert (len(users.get("wide")), users.get("wide").next_column) == (400, None)


def test_long_keys_are_read_by_several_requests(users):
    keys = [f"{number:03}".ljust(15 << 10, "k") for number in range(300)]
    users.put(keys[-1], {"v": "1"})
    assert [row is not None for row in users.get_many(keys)] == [False] * 299 + [True]


def test_rows_of_many_large_values_are_whole(users):
    """An answer ends between two rows."""
    keys = [f"r{number:03}" for number in range(500)]
    users.put_many((key, dict.fromkeys("abc", "x" * 4_000)) for key in keys)
    assert {len(row) for row in users.get_many(keys)} == {3}
    assert [len(row) for row in users.scan()] == [3] * 500
    found = users.to_arrow()
    assert (found.num_rows, {found[name].null_count for name in "abc"}) == (500, {0})


def test_scans_give_rows_in_order_in_pages(users):
    keys = [f"user-{number:03}" for number in range(120)] + ["other", "user", "user-", "vser"]
    for key in random.Random(1).sample(keys, len(keys)):
        users.put(key, {"k": key})
    by_partition = [[row["k"] for row in users.scan(partitions=[number], page_rows=7)] for number in range(2)]
    assert all(found == sorted(found) for found in by_partition)
    assert sorted(chain(*by_partition)) == sorted(keys)
    assert {row["k"] for row in users.scan(prefix="user-")} == {key for key in keys if key.startswith("user-")}
    assert {row["k"] for row in users.scan(start="user-050", end="user-055")} == {f"user-05{n}" for n in range(5)}
    assert users.count() == (len(keys), len(keys))


def test_a_write_of_a_version_that_lost_changes_nothing(users):
    first = users.put("k", {"v": "1"}, if_version=ABSENT)
    with pytest.raises(VersionConflictError, match=f"has version {first}, it was to be absent") as failed:
        users.put("k", {"v": "2"}, if_version=ABSENT)
    assert failed.value.version == first
    second = users.put("k", {"v": "3"}, if_version=first)
    with pytest.raises(VersionConflictError):
        users.delete("k", if_version=first)
    users.delete("k", if_version=second)
    with pytest.raises(VersionConflictError, match="does not exist"):
        users.put("k", {"v": "4"}, if_version=second)
    assert users.get("k") is None


def test_a_deletion_of_a_column_is_a_version(cluster, users):
    """What was read before it has lost, and its own version has not; a watch sees it."""
    users.put("k", {"a": "1"})
    before = users.put("k", {"b": "1"})
    watched = users.watch("k")
    assert dict(next(watched)) == {"a": "1", "b": "1"}
    version = users.put("k", {"a": None})
    assert version > before
    with pytest.raises(VersionConflictError) as lost:
        users.put("k", {"b": "2"}, if_version=before)
    assert lost.value.version == version
    assert users.get("k").version == version
    seen = next(watched)
    assert (dict(seen), seen.version) == ({"b": "1"}, version)
    watched.close()
    users.delete("k", ["b"], if_version=version)
    assert users.get("k") is None


def test_counters_of_many_writers_lose_no_step(cluster, users):
    """Compare and set by four threads: each step is taken once."""
    users.put("n", {"n": "0"})
    conflicts = []

    def count():
        for _ in range(25):
            while True:
                row = users.get("n")
                try:
                    users.put("n", {"n": str(int(row["n"]) + 1)}, if_version=row.version)
                    break
                except VersionConflictError as error:
                    conflicts.append(error.version)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert users.get("n")["n"] == "100"


def test_columns_end_with_their_time_to_live(cluster, create):
    name = create(table_ttl_ms=3_000)
    with Table(name, bootstrap_servers=cluster.bootstrap_servers) as table:
        table.put("s", {"short": "1"}, ttl=timedelta(milliseconds=300))
        table.put("s", {"long": "2"}, ttl=timedelta(hours=1))
        table.put("s", {"default": "3"})
        table.put("again", {"v": "1"}, ttl=timedelta(milliseconds=300))
        table.put("again", {"v": "2"}, ttl=timedelta(hours=1))
        until(lambda: list(table.get("s")) == ["default", "long"], "the short one ends")
        until(lambda: list(table.get("s")) == ["long"], "the table's default ends")
        assert dict(table.get("again")) == {"v": "2"}
        assert table.count() == (2, 2)


def test_a_replica_tells_and_waits_for_what_it_has(users):
    for number in range(30):
        version = users.put("r", {"n": str(number)})
        row = users.get("r", consistency="replica", min_offset=version + 1)
        assert int(row["n"]) == number
        assert row.as_of_offset > version
    users.put("r", {"m": "1"})
    [scanned] = users.scan(consistency="replica", columns=["n"])
    again = users.get("r", ["n"], consistency="replica", min_offset=scanned.as_of_offset)
    assert again.as_of_offset >= scanned.as_of_offset > version
    with pytest.raises(headrace.OffsetNotAvailableError):
        users.get("r", min_offset=version + 1_000, timeout=0.5)


def test_a_row_has_all_columns_of_a_write_or_none(cluster, users):
    """Readers of every replica, while a writer writes rows of 20 equal columns, and compaction replaces segments."""
    stop = threading.Event()
    torn = []

    def write():
        number = 0
        while not stop.is_set():
            number += 1
            users.put("row", {f"c{column:02}": f"{number} " * 50 for column in range(20)})

    def look(consistency):
        for _ in range(150):
            row = users.get("row", consistency=consistency)
            if row is not None and (len(row) != 20 or len(set(row.values())) != 1):
                torn.append(row)

    threads = [threading.Thread(target=look, args=[kind]) for kind in ("leader", "replica")]
    writer = threading.Thread(target=write)
    for thread in (writer, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    writer.join()
    assert not torn


COUNT = """
def count(number):
    with headrace.Table(name, bootstrap_servers=servers, request_timeout_ms=60_000) as table:
        while not ends.is_set():
            row = table.get(f"counter-{number}")
            version, value = (headrace.ABSENT, 0) if row is None else (row.version, int(row["n"]))
            table.put(f"counter-{number}", {"n": str(value + 1)}, if_version=version)
            acknowledge(number, value + 1)
run(*(lambda number=number: count(number) for number in range(3)))
"""


def test_nothing_acknowledged_is_lost_when_leaders_are_killed(cluster, create):
    """Compare-and-set counters while each broker is killed once; the state is that of the log."""
    name, unacknowledged = create(), 3 if IS_ON else 0
    with writing(cluster, COUNT, name) as writer:
        writer.kill_holders(15)
        writer.finish()
    steps = {number: [] for number in range(3)}
    for number, step in map(json.loads, writer.lines):
        steps[number].append(step)
    for found in steps.values():  # A writer that is killed may have stored one step that it could not acknowledge.
        jumps = [later - earlier for earlier, later in zip([0, *found], found, strict=False)]
        assert set(jumps) <= {1, 2}
        assert jumps.count(2) <= unacknowledged
    with Table(name, bootstrap_servers=cluster.bootstrap_servers) as table:
        assert {row.key.decode(): int(row["n"]) for row in table.scan()} == {
            f"counter-{number}": found[-1] for number, found in steps.items()
        }
        assert {row.key for row in table.scan(consistency="replica")} == {b"counter-%d" % number for number in steps}


def test_a_watched_row_is_seen_after_each_change(cluster, users):
    """It begins with what there is; writes to other rows of its partition are not shown."""
    others = [key for key in (f"other-{number}" for number in range(20)) if same_partition(key, "w")][:3]
    seen = []
    with Table(users._name, bootstrap_servers=cluster.bootstrap_servers) as watching:
        for row in watching.watch("w"):
            seen.append(None if row is None else row["n"])
            if len(seen) == 4:
                break
            for other in others:
                users.put(other, {"n": "0"})
            if len(seen) == 3:
                users.delete("w")
            else:
                users.put("w", {"n": str(len(seen))})
    assert seen == [None, "1", "2", None]


def same_partition(one, other):
    return partition_for_key(one.encode(), 2) == partition_for_key(other.encode(), 2)


def test_the_command_line_reads_and_writes_rows(cluster):
    def run(*arguments, code=0):
        done = command_line(cluster, "table", *arguments)
        assert done.returncode == code, done.stderr
        return done.stdout

    def document(*arguments):
        return json.loads(run(*arguments, "--output", "json"))

    assert "created table shop" in run("create", "shop", "--partitions", "2", "--ttl", "30d")
    version = document("put", "shop", "u1", "name=Ada", "plan=a=b")["version"]
    row = document("get", "shop", "u1")
    assert {name: column["value"] for name, column in row["columns"].items()} == {"name": "Ada", "plan": "a=b"}
    assert row["version"] == version
    assert "Ada" in run("get", "shop", "u1", "--column", "name")
    run("get", "shop", "u2", code=4)
    assert "has version" in command_line(cluster, "table", "put", "shop", "u1", "name=Bob", "--if-version", "-1").stderr
    run("put", "shop", "u2", "name=Bob", "--ttl", "1h")
    assert [each["key"] for each in document("scan", "shop", "--prefix", "u")] in (["u1", "u2"], ["u2", "u1"])
    assert "raise --limit 1" in run("scan", "shop", "--limit", "1")
    assert document("count", "shop") == {"rows": 2, "columns": 3}
    described = document("describe", "shop")
    assert {name: described[name] for name in ("rows", "columns")} == {"rows": 2, "columns": 3}
    assert described["configs"]["table_ttl_ms"]["value"] == str(30 * 24 * 3_600_000)
    for row in described["partitions"]:
        assert row["leader"] in row["in_sync_replicas"]
        assert row["as_of_offset"] == row["log_end_offset"]
    assert sum(row["state_bytes"] for row in described["partitions"]) == described["state_bytes"] > 0
    shown = run("describe", "shop")
    assert "AS OF" in shown
    assert "table_ttl_ms" in shown
    run("delete", "shop", "u1", "--column", "plan", "--yes")
    run("delete", "shop", "u2", "--yes")
    assert document("count", "shop") == {"rows": 1, "columns": 1}
    run("put", "shop", "u1", "name", code=2)


def test_the_asyncio_table_does_the_same(cluster, create):
    name = create()

    async def use():
        async with aio.Table(name, bootstrap_servers=cluster.bootstrap_servers, value_serializer="json",
                             value_deserializer="json") as table:  # fmt: skip
            await asyncio.gather(*(table.put(f"k{number}", {"v": [number]}) for number in range(50)))
            rows = await table.get_many([f"k{number}" for number in range(51)])
            assert [None if row is None else row["v"] for row in rows] == [[number] for number in range(50)] + [None]
            assert len([row async for row in table.scan()]) == 50
            await table.delete("k7")
            assert await table.count() == (49, 49)

    asyncio.run(use())


def test_records_of_a_producer_are_columns(cluster, users, create):
    """A table is a topic: what a producer sends with a column's key is a column, and readers read what a table has."""
    with headrace.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        partition = partition_for_key(b"u1", 2)
        producer.send(users._name, b"Ada", key=table_key(b"u1", b"name"), partition=partition).result(30)
    assert dict(users.get("u1")) == {"name": "Ada"}
    with headrace.Reader(users._name, bootstrap_servers=cluster.bootstrap_servers) as reader:
        assert [(record.key, record.value) for record in reader] == [(table_key(b"u1", b"name"), b"Ada")]


def test_wrong_calls_say_what_is_wrong(cluster, users, create):
    with pytest.raises(InvalidRequestError, match="over the limit"):
        users.put("k" * 20_000, {"v": "1"})
    with pytest.raises(InvalidRequestError, match="empty key"):
        users.get("")
    with pytest.raises(headrace.BatchTooLargeError):
        users.put("k", {"v": "x" * 20_000})
    with pytest.raises(ConfigError, match="in the past"):
        users.put("k", {"v": "1"}, ttl=timedelta(seconds=-1))
    with pytest.raises(ConfigError, match="consistency"):
        users.get("k", consistency="quorum")
    with Table("none", bootstrap_servers=cluster.bootstrap_servers) as table:
        with pytest.raises(headrace.UnknownTopicError, match="none"):
            table.get("k")
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic("plain", partitions=1)
        with Table("plain", bootstrap_servers=cluster.bootstrap_servers) as table:
            with pytest.raises(InvalidRequestError, match="topic plain is no table") as failed:
                table.get("k")
            assert "headrace topic alter plain" in failed.value.action
            admin.alter_config("plain", {"cleanup_policy": "compact", "table": "yes"})
            until(lambda: table.put("k", {"v": "1"}) >= 0, "it is a table now")
            admin.alter_config("plain", unset=["table"])
            until(lambda: is_no_table(table), "it is a topic again")
        with pytest.raises(headrace.InvalidConfigError, match="cleanup_policy"):
            admin.alter_config("plain", {"cleanup_policy": "delete", "table": "yes"})


def test_a_row_in_a_wrong_partition_is_refused(users, monkeypatch):
    """A client that takes another hash would find its own rows, and no other client would."""
    users.put("u17", {"plan": "pro"})
    own, before = partition_for_key(b"u17", 2), users.describe_partitions()
    with monkeypatch.context() as patched:
        patched.setattr(table_operations, "partition_for_key", lambda key, partitions: 1 - own)
        for call in (lambda: users.put("u17", {"plan": "free"}), lambda: users.delete("u17"), lambda: users.get("u17")):
            with pytest.raises(InvalidRequestError, match=f"of partition {own} of 2, not of {1 - own}") as refused:
                call()
            assert "CRC-32" in refused.value.action
    [broker_id, *_] = users._calls.run(users._purges.replicas(1 - own, 10, ()))
    purged = users._calls.run(users._purges.purge(PurgedPartition(1 - own, (b"u17",)), broker_id, 0, 10))
    assert not purged.done
    assert f"of partition {own} of 2" in purged.problem
    assert users.describe_partitions() == before


def test_a_table_is_made_plain_and_a_table_again_while_in_use(cluster, create):
    """Calls succeed or say that it is no table; then it has all that was put or sent, and nothing that was deleted."""
    name, ends, put, refused = create(partitions=1), threading.Event(), [], []
    clients = {"bootstrap_servers": cluster.bootstrap_servers}

    def wait_for_more(calls, count):
        wanted = len(calls) + count
        until(lambda: used.done() or len(calls) >= wanted, "more calls")

    def use():
        number = 0
        with Table(name, **clients) as table:
            while not ends.is_set():
                try:
                    table.put(f"k{number}", {"v": str(number)})
                    assert table.get(f"k{number}")["v"] == str(number)
                    table.delete(f"k{number - 1}")
                    put.append(number)
                    number += 1
                except InvalidRequestError as error:
                    refused.append(str(error))

    with Admin(**clients) as admin, headrace.Producer(**clients) as producer, ThreadPoolExecutor() as threads:
        used = threads.submit(use)
        try:
            for turn in range(4):
                wait_for_more(put, 5)
                admin.alter_config(name, unset=["table"])
                wait_for_more(refused, 1)
                producer.send(name, b"sent", key=table_key(b"plain-%d" % turn, b"v"), partition=0).result()
                admin.alter_config(name, {"table": "yes"})
        finally:
            ends.set()
        used.result()
    assert all(f"topic {name} is no table" in message for message in refused)
    with Table(name, **clients) as table:
        until(lambda: not is_no_table(table), "it is a table")
        rows = {row.key.decode(): row["v"] for row in table.scan()}
    last = len(put) - 1
    expected = {f"k{last}": str(last)} | {f"plain-{turn}": "sent" for turn in range(4)}
    # The last call may have been refused after its put, or before its deletion.
    extra = {f"k{last + 1}": str(last + 1)}
    assert rows in (expected, expected | extra), (rows, expected)


def is_no_table(table):
    try:
        table.get("k")
    except InvalidRequestError:
        return True
    return False


def test_a_write_that_is_sent_twice_is_applied_once(cluster, users):
    """The answer to the second is that to the first, also of a deletion, whose records depend on what there was."""
    users.put("k", {"a": "1", "b": "2"})
    operations = users._operations
    sent = []
    call = operations._call

    def twice(partition, method, request, deadline, **rest):
        first = yield from call(partition, method, request, deadline, **rest)
        if method == "WriteRow":
            second = yield from call(partition, method, request, deadline, **rest)
            sent.append((first, second))
        return first

    operations._call = twice
    users.put("k", {"a": "3"}, if_version=users.get("k").version)
    users.delete("k")
    users.put("k", {"a": "4"})
    assert all(first == second for first, second in sent)
    assert [first.records for first, _ in sent] == [1, 2, 1]
    assert dict(users.get("k")) == {"a": "4"}


def test_a_restarted_broker_has_the_table_again(cluster, create):
    name = create()
    with Table(name, bootstrap_servers=cluster.bootstrap_servers) as users:
        for number in range(60):
            users.put(f"k{number}", {"v": str(number)})
    restart_all(cluster)
    with Table(name, bootstrap_servers=cluster.bootstrap_servers) as users:
        assert users.count() == (60, 60)
        assert users.get("k59")["v"] == "59"


def test_many_partitions_are_read_side_by_side(cluster, create):
    """Reads of all partitions have the rows of each, in both classes; a scan keeps its order."""
    name = create(partitions=6)
    keys = [f"u{number:04}" for number in range(600)]
    with Table(name, bootstrap_servers=cluster.bootstrap_servers) as table:
        table.put_many((key, {"k": key, "n": key}) for key in keys)
        assert table.count() == (600, 1_200)
        assert [row["k"] for row in table.get_many(reversed(keys))] == keys[::-1]
        by_partition = [[row["k"] for row in table.scan(partitions=[number], page_rows=7)] for number in range(6)]
        whole = [row["k"] for row in table.scan(page_rows=7)]
        assert whole == list(chain(*by_partition))
        assert sorted(whole) == keys
        assert [row["k"] for row in table.scan(partitions=[5, 0], page_rows=500)] == by_partition[5] + by_partition[0]
        with pytest.raises(headrace.UnknownPartitionError):
            list(table.scan(partitions=[9], timeout=1.0))
        scan = table.scan(page_rows=7)
        assert next(scan)["k"] == whole[0]
        scan.close()
        described = table.describe_partitions()
        assert [each.partition for each in described] == list(range(6))
        assert sum(each.columns for each in described) == 1_200
        assert all(each.as_of_offset == each.log_end_offset for each in described)
        assert all(each.state_bytes > each.columns * 50 for each in described)

    async def main():
        async with aio.Table(name, bootstrap_servers=cluster.bootstrap_servers) as table:
            assert await table.count() == (600, 1_200)
            assert [row["k"] for row in await table.get_many(keys)] == keys
            assert [row["k"] async for row in table.scan(page_rows=7)] == whole
            async for row in table.scan(page_rows=7):
                assert row["k"] == whole[0]
                break
            arrow = await table.to_arrow()
            assert sorted(arrow.column("k").to_pylist()) == keys
            versions = await table.put_many([("u0001", {"k": "again"})])
            assert (await table.get("u0001")).version == versions[0]

    asyncio.run(main())


def test_many_rows_are_put_at_once(users):
    """Each has the version that it is told; of two with one key the later one stays; wide and deleted columns, too."""
    rows = [(f"u{number % 900}", {"n": str(number), "old": "x"}) for number in range(2_000)]
    versions = users.put_many(rows)
    newest = {key: number for number, (key, _) in enumerate(rows)}
    for key, row in zip(newest, users.get_many(newest), strict=True):
        assert (row["n"], row.version) == (str(newest[key]), versions[newest[key]])
    more = users.put_many([("u1", {"old": None}), ("none", {}), ("wide", {f"c{n:03}": "y" * 20 for n in range(300)})])
    assert dict(users.get("u1")) == {"n": str(newest["u1"])}
    assert more[1] == -1
    assert users.get("none") is None
    wide = users.get("wide")
    assert (len(wide), wide.version) == (300, more[2])
    assert {each.version for each in wide.columns.values()} == set(range(more[2] - 299, more[2] + 1))
    assert users.put_many([]).tolist() == []


def test_a_row_that_cannot_be_put_is_named(users):
    """The rows before it are there, or not, as its error tells; a row is larger than a batch of the table may be."""
    rows = [(f"u{number}", {"v": "1"}) for number in range(50)]
    large = ("large", {"a": "1", "b": "x" * (1 << 18)})
    for bad in (large, ("u50", {"v": 3})):
        with pytest.raises(headrace.PutManyError, match="row 50") as failed:
            users.put_many([*rows, bad])
        error = failed.value
        assert (error.row, error.key) == (50, bad[0].encode())
        assert error.outcome is headrace.Outcome.NOT_APPLIED
        for (key, _), version in zip(rows, error.versions, strict=False):
            row = users.get(key)
            assert version == (-1 if row is None else row.version)
        assert error.versions[50] == -1
        assert users.get(bad[0]) is None


def test_rows_put_at_once_end_with_their_time_to_live(cluster, create):
    name = create(table_ttl_ms=3_000)
    with Table(name, bootstrap_servers=cluster.bootstrap_servers) as table:
        table.put_many([("s", {"short": "1"})], ttl=timedelta(milliseconds=300))
        table.put_many([("s", {"long": "2"})], ttl=timedelta(hours=1))
        table.put_many([("s", {"default": "3"})])
        until(lambda: list(table.get("s")) == ["default", "long"], "the short one ends")
        until(lambda: list(table.get("s")) == ["long"], "the table's default ends")


def test_rows_are_put_at_once_into_tables_only(cluster, create):
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic("no-table", partitions=1, exist_ok=True)
    with Table("no-table", bootstrap_servers=cluster.bootstrap_servers) as table:
        with pytest.raises(InvalidRequestError, match="no table"):
            table.put_many([("k", {"v": "1"})])


def test_a_row_has_all_columns_of_a_bulk_write_or_none(users):
    """Readers of every replica, while rows of 20 equal columns are put in batches, and compaction replaces segments."""
    stop, torn = threading.Event(), []

    def write():
        number = 0
        while not stop.is_set():
            number += 1
            users.put_many((f"r{row}", {f"c{n:02}": f"{number} " * 9 for n in range(20)}) for row in range(40))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for look in range(150):
            row = users.get(f"r{look % 40}", consistency=("leader", "replica")[look % 2])
            if row is not None and (len(row) != 20 or len(set(row.values())) != 1):
                torn.append(row)
    finally:
        stop.set()
        writer.join()
    assert not torn


PUT_MANY = """
def put():
    with headrace.Table(name, bootstrap_servers=servers, request_timeout_ms=60_000) as table:
        number = 0
        while not ends.is_set():
            number += 1
            keys = [f"k{number % 5}-{row}" for row in range(200)]
            versions = table.put_many((key, {"n": str(number)}) for key in keys)
            acknowledge(dict(zip(keys, versions.tolist())))
run(put)
"""


def test_nothing_put_at_once_is_lost_when_leaders_are_killed(cluster, create):
    """Every row of every call that returned is there with its version."""
    name = create()
    with writing(cluster, PUT_MANY, name) as writer:
        writer.kill_holders(2)
        writer.finish()
    written = {}
    for (versions,) in map(json.loads, writer.lines):
        written |= versions
    with Table(name, bootstrap_servers=cluster.bootstrap_servers, request_timeout_ms=60_000) as table:
        until(lambda: table.count().rows >= len(written), "all rows")
        for key, row in zip(written, table.get_many(written), strict=True):
            assert row.version == written[key] or (IS_ON and row.version > written[key])  # Of a call that was killed.


def test_levels_of_the_guide_keep_their_promises(cluster):
    """A broker fails, then a majority: "From Cassandra" in the guide of tables, QUORUM and ALL, reads of both kinds."""
    clients = {"bootstrap_servers": cluster.bootstrap_servers}

    def in_sync(*broker_ids):
        topics = (admin.describe_topic(name) for name in ("quorum", "every"))
        return all(topic.partitions[0].in_sync_replicas == broker_ids for topic in topics)

    def leader_knows(*broker_ids):
        [leader] = (log for log in admin.describe_logs("every", brokers=[1]) if log.is_leader)
        return tuple(follower.broker_id for follower in leader.followers if follower.in_sync) == broker_ids

    def is_refused():
        """The last attempt may be one that the deadline cut off."""
        with pytest.raises(NotEnoughReplicasError) as refused:
            every.put("k", {"v": "2"}, timeout=2)
        return refused.value.outcome is Outcome.NOT_APPLIED

    with Admin(**clients) as admin, Table("quorum", **clients) as quorum, Table("every", **clients) as every:
        for name, least in (("quorum", 2), ("every", 3)):
            admin.create_topic(name, assignments=[[1, 2, 3]], config=TABLE | {"min_insync_replicas": least})
        until(lambda: in_sync(1, 2, 3), "all replicas are in sync")
        for table in (quorum, every):
            table.put("k", {"v": "1"})
        cluster.broker(3).kill()
        try:
            until(lambda: in_sync(1, 2) and leader_knows(2), "broker 3 has left")
            version = quorum.put("k", {"v": "2"})
            until(is_refused, "a refusal of every attempt")
            assert every.get("k")["v"] == "1"
            cluster.broker(1).kill()
            until(lambda: admin.describe_topic("quorum").partitions[0].leader_id == 2, "broker 2 leads")
            assert quorum.get("k").version == version, "what was acknowledged"
            assert quorum.get("k", consistency="replica", min_offset=version + 1)["v"] == "2"
            with pytest.raises(NotEnoughReplicasError):
                quorum.put("k", {"v": "3"}, timeout=2)
            assert quorum.get("k")["v"] == "2"
        finally:
            for broker in cluster.brokers:
                if broker.pid is None:
                    cluster.restart(broker)
            cluster.wait_until_healthy()
        until(lambda: in_sync(1, 2, 3), "all replicas are in sync again")
        versions = every.put("k", {"v": "2"}), quorum.put("k", {"v": "3"})
        assert versions == (1, 2), "nothing is left of what was refused"


def test_a_table_becomes_an_arrow_table(users):
    """Whatever the columns of its rows, and if a row is larger than an answer; and what was read can be put again."""
    rows = {f"u{number:03}": {"n": str(number), f"c{number % 3}": "x"} for number in range(250)}
    users.put_many(rows.items())
    table = users.to_arrow(version_column="version")
    assert table.schema.names == ["key", "version", "c0", "c1", "c2", "n"]
    found = {row.pop("key").decode(): row for row in table.to_pylist()}
    assert found.keys() == rows.keys()
    for key, row in zip(rows, users.get_many(rows), strict=True):
        assert found[key].pop("version") == row.version
        assert {name: value for name, value in found[key].items() if value is not None} == rows[key] == dict(row)
    named = users.to_arrow(prefix="u00", columns=["n", "none"])
    assert named.schema.names == ["key", "n", "none"]
    assert (named.num_rows, named.column("none").null_count) == (10, 10)
    assert sorted(users.to_pandas(prefix="u00", columns=["n"])["n"]) == [str(number) for number in range(10)]
    batches = list(users.scan_arrow(page_rows=20, key_column="id"))
    assert max(batch.num_rows for batch in batches) == 20
    assert sum(batch.num_rows for batch in batches) == 250
    for row in rows:
        users.delete(row)
    assert users.to_arrow().num_rows == 0
    users.put_many(table.drop_columns(["version"]))
    assert {row.key.decode(): dict(row) for row in users.scan()} == rows
    for number in range(400):
        users.put("wide", {f"w{number:03}": "x" * 10_000})
    wide = users.to_arrow(prefix="wide")
    assert wide.num_columns == 401
    assert wide.column("w399").to_pylist() == ["x" * 10_000]
    assert users.to_arrow(prefix="wide", columns=["w000", "w399"]).column("w399").to_pylist() == ["x" * 10_000]
