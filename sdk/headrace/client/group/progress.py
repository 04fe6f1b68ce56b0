"""Progress of the application for its group: received offsets, processed offsets, and the time of the last poll.

Records count as processed when the application polls again; only these are committed in the background. No I/O, no
clock. Committable offsets change under the session's lock; the rest belongs to the application's thread.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from headrace.client.base.config import ConsumerConfig
from headrace.client.fetch.fetch_manager import FetchManager
from headrace.client.group.membership import InitialPosition, OwnedPartition
from headrace.client.group.offsets import OffsetAndMetadata
from headrace.wire.ids import TopicPartition

Received = tuple[TopicPartition, OffsetAndMetadata]


class Cursor(Protocol):
    """Iteration in progress."""

    def committable(self) -> Received | None:
        """Return the offset after the records that the application has processed; any thread."""

    def received(self) -> Received | None:
        """Return the offset after the records that the application has received."""


class Work(Protocol):
    """Pool of handlers that process records off the reading thread; called on the reading thread only."""

    def opened(self, where: TopicPartition, start: InitialPosition) -> None:
        """Start reading a partition."""

    def may_give_up(self, holdings: list[OwnedPartition]) -> list[OwnedPartition]:
        """Start no more records of these partitions; return those without a record in progress."""

    def closed(self, where: TopicPartition) -> None:
        """Stop reading a partition."""

    def is_full(self) -> bool:
        """Return whether it accepts no more records now; any thread."""


class Progress:
    """Progress of one consumer, read by its session."""

    def __init__(self, config: ConsumerConfig, fetcher: FetchManager, now_ms: int) -> None:
        """All times are milliseconds of the boot-time clock."""
        self._fetcher = fetcher
        self._timeout_ms = config.processing_timeout_ms
        self._polled_ms = now_ms
        self._in_poll = False
        self._seen: Received | None = None
        self.consumed: dict[TopicPartition, OffsetAndMetadata] = {}
        """Offsets received and not yet processed."""
        self.committable: dict[TopicPartition, OffsetAndMetadata] = {}
        self.work: Work | None = None
        """Pool that reports processed offsets; `None` means that the next poll does."""
        self.has_stalled = False

    def poll_begins(self, now_ms: int) -> None:
        """Record that the application polls: it has processed the records that it received."""
        if self.work is None:
            self.finish_all()
        self._in_poll = True
        self._polled_ms = now_ms
        self.has_stalled = False

    def poll_ends(self, now_ms: int) -> None:
        """Record that a poll ends, with or without records, or with an error."""
        self._in_poll = False
        self._polled_ms = now_ms

    def finish_all(self) -> None:
        """Record that the application has processed all received records."""
        self.committable.update(self.consumed)
        self.consumed.clear()

    def checkpoint(self, cursor: Cursor) -> None:
        """Record the progress of an iteration that ends or pauses; its last record may still be in progress."""
        self.committable.update([finished] if (finished := cursor.committable()) else ())
        self.consumed.update([received] if (received := cursor.received()) else ())

    def seek(self, where: TopicPartition, offset: int) -> None:
        """Record a seek of the application."""
        self.consumed.pop(where, None)
        self.committable[where] = OffsetAndMetadata(offset)

    def forget(self, where: TopicPartition) -> None:
        """Forget a partition that is not read any more."""
        self.consumed.pop(where, None)
        self.committable.pop(where, None)

    def committable_offsets(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that may be committed, including that of an iteration in progress."""
        current = self._of_cursor() if self.work is None else None
        return {**self.committable, **dict([current] if current else ())}

    def received_offsets(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the offsets after all received records, or after those that the pool has processed."""
        return dict(self.committable) if self.work is not None else {**self.committable, **self.consumed}

    def stalls(self, now_ms: int) -> bool:
        """Return whether the application has just exceeded processing_timeout_ms."""
        seen = None if self._fetcher.cursor is None else self._of_cursor()
        if seen != self._seen:
            self._seen, self._polled_ms = seen, now_ms
        if self.has_stalled or self.silent_ms(now_ms) < self._timeout_ms:
            return False
        self.has_stalled = True
        return True

    def silent_ms(self, now_ms: int) -> int:
        """Return the milliseconds since the last poll; 0 while the application waits in one."""
        return 0 if self._in_poll else now_ms - self._polled_ms

    def _of_cursor(self) -> Received | None:
        cursor: Any = self._fetcher.cursor
        return None if cursor is None else cursor.committable()
