"""What a log holds, as the simulator knows it without reading the disk: batches, with a digest over all before each.

Two logs are one up to a batch if that batch has one digest in both. Owned by `invariants.Checks`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headrace.wire.batch import BatchHeader
from headrace_server.partition_state import PartitionState, Replica

if TYPE_CHECKING:
    from tests.simulation.host import Host


class Entry(NamedTuple):
    """One batch in a log; `digest` covers it and all before it."""

    base: int
    end: int
    epoch: int
    crc: int
    producer_id: int
    producer_epoch: int
    sequence: int
    digest: int


def entry_of(header: BatchHeader, base: int, epoch: int, digest: int = 0) -> Entry:
    """A batch at `base`."""
    return Entry(
        base,
        base + header.record_count,
        epoch,
        header.crc,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        digest,
    )


@dataclass(slots=True)
class ReferenceLog:
    """What a replica's log holds."""

    broker_id: int
    host: Host | None = None
    start: int = 0
    """Where the log starts, and where its batches do."""
    log_start: int = 0
    """The highest log start that it was seen with."""
    bases: list[int] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    flushed: int = 0
    """Everything below was reported as fsynced."""
    certain: bool = True
    """The disk holds exactly this; False after a loss, until the log is opened again."""
    corrupt: bool = False
    """The simulator corrupt the disk on purpose."""
    acknowledged: dict[Replica, tuple[int, int]] = field(default_factory=dict)
    """While it leads: the log end of each follower and what of it is fsynced, by its fetches of this epoch."""
    high_watermark: int = -1
    """While it leads: its last."""

    @property
    def end(self) -> int:
        """The log end."""
        return self.entries[-1].end if self.entries else self.start

    def find(self, base: int) -> Entry | None:
        """The batch that begins at `base`."""
        at = bisect_left(self.bases, base)
        return self.entries[at] if at < len(self.bases) and self.bases[at] == base else None

    def cut(self, end: int) -> None:
        """Drop the batches that end above `end`."""
        at = bisect_right(self.bases, end - 1) if end > self.start else 0
        while at and self.entries[at - 1].end > end:
            at -= 1
        del self.bases[at:], self.entries[at:]

    def add(self, entry: Entry) -> None:
        """Append one."""
        self.bases.append(entry.base)
        self.entries.append(entry)


class Partition:
    """What is known of one partition."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_deleted = False
        """Its topic is gone: nothing of it is promised any more."""
        self.committed = ReferenceLog(broker_id=-1)
        self.digests: dict[tuple[int, int], tuple[int, int]] = {}
        """(base, epoch): crc and digest, for ever (I7)."""
        self.appended_ms: dict[tuple[int, int], int] = {}
        """(base, epoch): when its leader stamped it, by the world's clock."""
        self.sessions: dict[int, Replica] = {}
        """Who was elected for each leader epoch (I5)."""
        self.sequences: dict[int, tuple[int, int]] = {}
        """(producer epoch, next sequence) of what is committed (I20)."""
        self.ends: dict[int, int] = {}
        """Where each producer's last committed batch ends."""
        self.forgotten: dict[int, int] = {}
        """The next sequence of producers when all that they had sent was removed, and a leader did not know them."""
        self.resent: list[tuple[int, int]] = []
        """Offset ranges of what such producers sent before, and again."""
        self.state: PartitionState | None = None
        self.replicas: dict[int, ReferenceLog] = {}
        self.unclean = False
        """An unclean election was allowed: clients are promised nothing any more."""
        self.gives_up = False
        """It was, and not all replicas are in sync again: what was committed may be lost."""
        self.unclean_epoch = 0
        self.log_start = 0
        """The highest log start that clients were told."""
        self.lost: list[tuple[int, int]] = []
        """Offset ranges that an unclean election gave up."""
        self.given_up: list[Entry] = []
        """The batches in them, which the other replicas have until they truncate their logs."""
