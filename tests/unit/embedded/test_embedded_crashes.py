"""A directory whose machine stops at any call of the file system: nothing acknowledged is lost, and it opens again.

`HEADRACE_CRASH_SEEDS=60 pytest tests/unit/embedded/test_embedded_crashes.py` has more than 10,000 crash points.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
from headrace.embedded.catalogue import DirectoryTopic
from headrace.embedded.group_offsets import GroupFiles
from headrace.embedded.groups import DirectoryGroups
from headrace.embedded.opened import OpenDirectory
from headrace.groups.assignors import AssignableTopic
from headrace.log.errors import CorruptLogError
from headrace.v1 import groups_pb2
from headrace.wire.batch import iter_batches
from headrace.wire.columns import decode_batch
from headrace.wire.encoding import encode_batch

from tests.fakes.memory_filesystem import Loss, MemoryFileSystem, PowerLost

SEEDS = int(os.environ.get("HEADRACE_CRASH_SEEDS", "2"))
PATH = "/events"
EVENTS, OLD = b"e" * 16, b"o" * 16


class Ledger:
    """What was acknowledged, and what was only asked for when the machine stopped."""

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        self.values: dict[int, list[bytes]] = {}
        self.sent: dict[int, list[bytes]] = {}
        self.committed = -1
        self.committing = -1
        self.deleting = False


def topic(name: str, topic_id: bytes, partitions: int, **configs: str) -> DirectoryTopic:
    return DirectoryTopic(name, topic_id, partitions, configs, 1)


def opened(filesystem: MemoryFileSystem) -> tuple[OpenDirectory, DirectoryGroups]:
    directory = OpenDirectory(PATH, creates=True, filesystem=filesystem)
    topics = {each.name: AssignableTopic(each.topic_id, each.name, each.partitions) for each in directory.all_topics()}
    return directory, DirectoryGroups(GroupFiles(filesystem, PATH), lambda: topics)


def append(directory: OpenDirectory, ledger: Ledger, number: int, values: list[bytes], sequence: int) -> None:
    partition = directory._partitions[EVENTS, number]
    ledger.sent.setdefault(number, []).extend(values)
    batch = encode_batch(values, base_timestamp_ms=1, producer_id=9, producer_epoch=0, base_sequence=sequence)
    result = partition.append([batch])
    assert result.error is None, result.error
    partition.flush()
    ledger.values.setdefault(number, []).extend(values)


def commit(groups: DirectoryGroups, ledger: Ledger, offset: int) -> None:
    ledger.committing = offset
    request = groups_pb2.CommitOffsetsRequest(group_id="g")
    request.topics.add(topic_id=EVENTS).partitions.add(partition=0, offset=offset, leader_epoch=-1)
    answer = groups.commit(request)
    assert not answer.topics[0].partitions[0].HasField("error")
    ledger.committed = offset


def live(filesystem: MemoryFileSystem, ledger: Ledger) -> None:
    """One life of a directory: topics come, grow and go, records are appended, and offsets are committed."""
    directory, groups = opened(filesystem)
    directory.create(topic("old", OLD, 1))
    ledger.topics["old"] = 1
    directory.create(topic("events", EVENTS, 1, segment_bytes=str(1 << 16), max_batch_bytes="2048"))
    ledger.topics["events"] = 1
    groups = DirectoryGroups(GroupFiles(filesystem, PATH), lambda: {"events": AssignableTopic(EVENTS, "events", 2)})
    for step in range(4):
        append(directory, ledger, 0, [b"%d-%d" % (step, number) for number in range(3)], 3 * step)
        commit(groups, ledger, 3 * step)
        directory._partitions[EVENTS, 0].checkpoint(None)
    directory.change(directory.topics.by_name["events"], lambda events: replace(events, partitions=2))
    ledger.topics["events"] = 2
    append(directory, ledger, 1, [b"second"], 0)
    ledger.deleting = True
    directory.delete(directory_reference(OLD))
    del ledger.topics["old"]
    directory._partitions[EVENTS, 0].snapshot()
    append(directory, ledger, 0, [b"last"], 12)
    directory.close()


def directory_reference(topic_id: bytes):
    from headrace.v1 import topics_pb2

    return topics_pb2.TopicRef(topic_id=topic_id)


def values_of(directory: OpenDirectory, number: int) -> list[bytes]:
    partition = directory._partitions.get((EVENTS, number))
    if partition is None or partition.visible_end == 0:
        return []
    found: list[bytes] = []
    offset = 0
    while offset < partition.visible_end:
        with partition.reader.read(offset, 1 << 20, partition.visible_end) as piece:
            for header, batch in iter_batches(piece.read()):
                found += decode_batch(batch, max_payload_bytes=1 << 20).value_column.to_list()
                offset = header.end_offset
    return found


def check(filesystem: MemoryFileSystem, ledger: Ledger) -> None:
    directory, groups = opened(filesystem)
    topics = directory.topics.by_name
    for name, partitions in ledger.topics.items():
        if name == "old" and ledger.deleting:
            continue
        assert name in topics, f"topic {name} is lost"
        assert topics[name].partitions >= partitions
    for number, values in ledger.values.items():
        found = values_of(directory, number)
        assert found[: len(values)] == values, f"of partition {number} acknowledged records are lost"
        assert found == ledger.sent[number][: len(found)], "what is there was sent, in this order"
    answer = groups.fetch_offsets(groups_pb2.FetchOffsetsRequest(group_id="g"))
    offset = answer.topics[0].partitions[0].offset if answer.topics else -1
    assert ledger.committed <= offset <= max(ledger.committed, ledger.committing)
    if "events" in topics:  # It takes records again, and a repeated batch is none.
        partition = directory._partitions[EVENTS, 0]
        before = len(values_of(directory, 0))
        if before:
            last = ledger.sent[0][before - 1 : before] if before > 12 else ledger.sent[0][before - 3 : before]
            again = encode_batch(
                last, base_timestamp_ms=1, producer_id=9, producer_epoch=0, base_sequence=before - len(last)
            )
            assert partition.append([again]).repeated, "a retry is stored twice"
        assert partition.append([encode_batch([b"more"], base_timestamp_ms=1)]).error is None
        partition.flush()
        assert values_of(directory, 0)[before:] == [b"more"]
    directory.close()
    OpenDirectory(PATH, creates=False, filesystem=filesystem).close()


def calls_of_a_life() -> int:
    filesystem = MemoryFileSystem()
    low, high = 0, 4_096
    live(filesystem, Ledger())
    while low < high:  # The number of calls after which the machine would stop later than the end.
        middle = (low + high) // 2
        filesystem = MemoryFileSystem()
        filesystem.lose_power(after=middle)
        try:
            live(filesystem, Ledger())
        except PowerLost:
            low = middle + 1
        else:
            high = middle
    return low


@pytest.mark.parametrize("loss", list(Loss))
def test_nothing_acknowledged_is_lost_wherever_the_machine_stops(loss):
    calls = calls_of_a_life()
    assert calls > 100
    for after in range(calls):
        for seed in range(SEEDS):
            filesystem, ledger = MemoryFileSystem(), Ledger()
            filesystem.lose_power(after=after)
            with pytest.raises(PowerLost):
                live(filesystem, ledger)
            filesystem.crash(loss, random.Random(f"{after}-{seed}"))
            try:
                check(filesystem, ledger)
            except (AssertionError, CorruptLogError) as error:
                raise AssertionError(f"call {after}, seed {seed}: {error}") from error
