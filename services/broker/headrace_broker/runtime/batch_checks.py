"""What a produced batch must pass before it is written: form, settings of its topic, sequence (H48).

Called by `partition` on the event loop, once a batch; inflates nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.wire.batch import BatchFlags, BatchHeader, check_batch, sequence_after
from headrace.wire.errors import HeadraceError, InvalidRequestError, InvalidTimestampError
from headrace_server.topic_configs import TopicConfig

from headrace_broker.core.replica import PartitionReplica
from headrace_broker.runtime.services import PartitionServices
from headrace_broker.settings import BrokerSettings

_UNAPPENDABLE = int(BatchFlags.TRANSACTIONAL | BatchFlags.CONTROL)


@dataclass(slots=True)
class AppendResult:
    """What became of one partition's batches."""

    base_offsets: list[int] = field(default_factory=list)  # one a batch that was appended or was there already
    end_offset: int = 0  # the high watermark that acknowledges them all; 0: nothing to wait for
    append_timestamp_ms: int = -1
    log_start_offset: int = -1
    leader_epoch: int = -1
    append_seconds: float = 0.0  # what checking and writing took, without the wait for others
    error: HeadraceError | None = None  # what stopped the append


def check_run(
    batches: Sequence[bytes],
    position: int,
    result: AppendResult,
    *,
    replica: PartitionReplica,
    config: TopicConfig,
    services: PartitionServices,
    known_epoch: int,
    committed: bool,
) -> tuple[list[tuple[bytes, BatchHeader]], int]:
    """Check batches from `position` on: those that one write appends, and how many were looked at.

    A duplicate ends the run, and so does a bad batch behind good ones, which meets its error as the first of the next.
    Raises what the first batch, or the replica, is refused for; nothing of the run is appended then.
    """
    replica.check_leading(known_epoch)
    result.leader_epoch, result.log_start_offset = replica.leader_epoch, replica.log_start_offset
    if committed:
        replica.check_in_sync()
    pairs: list[tuple[bytes, BatchHeader]] = []
    now_ms = services.clock.now_ms()
    previous: BatchHeader | None = None
    for index in range(position, len(batches)):
        batch = batches[index]
        try:
            header = _check_batch(batch, config, services.settings, now_ms)
            if previous is None or not _continues(previous, header):
                if previous is not None and header.producer_id >= 0:
                    break  # the window must have seen the run before it can judge this one
                duplicate = replica.check_batch(
                    header.producer_id, header.producer_epoch, header.base_sequence, header.record_count
                )
                if duplicate is not None:
                    services.metrics.duplicate_batches.inc()
                    result.base_offsets.append(duplicate.base_offset)
                    result.end_offset = max(result.end_offset, duplicate.end_offset)
                    return [], 1
        except HeadraceError:
            if pairs:
                break
            raise
        pairs.append((batch, header))
        previous = header
    return pairs, len(pairs)


def _check_batch(batch: bytes, config: TopicConfig, settings: BrokerSettings, now_ms: int) -> BatchHeader:
    header = check_batch(
        batch,
        max_batch_bytes=config.max_batch_bytes,
        max_records=settings.max_batch_records,
        max_payload_bytes=settings.max_payload_bytes,
    )
    if header.flags & _UNAPPENDABLE:
        raise InvalidRequestError("transactional and control batches are not taken from clients")
    before_ms = now_ms - header.base_timestamp_ms
    after_ms = header.max_timestamp_ms - now_ms
    if before_ms > config.timestamp_before_max_ms or after_ms > config.timestamp_after_max_ms:
        raise InvalidTimestampError(
            f"timestamps {header.base_timestamp_ms} .. {header.max_timestamp_ms} are too far from the "
            f"broker's clock, {now_ms}: at most {config.timestamp_before_max_ms} ms before and "
            f"{config.timestamp_after_max_ms} ms after"
        )
    return header


def _continues(previous: BatchHeader, header: BatchHeader) -> bool:
    """Whether the producer window will take `header` right behind `previous`, so that one write may append both."""
    if header.producer_id < 0:
        return True
    return (
        header.producer_id == previous.producer_id
        and header.producer_epoch == previous.producer_epoch
        and header.base_sequence == sequence_after(previous.base_sequence, previous.record_count)
    )
