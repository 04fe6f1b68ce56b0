"""Look-ups of offsets, and the new position after one outside the log. No I/O."""

from collections.abc import Sequence
from datetime import datetime

from headrace.client.admin.operations import AdminOperations
from headrace.client.base.errors import LogTruncationError
from headrace.client.base.operations import Operation
from headrace.wire.errors import HeadraceError, OffsetOutOfRangeError
from headrace.wire.ids import TopicPartition

LOOK_UP_TIMEOUT_S = 5.0
"""Timeout of one look-up of an offset: other partitions wait for it."""


def log_bounds(
    admin: AdminOperations, where: TopicPartition, timeout: float, topic_id: bytes = b""
) -> Operation[tuple[int, int]]:
    """Look up the log start and the offset of the next visible record; `timeout` is in seconds, for each look-up.

    `topic_id` is the id of the incarnation of the topic in which to look; empty means any.

    Raises:
        UnknownTopicIdError: If the topic has another id.
    """
    found = []
    for edge in ("earliest", "latest"):
        topic_id, answer = yield from admin.find_offsets(
            where.topic,
            edge,
            partitions=[where.partition],
            timeout=min(timeout, LOOK_UP_TIMEOUT_S),
            topic_id=topic_id,
        )
        found.append(answer[where].offset)
    return found[0], found[1]


def offsets_at(
    admin: AdminOperations, partitions: Sequence[TopicPartition], at: str | float | datetime
) -> Operation[dict[TopicPartition, tuple[int, bytes]]]:
    """Look up offsets; return each with the id of its topic. `at` is earliest, latest or a time."""
    found: dict[TopicPartition, tuple[int, bytes]] = {}
    for topic in dict.fromkeys(where.topic for where in partitions):
        numbers = [where.partition for where in partitions if where.topic == topic]
        topic_id, answers = yield from admin.find_offsets(topic, at, partitions=numbers)
        found.update({where: (answer.offset, topic_id) for where, answer in answers.items()})
    return found


def position_after(
    where: TopicPartition, position: int, earliest: int, latest: int, auto_offset_reset: str
) -> int | HeadraceError:
    """Return the offset to continue from (the position itself if it is in the log), or the error if there is none."""
    if earliest <= position <= latest:
        return position
    if auto_offset_reset != "error":
        return earliest if auto_offset_reset == "earliest" else latest
    if position > latest:
        return LogTruncationError(where, position, latest)
    return OffsetOutOfRangeError(
        f"{where} starts at offset {earliest}; the {earliest - position} records from {position} on are gone",
        action=f"Seek to {earliest}, or set auto_offset_reset.",
    )
