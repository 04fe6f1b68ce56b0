"""Copies of one partition, between sides that are dictionaries: what they tell of their progress."""

import asyncio
from types import SimpleNamespace

import pytest
from headrace.client.admin.partition_calls import CopyResult, Fetched
from headrace.client.mirror.copying import CopyLimits, PartitionCopy
from headrace.wire.batch import read_header
from headrace.wire.errors import DivergedLogError, OffsetOutOfRangeError, Outcome, TimedOutError
from headrace.wire.ids import TopicPartition


class FakeSide:
    """Returns the answers in turn; raises those that are errors."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def run(self, operation):
        if not self.answers:
            await asyncio.sleep(3_600)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


CALLS = SimpleNamespace(
    topic="clicks",
    fetch=lambda *arguments, **more: "fetch",
    append=lambda *arguments, **more: "append",
    batch_with=lambda *arguments: "batch",
)
SAME = (5, 7)
"""Batch of the source at the end of a copy that ends at offset 5 with the chain value 7."""


def test_a_copy_that_has_everything_is_well():
    """It tells so without an append: after an error nothing else would, until the source has new records."""
    source = FakeSide(SAME, Fetched(b"", 5, 0, 0, 1), TimedOutError("late", outcome=Outcome.UNKNOWN))
    target = FakeSide(CopyResult(5, 7, None))
    told = []
    one = PartitionCopy(0, (source, CALLS), (target, CALLS), CopyLimits(), lambda state: told.append(state.lag))
    with pytest.raises(TimedOutError):
        asyncio.run(one.run())
    assert told == [0]


def test_a_source_that_is_empty_behind_a_moved_start_is_caught_up():
    """The offsets become a gap with the chain value of the answer, so that the next record of the source fits."""
    source = FakeSide(None, Fetched(b"", 9, 9, 0, 1, 0xC0FFEE))
    target = FakeSide(CopyResult(5, 7, None), CopyResult(9, 0xC0FFEE, None))
    appended = []
    calls = SimpleNamespace(
        topic="clicks",
        fetch=lambda *arguments, **more: "fetch",
        batch_with=lambda *arguments: "batch",
        append=lambda number, batches, **more: appended.append(batches),
    )
    target.admin = source.admin = SimpleNamespace(list_offsets=no_offsets)
    told = []
    one = PartitionCopy(0, (source, calls), (target, calls), CopyLimits(), lambda state: told.append(state.lag))
    asyncio.run(one.run(until=9))
    assert told == [0]
    (first, (batch,)) = appended
    header = read_header(batch)
    assert (first, header.base_offset, header.end_offset) == ([], 5, 9)
    assert (header.previous_crc, header.chain_crc, header.record_count) == (7, 0xC0FFEE, 0)


def test_a_source_that_ends_where_the_mirror_does_with_other_records():
    """It was restored from a backup and written again: it is reported before any batch that does not fit."""
    source, target = FakeSide((5, 8)), FakeSide(CopyResult(5, 7, None))
    one = PartitionCopy(0, (source, CALLS), (target, CALLS), CopyLimits())
    with pytest.raises(DivergedLogError, match="another record than the mirror at offset 4"):
        asyncio.run(one.run())


def test_a_source_that_ends_before_the_mirror_is_not_followed():
    """It was restored from a backup: nothing is removed at the mirror, and the reason is reported."""
    source = FakeSide(None, OffsetOutOfRangeError("offset 5 is not in the log, which holds 0 to 3"))
    target = FakeSide(CopyResult(5, 7, None))
    ends = {"earliest": 0, "latest": 3}

    async def list_offsets(topic, at, partitions):
        return {TopicPartition(topic, 0): SimpleNamespace(offset=ends[at])}

    source.admin = SimpleNamespace(list_offsets=list_offsets)
    one = PartitionCopy(0, (source, CALLS), (target, CALLS), CopyLimits())
    with pytest.raises(DivergedLogError, match=r"ends at offset 3 at its source, and the mirror's at 5.* backup"):
        asyncio.run(one.run())
    assert one.state.end_offset == 5


async def no_offsets(topic, at, partitions):
    return {TopicPartition(topic, 0): SimpleNamespace(offset=9)}
