"""A directory that another process writes to: what a reader sees of it while it changes."""

from __future__ import annotations

import threading

import headrace
import pytest
from headrace.embedded import shared_bounds
from headrace.embedded.fetches import DirectoryFetches
from headrace.embedded.followed import FollowedDirectory, ReadOnlyFileSystem
from headrace.embedded.records import DirectoryRecords
from headrace.embedded.shared_bounds import BoundsReader, BoundsWriter, SharedBounds
from headrace.log.errors import StorageFullError
from headrace.v1 import broker_pb2, topics_pb2
from headrace.wire.errors import InternalError

WAIT = 30
A, B, C = (name * 16 for name in (b"a", b"b", b"c"))


def bounds_to(end_offset: int) -> SharedBounds:
    return SharedBounds(0, 0, end_offset, 0, 0, 0)


def write_bounds(path: str, *slots: tuple[bytes, int]) -> BoundsWriter:
    writer = BoundsWriter(path)
    for topic_id, end_offset in slots:
        writer.begin(topic_id, 0, bounds_to(end_offset))
    writer.show(1)
    return writer


def test_a_reader_has_the_bounds_of_the_log_that_it_asks_for(tmp_path, monkeypatch):
    """Also while another thread of its process looks at the file of a writer that was opened anew without a topic."""
    path = str(tmp_path)
    write_bounds(path, (A, 1), (B, 5)).close()
    reader = BoundsReader(path)
    write_bounds(path, (B, 6), (C, 90)).close()
    checked, seen = shared_bounds._checked, []

    def read_meanwhile(*arguments):
        monkeypatch.undo()
        seen.append(reader.read(B, 0))
        return checked(*arguments)

    monkeypatch.setattr(shared_bounds, "_checked", read_meanwhile)
    reader.refresh()
    assert seen in ([bounds_to(5)], [bounds_to(6)])
    assert reader.read(B, 0) == bounds_to(6)
    assert reader.read(C, 0) == bounds_to(90)
    assert reader.read(A, 0) is None


def test_a_reader_that_fails_to_look_at_a_new_file_keeps_the_old_one(tmp_path, monkeypatch):
    path = str(tmp_path)
    write_bounds(path, (A, 1), (B, 5)).close()
    reader = BoundsReader(path)
    write_bounds(path, (B, 6), (C, 90)).close()
    with monkeypatch.context() as patch:
        patch.setattr(shared_bounds, "_checked", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            reader.refresh()
    assert reader.read(B, 0) == bounds_to(5)
    reader.refresh()
    assert reader.read(B, 0) == bounds_to(6)


@pytest.mark.parametrize("size", [0, 10])
def test_bounds_that_a_loss_of_power_has_emptied(tmp_path, size):
    """A reader says what helps, which the next writer does."""
    with headrace.open(tmp_path) as log:
        log.admin.create_topic("t")
    reader = FollowedDirectory(str(tmp_path))
    (tmp_path / "bounds").unlink()
    (tmp_path / "bounds").write_bytes(b"x" * size)
    with pytest.raises(InternalError, match="Open the directory for writing"):
        headrace.open(tmp_path, read_only=True)
    with pytest.raises(InternalError):
        reader.all_topics()
    with headrace.open(tmp_path) as log:
        assert log.topics() == ["t"]
    assert [topic.name for topic in reader.all_topics()] == ["t"]


def test_a_log_that_begins_again_keeps_its_slot(tmp_path):
    """A topic whose growth failed has it tried again, and a copy that was deleted is fetched again, with its id."""
    writer = write_bounds(str(tmp_path), (A, 1), (B, 5), (B, 6), (C, 90))
    writer.write(B, 0, bounds_to(7))
    reader = BoundsReader(str(tmp_path))
    assert [reader.read(each, 0) for each in (A, B, C)] == [bounds_to(1), bounds_to(7), bounds_to(90)]
    writer.close()


def test_a_reader_sees_a_partition_whose_creation_failed_at_first(tmp_path, monkeypatch):
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("clicks", partitions=1)
        with monkeypatch.context() as patch, pytest.raises(StorageFullError):
            patch.setattr(log._server.directory.topics, "put", raise_full)
            log.admin.create_partitions("clicks", 2)
        log.admin.create_partitions("clicks", 2)
        log.admin.create_topic("views", partitions=1)
        followed = FollowedDirectory(log.path)
        for topic, partition, end_offset in (("clicks", 1, 1), ("views", 0, 1), ("clicks", 1, 2)):
            with log.producer() as producer:
                producer.send(topic, b"1", partition=partition).result(WAIT)
            found = followed.readable(followed.topic(topics_pb2.TopicRef(name=topic)), partition)
            assert found.visible_end == end_offset
        followed.close()


def raise_full(*_: object) -> None:
    raise StorageFullError("the disk is full")


@pytest.mark.parametrize("partitions", [64, 65, 150])
def test_a_directory_of_many_partitions_is_read_after_it_was_opened_again(tmp_path, partitions):
    """While it is opened, the file of bounds grows before readers see it."""
    path = tmp_path / "events"
    with headrace.open(path) as log, log.producer() as producer:
        log.admin.create_topic("clicks", partitions=partitions)
        for number in (0, partitions - 1):
            producer.send("clicks", b"1", partition=number).result(WAIT)
    with headrace.open(path) as log:
        followed = FollowedDirectory(log.path)
        topic = followed.topic(topics_pb2.TopicRef(name="clicks"))
        ends = [followed.readable(topic, number).visible_end for number in range(partitions)]
        assert ends == [1, *[0] * (partitions - 2), 1]
        followed.close()


def test_a_refused_change_hides_no_topic(tmp_path):
    """The error names the process that writes; what it has created is seen by the next call."""
    with headrace.open(tmp_path / "events") as log:
        followed = FollowedDirectory(log.path)
        log.admin.create_topic("clicks")
        with pytest.raises(headrace.DirectoryInUseError):
            followed.writer()
        assert [topic.name for topic in followed.all_topics()] == ["clicks"]
        followed.close()


def test_topics_that_could_not_be_read_are_read_by_the_next_call(tmp_path, monkeypatch):
    with headrace.open(tmp_path / "events") as log:
        followed = FollowedDirectory(log.path)
        log.admin.create_topic("clicks")
        with monkeypatch.context() as patch:
            patch.setattr(followed.topics, "read", lambda: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                followed.all_topics()
        assert [topic.name for topic in followed.all_topics()] == ["clicks"]
        followed.close()


def test_the_end_of_a_followed_log_does_not_go_back(tmp_path, monkeypatch):
    """Two threads read at once, and the one that has read the bounds first would be the last to follow them."""
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("clicks", partitions=1)
        followed = FollowedDirectory(log.path)
        topic = followed.topic(topics_pb2.TopicRef(name="clicks"))
        partition, read, seen = followed.readable(topic, 0), BoundsReader.read, [0]

        def follow_unless_it_waits():
            if partition.lock.acquire(blocking=False):
                partition.lock.release()
                seen.append(followed.readable(topic, 0).visible_end)

        def read_first(*arguments):
            found = read(*arguments)
            monkeypatch.undo()
            with log.producer() as producer:
                producer.send("clicks", b"1").result(WAIT)
            other = threading.Thread(target=follow_unless_it_waits)
            other.start()
            other.join(WAIT)
            return found

        monkeypatch.setattr(BoundsReader, "read", read_first)
        assert followed.readable(topic, 0).visible_end >= seen[-1]
        assert followed.readable(topic, 0).visible_end == 1
        followed.close()


@pytest.fixture
def state(tmp_path):
    """A compacted topic of many segments, as its writer and a reader have it, and what compacts it."""
    config = {"cleanup_policy": "compact", "segment_bytes": 1 << 16, "max_batch_bytes": 1 << 14}
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("state", partitions=1, config=config)
        with log.producer(batch_records=20) as producer:
            for number in range(2_000):
                producer.send("state", b"x" * 100, key=b"%d" % (number % 10))
        followed = FollowedDirectory(log.path)
        written = log._server.directory.readable(log._server.directory.topic(STATE), 0)

        def compact():
            written.log.close_below(written.visible_end)
            written.compact(1 << 50, written.visible_end)
            assert written.log.retention.purge_deleted_files() == 0

        yield log, followed, compact
        followed.close()


STATE = topics_pb2.TopicRef(name="state")


def fetched_offsets(followed: FollowedDirectory, offset: int = 0) -> int:
    """Fetch the first batches from an offset on; return the offset behind them."""
    request = broker_pb2.FetchRequest(max_bytes=1 << 20)
    request.topics.add(topic=STATE).partitions.add(partition=0, offset=offset)
    attempt, _ = DirectoryFetches(followed).fetch_whole(request)
    (topic,) = attempt(True).topics
    (part,) = topic.partitions
    assert not part.HasField("error"), part.error
    return part.next_offset


def test_a_fetch_reads_what_has_replaced_a_file(state):
    """Compaction changes the files alone: the reader that knew the old ones reads the directory again."""
    _, followed, compact = state
    followed.readable(followed.topic(STATE), 0)
    compact()
    assert fetched_offsets(followed) > 0


def test_offsets_are_listed_by_what_has_replaced_a_file(state):
    _, followed, compact = state
    followed.readable(followed.topic(STATE), 0)
    compact()
    request = broker_pb2.ListOffsetsRequest()
    request.topics.add(topic=STATE).partitions.add(partition=0, spec=broker_pb2.OFFSET_SPEC_TIMESTAMP, timestamp_ms=1)
    request.topics.add(topic=STATE).partitions.add(partition=0, spec=broker_pb2.OFFSET_SPEC_RECORD, offset=5)
    for topic in DirectoryRecords(followed).list_offsets(request).topics:
        assert not topic.partitions[0].HasField("error"), topic.partitions[0].error
        assert topic.partitions[0].timestamp_ms > 0


def test_a_file_that_is_removed_while_a_reader_lists_them(state, monkeypatch):
    _, followed, compact = state
    listed = ReadOnlyFileSystem.list_directory

    def list_and_compact(*arguments):
        names = listed(*arguments)
        monkeypatch.undo()
        compact()
        return names

    monkeypatch.setattr(ReadOnlyFileSystem, "list_directory", list_and_compact)
    assert fetched_offsets(followed) > 0


@pytest.fixture
def idle(tmp_path):
    """A topic of one segment as its writer has it, and what appends to it, and what closes and compacts it."""
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("state", partitions=1, config={"cleanup_policy": "compact"})
        written = log._server.directory.readable(log._server.directory.topic(STATE), 0)

        def append(records: int) -> None:
            with log.producer(batch_records=5) as producer:
                for number in range(records):
                    producer.send("state", b"x" * 200, key=b"%d" % (number % 2))

        def compact():
            written.log.close_below(written.visible_end)
            written.compact(1 << 50, written.visible_end)
            assert written.log.compaction.end_offset == written.visible_end
            assert written.log.retention.purge_deleted_files() == 0

        followed = FollowedDirectory(log.path)
        yield log._server.directory, followed, append, compact
        followed.close()


@pytest.mark.parametrize("is_shown", [True, False])
def test_a_log_that_is_compacted_without_further_appends(idle, is_shown):
    """The file that replaces the last segment is read to its own end, also before the new bounds are shown."""
    directory, followed, append, compact = idle
    append(30)
    compact()
    if is_shown:
        directory.show()
        assert followed._bounds_of(followed.topic(STATE), 0).end_position == 0, "it ends in the new segment"
    assert fetched_offsets(followed) == 30
    append(10)
    assert fetched_offsets(followed, 30) == 40


def test_older_bounds_than_the_files_that_a_reader_has_seen(idle):
    """A reader lists the directory after the compaction, and follows bounds that were written before it."""
    _, followed, append, compact = idle
    append(20)
    assert fetched_offsets(followed) == 20
    append(10)
    newer = followed._bounds_of(followed.topic(STATE), 0)
    compact()
    partition = followed._partitions[followed.topic(STATE).topic_id, 0]
    partition.log.read_again()
    partition.follow(newer)
    assert fetched_offsets(followed) == 30


def test_a_file_that_is_replaced_before_a_reader_follows_its_end(idle):
    """The reader knows the file that was there, and its index."""
    _, followed, append, compact = idle
    append(20)
    assert fetched_offsets(followed, 7) == 20
    append(10)
    compact()
    followed._environment.files.drop_all(followed._partitions[followed.topic(STATE).topic_id, 0].log.directory)
    assert fetched_offsets(followed) == 30


def test_a_topic_that_is_deleted_while_a_reader_begins_to_read_it(state):
    """It is unknown from then on; the storage is not said to have failed."""
    log, followed, _ = state
    topic = followed.topic(STATE)
    log.admin.delete_topic("state")
    with pytest.raises(headrace.UnknownTopicIdError):
        followed.readable(topic, 0)
