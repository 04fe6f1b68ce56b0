"""Load of a case: number and size of records, and their batches."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, TypeAlias

from headrace.wire.columns import encode_batch

BATCH_BYTES = 1 << 20
BATCH_HEADER_BYTES = 80
RECORD_OVERHEAD_BYTES = 4
MAX_LIST = 10_000
PAPER_BYTES = 200
"""Message size in the paper's experiment."""
MARKS = 20
"""Number of times recorded during a case, for the paper's figures."""


Transport: TypeAlias = Literal["auto", "native", "grpc"]
"""Transport of clients."""


@dataclass(frozen=True, slots=True)
class Load:
    """Records of one size, without keys."""

    records: int
    value_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes of all values."""
        return self.records * self.value_bytes

    def values(self, count: int | None = None) -> list[bytes]:
        """Return distinct values to be sent repeatedly; by default as many as a batch holds.

        Half of their bytes are random, so that a codec halves them.
        """
        chance = random.Random(self.value_bytes)
        size = self.value_bytes
        return [
            (n.to_bytes(4, "big") + chance.randbytes(size // 2 + 1).hex().encode())[:size]
            for n in range(count or records_a_batch(size))
        ]


def records_a_batch(value_bytes: int) -> int:
    """Return the records of this size in a batch of 1 MiB; at most `MAX_LIST`."""
    room = (BATCH_BYTES - BATCH_HEADER_BYTES) // (value_bytes + RECORD_OVERHEAD_BYTES)
    return max(1, min(MAX_LIST, room - 8 if room > 100 else room))


def one_batch(load: Load) -> bytes:
    """Return the batch for measurements of the limit: the bytes that the SDK sends."""
    return encode_batch(load.values(), base_timestamp_ms=0)
