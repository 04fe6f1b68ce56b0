"""Bytes that rot on one replica (H33, I17): found, never passed on, copied anew from another; a sole replica waits."""

from __future__ import annotations

import shutil
from pathlib import Path

import headrace
import pytest
from headrace.wire.errors import ErrorCode, Outcome

from tests.integration.replicated import Replicated, append, fetch, produce, until

BATCHES = 40
VALUES = [b"%04d" % number * 250 for number in range(BATCHES)]


def fill(replicated: Replicated, topic: str, replicas: list[int]) -> bytes:
    """A topic of one partition with a batch for each of VALUES, on the disks of all replicas."""
    topic_id = replicated.create(topic, [replicas], min_insync_replicas=min(2, len(replicas)))
    address = replicated.broker(replicas[0]).address
    for value in VALUES:
        append(address, topic_id, value)
    until(
        lambda: {log.flushed_offset for log in replicated.logs(topic).values()} == {BATCHES}, "all of it on every disk"
    )
    return topic_id


def rot(directory: Path, batch: int = BATCHES // 2) -> bytes:
    """Turn a few bytes in the middle of one batch; the file as it is then."""
    (path,) = directory.glob("*.log")
    data = bytearray(path.read_bytes())
    at = len(data) * batch // BATCHES + 500
    data[at : at + 4] = b"rot!"
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"rot!")
    return bytes(data)


def check_replaced(replicated: Replicated, broker_id: int, topic: str, topic_id: bytes, rotten: bytes) -> None:
    """The corrupt log was set aside as it is, another was copied in its place, and all replicas have all records."""
    replicated.wait_in_sync(topic)
    append(lambda: replicated.leader_address(topic), topic_id, b"after")
    replicated.check_replicas_equal(topic)
    assert replicated.values(broker_id, topic) == [*VALUES, b"after"]
    directory = replicated.log_directory(broker_id, topic)
    (kept,) = directory.with_name(f"{directory.name}.corrupt-0").glob("*.log")
    assert kept.read_bytes() == rotten
    assert replicated.logs(topic)[broker_id].offline_reason == ""
    assert "corrupt_log_replaced" in replicated.broker(broker_id).log_file.read_text()


def test_corruption_that_a_start_finds(replicated: Replicated) -> None:
    """A follower that finds corruption when it starts leaves the in-sync set, begins anew and comes back."""
    topic_id = fill(replicated, "at-start", [1, 2, 3])
    replicated.broker(2).kill()
    directory = replicated.log_directory(2, "at-start")
    rotten = rot(directory)
    # Without a recovery point the start looks at all of the log.
    for checkpoint in directory.glob("*checkpoint*"):
        checkpoint.unlink()
    replicated.cluster.restart(replicated.broker(2))
    until(lambda: replicated.metric(2, "replaced_logs_total") == 1, "the log replaced")
    check_replaced(replicated, 2, "at-start", topic_id, rotten)


def test_corruption_that_a_follower_finds(replicated: Replicated) -> None:
    """A follower that copies refuses the bytes and says so; the leader looks, resigns, and copies from the next."""
    topic_id = fill(replicated, "follower-finds", [1, 2, 3])
    replicated.broker(3).kill()
    shutil.rmtree(replicated.log_directory(3, "follower-finds"))
    replicated.wait_for("follower-finds", lambda part: 3 not in part.in_sync_replicas, "the set without broker 3")
    before = replicated.metric(1, "replaced_logs_total")
    rotten = rot(replicated.log_directory(1, "follower-finds"))
    replicated.cluster.restart(replicated.broker(3))
    replicated.wait_for("follower-finds", lambda part: part.leader_id == 2, "another leader")
    until(lambda: replicated.metric(1, "replaced_logs_total") == before + 1, "the leader's log replaced")
    check_replaced(replicated, 1, "follower-finds", topic_id, rotten)
    assert replicated.metric(3, "corrupt_fetches_total") >= 1
    assert replicated.values(3, "follower-finds") == [*VALUES, b"after"]


def test_corruption_that_a_reader_finds(replicated: Replicated) -> None:
    """A consumer reports the bytes, never delivers them; the leader resigns, and the reader continues at the next."""
    topic_id = fill(replicated, "reader-finds", [1, 2, 3])
    before = replicated.metric(1, "replaced_logs_total")
    rotten = rot(replicated.log_directory(1, "reader-finds"))
    with headrace.Reader("reader-finds", bootstrap_servers=replicated.servers, fetch_max_bytes=4_000) as reader:
        assert [record.value for record in reader] == VALUES
    assert replicated.partition("reader-finds").leader_epoch > 0
    until(lambda: replicated.metric(1, "replaced_logs_total") == before + 1, "the leader's log replaced")
    check_replaced(replicated, 1, "reader-finds", topic_id, rotten)


def test_a_false_alarm(replicated: Replicated) -> None:
    """Who says that it found corruption where there is none changes nothing."""
    topic_id = fill(replicated, "false-alarm", [1, 2, 3])
    for offset in (0, 7, BATCHES, 1 << 40):
        fetch(replicated.broker(1).address, topic_id, offset, corruption_detected=True)
    until(lambda: "corruption_not_confirmed" in replicated.broker(1).log_file.read_text(), "a look at the disk")
    append(replicated.broker(1).address, topic_id, b"after")
    assert replicated.partition("false-alarm").leader_epoch == 0


def test_corruption_on_a_sole_replica(replicated: Replicated) -> None:
    """The last copy: sound records are served, corrupt ones are an error and an alarm, and not truncated."""
    topic_id = fill(replicated, "sole", [1])
    directory = replicated.log_directory(1, "sole")
    rotten = rot(directory)
    address = replicated.broker(1).address
    found_before = replicated.metric(1, "corruptions_detected_total")
    values = []
    with headrace.Reader("sole", bootstrap_servers=replicated.servers, fetch_max_bytes=4_000) as reader:
        with pytest.raises(headrace.HeadraceError) as raised:
            values += [record.value for record in reader]
    assert raised.value.code == ErrorCode.CORRUPT_BATCH
    assert str(BATCHES // 2) in str(raised.value)
    until(lambda: replicated.metric(1, "corruptions_detected_total") > found_before, "an alarm")
    assert append(address, topic_id, b"after") == BATCHES
    (path,) = directory.glob("*.log")
    assert path.read_bytes()[: len(rotten)] == rotten
    # A start that looks at all of the log does not trust it any more, and cuts nothing either.
    replicated.broker(1).kill()
    rotten = path.read_bytes()
    for checkpoint in directory.glob("*checkpoint*"):
        checkpoint.unlink()
    replicated.cluster.restart(replicated.broker(1))
    error = until(lambda: produce(address, topic_id, b"never").error, "a refusal")
    assert (error.code, error.outcome) == (ErrorCode.STORAGE_OFFLINE, Outcome.NOT_APPLIED)
    assert path.name in error.message
    assert fetch(address, topic_id, 0).error.code == ErrorCode.STORAGE_OFFLINE
    assert replicated.metric(1, "offline_logs") == 1
    assert path.read_bytes() == rotten


def left_alone(replicated: Replicated, topic: str) -> bytes:
    """A topic whose last value broker 1 alone has, after broker 2 was killed."""
    topic_id = replicated.create(topic, [[1, 2]], min_insync_replicas=1)
    for value in VALUES[:-1]:
        append(replicated.broker(1).address, topic_id, value)
    replicated.broker(2).kill()
    replicated.wait_for(topic, lambda part: part.in_sync_replicas == (1,), "the leader alone in sync")
    append(replicated.broker(1).address, topic_id, VALUES[-1])
    return topic_id


def test_corruption_on_the_last_in_sync_replica(replicated: Replicated) -> None:
    """H14: it leads on until another has all records; then it resigns and copies what had rotted from that one."""
    topic_id = left_alone(replicated, "last")
    rotten = rot(replicated.log_directory(1, "last"))
    before = replicated.metric(1, "replaced_logs_total")
    fetch(replicated.broker(1).address, topic_id, BATCHES // 2, corruption_detected=True)
    until(lambda: "log_corrupt" in replicated.broker(1).log_file.read_text(), "an alarm")
    assert replicated.partition("last").leader_id == 1
    replicated.cluster.restart(replicated.broker(2))
    replicated.wait_in_sync("last")
    fetch(replicated.broker(1).address, topic_id, BATCHES // 2, corruption_detected=True)
    until(lambda: replicated.metric(1, "replaced_logs_total") == before + 1, "the corrupt log replaced")
    check_replaced(replicated, 1, "last", topic_id, rotten)


def test_corruption_that_an_administrator_gives_up(replicated: Replicated) -> None:
    """H21: a corrupt last copy of records is never replicated; an unclean election gives the records up."""
    topic_id = left_alone(replicated, "given-up")
    rot(replicated.log_directory(1, "given-up"), BATCHES - 1)
    replicated.cluster.restart(replicated.broker(2))
    until(lambda: replicated.metric(2, "corrupt_fetches_total") >= 1, "a fetch that fails its checks")
    part = replicated.partition("given-up")
    assert (part.leader_id, part.in_sync_replicas) == (1, (1,))
    assert replicated.logs("given-up")[2].log_end_offset == BATCHES - 1
    replicated.broker(1).kill()
    replicated.wait_for("given-up", lambda part: part.leader_id == -1, "no leader")
    where = [headrace.TopicPartition("given-up", 0)]
    (change,) = replicated.admin.elect_leaders("unclean", where)
    assert (change.error, change.leader_id) == (None, 2)
    replicated.cluster.restart(replicated.broker(1))
    append(replicated.broker(2).address, topic_id, b"after")
    replicated.check_replicas_equal("given-up")
    assert replicated.values(1, "given-up") == [*VALUES[:-1], b"after"]
