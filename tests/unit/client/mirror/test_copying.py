"""Copies of one partition, between sides that are dictionaries: what they tell of their progress."""

import asyncio
from itertools import pairwise
from types import SimpleNamespace

import pytest
from headrace.client.admin.partition_calls import CopyResult, Fetched
from headrace.client.mirror.copying import CopyLimits, PartitionCopy
from headrace.partition.fitting import LogPoint, gap
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


ENDS = (LogPoint(0, 0), LogPoint(5, 7), LogPoint(9, 8))
BATCHES = [b"".join(gap(start, end, 0)) for start, end in pairwise(ENDS)]
FETCHED = [Fetched(batch, 9, 0, 0, 1) for batch in BATCHES]
"""Two answers of a source whose high watermark is 9."""
DONE = [CopyResult(*end, None) for end in ENDS]
REFUSED = DivergedLogError("no", outcome=Outcome.NOT_APPLIED)


class ConcurrentSide(FakeSide):
    """Each answer is returned once its turn has come: a coroutine function decides when."""

    def __init__(self, *answers):
        super().__init__(*answers)
        self.asked = []

    async def run(self, operation):
        self.asked.append(operation)
        answer = await super().run(operation)
        return await answer() if callable(answer) else answer


def copied_until_9(source, target):
    """Copy with calls that return their offset or batches; return the copy, which must leave no task running."""
    calls = SimpleNamespace(
        topic="clicks",
        fetch=lambda number, offset, **more: offset,
        append=lambda number, batches, **more: batches,
        batch_with=lambda *arguments: "batch",
    )
    one = PartitionCopy(0, (source, calls), (target, calls), CopyLimits())

    async def copy():
        try:
            async with asyncio.timeout(10):
                await one.run(until=9)
        finally:
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(copy())
    return one


def overlapping(first, second):
    """Return two answers, of which the first comes once the second is asked for."""
    second_sent = asyncio.Event()

    async def answer_first():
        await second_sent.wait()
        return first

    async def answer_second():
        second_sent.set()
        if isinstance(second, Exception):
            raise second
        return second

    return answer_first, answer_second


def test_an_append_is_sent_while_the_one_before_it_is_written():
    """The second is in flight before the first is answered: the broker receives one while it writes the other."""
    target = ConcurrentSide(DONE[0], *overlapping(DONE[1], DONE[2]))
    one = copied_until_9(ConcurrentSide(*FETCHED), target)
    assert one.state.end_offset == 9
    assert target.asked == [[], *([batch] for batch in BATCHES)]


@pytest.mark.parametrize("behind", [REFUSED, DONE[0], DONE[2]])
def test_what_is_behind_a_refused_append_is_fetched_again(behind):
    """Another leader has begun: the copy continues where the log ends, whatever the second append has met."""
    source = ConcurrentSide(*FETCHED, *FETCHED)
    target = ConcurrentSide(DONE[0], *overlapping(DONE[0], behind), DONE[0], DONE[1], DONE[2])
    assert copied_until_9(source, target).state.end_offset == 9
    assert source.asked == [0, 5, 0, 5]
    assert target.asked == [[], *([batch] for batch in BATCHES), [], *([batch] for batch in BATCHES)]


def test_an_append_that_fails_behind_another_one_is_tried_as_the_first():
    """Only then its error counts: it may have arrived before the one that it continues."""
    source = ConcurrentSide(*FETCHED, FETCHED[1], FETCHED[1])
    target = ConcurrentSide(DONE[0], DONE[1], REFUSED, DONE[1], REFUSED)
    with pytest.raises(DivergedLogError):
        copied_until_9(source, target)
    assert source.asked == [0, 5, 5]


def test_an_error_of_the_first_append_ends_those_behind_it():
    """None is left running when the copy has failed."""

    async def first():
        await asyncio.sleep(0)
        raise REFUSED

    with pytest.raises(DivergedLogError):
        copied_until_9(ConcurrentSide(*FETCHED), ConcurrentSide(DONE[0], first))


async def no_offsets(topic, at, partitions):
    return {TopicPartition(topic, 0): SimpleNamespace(offset=9)}
