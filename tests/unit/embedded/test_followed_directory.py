"""A directory that another process writes to: what a reader sees of it while it changes."""

from __future__ import annotations

import threading

import headrace
import pytest
from headrace.embedded import shared_bounds
from headrace.embedded.followed import FollowedDirectory
from headrace.embedded.shared_bounds import BoundsReader, BoundsWriter, SharedBounds
from headrace.v1 import topics_pb2

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
