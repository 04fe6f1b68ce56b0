"""Committable offset of a partition whose records finish in any order. Pure."""

from collections import deque


class OffsetTracker:
    """Tracker of one partition in one term of its ownership. Its owner holds a lock."""

    __slots__ = ("_epochs", "_finished", "_open", "_started", "is_over", "leader_epoch", "position")

    def __init__(self, position: int, leader_epoch: int = -1) -> None:
        self.position = position
        """Offset to commit: every record started below it is finished; the one at it is not."""
        self.leader_epoch = leader_epoch
        """Leader epoch of the batch of the last record below `position`."""
        self.is_over = False
        """Whether the partition is not owned any more: later results are ignored."""
        self._open: deque[int] = deque()
        self._epochs: deque[int] = deque()
        self._finished: set[int] = set()
        self._started: set[int] = set()

    def begin(self, offset: int, leader_epoch: int) -> None:
        """Record the receipt of a record; offsets ascend, possibly with gaps."""
        assert offset >= self.next_offset, "records are received once, in order"
        self._open.append(offset)
        self._epochs.append(leader_epoch)

    def start(self, offset: int) -> None:
        """Record that a received record is passed to a handler, for the first time or again."""
        self._started.add(offset)

    def finish(self, offset: int) -> bool:
        """Record that a record is finished; return whether the position moved.

        Received records count in `span` until all records before them are finished.
        """
        self._finished.add(offset)
        moved = False
        while self._open and self._open[0] in self._finished:
            done = self._open.popleft()
            self._finished.remove(done)
            self._started.discard(done)
            self.leader_epoch = self._epochs.popleft()
            self.position = done + 1
            moved = True
        return moved

    @property
    def next_offset(self) -> int:
        """Lowest offset of a record that may still be received."""
        return self._open[-1] + 1 if self._open else self.position

    @property
    def span(self) -> int:
        """Number of records received at or after the position: the window in which they finish out of order."""
        return len(self._open)

    @property
    def started(self) -> int:
        """Number of records at or after the position that a handler has had."""
        return len(self._started)
