"""Handling of batches that cannot be decoded (`on_corrupt_batch`: fail, skip or dead_letter). No I/O.

A batch with a wrong checksum is first fetched again from a replica with an intact copy
(`SubscriptionState.corruption_detected`). A batch with correct checksums was written in this state: every replica has
it, and fetching it again changes nothing.
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
    """Step that writes dead letters and waits until they are stored. Its result is `None`."""

    topic: str
    letters: tuple[DeadLetter, ...]


def pass_corrupt_batch(
    fetcher: "FetchManager",
    config: FetchConfig,
    completed: CompletedFetch,
    error: CorruptBatchError,
    group_id: str = "",
) -> Operation[bool]:
    """Seek past a corrupt batch if `on_corrupt_batch` allows it; return `False` if the error must be raised.

    Raises:
        HeadraceError: If the dead letter cannot be written. The position does not change.
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
