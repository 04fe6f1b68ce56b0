"""A directory in place of a cluster: who may open it, what it refuses, and what it needs."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import textwrap
import time

import headrace
import pytest
from headrace.client.admin import groups as admin_groups
from headrace.log.checkpoint import read_sealed, seal
from headrace.log.directory import DataDirectory
from headrace.log.os_filesystem import OsFileSystem

from tests.children import running

WAIT = 30


def in_process(code: str, *arguments: str) -> str:
    """Run code in another process; its output."""
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_records_are_there_after_it_was_closed(tmp_path):
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("clicks", partitions=2)
        with log.producer() as producer:
            futures = [producer.send("clicks", b"%d" % number, key=b"%d" % number) for number in range(100)]
        assert {future.result(WAIT).partition for future in futures} == {0, 1}
    with headrace.open(tmp_path / "events") as log:
        assert log.topics() == ["clicks"]
        assert sorted(int(record.value) for record in log.reader("clicks")) == list(range(100))
        with log.producer() as producer:
            assert producer.send("clicks", b"more", partition=0).result(WAIT).offset > 0


def test_it_stays_open_until_its_last_client_is_closed(tmp_path):
    log = headrace.open(tmp_path / "events")
    log.admin.create_topic("clicks")
    producer = log.producer()
    log.close()
    assert producer.send("clicks", b"1").result(WAIT).offset == 0
    producer.close()
    with pytest.raises(headrace.ClosedError):
        log.producer()
    with headrace.open(tmp_path / "events") as again:
        assert [record.value for record in again.reader("clicks")] == [b"1"]


def test_a_second_writer_is_told_which_process_writes(tmp_path):
    with headrace.open(tmp_path / "events"):
        said = in_process(
            """
            import sys, headrace
            try:
                headrace.open(sys.argv[1])
            except headrace.DirectoryInUseError as error:
                print(error.message, error.action)
            """,
            str(tmp_path / "events"),
        )
    assert f"process {os.getpid()} writes to" in said
    assert "read_only=True" in said


def test_another_process_reads_what_is_written_and_changes_nothing(tmp_path):
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("clicks", partitions=1)
        program = [
            sys.executable,
            "-c",
            textwrap.dedent(
                """
                import sys, headrace
                with headrace.open(sys.argv[1], read_only=True) as log:
                    consumer = log.consumer(auto_offset_reset="earliest")
                    consumer.assign([headrace.TopicPartition("clicks", 0)])
                    values = []
                    print("ready", flush=True)
                    while len(values) < 3000:
                        values += [record.value for record in consumer.poll(1.0)]
                    print(values == [b"%d" % number for number in range(3000)])
                    for change in (
                        lambda: log.admin.create_topic("x"),
                        lambda: log.admin.delete_records("clicks", {0: 1}),
                        lambda: log.producer().send("clicks", b"1").result(30),
                    ):
                        try:
                            change()
                        except headrace.HeadraceError as error:
                            print(type(error).__name__, flush=True)
                    consumer.close()
                """
            ),
            str(tmp_path / "events"),
        ]
        with running(program, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout.readline() == "ready\n"
            with log.producer(batch_records=100) as producer:  # Segments are rolled, and a topic comes meanwhile.
                for number in range(3000):
                    producer.send("clicks", b"%d" % number)
                    if number == 1500:
                        producer.flush()
                        log.admin.create_topic("other")
            assert reader.stdout.readline() == "True\n"
            assert reader.stdout.read().split() == 3 * ["DirectoryInUseError"]
            assert reader.wait(WAIT) == 0


def test_a_reader_follows_rolled_and_compacted_segments(tmp_path):
    path = str(tmp_path / "events")
    config = {"cleanup_policy": "compact", "segment_bytes": 1 << 16, "max_batch_bytes": 1 << 14}
    with headrace.open(path) as log:
        log.admin.create_topic("state", config=config)
        with log.producer(batch_records=20) as producer:
            for number in range(2000):
                producer.send("state", b"x" * 100, key=b"%d" % (number % 10))
        partition = log._server.directory._partitions.popitem()[1]
        partition.log.close_below(partition.visible_end)
        partition.compact(1 << 50, partition.visible_end)
        assert partition.log.segment_count < 4
        log._server.directory.show()
        count = """
            import sys, headrace
            with headrace.open(sys.argv[1], read_only=True) as log:
                print(sum(1 for record in log.reader("state")))
        """
        assert int(in_process(count, path)) == 10


@pytest.mark.parametrize("mode", ["write", "read"])
def test_a_directory_of_something_else_is_refused(tmp_path, mode):
    (tmp_path / "letter.txt").write_text("Dear Ada")
    with pytest.raises(headrace.WrongDirectoryError, match=r"letter\.txt|no topics"):
        headrace.open(tmp_path, read_only=mode == "read")
    assert os.listdir(tmp_path) == ["letter.txt"]


def test_a_missing_directory_is_not_made_by_a_reader(tmp_path):
    for settings in ({}, {"group_id": "g"}):
        with pytest.raises(headrace.WrongDirectoryError, match="no directory"):
            headrace.Consumer("clicks", bootstrap_servers=f"dir:{tmp_path / 'typo'}", **settings)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("runs", [True, False])
def test_a_broker_s_directory_is_refused(tmp_path, runs):
    """Whether the broker runs or not; its files stay as they are."""
    path = str(tmp_path / "broker")
    opened = DataDirectory.open(path, cluster_id="c1", generation=1, broker_id=7, new_storage_id=bytes(16))
    try:
        if not runs:
            opened.close(clean=True)
        before = sorted(os.listdir(path))
        with pytest.raises(headrace.WrongDirectoryError, match="broker 7 of cluster c1"):
            headrace.open(path)
        with pytest.raises(headrace.WrongDirectoryError, match="holds no topics"):
            headrace.open(path, read_only=True)
        assert sorted(os.listdir(path)) == before
    finally:
        if runs:
            opened.close(clean=True)


def test_a_late_reset_does_not_undo_a_commit_without_membership(tmp_path):
    """Also after the directory was opened again: no epoch returns."""
    path, where = str(tmp_path / "events"), headrace.TopicPartition("clicks", 0)
    with headrace.open(path) as log:
        log.admin.create_topic("clicks")
        log.admin.reset_group_offsets("g", {where: 0})
        seen = log.admin.describe_group("g").group_epoch
        log.admin.reset_group_offsets("g", {where: 1})
    with headrace.open(path) as log:
        with pytest.raises(headrace.ConflictError):
            log.admin.reset_group_offsets("g", {where: 2}, expected_group_epoch=seen)
        assert log.admin.group_offsets("g")[where].offset == 1
        seen = log.admin.describe_group("g").group_epoch
        log.admin.delete_groups(["g"])
        log.admin.reset_group_offsets("g", {where: 3})
        with pytest.raises(headrace.ConflictError):
            log.admin.reset_group_offsets("g", {where: 2}, expected_group_epoch=seen)


def test_a_reset_of_many_requests_is_one_decision(tmp_path, monkeypatch):
    """Of a new group, and of one that exists; of two resets with the same epoch one is stored."""
    monkeypatch.setattr(admin_groups, "MAX_COMMIT_PARTITIONS", 2)
    places = [headrace.TopicPartition("clicks", number) for number in range(5)]
    with headrace.open(str(tmp_path / "events")) as log:
        log.admin.create_topic("clicks", partitions=5)
        for seen, offset in ((lambda: 0, 1), (lambda: log.admin.describe_group("g").group_epoch, 2)):
            epoch = seen()
            results = log.admin.reset_group_offsets("g", dict.fromkeys(places, offset), expected_group_epoch=epoch)
            assert [result.error for result in results] == [None] * 5
            with pytest.raises(headrace.ConflictError):
                log.admin.reset_group_offsets("g", {places[0]: 9}, expected_group_epoch=epoch)
            assert [each.offset for each in log.admin.group_offsets("g").values()] == [offset] * 5


@pytest.mark.parametrize("file", ["topics", "identity", "groups/g"])
def test_a_directory_of_a_newer_release_is_left_as_it_is(tmp_path, file):
    path = str(tmp_path / "events")
    with headrace.open(path) as log:
        log.admin.create_topic("clicks")
        log.admin.reset_group_offsets("g", {headrace.TopicPartition("clicks", 0): 0})
    content = json.loads(read_sealed(OsFileSystem(), f"{path}/{file}"))
    (tmp_path / "events" / file).write_bytes(seal(json.dumps({**content, "format": 99}).encode()))
    before = (tmp_path / "events" / file).read_bytes()
    with pytest.raises(headrace.WrongDirectoryError, match="newer release"):
        headrace.open(path)
    assert (tmp_path / "events" / file).read_bytes() == before


def test_a_lost_list_of_topics_removes_no_records(tmp_path):
    path = tmp_path / "events"
    with headrace.open(path) as log:
        log.admin.create_topic("clicks")
        with log.producer() as producer:
            producer.send("clicks", b"1")
    (path / "topics").unlink()
    with pytest.raises(headrace.WrongDirectoryError, match="topics"):
        headrace.open(path)
    assert any(name.endswith("-0") for name in os.listdir(path))


def test_a_child_process_does_not_close_or_use_its_parent_s_directory(tmp_path):
    said = in_process(
        """
        import os, sys, headrace
        log = headrace.open(sys.argv[1])
        log.admin.create_topic("clicks")
        producer = log.producer()
        producer.send("clicks", b"parent").result(30)
        child = os.fork()
        if not child:
            try:
                producer.send("clicks", b"child")
            except headrace.ForkedError:
                os._exit(7)
            os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        producer.send("clicks", b"again").result(30)
        producer.close()
        print([record.value for record in log.reader("clicks")])
        log.close()
        """,
        str(tmp_path / "events"),
    )
    assert said == "7\n[b'parent', b'again']\n"


def test_a_torn_tail_is_cut_and_the_rest_is_kept(tmp_path):
    path = str(tmp_path / "events")
    in_process(
        """
        import os, sys, headrace
        log = headrace.open(sys.argv[1])
        log.admin.create_topic("clicks")
        producer = log.producer()
        futures = [producer.send("clicks", b"%d" % number) for number in range(100)]
        producer.flush()
        os._exit(0)  # as killed
        """,
        path,
    )
    segment = next((tmp_path / "events").glob("*-0/*.log"))
    with segment.open("ab") as file:
        file.write(segment.read_bytes()[:50])
    with headrace.open(path) as log:
        assert [int(record.value) for record in log.reader("clicks")] == list(range(100))
        with log.producer() as producer:
            assert producer.send("clicks", b"after").result(WAIT).offset == 100


def test_opening_imports_neither_grpc_nor_arrow_nor_asyncio(tmp_path):
    said = in_process(
        """
        import sys, headrace
        with headrace.open(sys.argv[1]) as log:
            log.admin.create_topic("clicks")
            with log.producer() as producer:
                producer.send("clicks", b"1").result(30)
            consumer = log.consumer("clicks", group_id="g", auto_offset_reset="earliest")
            while not consumer.poll(1.0):
                pass
            consumer.close()
            list(log.reader("clicks"))
        print([name for name in ("grpc", "asyncio", "pyarrow", "pandas") if name in sys.modules])
        """,
        str(tmp_path / "events"),
    )
    assert said == "[]\n"


def test_copies_are_one_whatever_is_asked(tmp_path):
    with headrace.open(tmp_path / "events") as log:
        created = log.admin.create_topic("clicks", replication_factor=3)
        assert created.replication_factor == 1
        assert any("one copy" in warning for warning in created.warnings)
        with pytest.raises(headrace.InvalidRequestError, match="a directory has no"):
            log.admin.list_users()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.EACCES, errno.EROFS])
def test_a_directory_that_cannot_be_written_is_named_with_the_reason(tmp_path, monkeypatch, number):
    def refuse(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(headrace.WrongDirectoryError, match=os.strerror(number)) as found:
        headrace.open(tmp_path / "events")
    assert "read_only" in found.value.action


def test_a_file_is_no_directory(tmp_path):
    (tmp_path / "events").write_text("")
    with pytest.raises(headrace.WrongDirectoryError, match="events"):
        headrace.open(tmp_path / "events")


def test_a_full_disk_refuses_appends_and_serves_reads(tmp_path, monkeypatch):
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("clicks")
        with log.producer() as producer:
            producer.send("clicks", b"1").result(WAIT)
        full = log._server.directory._directory._environment.space
        monkeypatch.setattr(full, "refusing", True)
        producer = log.producer(delivery_timeout_ms=500, request_timeout_ms=400)
        with pytest.raises(headrace.TimedOutError, match=r"the disk of .* is full"):
            producer.send("clicks", b"2").result(WAIT)
        assert [record.value for record in log.reader("clicks")] == [b"1"]
        with pytest.raises(headrace.DeliveryError):
            producer.close()
        monkeypatch.setattr(full, "refusing", False)
        with log.producer() as again:
            assert again.send("clicks", b"3").result(WAIT).offset == 1


def test_a_deleted_topic_leaves_nothing(tmp_path):
    path = tmp_path / "events"
    with headrace.open(path) as log:
        log.admin.create_topic("kept")
        log.admin.create_topic("users", config={"cleanup_policy": "compact", "table": "yes"})
        with log.table("users") as users:
            users.put("u17", {"name": "Ada"})
            assert users.get("u17")["name"] == "Ada"
        with log.consumer("users", "kept", group_id="g", auto_offset_reset="earliest") as consumer:
            while not consumer.poll(1.0):
                pass
            consumer.commit()
        assert log.admin.group_offsets("g")
        before = len(list(path.glob("*-0")))
        log.admin.delete_topic("users")
        assert len(list(path.glob("*-0"))) == before - 1
        assert {where.topic for where in log.admin.group_offsets("g")} <= {"kept"}
        log.admin.create_topic("users", config={"cleanup_policy": "compact", "table": "yes"})
        with log.table("users") as users:
            assert users.get("u17") is None
    with headrace.open(path) as log:
        assert log.topics() == ["kept", "users"]


def test_the_lag_of_a_group_has_the_age_of_its_first_unread_record(tmp_path):
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("clicks")
        with log.producer() as producer:
            for age_ms in (7_200_000, 3_600_000):
                producer.send("clicks", b"x", timestamp_ms=time.time_ns() // 1_000_000 - age_ms).result(WAIT)
        log.admin.reset_group_offsets("g", {headrace.TopicPartition("clicks", 0): 1})
        (lag,) = log.admin.group_lag("g")
    assert (lag.records, lag.problem) == (1, "")
    assert 3_600_000 <= lag.behind_ms < 7_200_000


def test_settings_and_partitions_are_changed(tmp_path):
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("clicks")
        log.admin.alter_config("clicks", {"retention_bytes": "1000000"})
        log.admin.create_partitions("clicks", 3)
        with pytest.raises(headrace.InvalidPartitionsError):
            log.admin.create_partitions("clicks", 2)
    with headrace.open(tmp_path / "events") as log:
        assert log.admin.describe_config("clicks")["retention_bytes"].value == "1000000"
        assert len(log.admin.describe_topic("clicks").partitions) == 3
        with log.producer() as producer:
            assert producer.send("clicks", b"1", partition=2).result(WAIT).offset == 0
        assert log.admin.list_offsets("clicks", "latest")[headrace.TopicPartition("clicks", 2)].offset == 1
        deleted = log.admin.delete_records("clicks", {2: 1})
        assert deleted[0].log_start_offset == 1


def test_retention_removes_old_segments(tmp_path):
    with headrace.open(tmp_path / "events") as log:
        config = {"segment_bytes": 1 << 16, "max_batch_bytes": 1 << 14, "retention_bytes": 1 << 17}
        log.admin.create_topic("clicks", config=config)
        with log.producer(batch_records=20) as producer:
            for _ in range(5000):
                producer.send("clicks", b"x" * 100)
        partition = next(iter(log._server.directory._partitions.values()))
        before = partition.log.segment_count
        partition.retain(time.time_ns() // 1_000_000)
        assert partition.log.segment_count < before
        assert partition.log_start_offset > 0
        first = next(iter(log.reader("clicks")))
        assert first.offset <= partition.log_start_offset < 5000


def test_times_of_records_and_lags_of_groups(tmp_path):
    """By offset; a group's lag has the age of its first unread record."""
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("clicks")
        clicks = headrace.TopicPartition("clicks", 0)
        for at_ms in (1_000, 2_000):
            with log.producer() as producer:
                producer.send("clicks", b"v", timestamp_ms=at_ms).result(WAIT)
        assert [log.admin.record_times("clicks", {0: offset}) for offset in range(3)] == [
            {clicks: 1_000},
            {clicks: 2_000},
            {},
        ]
        log.admin.reset_group_offsets("billing", {clicks: 1})
        (lag,) = log.admin.group_lag("billing")
        now_ms = time.time_ns() // 1_000_000
        assert (lag.records, lag.problem) == (1, "")
        assert abs(now_ms - 2_000 - lag.behind_ms) < 60_000
