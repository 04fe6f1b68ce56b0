"""Detection of records that end the processes that handle them, across several processes. Pure: no I/O, no clock.

A handler that ends its process leaves no error. So a run stores a mark for its next work in the metadata of a
partition's committed offset, and removes it on a clean end. A mark found by the next owner was left by a process that
ended, and is the state of the search:

    found        behaviour of this owner                                      sets
    nothing      works as always                                              `begun`, before the first record
    `begun`      works as always, and commits without a pause, so that        `watched`, with each commit, for twice
                 few records are open when its process ends                   auto_commit_interval_ms
    `watched`    passes the handler one record, and nothing else,             `alone=1`, before each record
                 for a thousand records or a minute, whichever ends first
    `alone=n`    the same; once n has reached the limit the record fails      `alone=n+1`, before that record
                 permanently, without another call

While no process ends, the cost is one commit per partition and term. Its owner holds a lock.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from headrace.client.base.errors import ProcessEndedError
from headrace.client.group.offsets import OffsetAndMetadata
from headrace.client.handlers.work_queue import WorkQueue
from headrace.wire.ids import TopicPartition

ENDS_BEFORE = 2
"""Number of processes that ended with a record among others, before it is handled alone."""
ENDS_ALONE = 2
"""Minimum number of owners that handled it alone, since one may have ended, or lost its session, for another reason."""
ISOLATE_RECORDS = 1_000
ISOLATE_MS = 60_000
MARK_WAIT_MS = 5_000
"""Time without a stored mark after which work continues without one: an outage of etcd stops no owner."""
PREFIX = "headrace.run "
_ALONE = re.compile(r"alone=(\d{1,9}) offset=(\d{1,19})", re.ASCII)


class Mode(Enum):
    """Way in which a partition's records are handled."""

    NORMAL = auto()
    WATCH = auto()
    ISOLATE = auto()


class ProgressMarker(NamedTuple):
    """Content of the metadata of a committed offset."""

    mode: Mode | None = None
    """Mode of the owner that set it; `None` means that it is no mark."""
    alone: int = 0
    """Number of processes that have started the record at `offset` alone."""
    offset: int = -1

    @classmethod
    def of(cls, metadata: str) -> "ProgressMarker":
        """Parse metadata; other content is no mark."""
        if not metadata.startswith(PREFIX):
            return cls()
        text = metadata.removeprefix(PREFIX)
        found = _ALONE.fullmatch(text)
        if found is not None:
            return cls(Mode.ISOLATE, int(found[1]), int(found[2]))
        return cls({"begun": Mode.NORMAL, "watched": Mode.WATCH}.get(text))

    @property
    def text(self) -> str:
        """Stored form."""
        match self.mode:
            case None:
                return ""
            case Mode.NORMAL:
                return f"{PREFIX}begun"
            case Mode.WATCH:
                return f"{PREFIX}watched"
            case Mode.ISOLATE:
                return f"{PREFIX}alone={self.alone} offset={self.offset}"


@dataclass(slots=True)
class _Part:
    found: ProgressMarker
    mode: Mode
    is_held: bool = True
    """Whether no record of it was started in this term, or only single ones."""
    waits_until_ms: int | None = None
    """Time limit while a mark is being stored."""
    began_ms: int | None = None
    """Time at which its first record was released."""
    position: int = -1
    """Offset of the last mark."""
    isolated_offset: int | None = None
    """Offset of the record that is handled alone."""
    tried: int = 0
    is_marked: bool = False
    """Whether the stored mark names a record handled alone: nothing else starts until another mark is stored."""
    is_quarantined: bool = False
    """Whether one of its records failed permanently because of marks, and may not be finished yet."""


_NEXT = {None: Mode.NORMAL, Mode.NORMAL: Mode.WATCH, Mode.WATCH: Mode.ISOLATE, Mode.ISOLATE: Mode.ISOLATE}


class PoisonRecordDetector:
    """Decides when held records of the queue are released. The module's docstring states who may call it."""

    def __init__(self, queue: WorkQueue, *, attempts: int, watch_ms: int) -> None:
        """`attempts` is as in `RetryPolicy`; a partition is watched for `watch_ms`."""
        self._queue = queue
        self._limit = max(ENDS_ALONE, attempts - ENDS_BEFORE)
        self._watch_ms = watch_ms
        self._parts: dict[TopicPartition, _Part] = {}
        self._active: dict[TopicPartition, _Part] = {}
        """Partitions with held records, or watched ones."""
        self._searched: set[TopicPartition] = set()

    @property
    def is_searching(self) -> bool:
        """Whether any partition is watched or isolated, so every finished record may release another."""
        return bool(self._searched)

    def opened(self, where: TopicPartition, metadata: str) -> None:
        """Start a term; `metadata` is stored with its initial offset."""
        self.closed(where)
        found = ProgressMarker.of(metadata)
        part = self._parts[where] = self._active[where] = _Part(found, _NEXT[found.mode])
        if part.mode is not Mode.NORMAL:
            self._searched.add(where)

    def closed(self, where: TopicPartition) -> None:
        """End a term."""
        self._parts.pop(where, None)
        self._active.pop(where, None)
        self._searched.discard(where)
        if self._queue.alone == where:
            self._queue.alone = None

    def text(self, where: TopicPartition) -> str:
        """Return the metadata to store with the progress of a partition."""
        part = self._parts.get(where)
        return ProgressMarker(Mode.WATCH).text if part is not None and part.mode is Mode.WATCH else ""

    def leaves_mark(self, where: TopicPartition) -> bool:
        """Return whether a mark stays after a clean end of the term, because a dead letter is being written."""
        part = self._parts.get(where)
        return part is not None and part.is_quarantined

    def step(self, now_ms: int) -> list[tuple[TopicPartition, OffsetAndMetadata]]:
        """Release the records that may start; return the marks to store now, each reported by `stored`."""
        marks = []
        for where, part in list(self._active.items()):
            if part.waits_until_ms is not None:
                if now_ms >= part.waits_until_ms:
                    self.stored(where, now_ms, term=part)
                continue
            mark = self._due(where, part, now_ms)
            if mark is not None:
                tracker = self._queue.tracker(where)
                assert tracker is not None
                part.waits_until_ms = now_ms + MARK_WAIT_MS
                part.position = tracker.position
                marks.append((where, OffsetAndMetadata(tracker.position, tracker.leader_epoch, mark.text)))
        return marks

    def term(self, where: TopicPartition) -> object:
        """Return the number of the partition's term."""
        return self._parts.get(where)

    def stored(self, where: TopicPartition, now_ms: int, *, term: object) -> None:
        """Record that the mark of that term is stored, or cannot be stored: waiting records continue."""
        part = self._parts.get(where)
        if part is None or part is not term or part.waits_until_ms is None:
            return
        part.waits_until_ms = None
        if part.mode is Mode.ISOLATE:
            if part.is_marked:
                part.isolated_offset = self._queue.release_first(where)
        elif part.is_held:
            self._queue.release_all(where)
            part.is_held = False
        if part.began_ms is None:
            part.began_ms = now_ms
        if part.mode is Mode.NORMAL and not part.is_held:
            self._active.pop(where, None)
            self._searched.discard(where)

    def given_up(self, where: TopicPartition, offset: int) -> None:
        """Let other partitions start records while the dead letter of one that ran alone is written."""
        part = self._parts.get(where)
        if part is not None and part.isolated_offset == offset and self._queue.alone == where:
            self._queue.alone = None

    def finished(self, where: TopicPartition, offset: int) -> None:
        """Record that a record is finished."""
        part = self._parts.get(where)
        if part is not None and part.isolated_offset == offset:
            part.isolated_offset = None
            part.tried += 1
            part.is_quarantined = False

    def _due(self, where: TopicPartition, part: _Part, now_ms: int) -> ProgressMarker | None:
        """Return the mark to store now for a partition."""
        match part.mode:
            case Mode.NORMAL:
                return (
                    ProgressMarker(Mode.NORMAL) if part.is_held and self._queue.first_held(where) is not None else None
                )
            case Mode.WATCH:
                return self._due_while_watching(where, part, now_ms)
            case Mode.ISOLATE:
                return self._due_while_isolated(where, part, now_ms)

    def _due_while_watching(self, where: TopicPartition, part: _Part, now_ms: int) -> ProgressMarker | None:
        if part.is_held:
            return ProgressMarker(Mode.WATCH) if self._queue.first_held(where) is not None else None
        assert part.began_ms is not None
        if now_ms - part.began_ms >= self._watch_ms:
            part.mode = Mode.NORMAL
            return ProgressMarker()
        tracker = self._queue.tracker(where)
        return ProgressMarker(Mode.WATCH) if tracker is not None and tracker.position != part.position else None

    def _due_while_isolated(self, where: TopicPartition, part: _Part, now_ms: int) -> ProgressMarker | None:
        """Isolate one partition at a time, when no other record is in progress."""
        queue = self._queue
        if part.isolated_offset is not None or queue.alone not in (None, where):
            return None
        is_over = part.began_ms is not None and now_ms - part.began_ms >= ISOLATE_MS
        is_over |= part.tried >= ISOLATE_RECORDS
        first = None if is_over else queue.first_held(where)
        if first is None:
            return self._rest(where, part, is_over=is_over)
        queue.alone = where
        if queue.running:
            return None
        alone = part.found.alone if part.found.offset == first.offset else 0
        if alone >= self._limit:
            attempts = ENDS_BEFORE + alone
            part.is_quarantined = part.is_marked = True
            part.began_ms = now_ms if part.began_ms is None else part.began_ms
            part.isolated_offset = queue.release_first(where, ProcessEndedError(attempts), attempts)
            queue.alone = None
            return None
        part.is_marked = True
        return ProgressMarker(Mode.ISOLATE, alone + 1, first.offset)

    def _rest(self, where: TopicPartition, part: _Part, *, is_over: bool) -> ProgressMarker | None:
        """End the search: remove the mark first, then release the other records."""
        if part.is_marked:
            part.is_marked = False
            return ProgressMarker()
        if self._queue.alone == where:
            self._queue.alone = None
        if is_over:
            part.mode, part.is_held = Mode.NORMAL, False
            self._queue.release_all(where)
            self._active.pop(where, None)
            self._searched.discard(where)
        return None
