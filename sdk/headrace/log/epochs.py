"""Leader epochs of a log with their start offsets (KIP-101).

File `leader-epochs` with one line `epoch start_offset` each.
Both columns increase strictly (I6). The file is replaced as a whole; if it is lost, it is rebuilt from the batch
headers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise

from headrace.wire.ids import LeaderEpoch, Offset

EPOCHS_FILE = "leader-epochs"


class EpochHistory:
    """Epochs with their start offsets, in memory; the log persists them and guards them by its lock."""

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._epochs = [epoch for epoch, _ in entries or ()]
        self._starts = [start for _, start in entries or ()]

    @property
    def last_epoch(self) -> int:
        """Largest epoch; -1 if there is none."""
        return self._epochs[-1] if self._epochs else -1

    def entries(self) -> tuple[tuple[LeaderEpoch, Offset], ...]:
        """Return all entries, ascending."""
        return tuple(
            (LeaderEpoch(epoch), Offset(start)) for epoch, start in zip(self._epochs, self._starts, strict=True)
        )

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that `epoch` starts at `start_offset` if it is new; an epoch without records is replaced.

        Return whether it changed.
        """
        if epoch <= self.last_epoch:
            return False
        while self._starts and self._starts[-1] >= start_offset:
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        return True

    def cut_end(self, end_offset: int) -> bool:
        """Remove epochs that start at `end_offset` or later; return whether there were any."""
        keep = bisect_left(self._starts, end_offset)
        changed = keep < len(self._starts)
        del self._epochs[keep:], self._starts[keep:]
        return changed

    def cut_start(self, start_offset: int) -> bool:
        """Remove epochs that end at `start_offset` or before; the one that contains it now starts there."""
        keep = bisect_right(self._starts, start_offset) - 1
        if keep < 0 or (keep == 0 and self._starts[0] == start_offset):
            return False
        del self._epochs[:keep], self._starts[:keep]
        self._starts[0] = start_offset
        return True

    def end_of(self, epoch: int, log_end_offset: int) -> tuple[int, int] | None:
        """Return the largest epoch <= `epoch` and the offset after its last record; `None` if all are larger."""
        at = bisect_right(self._epochs, epoch) - 1
        if at < 0:
            return None
        return self._epochs[at], self._starts[at + 1] if at + 1 < len(self._starts) else log_end_offset

    def epoch_at(self, offset: int) -> int:
        """Return the epoch of the record at `offset`; -1 if it is below all epochs."""
        at = bisect_right(self._starts, offset) - 1
        return -1 if at < 0 else self._epochs[at]

    def encode(self) -> bytes:
        """Return the file's content."""
        return b"".join(b"%d %d\n" % entry for entry in zip(self._epochs, self._starts, strict=True))


def decode_epochs(content: bytes) -> EpochHistory | None:
    """Decode the file's content; `None` if it is invalid."""
    try:
        entries = [(int(epoch), int(start)) for epoch, start in (line.split() for line in content.splitlines())]
    except ValueError:
        return None
    rises = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries))
    return EpochHistory(entries) if rises else None
