"""Validation of the batches of another log that a mirror's leader appends as they are. Pure.

A copy has been checked by the leader of its source, and is checked again: who may write to a mirror is not trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from headrace.log.compacted_writer import BATCH_BYTES
from headrace.partition.batch_checks import BatchLimits
from headrace.partition.topic_configs import CODECS, CONFIGS, TopicConfig, Validation
from headrace.wire.batch import BatchFlags, Codec, check_fields, read_header
from headrace.wire.columns import check_columns
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import BatchTooLargeError, DivergedLogError, HeadraceError, InvalidRequestError, Outcome

MAX_COPY_BYTES = 2 * CONFIGS["max_batch_bytes"].maximum
"""Limit of one batch: compaction at the source may have made one of two."""
_MERGED_RECORDS = BATCH_BYTES // 8
"""Maximum records of the small batches to which compaction adds another one: a record has two offsets of 4 bytes."""
_UNAPPENDABLE = int(BatchFlags.TRANSACTIONAL | BatchFlags.CONTROL)


class CopiedLog(Protocol):
    """Log that copies are appended to."""

    @property
    def log_start_offset(self) -> int:
        """First offset."""

    @property
    def log_end_offset(self) -> int:
        """Offset of the next record."""

    @property
    def deletions_end(self) -> int:
        """Offset below which deletions may be missing."""


def check_mirror(topic: str, config: TopicConfig) -> None:
    """Raise InvalidRequestError if a topic is no mirror."""
    if not config.mirror:
        raise InvalidRequestError(
            f"topic {topic} is no mirror, and copied batches are not appended to it",
            action="Create the topic by headrace mirror create. A mirror that was promoted is an ordinary topic.",
        )


def copied_config(config: TopicConfig) -> TopicConfig:
    """Return the settings by which copies are checked: with any codec, which their topic may have allowed once."""
    return replace(config, allowed_codecs=",".join(CODECS))


def check_copies(
    batches: Sequence[ReadableBuffer],
    config: TopicConfig,
    limits: BatchLimits,
    compressed: Mapping[int, HeadraceError | None],
) -> None:
    """Check copied batches; place, size and checksums are checked by the log (`PartitionLog.append_copies`).

    `compressed` has the indexes of compressed batches, with the error of their columns, if any.

    Raises:
        CorruptBatchError, BatchTooLargeError, UnsupportedCodecError, InvalidRequestError: If one is invalid.
    """
    for index, batch in enumerate(batches):
        header = read_header(batch)
        if len(batch) > MAX_COPY_BYTES:
            raise BatchTooLargeError(f"a copied batch of {len(batch)} bytes exceeds the limit of {MAX_COPY_BYTES}")
        check_fields(
            batch,
            header,
            max_records=limits.max_batch_records + _MERGED_RECORDS,
            max_payload_bytes=limits.max_payload_bytes,
        )
        if header.flags & _UNAPPENDABLE:
            raise InvalidRequestError("transactional and control batches are not taken from clients")
        if config.validate is not Validation.COLUMNS:
            continue
        if header.codec == Codec.NONE:
            check_columns(bytes(batch), header, max_payload_bytes=limits.max_payload_bytes)
        elif (error := compressed.get(index)) is not None:
            raise error


def lacks_deletions(log: CopiedLog, deletions_end: int) -> bool:
    """Return whether the source may miss deletions that `log` must know before it continues, as for a follower.

    Raises:
        DivergedLogError: If `log` has records whose deletions the source does not have any more.
    """
    if log.log_end_offset >= deletions_end or log.deletions_end >= deletions_end:
        return False
    if log.log_start_offset < log.log_end_offset:
        raise DivergedLogError(
            f"the source has removed deletions below offset {deletions_end}, and this log ends at "
            f"{log.log_end_offset}: it may have records that the source deleted",
            outcome=Outcome.NOT_APPLIED,
            action="Delete the topic here, and mirror it again; raise delete_retention_ms at the source.",
        )
    return True
