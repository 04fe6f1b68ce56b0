"""Sequence windows of idempotent producers: detection of duplicate and out-of-order batches (H48-H51, I20).

Owned by a `PartitionReplica`; rebuilt from batch headers when a log is opened. Sequences count the records of one
producer in one partition, modulo 2^31. Source: KIP-98, and KAFKA-5494 for more than one batch in flight.
"""

from __future__ import annotations

import itertools
import struct
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from headrace.wire.batch import BatchHeader, sequence_after, sequence_distance
from headrace.wire.errors import (
    FencedProducerError,
    Outcome,
    OutOfOrderSequenceError,
    ThrottledError,
    UnknownProducerError,
)
from headrace.wire.ids import OWN_PRODUCER_IDS, PRODUCER_FAMILY_BITS, Offset

WINDOW_RANGES = 64
"""Ranges remembered per producer, the maximum number of batches that a client has in flight (H48)."""

RETRY_AFTER_MS = 1_000
_VERSION = 2
_HEAD = struct.Struct("<HI")  # version, number of producers
_PRODUCER = struct.Struct("<qiqiqqI")  # id, epoch, last_at_ms, next sequence, first offset, forgotten end, ranges
_PRODUCER_V1 = struct.Struct("<qiqiqI")  # without the first offset
_RANGE = struct.Struct("<iiq")  # base sequence, records, base offset


class SequenceRange(NamedTuple):
    """One appended batch of a producer."""

    base_sequence: int
    record_count: int
    base_offset: int


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Position of a batch that was appended before."""

    base_offset: Offset
    """Offset of its first record; `-1` if that is no longer known."""
    end_offset: Offset
    """The batch is committed once the high watermark has reached this offset."""


class _Producer:
    """State of one producer id: its current epoch and its last ranges, oldest first."""

    __slots__ = ("epoch", "first_offset", "forgotten_end", "last_at_ms", "next_sequence", "ranges")

    def __init__(self, epoch: int, first_offset: int) -> None:
        self.epoch = epoch
        self.first_offset = first_offset
        """Base offset of the first batch of the epoch."""
        self.next_sequence = 0
        self.ranges: deque[SequenceRange] = deque()
        self.forgotten_end = 0
        self.last_at_ms = 0


class ProducerWindows:
    """Producers of one partition: at most `max_producers`, of which the least recently used is evicted first.

    `check` changes nothing; `record` is called for each appended batch. A producer that may still retry a batch is not
    evicted: while all have written within `retry_window_ms`, a new producer is rejected.
    """

    def __init__(self, *, max_producers: int, expiry_ms: int, retry_window_ms: int = 0) -> None:
        self._max_producers = max_producers
        self._expiry_ms = expiry_ms
        self._retry_window_ms = min(retry_window_ms, expiry_ms)
        self._producers: OrderedDict[int, _Producer] = OrderedDict()  # least recently used first
        self._families: dict[int, set[int]] = {}
        """Application-assigned producer ids by the bits that a family shares."""

    def __len__(self) -> int:
        return len(self._producers)

    def check(
        self, producer_id: int, producer_epoch: int, base_sequence: int, record_count: int, at_ms: int = 0
    ) -> Duplicate | None:
        """Return `None` if the batch is the next one and may be appended, or its `Duplicate` if it was appended before.

        `at_ms` is the current time; it is used only if the maximum number of producers is reached.

        Raises:
            UnknownProducerError, FencedProducerError, OutOfOrderSequenceError: If the batch is rejected; definite.
            ThrottledError: If there is no room for a new producer now.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            if base_sequence != 0:
                raise UnknownProducerError(
                    f"producer {producer_id} is not known here, and its sequence {base_sequence} is not 0"
                )
            self._check_room(at_ms)
            return None
        if producer_epoch < producer.epoch:
            raise FencedProducerError(
                f"producer {producer_id} has epoch {producer.epoch} here, the batch has {producer_epoch}"
            )
        if producer_epoch > producer.epoch:
            if base_sequence != 0:
                raise OutOfOrderSequenceError(
                    f"producer {producer_id} starts epoch {producer_epoch} with sequence {base_sequence} instead of 0"
                )
            return None
        if base_sequence == producer.next_sequence:
            return None
        if sequence_distance(base_sequence, producer.next_sequence) < record_count:
            raise OutOfOrderSequenceError(
                f"producer {producer_id} sent sequence {base_sequence} ({record_count} records), "
                f"expected {producer.next_sequence}"
            )
        return _find_duplicate(producer, base_sequence, record_count)

    def _check_room(self, at_ms: int) -> None:
        """Raise ThrottledError if the producer that would be evicted for a new one may still retry (H49)."""
        if len(self._producers) < self._max_producers:
            return
        silent_ms = at_ms - next(iter(self._producers.values())).last_at_ms
        if silent_ms < self._retry_window_ms:
            raise ThrottledError(
                f"{len(self._producers)} producers have written here within {self._retry_window_ms} ms, and no more "
                "are remembered",
                outcome=Outcome.NOT_APPLIED,
                retry_after_ms=min(RETRY_AFTER_MS, self._retry_window_ms - silent_ms),
                action="Reuse producers instead of creating new ones, or raise max_producers of the brokers.",
            )

    def record_batch(self, header: BatchHeader) -> None:
        """Record an appended batch by its header if it has a producer id; see `record`."""
        if header.producer_id >= 0 and not header.is_compacted:
            self.record(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.record_count,
                base_offset=header.base_offset,
                at_ms=header.append_timestamp_ms,
            )

    def record(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        record_count: int,
        *,
        base_offset: int,
        at_ms: int,
        batches: int = 1,
    ) -> None:
        """Record an appended batch, or several of `record_count` each; `at_ms` is their append timestamp.

        A batch that does not continue the last one starts a new sequence: a leader that had forgotten the producer (its
        records were deleted, and the broker restarted) accepted sequence 0 again, and every replica follows the leader.
        """
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch != producer_epoch or producer.next_sequence != base_sequence:
            producer = self._remember(producer_id, _Producer(producer_epoch, base_offset))
        for _ in range(batches):
            if len(producer.ranges) == WINDOW_RANGES:
                oldest = producer.ranges.popleft()
                producer.forgotten_end = oldest.base_offset + oldest.record_count
            producer.ranges.append(SequenceRange(base_sequence, record_count, base_offset))
            base_sequence = sequence_after(base_sequence, record_count)
            base_offset += record_count
        producer.next_sequence = base_sequence
        producer.last_at_ms = at_ms
        self._producers.move_to_end(producer_id)
        if len(self._producers) > self._max_producers:
            self._forget(next(iter(self._producers)))

    def find(self, producer_id: int, producer_epoch: int, base_sequence: int) -> SequenceRange | None:
        """Return the remembered batch of a producer that begins with a sequence, or `None`."""
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch != producer_epoch:
            return None
        return next((each for each in producer.ranges if each.base_sequence == base_sequence), None)

    def retried_batches(self, at_ms: int) -> frozenset[int]:
        """Return the base offsets of the known batches of producers that may still retry one at `at_ms`."""
        oldest_ms = at_ms - self._retry_window_ms
        recent = (producer for producer in self._producers.values() if producer.last_at_ms >= oldest_ms)
        return frozenset(each.base_offset for producer in recent for each in producer.ranges)

    @property
    def retry_window_ms(self) -> int:
        """Time since its last append within which a producer may retry a batch."""
        return self._retry_window_ms

    def appended(self, producer_id: int, producer_epoch: int, *, family: bool) -> tuple[int, int] | None:
        """Return the range of offsets that a producer or its family has appended in an epoch; `None` if unknown."""
        ids: Iterable[int] = self._families.get(producer_id >> PRODUCER_FAMILY_BITS, ()) if family else (producer_id,)
        known = [self._producers[each] for each in ids if each in self._producers]
        found = [each for each in known if each.epoch == producer_epoch]
        if not found:
            return None
        lasts = [each.ranges[-1] for each in found]
        return min(each.first_offset for each in found), max(each.base_offset + each.record_count for each in lasts)

    def _remember(self, producer_id: int, producer: _Producer) -> _Producer:
        self._producers[producer_id] = producer
        if producer_id >= OWN_PRODUCER_IDS:
            self._families.setdefault(producer_id >> PRODUCER_FAMILY_BITS, set()).add(producer_id)
        return producer

    def _forget(self, producer_id: int) -> None:
        del self._producers[producer_id]
        family = self._families.get(producer_id >> PRODUCER_FAMILY_BITS)
        if family is not None:
            family.discard(producer_id)
            if not family:
                del self._families[producer_id >> PRODUCER_FAMILY_BITS]

    def expire(self, at_ms: int) -> int:
        """Evict producers that have not written for the expiry time; return their number."""
        expired = 0
        while self._producers:
            producer_id, producer = next(iter(self._producers.items()))
            if at_ms - producer.last_at_ms < self._expiry_ms:
                break
            self._forget(producer_id)
            expired += 1
        return expired

    def snapshot(self) -> bytes:
        """Return all producers encoded for `restore`. Little-endian; see the structs above."""
        parts = [_HEAD.pack(_VERSION, len(self._producers))]
        for producer_id, producer in self._producers.items():
            parts.append(
                _PRODUCER.pack(
                    producer_id,
                    producer.epoch,
                    producer.last_at_ms,
                    producer.next_sequence,
                    producer.first_offset,
                    producer.forgotten_end,
                    len(producer.ranges),
                )
            )
            parts += [_RANGE.pack(each.base_sequence, each.record_count, each.base_offset) for each in producer.ranges]
        return b"".join(parts)

    def restore(self, snapshot: bytes) -> bool:
        """Replace all producers by a snapshot; return `False`, without producers, if this release cannot read it."""
        self._clear()
        try:
            version, count = _HEAD.unpack_from(snapshot, 0)
            position = _HEAD.size
            if version not in (1, _VERSION):
                return False
            shape = _PRODUCER_V1 if version == 1 else _PRODUCER
            for _ in range(count):
                producer_id, epoch, last_at_ms, next_sequence, *first, forgotten_end, ranges = shape.unpack_from(
                    snapshot, position
                )
                position += shape.size
                producer = self._remember(producer_id, _Producer(epoch, first[0] if first else 0))
                producer.last_at_ms, producer.next_sequence = last_at_ms, next_sequence
                producer.forgotten_end = forgotten_end
                for _ in range(ranges):
                    producer.ranges.append(SequenceRange(*_RANGE.unpack_from(snapshot, position)))
                    position += _RANGE.size
        except struct.error:
            self._clear()
            return False
        return True

    def _clear(self) -> None:
        self._producers.clear()
        self._families.clear()

    def validate(self) -> None:
        """Assert the bounds, and that each producer's ranges are contiguous and in offset order (I20)."""
        assert len(self._producers) <= self._max_producers
        for producer_id, producer in self._producers.items():
            ranges = list(producer.ranges)
            assert 1 <= len(ranges) <= WINDOW_RANGES, (producer_id, len(ranges))
            for before, after in itertools.pairwise(ranges):
                assert sequence_after(before.base_sequence, before.record_count) == after.base_sequence, producer_id
                assert before.base_offset + before.record_count <= after.base_offset, producer_id
            assert sequence_after(ranges[-1].base_sequence, ranges[-1].record_count) == producer.next_sequence


def _find_duplicate(producer: _Producer, base_sequence: int, record_count: int) -> Duplicate:
    """Return the position of a batch wholly below the next sequence; searches newest first, where retries are."""
    for known in reversed(producer.ranges):
        skipped = sequence_distance(known.base_sequence, base_sequence)
        if skipped < 0:
            continue
        if skipped + record_count <= known.record_count:
            base_offset = known.base_offset + skipped
            return Duplicate(Offset(base_offset), Offset(base_offset + record_count))
        # It spans ranges, which no headrace client sends. It was applied; the newest record's end covers it.
        return Duplicate(Offset(-1), Offset(producer.ranges[-1].base_offset + producer.ranges[-1].record_count))
    return Duplicate(Offset(-1), Offset(producer.forgotten_end))
