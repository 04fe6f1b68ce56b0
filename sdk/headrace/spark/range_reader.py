"""Read of one range of offsets in an executor, from its leader or nearest replica, with all checksums verified.

The SDK's `Reader` does the work: it checks and decodes batches, follows leaders, and fetches ahead up to
`headrace.prefetch.bytes`. This module adds that the planned range is read completely, or an error states the missing
records.
"""

import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from headrace.client.base.errors import LogTruncationError, TopicRecreatedError
from headrace.client.base.records import DecodedBatch
from headrace.client.consumer.reader import Reader
from headrace.spark.errors import check_data_loss
from headrace.spark.ranges import DataLoss, OffsetRange
from headrace.wire.errors import OffsetOutOfRangeError

READ_TIMEOUT_S = 120.0
"""Time for which a task waits for the next record, which is known to exist, before it fails and Spark retries it."""
LOOK_AGAIN_S = 0.1
END_TIMEOUT_S = 30.0


def read_range(
    settings: Mapping[str, Any],
    part: OffsetRange,
    *,
    fail_on_data_loss: bool,
    topic_id: bytes = b"",
    columns: Sequence[str] | None = None,
    where: Mapping[str, tuple[Any, Any]] | None = None,
) -> Generator[DecodedBatch, None, None]:
    """Yield the records of a range in order, in the batches in which they were stored.

    `topic_id` is that of the topic in which the range was planned; empty means any topic of the name. `columns` are
    those of a typed topic that are read; `None` means whole records.
    `where` has ranges of its columns, outside of which rows are left out: see `headrace.Reader`.

    Raises:
        DataLossError: If the log starts after the first record, now or during the read.
        LogTruncationError: If the log ends before them, also after retries.
        HeadraceError: If they could not be read within `READ_TIMEOUT_S`.
    """
    position = part.start
    while position < part.end:
        with _open(settings, OffsetRange(part.where, position, part.end), topic_id, columns, where) as reader:
            if topic_id not in (b"", reader.topic_id):
                gone = f"{part.where} was deleted with the records from offset {position} to {part.end}"
                check_data_loss([gone], fail_on_data_loss)
                return
            first = reader.start_offsets()[part.where]
            if first > position:
                behind = min(first, part.end)
                check_data_loss([DataLoss(part.where, position, first, behind - position)], fail_on_data_loss)
                position = behind
            try:
                for batch in reader.batches(READ_TIMEOUT_S):
                    for decoded in batch.decoded_batches:
                        yield decoded
                        position = decoded.end_offset
                return
            except (OffsetOutOfRangeError, TopicRecreatedError):
                continue  # Retention removed records; the rest of the range is opened again, which reports the loss.


def _open(
    settings: Mapping[str, Any],
    part: OffsetRange,
    topic_id: bytes,
    columns: Sequence[str] | None,
    where: Mapping[str, tuple[Any, Any]] | None,
) -> Reader:
    """Return a reader of a range whose end is in the log.

    A newly elected leader may not know yet which of its predecessor's records are visible.
    """
    topic, partition = part.where
    deadline = time.monotonic() + END_TIMEOUT_S
    while True:
        reader = Reader(
            topic,
            start={partition: part.start},
            end={partition: part.end},
            partitions=[partition],
            columns=columns,
            where=where,
            **settings,
        )
        end = reader.end_offsets()[part.where]
        if end >= part.end or topic_id not in (b"", reader.topic_id):
            return reader
        reader.close()
        if time.monotonic() >= deadline:
            raise LogTruncationError(part.where, part.end, end)
        time.sleep(LOOK_AGAIN_S)
