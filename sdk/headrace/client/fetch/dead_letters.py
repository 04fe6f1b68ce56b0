"""Records of a dead-letter topic: records whose handler failed for good, and batches that cannot be decoded.

Both are stored as their original bytes, with the cause in headers.
"""

import dataclasses
from typing import Any, NamedTuple

from headrace.client.base.config import ClientConfig
from headrace.client.base.errors import error_text
from headrace.client.base.records import Record, bytes_of
from headrace.wire.errors import CorruptBatchError
from headrace.wire.ids import TopicPartition

PREFIX = "headrace.dead_letter."
MESSAGE_CHARACTERS = 1_000
PART_BYTES = 512 * 1024
"""Maximum bytes of a batch in one dead letter; with all its headers it fits the default max_batch_bytes of a topic."""


class DeadLetter(NamedTuple):
    """Record to send to the dead-letter topic; key and value are those of the failed record."""

    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    """Headers of the failed record, followed by the cause; see `dead_letter`."""


def dead_letter(record: Record, error: BaseException | None, attempts: int, group_id: str, now_ms: int) -> DeadLetter:
    """Return the dead letter of a record whose handler failed for good. `now_ms` is milliseconds since 1970.

    Headers, each with the prefix `headrace.dead_letter.`: `error` (the type's name), `message`, `topic`, `partition`,
    `offset`, `timestamp_ms` (of the record), `attempts`, `failed_ms`, `group`. If a record becomes a dead letter again,
    the newer headers follow the older ones.
    """
    cause = {
        "error": type(error).__name__,
        "message": error_text(error)[:MESSAGE_CHARACTERS],
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "timestamp_ms": str(record.timestamp_ms),
        "attempts": str(attempts),
        "failed_ms": str(now_ms),
        "group": group_id,
    }
    headers = tuple((PREFIX + name, text.encode(errors="replace")) for name, text in cause.items())
    return DeadLetter(bytes_of(record.value), record.key, (*record.headers, *headers))


def batch_letters(
    where: TopicPartition, error: CorruptBatchError, group_id: str, now_ms: int
) -> tuple[DeadLetter, ...]:
    """Return the dead letters of a batch that cannot be decoded: its bytes, in parts of `PART_BYTES`.

    Headers, each with the prefix `headrace.dead_letter.`: `error`, `message`, `topic`, `partition`, `offset` (of the
    first record that is not delivered), `next_offset` (after the batch), `part` and `parts` (counted from 1),
    `failed_ms`, `group`. All parts have the same key, so they are in one partition and in order.
    """
    parts = [error.batch[start : start + PART_BYTES] for start in range(0, len(error.batch), PART_BYTES)] or [b""]
    key = f"{where.topic} {where.partition} {error.offset}".encode()
    cause = {
        "error": type(error).__name__,
        "message": error.message[:MESSAGE_CHARACTERS],
        "topic": where.topic,
        "partition": str(where.partition),
        "offset": str(error.offset),
        "next_offset": str(error.next_offset),
        "parts": str(len(parts)),
        "failed_ms": str(now_ms),
        "group": group_id,
    }
    headers = tuple((PREFIX + name, text.encode(errors="replace")) for name, text in cause.items())
    return tuple(
        DeadLetter(part, key, (*headers, (f"{PREFIX}part", b"%d" % number))) for number, part in enumerate(parts, 1)
    )


def producer_settings(config: ClientConfig) -> dict[str, Any]:
    """Return the settings of the producer of dead letters: the settings that all clients share."""
    names = [field.name for field in dataclasses.fields(ClientConfig)]
    return {name: getattr(config, name) for name in names} | {"acks": "all"}
