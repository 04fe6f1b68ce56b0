"""Validation of produced batches before they are written: format, columns, topic settings, sequence (H48).

Called once per batch by who appends: the broker's `partition_appender` on its event loop, or an open directory. Every
reader can decode a valid batch, unless its topic has `validate=header`. Pure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol, TypeAlias

import numpy as np

from headrace.partition.producers import ProducerWindows
from headrace.partition.topic_configs import TopicConfig, Validation
from headrace.wire.batch import (
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    BatchFlags,
    BatchHeader,
    Codec,
    check_batch,
    read_header,
    sequence_after,
)
from headrace.wire.batch_runs import FEW_BATCHES, BatchRun, continuing, read_run
from headrace.wire.columns import check_columns
from headrace.wire.errors import (
    ConflictError,
    HeadraceError,
    InvalidConfigError,
    InvalidRequestError,
    InvalidTimestampError,
    Outcome,
    ReadOnlyTopicError,
    UnsupportedCodecError,
)
from headrace.wire.typed.payload import Directory, read_directory
from headrace.wire.typed.topic_columns import evolved, parse_columns, writable

Run: TypeAlias = list[tuple[bytes, BatchHeader]] | BatchRun
"""Checked batches that one write appends."""

_UNAPPENDABLE = int(BatchFlags.TRANSACTIONAL | BatchFlags.CONTROL | BatchFlags.COMPACTED)
_KEYS_AND_NULLS = int(BatchFlags.KEYS | BatchFlags.NULL_KEYS)
_CODEC_AT = 37


class BatchLimits(Protocol):
    """Limits of a process for each batch, whatever its topic: the settings of a broker, or those of a directory."""

    @property
    def max_batch_records(self) -> int:
        """Maximum number of records."""

    @property
    def max_payload_bytes(self) -> int:
        """Maximum bytes of the payload, inflated."""


@dataclass(slots=True)
class AppendResult:
    """Result of appending one partition's batches."""

    base_offsets: list[int] = field(default_factory=list)  # one per batch that was appended or is a duplicate
    end_offset: int = 0  # the high watermark that acknowledges them all; 0: nothing to wait for
    repeated: bool = False  # some batch is a duplicate
    append_timestamp_ms: int = -1
    log_start_offset: int = -1
    leader_epoch: int = -1
    append_seconds: float = 0.0  # duration of check and write, without waiting for others
    error: HeadraceError | None = None  # the error that stopped the append
    log_end_offset: int = 0  # of copied batches: where the next one begins
    log_end_crc: int = 0  # of copied batches: the chain value there

    def add(self, later: AppendResult) -> None:
        """Add the result of the later batches, which were appended under the same leader epoch or not at all."""
        self.base_offsets += later.base_offsets
        self.end_offset = max(self.end_offset, later.end_offset)
        self.append_seconds += later.append_seconds
        self.error = later.error
        if later.base_offsets:
            self.append_timestamp_ms = later.append_timestamp_ms
            self.log_start_offset = later.log_start_offset


def parts_of(run: Run) -> Iterator[tuple[int, int, int, tuple[int, int, int]]]:
    """Yield for each part of a run: number of batches, records of each, bytes, and id, epoch and base sequence."""
    if isinstance(run, BatchRun):
        yield len(run), run.record_count, len(run.data), run.producer
        return
    for _, header in run:
        yield 1, header.record_count, header.batch_bytes, (
            header.producer_id, header.producer_epoch, header.base_sequence,
        )  # fmt: skip


def check_produced(
    batches: Sequence[bytes],
    result: AppendResult,
    *,
    producers: ProducerWindows,
    config: TopicConfig,
    limits: BatchLimits,
    now_ms: int,
    compressed: Mapping[int, HeadraceError | None] | None = None,
    check_producer: Callable[[int], None] = lambda producer_id: None,
) -> Run:
    """Check the batches that `result` does not have yet, and return a run that one write appends.

    `compressed` is the result of inflating compressed batches by index; `None` if there is nothing to inflate.
    `check_producer` raises if the caller may not use a producer id.

    A duplicate is added to `result` and ends the run. An invalid batch after valid ones also ends the run; its error is
    raised when it is the first of the next run.
    Raises the error of the first batch; nothing of the run is appended then.
    """
    if config.mirror:
        raise ReadOnlyTopicError(
            f"the topic is read only: mirror {config.mirror} copies it from elsewhere", outcome=Outcome.NOT_APPLIED
        )
    if not result.base_offsets:  # Only once, so that many short runs do not read the same batches again and again.
        run = _small_run(batches, producers, config, limits, now_ms, check_producer)
        if run is not None:
            return run
    pairs: list[tuple[bytes, BatchHeader]] = []
    previous: BatchHeader | None = None
    for index in range(len(result.base_offsets), len(batches)):
        batch = batches[index]
        try:
            header, directory = _check_batch(batch, config, limits, now_ms)
            if config.validate is Validation.COLUMNS:
                if header.codec == Codec.NONE:
                    most = limits.max_payload_bytes
                    check_columns(batch, header, max_payload_bytes=most, directory=directory)
                elif compressed is not None and (inflated := compressed.get(index)) is not None:
                    raise inflated
            if previous is None or not _continues(previous, header):
                if previous is not None and header.producer_id >= 0:
                    break  # the window must record the run before it can check this batch
                duplicate = None
                if header.producer_id >= 0:
                    check_producer(header.producer_id)
                    duplicate = producers.check(
                        header.producer_id, header.producer_epoch, header.base_sequence, header.record_count, now_ms
                    )
                if duplicate is not None:
                    result.repeated = True
                    result.base_offsets.append(duplicate.base_offset)
                    result.end_offset = max(result.end_offset, duplicate.end_offset)
                    return pairs
        except HeadraceError:
            if pairs:
                break
            raise
        pairs.append((batch, header))
        previous = header
    return pairs


def _small_run(
    batches: Sequence[bytes],
    producers: ProducerWindows,
    config: TopicConfig,
    limits: BatchLimits,
    now_ms: int,
    check_producer: Callable[[int], None],
) -> BatchRun | None:
    """Return the first batches if they are many, of the usual kind, valid and no duplicates; raise likewise."""
    if config.compacts or config.columns or Codec.NONE not in _codec_numbers(config.allowed_codecs):
        return None
    run = read_run(
        batches,
        max_batch_bytes=config.max_batch_bytes,
        max_records=limits.max_batch_records,
        max_payload_bytes=limits.max_payload_bytes,
    )
    if run is None:
        return None
    times_ms = run.headers["base_timestamp_ms"]
    before_ms, after_ms = now_ms - times_ms, times_ms - now_ms
    wrong = np.flatnonzero((before_ms > config.timestamp_before_max_ms) | (after_ms > config.timestamp_after_max_ms))
    count = min(continuing(run), int(wrong[0]) if len(wrong) else len(run))
    if count <= FEW_BATCHES:
        return None
    producer_id, producer_epoch, base_sequence = run.producer
    check_producer(producer_id)
    if producer_id >= 0 and producers.check(producer_id, producer_epoch, base_sequence, run.record_count, now_ms):
        return None
    return run.first(count)


def _check_batch(
    batch: bytes, config: TopicConfig, limits: BatchLimits, now_ms: int
) -> tuple[BatchHeader, Directory | None]:
    """Return the header and, of a typed batch, the directory."""
    header = check_batch(
        batch,
        max_batch_bytes=config.max_batch_bytes,
        max_records=limits.max_batch_records,
        max_payload_bytes=limits.max_payload_bytes,
    )
    if header.codec not in _codec_numbers(config.allowed_codecs):
        name = Codec(header.codec).name.lower()
        raise UnsupportedCodecError(
            f"codec {name} is not among the topic's allowed_codecs, {config.allowed_codecs}",
            action="Set compression_type of the producer to one of them, or alter the topic.",
        )
    if header.flags & _UNAPPENDABLE:
        raise InvalidRequestError("transactional, control and compacted batches are not taken from clients")
    if config.compacts and header.flags & _KEYS_AND_NULLS != BatchFlags.KEYS:
        raise InvalidRequestError(
            "the topic is compacted, and a record has no key",
            action="Send every record with a key; a null value deletes its key.",
        )
    directory = _check_typed(batch, header, config)
    if header.base_timestamp_ms < MIN_TIMESTAMP_MS or header.max_timestamp_ms > MAX_TIMESTAMP_MS:
        raise InvalidTimestampError(
            f"timestamps {header.base_timestamp_ms} .. {header.max_timestamp_ms} are outside the years 1 to 9999, "
            f"{MIN_TIMESTAMP_MS} .. {MAX_TIMESTAMP_MS}",
            action="Send milliseconds since 1970.",
        )
    before_ms = now_ms - header.base_timestamp_ms
    after_ms = header.max_timestamp_ms - now_ms
    if before_ms > config.timestamp_before_max_ms or after_ms > config.timestamp_after_max_ms:
        raise InvalidTimestampError(
            f"timestamps {header.base_timestamp_ms} .. {header.max_timestamp_ms} are too far from the "
            f"broker's clock, {now_ms}: at most {config.timestamp_before_max_ms} ms before and "
            f"{config.timestamp_after_max_ms} ms after"
        )
    return header, directory


def _check_typed(batch: bytes, header: BatchHeader, config: TopicConfig) -> Directory | None:
    """Check that a batch of rows is sent to a typed topic that has its columns, and another one to another topic.

    Returns:
        The directory of a batch of rows.
    """
    if header.is_typed != bool(config.columns):
        if header.is_typed:
            raise InvalidRequestError("the topic is not typed, and the batch has rows", action="Send bytes.")
        raise InvalidRequestError(
            f"the topic is typed, and a batch has values of bytes; its columns are {config.columns}",
            action="Send rows: a dict for each record, or a table.",
        )
    if not header.is_typed:
        return None
    directory = read_directory(batch, header)
    wrong, may_be_newer = _unwritable(directory.text, config.columns, config.compatibility)
    if may_be_newer:
        raise ConflictError(
            f"the batch does not fit the columns that the broker knows: {wrong}",
            action=f"Retry, as it may not know the newest columns yet. It knows {config.columns}.",
        )
    if wrong:
        raise InvalidRequestError(
            f"the batch does not fit the topic's columns: {wrong}", action=f"The columns are {config.columns}."
        )
    for place, name in _required(directory.text):
        if directory.entries[place].null_count:
            raise InvalidRequestError(f"column {name} is required, and null in the batch", action="Give it a value.")
    return directory


@lru_cache(maxsize=256)
def _required(text: str) -> tuple[tuple[int, str], ...]:
    """Return place and name of the required columns of a batch: those of the topic, see `writable`, are among them."""
    return tuple((place, each.name) for place, each in enumerate(parse_columns(text).columns) if each.is_required)


@lru_cache(maxsize=256)
def _unwritable(text: str, columns: str, compatibility: str) -> tuple[str, bool]:
    """Return why a batch of these columns does not fit, and whether they may be newer than those of the topic.

    They may if they have a newer column, or if the topic may be changed to have them: its leader learns of a change
    later than a producer that has asked another server. With `compatibility=none` it may be changed to nearly any.
    """
    known = parse_columns(columns)
    wrong = writable(text, known)
    newest = max(column.id for column in parse_columns(text).columns)
    may_be_newer = newest > max(column.id for column in known.columns)
    if wrong and not may_be_newer and compatibility != "none":
        with contextlib.suppress(InvalidConfigError):
            evolved(columns, text, compatibility)
            may_be_newer = True
    return wrong, may_be_newer


@lru_cache(maxsize=64)
def _codec_numbers(names: str) -> frozenset[int]:
    return frozenset(int(Codec[name.upper()]) for name in names.split(","))


def find_compressed(batches: Sequence[bytes], config: TopicConfig) -> list[int]:
    """Return the indexes of compressed batches; empty if their columns are not checked."""
    if config.validate is not Validation.COLUMNS:
        return []
    return [index for index, batch in enumerate(batches) if len(batch) > _CODEC_AT and batch[_CODEC_AT] != Codec.NONE]


def inflatable(batches: Sequence[bytes], index: int, config: TopicConfig, limits: BatchLimits) -> BatchHeader | None:
    """Return the header of a compressed batch; `None` if `check_produced` rejects it before it would be inflated.

    That is a batch that is malformed, too large or of a codec that the topic does not allow.
    """
    try:
        header = read_header(batches[index])
    except HeadraceError:
        return None
    if header.payload_bytes > limits.max_payload_bytes or header.codec not in _codec_numbers(config.allowed_codecs):
        return None
    return header


def _continues(previous: BatchHeader, header: BatchHeader) -> bool:
    """Return whether `header` directly follows `previous` in its producer's sequence: one write may append both."""
    if header.producer_id < 0:
        return True
    return (
        header.producer_id == previous.producer_id
        and header.producer_epoch == previous.producer_epoch
        and header.base_sequence == sequence_after(previous.base_sequence, previous.record_count)
    )
