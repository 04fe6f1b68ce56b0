"""The batches of a log as its disk has them."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.log import PartitionLog
from headrace.wire.batch import iter_batches
from headrace.wire.columns import decode_batch
from headrace.wire.decoded import Columns


def decoded_batches(log: PartitionLog, end_offset: int) -> Iterator[Columns]:
    """Yield the batches from the log start to an offset."""
    offset = int(log.log_start_offset)
    while offset < end_offset:
        with log.reader.read(offset, 1 << 20, end_offset) as part:
            for _, batch in iter_batches(part.read()):
                yield decode_batch(bytes(batch), max_payload_bytes=1 << 20)
            offset = part.end_offset
