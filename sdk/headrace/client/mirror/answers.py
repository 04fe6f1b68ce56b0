"""Answers of workers to the questions of operators about the source of a mirror. One event loop.

Only workers have the files that the source's settings name, and the network to it.
"""

import asyncio
import logging
from datetime import timedelta
from typing import Any

from headrace.client.admin.admin_async import AsyncAdmin
from headrace.client.admin.partition_calls import PartitionCalls
from headrace.client.base.errors import ConfigError
from headrace.client.mirror.copying import Side, end_tasks
from headrace.client.mirror.mirrors_async import AsyncMirrors
from headrace.client.mirror.rows import CommonEnd, SourceAnswer, SourceQuestion
from headrace.wire.batch import iter_batches
from headrace.wire.errors import HeadraceError, InternalError

ANSWER_LIVES = timedelta(minutes=5)
WORKING_LIVES = timedelta(seconds=15)
"""Life of the note that a worker has begun: one that has died is not waited for."""
RENEW_SECONDS = 5.0
"""Interval at which the note is stored again."""
_COMPARED_AT_ONCE = 8
"""Partitions of a topic."""
_log = logging.getLogger("headrace.mirror")


async def answer(
    mirrors: AsyncMirrors, key: str, worker: str, question: SourceQuestion, settings: dict[str, Any]
) -> None:
    """Store that a worker has begun, and then its answer to a question, or why there is none.

    Args:
        mirrors: of the cluster that has the mirror.
        key: of the question.
        worker: its id.
        question: what is asked.
        settings: of the cluster that has the mirror.

    Raises:
        HeadraceError: If it cannot be stored.
    """
    working = asyncio.create_task(_answered(question, settings))
    try:
        while not working.done():
            await mirrors.note_answer(key, worker, "", WORKING_LIVES)
            await asyncio.wait([working], timeout=RENEW_SECONDS)
    finally:
        await end_tasks([working])
    try:
        found = working.result()
    except HeadraceError as error:
        if isinstance(error, ConfigError):
            error.action = f"The settings of the source of {question.mirror} name files of its workers: correct them."
        found = SourceAnswer(error=error)
    except Exception as error:
        _log.exception("the source of mirror %s cannot be asked", question.mirror)
        found = SourceAnswer(error=InternalError(repr(error)))
    await mirrors.note_answer(key, worker, found.to_text(), ANSWER_LIVES)


async def _answered(question: SourceQuestion, settings: dict[str, Any]) -> SourceAnswer:
    ends: dict[str, dict[int, CommonEnd]] = {}
    async with Side(question.settings.source) as source, Side(settings) as target:
        names = dict.fromkeys(question.topics)
        if question.is_all:
            others = await source.admin.list_topics()
            names.update(dict.fromkeys(name for name in others if question.settings.has_topic(name)))
        for topic in names:
            if question.is_compared:
                ends[topic] = await _compare(topic, source, target)
            else:
                latest = await source.admin.list_offsets(topic, "latest")
                ends[topic] = {tp.partition: CommonEnd(-1, -1, at.offset) for tp, at in latest.items()}
    return SourceAnswer(ends)


async def _compare(topic: str, source: Side, target: Side) -> dict[int, CommonEnd]:
    """Return how far the logs of a topic are equal here and at the source.

    Records that cannot be compared, because the source has deleted that part of its log, count as different ones.
    """
    ours = target.topic(topic, (await target.admin.describe_topic(topic)).topic_id)
    theirs = source.topic(topic, (await source.admin.describe_topic(topic)).topic_id)
    bounds, others = await _bounds(target.admin, topic), await _bounds(source.admin, topic)
    room = asyncio.Semaphore(_COMPARED_AT_ONCE)

    async def compare(number: int, start: int, end: int) -> CommonEnd:
        other_start, other_end = others.get(number, (0, 0))
        first = low = max(start, other_start)
        high = min(end, other_end)
        offset = high - 1  # First of all the end, which is the usual case.
        async with room:
            while low < high:
                batch = await target.run(ours.batch_with(number, offset))
                if batch == await source.run(theirs.batch_with(number, offset)):
                    low = offset + 1
                else:
                    high = offset
                offset = (low + high) // 2
            if low > first or (
                start < end == other_start and await _continues(number, end, source, theirs, target, ours)
            ):
                return CommonEnd(max(low, start), end, other_end)
        common = start if start < end else min(end, other_end)  # No record is known to be the same.
        return CommonEnd(common, end, other_end)

    try:
        async with asyncio.TaskGroup() as tasks:
            found = {number: tasks.create_task(compare(number, *each)) for number, each in bounds.items()}
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
    return {number: task.result() for number, task in found.items()}


async def _continues(
    number: int, end: int, source: Side, theirs: PartitionCalls, target: Side, ours: PartitionCalls
) -> bool:
    """Return whether the source's log, which begins where ours ends, has the chain value of our last batch."""
    last = await target.run(ours.batch_with(number, end - 1))
    found = await source.run(theirs.fetch(number, end, max_wait_ms=0, max_bytes=1))
    before = found.chain_crc
    for header, _ in iter_batches(found.batches):
        before = header.previous_crc if header.base_offset == end else None
        break
    return last == (end, before)


async def _bounds(admin: AsyncAdmin, topic: str) -> dict[int, tuple[int, int]]:
    """Return log start and high watermark of each partition."""
    starts = await admin.list_offsets(topic, "earliest")
    ends = await admin.list_offsets(topic, "latest")
    return {tp.partition: (starts[tp].offset, at.offset) for tp, at in ends.items()}
