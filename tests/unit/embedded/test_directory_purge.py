"""Purges of a table in a directory: after one, no file has a byte of the rows, and other readers continue."""

from __future__ import annotations

import json
from pathlib import Path

import headrace
import pytest
from headrace.cli.main import app
from headrace.embedded.open_partition import DirectoryPartition
from headrace.embedded.server import DirectoryServer, OpenMode
from headrace.v1 import tables_pb2, topics_pb2
from headrace.wire.partitioning import partition_for_key
from typer.testing import CliRunner

TABLE = {"cleanup_policy": "compact", "table": "yes", "segment_bytes": 1 << 16, "max_batch_bytes": 1 << 14}
"""With the defaults of what delays a removal: a day for deletions, a minute for files, batches of retries."""
PERSON = "person-17"


@pytest.fixture
def log(headrace_directory):
    headrace_directory.admin.create_topic("users", partitions=2, config=TABLE)
    return headrace_directory


@pytest.fixture
def users(log):
    with log.table("users") as table:
        for turn in range(4):
            for number in range(40):
                table.put(f"other-{number}", {"value": f"{turn} " + "x" * 1_000})
            for number in (1, 2):
                table.put(f"{PERSON}-{number}", {"name": f"value of {PERSON} {turn}", "notes": "y" * 1_000})
        yield table


def holders(log, text=PERSON):
    """Return the files that have a text."""
    return [path.name for path in Path(log.path).rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_a_purged_row_is_in_no_file(log, users):
    """By key, in closed segments and in the active one; other rows stay, and the key can be written again."""
    assert len(holders(log)) > 1
    results = list(users.purge([f"{PERSON}-1", f"{PERSON}-2"]))
    assert holders(log) == []
    assert all(each.done and not each.problem for each in results)
    assert sum(each.removed_records for each in results) >= 16
    assert users.get(f"{PERSON}-1") is None
    assert users.count().rows == 40
    assert dict(users.get("other-39") or {}) == {"value": "3 " + "x" * 1_000}
    users.put(f"{PERSON}-1", {"name": "another"})
    assert dict(users.get(f"{PERSON}-1") or {}) == {"name": "another"}


def test_a_purge_holds_after_a_new_start(tmp_path):
    """The removal is durable, and the table is the same afterwards."""
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("users", config=TABLE)
        with log.table("users") as table:
            table.put(PERSON, {"name": PERSON})
            table.put("other", {"name": "x"})
            assert [each.done for each in table.purge(prefix=PERSON)] == [True]
    with headrace.open(tmp_path / "events") as log, log.table("users") as table:
        assert holders(log) == []
        assert [row.key for row in table.scan()] == [b"other"]


def test_what_is_deleted_is_purged(log, users):
    """Deletions and what they delete; rows that exist stay."""
    users.delete(f"{PERSON}-1")
    users.delete(f"{PERSON}-2")
    assert holders(log)
    assert all(each.done for each in users.purge(deleted=True))
    assert holders(log) == []
    assert users.count().rows == 40


def test_a_row_that_exists_is_not_purged(log, users):
    """A request that comes without the deletion changes nothing."""
    row = users.get(f"{PERSON}-1")
    request = tables_pb2.PurgeRowsRequest(
        table=topics_pb2.TopicRef(name="users"), partition=partition_for_key(row.key, 2), keys=[row.key],
        before_offset=row.version + 1, timeout_ms=60_000,
    )  # fmt: skip
    with pytest.raises(headrace.InvalidRequestError, match="a row to purge exists"):
        log._server.call("tables", "PurgeRows", request)
    assert users.get(f"{PERSON}-1") == row


def test_who_follows_the_directory_sees_the_purge(log, users):
    """Another reader of the files, with their places before the purge, has the other rows and not these."""
    follower = DirectoryServer(log.path, OpenMode.READ, creates=False)
    try:
        before = [follower.call("tables", "ScanRows", _scan(number)) for number in range(2)]
        assert sum(PERSON.encode() in row.key for answer in before for row in answer.rows) == 2
        assert all(each.done for each in users.purge(prefix=PERSON))
        after = [follower.call("tables", "ScanRows", _scan(number)) for number in range(2)]
        assert sum(len(answer.rows) for answer in after) == 40
        assert not any(PERSON.encode() in row.key for answer in after for row in answer.rows)
    finally:
        follower.close()


def _scan(partition):
    read = tables_pb2.TableRead(table=topics_pb2.TopicRef(name="users"), partition=partition)
    return tables_pb2.ScanRowsRequest(read=read)


def test_a_file_that_is_read_is_said(log, users, monkeypatch):
    """The rows are compacted away, and the file stays until its reader has ended: the purge is not done."""
    monkeypatch.setattr(DirectoryPartition, "unlink_purged", lambda self, deadline: False)
    [result] = users.purge([f"{PERSON}-1"], timeout=1.0)
    assert not result.done
    assert "not done in time" in result.problem
    assert holders(log)


def test_a_pinned_segment_delays_the_end(log, users):
    """`unlink_purged` waits for readers up to its deadline."""
    topic = next(topic for topic in log._server.directory.all_topics())
    partition = log._server.directory.readable(topic, 0)
    with partition.reader.read(0, 1, partition.visible_end):
        request = tables_pb2.PurgeRowsRequest(
            table=topics_pb2.TopicRef(name="users"), partition=0, deleted=True, before_offset=partition.visible_end,
            timeout_ms=1,
        )  # fmt: skip
        assert not log._server.call("tables", "PurgeRows", request).done
    request.timeout_ms = 60_000
    assert log._server.call("tables", "PurgeRows", request).done


def test_the_command(log, users):
    """`headrace table purge --dir`."""
    arguments = ["table", "purge", "users", "--prefix", PERSON, "--yes", "--output", "json", "--dir", log.path]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["done"]
    assert {each["broker_id"] for each in document["replicas"]} == {0}
    assert holders(log) == []


def test_a_topic_that_is_no_table_and_wrong_requests(log):
    log.admin.create_topic("clicks")
    for topic, deleted, message in (("clicks", True, "is no table"), ("users", False, "names keys, or a prefix, or")):
        request = tables_pb2.PurgeRowsRequest(table=topics_pb2.TopicRef(name=topic), partition=0, deleted=deleted)
        with pytest.raises(headrace.InvalidRequestError, match=message):
            log._server.call("tables", "PurgeRows", request)
