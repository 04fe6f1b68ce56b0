"""The progress of the application, for its group: what it received, what it is done with, when it last polled.

It is done with what it had received when it polled again; the background commits that, and never more. No
I/O, no clock. What may be committed changes under the session's lock; the rest is the application's thread's.
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
    """What an iteration is in the middle of."""

    def committable(self) -> Received | None:
        """Return the offset behind the records that the application is done with; any thread."""

    def received(self) -> Received | None:
        """Return the offset behind the records that the application received."""


class Work(Protocol):
    """A pool of handlers that process records off the reading thread; called by that thread alone."""

    def opened(self, where: TopicPartition, start: InitialPosition) -> None:
        """A partition is read from now on."""

    def may_give_up(self, holdings: list[OwnedPartition]) -> list[OwnedPartition]:
        """Begin nothing more of these; return those of which nothing is in work."""

    def closed(self, where: TopicPartition) -> None:
        """A partition is not read any more."""

    def is_full(self) -> bool:
        """Whether it takes no more records now; any thread."""


class Progress:
    """Owned by one consumer; its session reads it."""

    def __init__(self, config: ConsumerConfig, fetcher: FetchManager, now_ms: int) -> None:
        """All times are milliseconds of the boot-time clock."""
        self._fetcher = fetcher
        self._timeout_ms = config.processing_timeout_ms
        self._polled_ms = now_ms
        self._in_poll = False
        self._seen: Received | None = None
        self.consumed: dict[TopicPartition, OffsetAndMetadata] = {}
        """Received, and not yet done with."""
        self.committable: dict[TopicPartition, OffsetAndMetadata] = {}
        self.work: Work | None = None
        """Where there is a pool, it reports what is finished; otherwise the next poll does."""
        self.has_stalled = False

    def poll_begins(self, now_ms: int) -> None:
        """Note that the application polls: it is done with the records that it received."""
        if self.work is None:
            self.finish_all()
        self._in_poll = True
        self._polled_ms = now_ms
        self.has_stalled = False

    def poll_ends(self, now_ms: int) -> None:
        """Note that the poll ends, with or without records."""
        self._in_poll = False
        self._polled_ms = now_ms

    def finish_all(self) -> None:
        """Note that the application is done with all that it received."""
        self.committable.update(self.consumed)
        self.consumed.clear()

    def checkpoint(self, cursor: Cursor) -> None:
        """Note the progress of an iteration that ends or pauses: its last record may be in work."""
        self.committable.update([finished] if (finished := cursor.committable()) else ())
        self.consumed.update([received] if (received := cursor.received()) else ())

    def seek(self, where: TopicPartition, offset: int) -> None:
        """Note that the application chose where to continue."""
        self.consumed.pop(where, None)
        self.committable[where] = OffsetAndMetadata(offset)

    def forget(self, where: TopicPartition) -> None:
        """Forget a partition that is not read any more."""
        self.consumed.pop(where, None)
        self.committable.pop(where, None)

    def committable_offsets(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that may be committed, those of an iteration under way among them."""
        current = self._of_cursor() if self.work is None else None
        return {**self.committable, **dict([current] if current else ())}

    def received_offsets(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the offsets behind all that was received, or that the work is done with."""
        return dict(self.committable) if self.work is not None else {**self.committable, **self.consumed}

    def stalls(self, now_ms: int) -> bool:
        """Return whether the application has just now been silent for processing_timeout_ms."""
        seen = None if self._fetcher.cursor is None else self._of_cursor()
        if seen != self._seen:
            self._seen, self._polled_ms = seen, now_ms
        if self.has_stalled or self.silent_ms(now_ms) < self._timeout_ms:
            return False
        self.has_stalled = True
        return True

    def silent_ms(self, now_ms: int) -> int:
        """Return for how long the application has not polled, in milliseconds; 0 while it waits for a record."""
        return 0 if self._in_poll else now_ms - self._polled_ms

    def _of_cursor(self) -> Received | None:
        cursor: Any = self._fetcher.cursor
        return None if cursor is None else cursor.committable()
