"""Records that no handler could deal with, as they are written to a dead-letter topic: the bytes, and the cause."""

from typing import Any, NamedTuple

from headrace.client.config import ConsumerConfig
from headrace.client.work_queue import Task

PREFIX = "headrace.dead_letter."
MESSAGE_CHARACTERS = 1_000


class DeadLetter(NamedTuple):
    """What is sent; key and value are those of the record."""

    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    """The record's own, then the cause; see `dead_letter`."""


def dead_letter(task: Task, group_id: str, now_ms: int) -> DeadLetter:
    """Make the record to be sent. `now_ms` is milliseconds since 1970.

    Headers, each with the prefix `headrace.dead_letter.`: `error` (the type's name), `message`, `topic`, `partition`,
    `offset`, `timestamp_ms` (of the record), `attempts`, `failed_ms`, `group`. A record that becomes a dead letter
    again has the newer ones behind the older ones.
    """
    record, error = task.record, task.error
    cause = {
        "error": type(error).__name__,
        "message": str(error)[:MESSAGE_CHARACTERS],
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "timestamp_ms": str(record.timestamp_ms),
        "attempts": str(task.attempts),
        "failed_ms": str(now_ms),
        "group": group_id,
    }
    headers = tuple((PREFIX + name, text.encode(errors="replace")) for name, text in cause.items())
    return DeadLetter(record.value, record.key, (*record.headers, *headers))


def producer_settings(config: ConsumerConfig) -> dict[str, Any]:
    """Give the settings of the producer that writes dead letters: those that both classes have."""
    return {
        "bootstrap_servers": config.bootstrap_servers,
        "client_id": config.client_id,
        "request_timeout_ms": config.request_timeout_ms,
        "acks": "all",
    }
