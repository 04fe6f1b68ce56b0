"""Batch under iteration by `for record in consumer`, whose delivered records need no counter."""

from collections.abc import Iterator
from operator import itemgetter, length_hint
from typing import Any

from headrace.client.base.records import DecodedBatch, Record
from headrace.client.group.offsets import OffsetAndMetadata
from headrace.wire.ids import TopicPartition


class RecordCursor:
    """Decoded batch under iteration by `for record in consumer`.

    The records are created by C loops that take one offset per record from an iterator, so the number of offsets taken
    is the number of delivered records. Exhausting the iterator ends the loop, and so does the end of `stopper`.
    """

    __slots__ = ("_ended", "_offsets", "_stopper", "decoded", "generation")

    def __init__(self, decoded: DecodedBatch, generation: int, stopper: Iterator[Any] | None = None) -> None:
        """`generation` is that of the position for which the decoded batch was fetched."""
        self.decoded = decoded
        self.generation = generation
        self._offsets: Any = iter(decoded.offsets())
        self._stopper = stopper
        self._ended: int | None = None

    def records(self) -> Iterator[Record]:
        """Return the records; each counts as delivered when it is taken."""
        if self._stopper is None:
            return self.decoded.records(self._offsets)
        return self.decoded.records(map(itemgetter(1), zip(self._stopper, self._offsets, strict=False)))

    def delivered(self) -> int:
        """Return the number of delivered records."""
        left = length_hint(self._offsets)
        return self.decoded.end - self.decoded.start - left if self._ended is None else self._ended

    def position(self) -> int:
        """Return the offset after the last delivered record."""
        return self.decoded.offset_after(self.delivered())

    def committable(self) -> tuple[TopicPartition, OffsetAndMetadata] | None:
        """Return the offset of the last delivered record, which may still be in progress. Any thread."""
        return self._behind(self.delivered() - 1)

    def received(self) -> tuple[TopicPartition, OffsetAndMetadata] | None:
        """Return the offset after the last delivered record."""
        return self._behind(self.delivered())

    def _behind(self, records: int) -> tuple[TopicPartition, OffsetAndMetadata] | None:
        if records < 1:
            return None
        position = self.decoded.offset_after(records)
        return self.decoded.source, OffsetAndMetadata(position, self.decoded.leader_epoch)

    def is_current(self, positions: Any) -> bool:
        """Return whether the position was not moved in the meantime."""
        return bool(positions.generation(self.decoded.source) == self.generation)

    def end(self) -> int:
        """End the loop; return the number of delivered records."""
        self._ended = delivered = self.delivered()  # First, as other threads may read it.
        self._offsets.__setstate__(self.decoded.end)  # Exhausts it: larger indexes are clipped to its end.
        return delivered
