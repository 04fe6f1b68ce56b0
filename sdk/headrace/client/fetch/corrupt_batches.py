"""Batches that cannot be decoded: `on_corrupt_batch` is fail, skip or dead_letter. No I/O.

A batch whose checksum is wrong is fetched again first, from a replica with a sound copy
(`SubscriptionState.corruption_detected`). One whose checksums are right was written so: every replica has it, and
fetching it again changes nothing.
"""

import logging
import time
from typing import TYPE_CHECKING, NamedTuple

from headrace.client.base.config import FetchConfig
from headrace.client.base.operations import Operation
from headrace.client.fetch.dead_letters import DeadLetter, batch_letters
from headrace.client.fetch.partition_fetch_state import CompletedFetch
from headrace.wire.errors import CorruptBatchError

if TYPE_CHECKING:
    from headrace.client.fetch.fetch_manager import FetchManager

log = logging.getLogger("headrace.consumer")


class WriteLetters(NamedTuple):
    """A step: write dead letters and wait until they are stored. Answered with `None`."""

    topic: str
    letters: tuple[DeadLetter, ...]


def pass_corrupt_batch(
    fetcher: "FetchManager",
    config: FetchConfig,
    completed: CompletedFetch,
    error: CorruptBatchError,
    group_id: str = "",
) -> Operation[bool]:
    """Continue behind a corrupt batch if `on_corrupt_batch` allows it; `False` means to raise the error.

    Raises:
        HeadraceError: the dead letter could not be written; the position is before the batch still.
    """
    where = completed.where
    with fetcher.changing() as positions:
        generation = positions.generation(where)
    if config.on_corrupt_batch == "fail" or generation < 0 or error.next_offset <= error.offset:
        return False
    how = "skipped"
    if config.on_corrupt_batch == "dead_letter":
        letters = batch_letters(where, error, group_id, time.time_ns() // 1_000_000)
        yield WriteLetters(config.dead_letter_topic, letters)
        how = f"written to {config.dead_letter_topic}"
    with fetcher.changing() as positions:
        if positions.generation(where) == generation:
            positions.seek(where, error.next_offset)
            positions.counts.corrupt_batches += 1
    log.error(
        "%s: the batch with the offsets %d to %d is corrupt and was %s: %s",
        where, error.offset, error.next_offset - 1, how, error.message,
    )  # fmt: skip
    return True
