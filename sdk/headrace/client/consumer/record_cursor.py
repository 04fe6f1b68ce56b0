"""The batch that `for record in consumer` is in: how many records were delivered, without counting them."""

from collections.abc import Iterator
from operator import itemgetter, length_hint
from typing import Any

from headrace.client.base.records import DecodedBatch, Record
from headrace.client.group.offsets import OffsetAndMetadata
from headrace.wire.ids import TopicPartition


class RecordCursor:
    """A decoded batch that `for record in consumer` is in the middle of.

    The records are made by C loops that take one offset a record off a list's iterator. How many have been taken says
    how many records were delivered; emptying the list ends the loop, and so does `stopper`, an iterator, with its own.
    """

    __slots__ = ("_ended", "_iterator", "_offsets", "_stopper", "decoded", "generation")

    def __init__(self, decoded: DecodedBatch, generation: int, stopper: Iterator[Any] | None = None) -> None:
        """`generation` is the position's that the decoded batch was fetched for."""
        self.decoded = decoded
        self.generation = generation
        self._offsets = list(decoded.offsets())
        self._iterator = iter(self._offsets)
        self._stopper = stopper
        self._ended: int | None = None

    def records(self) -> Iterator[Record]:
        """Return the records; each counts as delivered when it is taken."""
        if self._stopper is None:
            return self.decoded.records(self._iterator)
        return self.decoded.records(map(itemgetter(1), zip(self._stopper, self._iterator, strict=False)))

    def delivered(self) -> int:
        """Return how many records were delivered."""
        left = length_hint(self._iterator)
        return self.decoded.end - self.decoded.start - left if self._ended is None else self._ended

    def position(self) -> int:
        """Behind the last one that was delivered."""
        return self.decoded.base_offset + self.delivered()

    def committable(self) -> tuple[TopicPartition, OffsetAndMetadata] | None:
        """Behind the last record but one that was delivered: the last one may be in work. Any thread."""
        return self._behind(self.delivered() - 1)

    def received(self) -> tuple[TopicPartition, OffsetAndMetadata] | None:
        """Behind the last record that was delivered."""
        return self._behind(self.delivered())

    def _behind(self, records: int) -> tuple[TopicPartition, OffsetAndMetadata] | None:
        if records < 1:
            return None
        position = self.decoded.base_offset + records
        return self.decoded.source, OffsetAndMetadata(position, self.decoded.leader_epoch)

    def is_current(self, positions: Any) -> bool:
        """Return whether the position was not moved meanwhile."""
        return bool(positions.generation(self.decoded.source) == self.generation)

    def end(self) -> int:
        """End the loop; return how many records were delivered."""
        self._ended = delivered = self.delivered()  # Before the list is empty: other threads may read it meanwhile.
        self._offsets.clear()
        return delivered
