"""What goes wrong inside a directory that is open: the caller is told, and the next call works."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import count
from types import SimpleNamespace

import headrace
import pytest
from headrace.embedded import catalogue, wall_clock
from headrace.embedded.appends import AppendQueue, Written
from headrace.embedded.catalogue import DirectoryTopic, DirectoryTopics
from headrace.embedded.cluster import DirectoryCluster
from headrace.embedded.followed import FollowedDirectory
from headrace.embedded.group_offsets import GroupFiles
from headrace.embedded.groups import DirectoryGroups
from headrace.embedded.open_partition import LIMITS, DirectoryPartition
from headrace.embedded.opened import OpenDirectory
from headrace.embedded.polls import Polls
from headrace.embedded.records import DirectoryRecords
from headrace.embedded.server import DirectoryServer
from headrace.embedded.shared_bounds import BoundsWriter
from headrace.embedded.tables import DirectoryTableState, SharedCache
from headrace.groups.assignors import AssignableTopic
from headrace.log import log_compaction
from headrace.log.directory import DataDirectory
from headrace.log.errors import StorageFullError
from headrace.log.log_compaction import LogCompaction
from headrace.log.os_filesystem import OsFileSystem
from headrace.v1 import broker_pb2, cluster_pb2, groups_pb2
from headrace.wire.encoding import encode_batch
from headrace.wire.errors import FencedMemberEpochError, InternalError, StorageOfflineError
from headrace.wire.table_keys import table_key
from headrace.wire.zero_copy import SplicedMessage

WAIT = 30
CLICKS = b"c" * 16


def test_of_topics_of_one_name_created_at_once_one_is_there(tmp_path):
    with headrace.open(tmp_path / "events") as log:
        ready = threading.Barrier(8)

        def create(_: int) -> str | None:
            ready.wait(WAIT)
            try:
                log.admin.create_topic("clicks")
            except headrace.TopicAlreadyExistsError:
                return None
            return "created"

        for _ in range(20):
            with ThreadPoolExecutor(8) as threads:
                assert sorted(filter(None, threads.map(create, range(8)))) == ["created"]
            log.admin.delete_topic("clicks")


def test_a_directory_whose_groups_cannot_be_read_can_be_opened_once_they_can(tmp_path):
    path = tmp_path / "events"
    with headrace.open(path) as log:
        log.admin.create_topic("clicks")
    (path / "groups").mkdir(exist_ok=True)
    (path / "groups" / "g").write_bytes(b"torn")
    with pytest.raises(headrace.WrongDirectoryError, match="corrupt"):
        headrace.open(path)
    (path / "groups" / "g").unlink()
    with headrace.open(path) as log:
        assert log.topics() == ["clicks"]


def test_a_deleted_log_that_cannot_be_removed_ends_neither_the_deletion_nor_the_next_start(tmp_path, caplog):
    path = tmp_path / "events"
    with headrace.open(path) as log:
        log.admin.create_topic("clicks")
        [(copied,)] = [list(path.glob("*-0"))]
        (copied / "old").mkdir()
        (copied / "old" / "copy.log").write_bytes(b"an operator's")
        log.admin.delete_topic("clicks")
        log.admin.create_topic("clicks")
    with headrace.open(path) as log:
        assert log.admin.list_topics() == ["clicks"]
    assert len([record for record in caplog.records if "is not removed" in record.message]) == 2
    [left] = path.glob("*.deleted-*/old/copy.log")
    left.unlink()
    left.parent.rmdir()
    headrace.open(path).close()
    assert not list(path.glob("*.deleted-*"))


def test_a_group_that_is_deleted_while_a_reader_lists_the_groups(tmp_path, monkeypatch):
    """The others are read. A file that is corrupt is still said."""
    path = tmp_path / "events"
    with headrace.open(path) as log:
        log.admin.create_topic("clicks")
        for group in ("a", "b"):
            log.admin.reset_group_offsets(group, {headrace.TopicPartition("clicks", 0): 0})
        files = GroupFiles(OsFileSystem(), str(path))
        listed = OsFileSystem.list_directory

        def list_and_delete(self, directory):
            names = listed(self, directory)
            if names == ["a", "b"]:
                log.admin.delete_groups(["b"])
            return names

        monkeypatch.setattr(OsFileSystem, "list_directory", list_and_delete)
        assert [group for group, _ in files.read_all()] == ["a"]
        (path / "groups" / "c").write_bytes(b"torn")
        with pytest.raises(headrace.WrongDirectoryError, match="c is corrupt"):
            list(files.read_all())
        (path / "groups" / "c").unlink()


def test_the_list_of_topics_appears_while_a_reader_opens_the_directory(tmp_path, monkeypatch):
    """It is there or not, and not corrupt."""
    with headrace.open(tmp_path / "events") as log:
        opened = OsFileSystem.open

        def create_after(self, path, *, create=False):
            try:
                return opened(self, path, create=create)
            finally:
                if path.endswith("/topics"):
                    monkeypatch.undo()
                    log.admin.create_topic("clicks")

        monkeypatch.setattr(OsFileSystem, "open", create_after)
        topics = DirectoryTopics(OsFileSystem(), log.path)
        assert not topics.by_name
        topics.read()
        assert list(topics.by_name) == ["clicks"]


@pytest.mark.parametrize("where", ["log", "client"])
def test_an_interrupted_close_closes_the_directory(tmp_path, monkeypatch, where):
    """Ctrl-C while its threads end: it is raised afterwards, and the process can open the directory again."""
    path = tmp_path / "events"
    log = headrace.open(path)
    log.admin.create_topic("clicks")
    last = log if where == "log" else log.consumer()
    closed = DirectoryServer.close

    def interrupted(self):
        signal.raise_signal(signal.SIGINT)
        closed(self)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(DirectoryServer, "close", interrupted)
        log.close()
        last.close()
    with headrace.open(path) as again:
        assert again.topics() == ["clicks"]


@pytest.mark.parametrize("long_step", ["open_log", "remove_deleted"])
def test_producers_send_while_topics_are_created_and_deleted(tmp_path, monkeypatch, long_step):
    """Logs that are made, and files that are removed, delay no record of another topic."""
    with headrace.open(tmp_path / "events") as log, log.producer() as producer:
        log.admin.create_topic("clicks", partitions=1)
        log.admin.create_topic("old")
        work, begun, sent = getattr(DataDirectory, long_step), threading.Event(), threading.Event()

        def wait_and_work(*arguments, **options):
            begun.set()
            assert sent.wait(WAIT)
            return work(*arguments, **options)

        monkeypatch.setattr(DataDirectory, long_step, wait_and_work)
        with ThreadPoolExecutor(1) as threads:
            if long_step == "open_log":
                changing = threads.submit(log.admin.create_topic, "new")
            else:
                changing = threads.submit(log.admin.delete_topic, "old")
            try:
                assert begun.wait(WAIT)
                assert producer.send("clicks", b"1").result(WAIT / 3).offset == 0
            finally:
                sent.set()
            changing.result(WAIT)


def test_offsets_of_a_topic_that_is_created_during_a_deletion_are_kept(tmp_path, monkeypatch):
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("old")
        new = headrace.TopicPartition("new", 0)

        def create_and_commit(topic_ids):
            log.admin.create_topic("new")
            log.admin.reset_group_offsets("g", {new: 0})

        monkeypatch.setattr(log._server._tables, "keep", create_and_commit)
        log.admin.delete_topic("old")
        assert list(log.admin.group_offsets("g")) == [new]


@pytest.mark.parametrize("step", ["open_log", "replace_file"])
@pytest.mark.parametrize("grows", [False, True])
def test_partitions_that_cannot_be_made_are_not_there(tmp_path, monkeypatch, step, grows):
    """A topic is created, or gets partitions, as a whole: the same call succeeds once the disk has room."""
    path = tmp_path / "events"
    with headrace.open(path) as log, log.producer() as producer:
        log.admin.create_topic("old", partitions=1)
        producer.send("old", b"kept").result(WAIT)
        names = sorted(each.name for each in path.iterdir())

        def change():
            if grows:
                log.admin.create_partitions("old", 4)
            else:
                log.admin.create_topic("new", partitions=3)

        calls, target = count(), DataDirectory if step == "open_log" else catalogue
        work = getattr(target, step)

        def fail_later(*arguments, **options):
            if next(calls) == (2 if step == "open_log" else 0):
                raise StorageFullError("the disk is full")
            return work(*arguments, **options)

        with monkeypatch.context() as patch, pytest.raises(StorageFullError):
            patch.setattr(target, step, fail_later)
            change()
        assert log.topics() == ["old"]
        assert sorted(each.name for each in path.iterdir()) == names
        assert producer.send("old", b"more").result(WAIT).partition == 0
        change()
        with log.producer() as later:
            name, number = ("old", 3) if grows else ("new", 2)
            assert later.send(name, b"1", partition=number).result(WAIT).offset == 0
    with headrace.open(path) as log:
        assert [record.value for record in log.reader("old") if record.partition == 0] == [b"kept", b"more"]


class NotingLock:
    """A lock that notes when a thread comes to take it."""

    def __init__(self, lock: object, by: threading.Thread) -> None:
        self.came = threading.Event()
        self._lock = lock
        self._by = by

    def __enter__(self) -> None:
        if threading.current_thread() is self._by:
            self.came.set()
        self._lock.__enter__()

    def __exit__(self, *error: object) -> None:
        self._lock.__exit__(*error)


def test_a_directory_is_closed_while_a_creation_fails(tmp_path, monkeypatch):
    """Neither waits for a lock that the other one has."""
    directory = OpenDirectory(str(tmp_path / "events"), creates=True)
    topic = DirectoryTopic("clicks", CLICKS, 1, {}, 1)
    closing = threading.Thread(target=directory.close, daemon=True)
    lock = NotingLock(directory._lock, closing)
    errors = []

    def fail(*_):
        closing.start()
        assert lock.came.wait(WAIT)
        raise StorageFullError("the disk is full")

    def create():
        try:
            directory.create(topic)
        except StorageFullError as error:
            errors.append(error)

    monkeypatch.setattr(directory, "_lock", lock)
    monkeypatch.setattr(directory.topics, "put", fail)
    creating = threading.Thread(target=create, daemon=True)
    creating.start()
    creating.join(WAIT)
    assert len(errors) == 1
    closing.join(WAIT)
    assert not closing.is_alive()


def test_a_close_stops_a_compaction(tmp_path, monkeypatch):
    """It does not wait for what may take minutes; the next opening compacts the log again."""
    directory = OpenDirectory(str(tmp_path / "events"), creates=True)
    directory.create(DirectoryTopic("state", CLICKS, 1, {"cleanup_policy": "compact"}, 1))
    (partition,) = directory._partitions.values()
    assert partition.append([encode_batch([b"1"], keys=[b"k"], base_timestamp_ms=1)] * 2).error is None
    partition.log.close_below(partition.log.log_end_offset)
    begun, stopped, reports = threading.Event(), threading.Event(), []
    select, wait = log_compaction.select_records, LogCompaction.wait

    def select_until_stopped(*arguments):
        begun.set()
        reports.append(stopped.wait(WAIT))
        return select(*arguments)

    def note_and_wait(compaction):
        stopped.set()
        wait(compaction)

    monkeypatch.setattr(LogCompaction, "wait", note_and_wait)
    monkeypatch.setattr(log_compaction, "select_records", select_until_stopped)
    care = partial(directory._care, partition, retains=False, compacts=True)
    directory._thread = threading.Thread(target=care, daemon=True)
    directory._thread.start()
    assert begun.wait(WAIT)
    directory.close()
    assert reports == [True]
    again = OpenDirectory(str(tmp_path / "events"), creates=False)
    (partition,) = again._partitions.values()
    assert (partition.visible_end, partition.reader.has_compacted_segments) == (2, False)
    again.close()


def test_a_full_disk_is_an_error_of_the_file_of_bounds(tmp_path):
    """Its space is reserved when it is made: a page that is written later would end the process if there is none."""
    writer = BoundsWriter(str(tmp_path))
    writer.show(0)
    found = (tmp_path / "bounds").stat()
    assert found.st_blocks * 512 >= found.st_size
    writer.close()


def test_a_call_that_begins_to_wait_after_the_end_is_answered():
    polls, ended = Polls(), threading.Semaphore(0)
    for _ in range(2):
        polls.begin(None, lambda is_last: is_last or None, 1e9, lambda response, error: ended.release())
        polls.close()
        assert ended.acquire(timeout=WAIT)


def test_a_child_of_a_fork_during_the_close_does_not_keep_the_directory(tmp_path):
    """The lock is the parent's; a child that is forked while threads are waited for would keep it open."""
    program = """
        import os, sys, threading, headrace
        from headrace.embedded.server import DirectoryServer
        log, close = headrace.open(sys.argv[1]), DirectoryServer.close
        begun, forked = threading.Event(), threading.Event()
        def close_later(server):
            begun.set()
            forked.wait(30)
            close(server)
        DirectoryServer.close = close_later
        closing = threading.Thread(target=log.close)
        closing.start()
        begun.wait(30)
        (reading, writing), (started, starting) = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.write(starting, b"1")
            os.read(reading, 1)
            os._exit(0)
        os.read(started, 1)
        forked.set()
        closing.join()
        headrace.open(sys.argv[1]).close()
        print("opened")
        os.close(writing)
        os.waitpid(child, 0)
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "events")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert found.stdout == "opened\n", found.stderr


def test_lists_of_topics_leave_out_what_is_deleted_meanwhile(tmp_path, monkeypatch):
    """Metadata and logs of all topics are those of the others."""
    with headrace.open(tmp_path / "events") as log:
        directory = log._server.directory
        listed = directory.all_topics

        def list_and_delete():
            found = listed()
            monkeypatch.undo()
            log.admin.delete_topic("old")
            return found

        for answer in (
            lambda: DirectoryCluster(directory).metadata(cluster_pb2.GetMetadataRequest()).topics,
            lambda: DirectoryRecords(directory).describe_logs(broker_pb2.DescribeLogsRequest()).logs,
        ):
            for name in ("kept", "old"):
                if name not in log.topics():
                    log.admin.create_topic(name, partitions=1)
            monkeypatch.setattr(directory, "all_topics", list_and_delete)
            assert [each.name for each in answer()] == ["kept"]


def test_a_dump_leaves_out_a_group_that_is_deleted_meanwhile(tmp_path, monkeypatch):
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("clicks")
        for group in ("kept", "old"):
            log.admin.reset_group_offsets(group, {headrace.TopicPartition("clicks", 0): 0})
        listed = DirectoryGroups.list

        def list_and_delete(*arguments):
            found = listed(*arguments)
            log.admin.delete_groups(["old"])
            return found

        monkeypatch.setattr(DirectoryGroups, "list", list_and_delete)
        server = log._server
        keys = [entry.key for entry in server.call("cluster", "DumpMetadata", cluster_pb2.DumpMetadataRequest())]
        assert any("/kept/" in key for key in keys)
        assert not any("/old/" in key for key in keys)


class Appends:
    """A queue of appends whose work is scripted."""

    def __init__(self, write) -> None:
        self.queue = AppendQueue(write, lambda partitions: None)
        self.answers: list[tuple[object, object]] = []
        self._answered = threading.Semaphore(0)

    def put(self) -> tuple[object, object]:
        self.queue.put(SplicedMessage(broker_pb2.ProduceRequest(), []), self._done)
        assert self._answered.acquire(timeout=WAIT)
        return self.answers[-1]

    def _done(self, response: object, error: object) -> None:
        self.answers.append((response, error))
        self._answered.release()


class FailingPartition:
    """A partition of which no flush succeeds."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def flush_appended(self) -> None:
        raise self.error


def test_appends_go_on_after_an_error_that_nobody_expected():
    failures = iter([ZeroDivisionError("a bug")])

    def write(request: SplicedMessage) -> Written:
        for error in failures:
            raise error
        return Written(broker_pb2.ProduceResponse(), [], [], True)

    appends = Appends(write)
    response, error = appends.put()
    assert response is None
    assert isinstance(error, InternalError)
    assert "a bug" in error.message
    assert appends.put()[1] is None
    appends.queue.close()


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("failure", [StorageOfflineError("the disk is gone"), ZeroDivisionError("a bug")])
def test_a_failed_flush_is_told_to_those_who_wait_for_it(waits, failure):
    responses: list[broker_pb2.ProduceResponse] = []

    def write(request: SplicedMessage) -> Written:
        response = broker_pb2.ProduceResponse()
        result = response.topics.add().partitions.add()
        responses.append(response)
        partition = FailingPartition(failure)
        return Written(response, [partition], [(partition, result)], waits)  # type: ignore[list-item]

    appends = Appends(write)
    for _ in range(2):
        assert appends.put()[1] is None
    appends.queue.close()
    assert len(appends.answers) == 2, "each is answered once"
    for response in responses:
        assert response.topics[0].partitions[0].HasField("error") == waits


def heartbeat(groups: DirectoryGroups, member_id: bytes, epoch: int = 0) -> groups_pb2.HeartbeatResponse:
    attempt, _ = groups.heartbeat(
        groups_pb2.HeartbeatRequest(
            group_id="g", member_id=member_id, member_epoch=epoch, topics=["clicks"], session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
        )
    )  # fmt: skip
    response = attempt(True)
    assert response is not None
    return response


def test_a_refused_heartbeat_does_not_hide_from_others_what_they_are_assigned(tmp_path):
    topics = {"clicks": AssignableTopic(CLICKS, "clicks", 2)}
    groups = DirectoryGroups(GroupFiles(OsFileSystem(), str(tmp_path)), lambda: topics)
    first, second = b"1" * 16, b"2" * 16
    heartbeat(groups, first)
    heartbeat(groups, second)
    for _ in range(3):
        known = {each: heartbeat(groups, each, heartbeat(groups, each).member_epoch) for each in (first, second)}
    topics["clicks"] = AssignableTopic(CLICKS, "clicks", 4)
    with pytest.raises(FencedMemberEpochError):
        heartbeat(groups, first, known[first].member_epoch + 1_000)
    entry = groups._groups["g"]
    owned = {each: entry.group.owned_by(each) for each in (first, second)}
    for each, before in known.items():
        held = sum(len(topic.partitions) for topic in before.assigned)
        assert (entry.revisions[each] > before.revision) == (len(owned[each]) != held)
    assert sum(map(len, owned.values())) == 4


def test_a_group_that_is_made_anew_has_higher_epochs(tmp_path):
    """The assignment epoch is a fencing token: after the deletion of the group, and after a new start as well."""
    topics = {"clicks": AssignableTopic(CLICKS, "clicks", 1)}
    tokens = []
    for number in range(4):
        groups = DirectoryGroups(GroupFiles(OsFileSystem(), str(tmp_path)), lambda: topics)
        for member in (b"%d" % (2 * number) * 16, b"%d" % (2 * number + 1) * 16):
            (topic,) = heartbeat(groups, member).assigned
            tokens += topic.assignment_epochs
            groups.leave(groups_pb2.LeaveGroupRequest(group_id="g", member_id=member))
            if number < 3:
                (answer,) = groups.delete(groups_pb2.DeleteGroupsRequest(group_ids=["g"])).groups
                assert not answer.HasField("error"), answer.error
    assert tokens == sorted(set(tokens)), "each is larger than all before"


def test_the_other_partitions_are_cared_for_after_an_error_that_nobody_expected(tmp_path, monkeypatch, caplog):
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("clicks", partitions=2)
        directory = log._server.directory
        topic = next(iter(directory.all_topics()))
        first, second = (directory.readable(topic, number) for number in range(2))
        kept = threading.Event()
        monkeypatch.setattr(first, "checkpoint", lambda _: 1 / 0)
        monkeypatch.setattr(second, "checkpoint", lambda _: kept.set())
        with log.producer() as producer:
            producer.send("clicks", b"1", partition=1).result(WAIT)
        assert kept.wait(WAIT)
        assert "ZeroDivisionError" in caplog.text


def test_producers_that_are_silent_are_forgotten(tmp_path):
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("clicks")
        directory = log._server.directory
        partition = directory.readable(next(iter(directory.all_topics())), 0)
        assert isinstance(partition, DirectoryPartition)
        batch = encode_batch([b"1"], base_timestamp_ms=1, producer_id=9, producer_epoch=0, base_sequence=0)
        assert partition.append([batch]).error is None
        now_ms = time.time_ns() // 1_000_000
        for at_ms in (now_ms, None):
            partition.checkpoint(at_ms)
            assert len(partition.producers._producers) == 1
        partition.checkpoint(now_ms + LIMITS.producer_expiry_ms + 1)
        assert not partition.producers._producers


def test_nothing_is_old_while_the_clock_has_jumped(tmp_path, monkeypatch):
    """H43: one that was set ahead deleted all records within a minute. What exceeds a size is removed all the same."""
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("clicks")
        log.admin.create_topic("users", config={"cleanup_policy": "compact"})
        directory, compacted = log._server.directory, []
        clicks, users = sorted(directory._partitions.values(), key=lambda each: each.topic.name)
        monkeypatch.setattr(users, "compact", lambda *_: compacted.append(users))

        def send():
            with log.producer() as producer:
                producer.send_many("clicks", [b"1", b"2", b"3"])

        def care():
            for partition in clicks, users:
                directory._care(partition, retains=True, compacts=True)
            return clicks.log_start_offset, clicks.log.segment_count, len(compacted)

        send()
        later = time.time_ns() + 30 * 86_400 * 1_000_000_000
        with monkeypatch.context() as patch:
            patch.setattr(wall_clock.time, "time_ns", lambda: later)
            assert care() == (0, 1, 0)
            log.admin.alter_config("clicks", {"retention_bytes": 1})
            clicks.log.close_below(clicks.visible_end)
            send()
            assert care() == (3, 1, 0)
        assert care() == (3, 1, 1)


def test_columns_that_a_wrong_clock_has_expired_are_there_again(tmp_path, monkeypatch):
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("users", config={"cleanup_policy": "compact", "table": "yes"})
        with log.table("users") as table:
            table.put("u", {"a": "1"}, ttl=timedelta(hours=1))
            later = time.time_ns() + 7_200 * 1_000_000_000
            clock = SimpleNamespace(time_ns=lambda: later, monotonic=time.monotonic)
            with monkeypatch.context() as patch:
                patch.setattr("headrace.embedded.tables.time", clock)
                assert table.get("u") is None
            assert dict(table.get("u") or {}) == {"a": "1"}


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_follower_of_a_table_misses_no_deletion_that_was_removed_meanwhile(tmp_path, has_ended):
    """Also while the compaction replaces further files: until it has ended, the bounds do not have what it removes."""
    path = str(tmp_path / "events")
    with headrace.open(path) as log:
        log.admin.create_topic("users", config={"cleanup_policy": "compact", "table": "yes"})
        topic = next(iter(log._server.directory.all_topics()))
        partition = log._server.directory.readable(topic, 0)
        followed = FollowedDirectory(path)
        state = DirectoryTableState(followed.readable(topic, 0), SharedCache())
        with log.producer() as producer:
            producer.send("users", b"1", key=table_key(b"gone", b"c")).result(WAIT)
            producer.send("users", b"2", key=table_key(b"kept", b"c")).result(WAIT)
            followed.readable(topic, 0)
            assert state.catch_up() == 2
            assert state.rows.columns == 2
            producer.send("users", None, key=table_key(b"gone", b"c")).result(WAIT)
            partition.log.close_below(partition.visible_end)
            compact = partition.compact if has_ended else partition.log.compaction.compact
            compact(1 << 50, partition.visible_end)
            assert partition.log.deletions_end > 0
            producer.send("users", b"3", key=table_key(b"last", b"c")).result(WAIT)
        log._server.directory._care(partition, retains=False, compacts=False)
        assert followed.readable(topic, 0).removed_deletions_end == partition.log.deletions_end
        assert state.catch_up() == partition.visible_end
        assert state.rows.columns == 2, "the deleted key is gone, another one has come"
        followed.close()
