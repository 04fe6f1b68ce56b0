"""Which records of a partition are finished, when they finish in any order: up to where may be committed. Pure."""

from collections import deque


class OffsetTracker:
    """Of one partition, in one term of its ownership. Its owner holds a lock."""

    __slots__ = ("_epochs", "_finished", "_open", "is_over", "leader_epoch", "position")

    def __init__(self, position: int, leader_epoch: int = -1) -> None:
        self.position = position
        """The offset to commit: every record begun below it is finished, and none at it."""
        self.leader_epoch = leader_epoch
        """Of the batch of the last record below it."""
        self.is_over = False
        """The partition is not ours any more: what still finishes means nothing."""
        self._open: deque[int] = deque()
        self._epochs: deque[int] = deque()
        self._finished: set[int] = set()

    def begin(self, offset: int, leader_epoch: int) -> None:
        """A record was received; offsets ascend, not always without gaps."""
        assert offset >= self.position, "records are received once"
        assert not self._open or offset > self._open[-1], "in order"
        self._open.append(offset)
        self._epochs.append(leader_epoch)

    def finish(self, offset: int) -> bool:
        """A record is dealt with; whether the position moved.

        The records that were begun stay counted in `span` until all before them are finished.
        """
        self._finished.add(offset)
        moved = False
        while self._open and self._open[0] in self._finished:
            done = self._open.popleft()
            self._finished.remove(done)
            self.leader_epoch = self._epochs.popleft()
            self.position = done + 1
            moved = True
        return moved

    @property
    def span(self) -> int:
        """How many records were begun at or behind the position: the window in which they finish out of order."""
        return len(self._open)
