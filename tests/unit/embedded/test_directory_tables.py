"""Tables of a directory: what is read of rows while they change, are compacted, and are made anew."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import headrace
import headrace.client.table.table
import pytest
from headrace.embedded.followed import FollowedDirectory
from headrace.embedded.open_partition import DirectoryPartition
from headrace.embedded.opened import OpenDirectory
from headrace.embedded.tables import DirectoryTables, DirectoryTableState
from headrace.log.errors import CorruptLogError, StorageBusyError
from headrace.log.log import PartitionLog
from headrace.v1 import tables_pb2, topics_pb2
from headrace.wire.table_keys import table_key

from tests.integration.replicated import until

WAIT = 30
TABLE = {"cleanup_policy": "compact", "table": "yes"}


def test_a_table_keeps_its_number_of_partitions(tmp_path):
    """Otherwise rows are searched in another partition than they were written to."""
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("users", 1, config=TABLE)
        with log.table("users") as users:
            for n in range(8):
                users.put(f"u{n}", {"a": "1"}, if_version=headrace.ABSENT)
        for validate_only in (True, False):
            with pytest.raises(headrace.InvalidPartitionsError, match="a row's partition follows from it"):
                log.admin.create_partitions("users", 2, validate_only=validate_only)
        with log.table("users") as users:
            assert None not in users.get_many([f"u{n}" for n in range(8)])


def test_rows_of_more_bytes_than_an_answer_are_whole(tmp_path):
    """An answer ends between two rows, and a row that alone is larger is read to its end."""
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("users", 1, config=TABLE | {"durability": "async"})
        with log.table("users") as users:
            columns = {f"c{n}": "x" * 7_000 for n in range(4)}
            users.put_many((f"r{n:03}", columns) for n in range(250))
            for n in range(5):
                users.put("s", {f"c{n}": "y" * 900_000})
            sizes = {f"r{n:03}".encode(): 4 for n in range(250)} | {b"s": 5}
            assert {row.key: len(row) for row in users.scan()} == sizes
            assert {row.key: len(row) for row in users.get_many(sizes)} == sizes
            assert (len(users.get("s")), users.get("s").next_column) == (5, None)
            found = users.to_arrow()
            assert [found[f"c{n}"].null_count for n in range(5)] == [0, 0, 0, 0, 250]


def watched(table, key, monkeypatch):
    """Return a function that waits for the next row that `watch` yields."""
    monkeypatch.setattr(headrace.client.table.table, "WATCH_S", 0.2)
    rows = table.watch(key)

    def following():
        seen: queue.Queue = queue.Queue()
        threading.Thread(target=lambda: seen.put(next(rows)), daemon=True).start()
        return seen.get(timeout=WAIT)

    return following


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_watched_row_is_seen_in_a_table_that_was_made_anew(tmp_path, monkeypatch, partitions):
    """Offsets begin at 0 there, and versions may be those of the row that it was."""
    with headrace.open(tmp_path / "events") as log, log.table("users") as users, log.table("users") as writer:
        log.admin.create_topic("users", 1, config=TABLE)
        writer.put("k", {"a": "old life"})
        for n in range(20):
            writer.put(f"other-{n}", {"a": str(n)})
        following = watched(users, "k", monkeypatch)
        assert dict(following()) == {"a": "old life"}
        log.admin.delete_topic("users")
        log.admin.create_topic("users", partitions, config=TABLE)
        with log.table("users") as anew:
            anew.put("k", {"a": "new life"})
            assert dict(following()) == {"a": "new life"}
            anew.delete("k")
            assert following() is None


def test_the_end_of_a_column_is_seen_with_the_next_write(tmp_path, monkeypatch):
    """Also of one that is not the newest of the row, whose version it leaves as it is."""
    with headrace.open(tmp_path / "events") as log, log.table("users") as users, log.table("users") as writer:
        log.admin.create_topic("users", 1, config=TABLE)
        writer.put("k", {"b": "1"}, ttl=timedelta(milliseconds=400))
        version = writer.put("k", {"a": "1"})
        following = watched(users, "k", monkeypatch)
        assert dict(following()) == {"a": "1", "b": "1"}
        until(lambda: len(writer.get("k")) == 1, "the end of b")
        writer.put("other", {"a": "1"})
        row = following()
        assert (dict(row), row.version) == ({"a": "1"}, version)


def test_a_text_is_no_list_of_keys_or_names(tmp_path):
    """Its characters are not taken for keys: rows u, 1 and 7 are others than u17."""
    with headrace.open(tmp_path / "events") as log, log.table("users") as users:
        log.admin.create_topic("users", 1, config=TABLE)
        for key in ("u", "1", "7", "u17"):
            users.put(key, {"p": "1", "l": "2", "plan": "3"})
        for call in (
            lambda: next(users.purge("u17")),
            lambda: next(users.purge(b"u17")),
            lambda: users.get_many("u17"),
            lambda: users.delete("u17", "plan"),
            lambda: users.get("u17", "plan"),
            lambda: next(users.scan(columns="plan")),
            lambda: users.to_arrow(columns="plan"),
            lambda: log.admin.delete_groups("u17"),
        ):
            with pytest.raises(headrace.ConfigError, match=r"is one (str|bytes)"):
                call()
        assert {row.key: len(row) for row in users.scan()} == dict.fromkeys((b"1", b"7", b"u", b"u17"), 3)


def fill(log, times):
    """Write the rows u and k, k less often, and close the segment after each part; return the partition."""
    partition = log._server.directory.readable(next(iter(log._server.directory.all_topics())), 0)
    for columns in times:
        with log.table("users") as users:
            for key, value in columns.items():
                users.delete(key) if value is None else users.put(key, {"v": value})
        partition.log.close_below(partition.visible_end)
    return partition


def test_a_state_that_is_made_while_its_log_is_compacted_misses_no_deletion(tmp_path, monkeypatch):
    """The value is read before, and the deletion would be read after the compaction that removes both."""
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("users", 1, config=TABLE)
        fill(log, [{"k": "1", "a": "1"}, {"k": None, "b": "1"}, {"c": "1"}])
    with headrace.open(tmp_path / "events") as log, log.table("users") as users:
        directory, reads = log._server.directory, []
        partition = directory.readable(next(iter(directory.all_topics())), 0)
        end_offset = directory.compaction_end(partition)
        read = DirectoryTableState._read

        def compacting(state, *wanted):
            found = read(state, *wanted)
            reads.append(found)
            if len(reads) == 1:
                partition.compact(1 << 50, end_offset)
            return found

        monkeypatch.setattr(DirectoryTableState, "_read", compacting)
        assert users.get("k") is None
        assert partition.log.deletions_end > 0
        assert users.count().rows == len(list(users.scan())) == 3
        users.put("k", {"v": "2"}, if_version=headrace.ABSENT)


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_followed_table_is_read_from_the_files_of_one_moment(tmp_path, monkeypatch, is_begun):
    """The writer compacts after the first file was read; also one that continues a state which was there before."""
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("users", 1, config=TABLE)
        followed = FollowedDirectory(log.path)
        tables = DirectoryTables(followed)
        if is_begun:
            fill(log, [{"a": "0"}])
            assert count_rows(tables) == 1
        partition = fill(log, [{"k": "1", "a": "1"}, {"k": None, "b": "1"}, {"c": "1"}])
        log._server.directory.show()
        reads, read = [], DirectoryTableState._read

        def compacting(state, *wanted):
            found = read(state, *wanted)
            reads.append(found)
            if len(reads) == 1:
                partition.compact(1 << 50, partition.visible_end)
                assert partition.log.retention.purge_deleted_files() == 0
            return found

        with monkeypatch.context() as patch:
            patch.setattr(DirectoryTableState, "_read", compacting)
            assert count_rows(tables) == 3
        assert partition.log.deletions_end > 0
        assert [len(read_row(tables, key).columns) for key in (b"k", b"a", b"b", b"c")] == [0, 1, 1, 1]
        followed.close()


def test_a_followed_table_of_which_a_file_is_corrupt_is_said(tmp_path):
    """A reader lists the files again a few times only."""
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("users", 1, config=TABLE)
        fill(log, [{"a": "1"}, {"b": "1"}])
        followed = FollowedDirectory(log.path)
        for file in sorted((tmp_path / "events").glob("*-0/*.log"))[:1]:
            file.write_bytes(b"x" * file.stat().st_size)
        with pytest.raises(CorruptLogError):
            count_rows(DirectoryTables(followed))
        followed.close()


def count_rows(tables):
    read = tables_pb2.TableRead(table=topics_pb2.TopicRef(name="users"))
    return tables.count_rows(tables_pb2.CountRowsRequest(read=read)).rows


@pytest.mark.parametrize("is_state_known", [True, False])
def test_a_part_of_a_compacted_table_answers_no_reads(tmp_path, is_state_known):
    """A row that it lacks was there all the time: it was replaced by a record that is not copied yet."""
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("users", 1, config=TABLE)
        large = "x" * 300_000  # With it a compacted batch ends.
        source = fill(log, [{"a": "1"}, {"k": "1", "b": large}, {"k": "2"}, {"c": "1"}])
        copy = OpenDirectory(str(tmp_path / "copy"), creates=True)
        copy.adopt("users", source.topic.topic_id, 1, source.topic.configs, "cluster-1")
        copied = copy.copied(source.topic.topic_id, 0)

        def continue_copy(until):
            while copied.log_end_offset < until:
                with source.reader.read(int(copied.log_end_offset), 1 << 20, until) as found:
                    assert copied.copy(found.read(), until)
            copied.flush()

        continue_copy(1)
        if is_state_known:
            tables = DirectoryTables(copy)
            assert read_row(tables, b"a").version == 0
        source.compact(1 << 50, source.visible_end)
        continue_copy(3)
        if not is_state_known:
            tables = DirectoryTables(copy)
        for key in (b"k", b"a"):
            with pytest.raises(headrace.OffsetNotAvailableError, match="Continue `headrace fetch`") as refused:
                read_row(tables, key)
            assert not refused.value.retriable
        continue_copy(source.visible_end)
        assert read_row(tables, b"k").columns[0].value == b"2"
        copy.close()


def read_row(tables, key):
    read = tables_pb2.TableRead(table=topics_pb2.TopicRef(name="users"))
    return tables.get_rows(tables_pb2.GetRowsRequest(read=read, keys=[key])).rows[0]


def test_the_start_of_a_table_holds_up_nothing_else(tmp_path, monkeypatch):
    """A state is read from a whole log: other tables are read and written meanwhile, and producers send."""
    with headrace.open(tmp_path / "events") as log:
        for name in ("large", "users"):
            log.admin.create_topic(name, 1, config=TABLE)
            with log.table(name) as table:
                table.put("k", {"v": "1"})
        log.admin.create_topic("clicks")
    begun, ended, read_all = threading.Event(), threading.Event(), DirectoryTableState._read_all

    def slow(state, *wanted):
        if state._partition.topic.name == "large":
            begun.set()
            assert ended.wait(WAIT)
        return read_all(state, *wanted)

    monkeypatch.setattr(DirectoryTableState, "_read_all", slow)
    with (
        headrace.open(tmp_path / "events") as log,
        log.table("large") as large,
        log.table("users") as users,
        log.producer() as producer,
        ThreadPoolExecutor(3) as threads,
    ):
        try:
            first = threads.submit(large.get, "k")
            assert begun.wait(WAIT)
            conditional = threads.submit(large.put, "k", {"v": "2"}, if_version=0)
            assert threads.submit(users.put, "k", {"v": "2"}, if_version=0).result(5) == 1
            for topic in ("large", "users", "clicks"):
                producer.send(topic, b"1", key=table_key(b"r", b"c")).result(5)
        finally:
            ended.set()
        assert (dict(first.result(WAIT)), conditional.result(WAIT)) == ({"v": "1"}, 2)


@pytest.mark.parametrize("condition", [{}, {"if_version": headrace.ABSENT}])
def test_a_write_that_was_not_flushed_is_not_acknowledged_by_its_retry(tmp_path, monkeypatch, condition):
    """Neither as written nor as not written: it is in the log, and a loss of power takes it."""
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("users", 1, config=TABLE)
        flush, flush_appended = PartitionLog.flush, DirectoryPartition.flush_appended
        refusals, outcomes, logs = [StorageBusyError("no descriptor")] * 2, [], set()

        def flush_later(log):
            logs.add(log)
            if refusals and log.flushed_offset < log.log_end_offset:
                raise refusals.pop()
            return flush(log)

        def told(partition):
            try:
                flush_appended(partition)
            except headrace.HeadraceError as error:
                outcomes.append(error.outcome)
                raise

        monkeypatch.setattr(DirectoryPartition, "flush_appended", told)
        monkeypatch.setattr(PartitionLog, "flush", flush_later)
        with log.table("users") as users:
            assert users.put("k", {"v": "1"}, **condition) == 0
            [written] = logs
            assert written.flushed_offset == written.log_end_offset
            assert users.get("k")["v"] == "1"
        assert set(outcomes) == {headrace.Outcome.UNKNOWN}
