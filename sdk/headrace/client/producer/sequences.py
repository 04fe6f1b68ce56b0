"""Sequences of an idempotent producer, for one partition. Pure.

Sequences count records modulo 2^31 (PROTOCOL H48). A batch gets its sequence when it is sealed. At its first send the
sequence must still be the next one of its epoch; otherwise another one is assigned, which cannot store duplicates
because its first send was never made, or was definitely refused (H51). Only batches sealed before the producer id or
the epoch was known, and batches after a dropped one, need another sequence: `start`, `raise_epoch` and `dropped` keep
the sequences of later batches right. After a failure the epoch is raised once nothing is in flight any more (H49).
"""

import struct
from typing import NamedTuple

from headrace.wire.crc import crc32c
from headrace.wire.zero_copy import BufferVector

SEQUENCES = 1 << 31
MAX_EPOCH = (1 << 31) - 1

_PRODUCER = struct.Struct("<qii")
_PRODUCER_AT = 64
_CRC = struct.Struct("<I")
_CRC_AT = 32
_CRC_START = 36


class ProducerStamp(NamedTuple):
    """Fields of a batch header that identify its producer."""

    producer_id: int
    producer_epoch: int
    base_sequence: int

    def behind(self, records: int) -> "ProducerStamp":
        """Return the fields of the batch that starts `records` records later."""
        if self.producer_id < 0:
            return self
        return self._replace(base_sequence=(self.base_sequence + records) % SEQUENCES)


NO_PRODUCER = ProducerStamp(-1, -1, -1)


class SequenceState:
    """Sequences of one partition. Changed by its methods only; its owner locks."""

    __slots__ = ("_next_sealed", "_next_sent", "epoch", "producer_id")

    def __init__(self) -> None:
        self.producer_id = -1
        self.epoch = -1
        self._next_sealed = 0
        self._next_sent = 0

    def start(self, producer_id: int, epoch: int, sequence: int = 0, *, queued: int = 0) -> None:
        """Set a producer id and the first sequence. Only while no sent batch is unresolved.

        `queued` is the number of records that were sealed and not sent: they come first.
        """
        self.producer_id = producer_id
        self.epoch = epoch
        self._next_sent = sequence
        self._next_sealed = (sequence + queued) % SEQUENCES

    def sealed(self, records: int) -> ProducerStamp:
        """Return the producer fields of a batch that is sealed now; none while there is no producer id."""
        if self.producer_id < 0:
            return NO_PRODUCER
        stamp = ProducerStamp(self.producer_id, self.epoch, self._next_sealed)
        self._next_sealed = (self._next_sealed + records) % SEQUENCES
        return stamp

    def sent(self, records: int) -> ProducerStamp:
        """Return the producer fields that a batch must have at its first send."""
        assert self.producer_id >= 0
        stamp = ProducerStamp(self.producer_id, self.epoch, self._next_sent)
        self._next_sent = (self._next_sent + records) % SEQUENCES
        return stamp

    def dropped(self, records: int) -> None:
        """Reclaim the sequences of a batch that was sealed and is never sent."""
        if self.producer_id >= 0:
            self._next_sealed = (self._next_sealed - records) % SEQUENCES

    def raise_epoch(self, *, queued: int = 0) -> bool:
        """Start a new epoch at sequence 0; return `False` if a new producer id is needed, after the last epoch (H54).

        See `start` for `queued`.
        """
        if self.epoch >= MAX_EPOCH:
            return False
        self.start(self.producer_id, self.epoch + 1, queued=queued)
        return True


def restamp(batch: BufferVector, stamp: ProducerStamp) -> BufferVector:
    """Return the batch with other producer fields and the same payload. Only if no send of it can have been applied."""
    first, *others = batch.parts
    changed = bytearray(first)
    _PRODUCER.pack_into(changed, _PRODUCER_AT, *stamp)
    crc = crc32c(memoryview(changed)[_CRC_START:])
    for part in others:
        crc = crc32c(part, crc)
    _CRC.pack_into(changed, _CRC_AT, crc)
    return BufferVector([bytes(changed), *others])
