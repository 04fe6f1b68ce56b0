"""Sequences of an idempotent producer, a partition at a time. Pure.

Sequences count records modulo 2^31 (PROTOCOL H48). A batch gets its sequence when it is sealed; when it is first sent
that must still be the next one of its epoch, else it is stamped anew: its first send was never made, or was definitely
refused, so nothing can be doubled (H51). Only batches that were sealed before the producer id or the epoch was known,
and those behind a batch that was dropped, are stamped anew: `start`, `raise_epoch` and `dropped` keep the sequences of
later batches right. After a failure the epoch is raised once nothing is in flight any more (H49).
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
    """The fields of a batch header that name its producer."""

    producer_id: int
    producer_epoch: int
    base_sequence: int

    def behind(self, records: int) -> "ProducerStamp":
        """Return the stamp of the batch that starts `records` records later."""
        if self.producer_id < 0:
            return self
        return self._replace(base_sequence=(self.base_sequence + records) % SEQUENCES)


NO_PRODUCER = ProducerStamp(-1, -1, -1)


class SequenceState:
    """The sequences of one partition. Changed by its methods alone; its owner locks."""

    __slots__ = ("_next_sealed", "_next_sent", "epoch", "producer_id")

    def __init__(self) -> None:
        self.producer_id = -1
        self.epoch = -1
        self._next_sealed = 0
        self._next_sent = 0

    def start(self, producer_id: int, epoch: int, sequence: int = 0, *, queued: int = 0) -> None:
        """Take a producer id, and the first sequence. Only while nothing that was sent is unresolved.

        `queued` is the number of records that were sealed and not sent: they come first.
        """
        self.producer_id = producer_id
        self.epoch = epoch
        self._next_sent = sequence
        self._next_sealed = (sequence + queued) % SEQUENCES

    def sealed(self, records: int) -> ProducerStamp:
        """Return the stamp for a batch that is sealed now; none as long as there is no producer id."""
        if self.producer_id < 0:
            return NO_PRODUCER
        stamp = ProducerStamp(self.producer_id, self.epoch, self._next_sealed)
        self._next_sealed = (self._next_sealed + records) % SEQUENCES
        return stamp

    def sent(self, records: int) -> ProducerStamp:
        """Return the stamp that a batch must carry that is sent for the first time now."""
        assert self.producer_id >= 0
        stamp = ProducerStamp(self.producer_id, self.epoch, self._next_sent)
        self._next_sent = (self._next_sent + records) % SEQUENCES
        return stamp

    def dropped(self, records: int) -> None:
        """Take back the sequences of a batch that was sealed and is never sent."""
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
    """Return the batch with another producer stamp; the payload stays as it is. Only where no send of it can have been
    applied.
    """
    first, *others = batch.parts
    changed = bytearray(first)
    _PRODUCER.pack_into(changed, _PRODUCER_AT, *stamp)
    crc = crc32c(memoryview(changed)[_CRC_START:])
    for part in others:
        crc = crc32c(part, crc)
    _CRC.pack_into(changed, _CRC_AT, crc)
    return BufferVector([bytes(changed), *others])
