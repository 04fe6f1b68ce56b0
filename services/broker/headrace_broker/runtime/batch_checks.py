"""Checks of produced batches at a leader: its role, the caller's producer ids, and inflation in threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.partition.batch_checks import AppendResult, Run, check_produced, inflatable
from headrace.partition.topic_configs import TopicConfig
from headrace.wire.batch import BatchHeader
from headrace.wire.columns import check_columns
from headrace.wire.errors import HeadraceError
from headrace_server.identity.gate import access

from headrace_broker.core.replica import PartitionReplica
from headrace_broker.runtime.partition_context import PartitionContext

_GROUP_BYTES = 8 << 20
"""Maximum payload of the batches that one call in a thread inflates sequentially."""


def check_run(
    batches: Sequence[bytes],
    result: AppendResult,
    *,
    replica: PartitionReplica,
    config: TopicConfig,
    context: PartitionContext,
    known_epoch: int,
    committed: bool,
    now_ms: int,
    compressed: Mapping[int, HeadraceError | None] | None = None,
) -> Run:
    """Check as `check_produced`, after the replica: raises its error.

    `compressed` is the result of `check_compressed` by index; `None` if there is nothing to inflate.
    """
    replica.check_leading(known_epoch).check_appending(committed=committed)
    result.leader_epoch, result.log_start_offset = replica.leader_epoch, replica.known_log_start
    before = len(result.base_offsets)
    run = check_produced(
        batches, result, producers=replica.producers, config=config, limits=context.settings, now_ms=now_ms,
        compressed=compressed, check_producer=access().check_producer,
    )  # fmt: skip
    if len(result.base_offsets) > before:
        context.metrics.duplicate_batches.inc()
    return run


async def check_compressed(
    batches: Sequence[bytes], compressed: Sequence[int], config: TopicConfig, context: PartitionContext
) -> dict[int, HeadraceError | None]:
    """Inflate the `compressed` batches and check their columns in threads; return the error or `None` by index."""
    most = context.settings.max_payload_bytes
    found: dict[int, HeadraceError | None] = dict.fromkeys(compressed)
    group: list[tuple[int, BatchHeader]] = []

    def inflate() -> None:
        for index, header in group:
            try:
                check_columns(batches[index], header, max_payload_bytes=most)
            except HeadraceError as error:
                found[index] = error

    for index in compressed:
        header = inflatable(batches, index, config, context.settings)
        if header is None:
            continue
        if group and sum(each.payload_bytes for _, each in group) + header.payload_bytes > _GROUP_BYTES:
            await context.inflation.run(max(each.payload_bytes for _, each in group), inflate)
            group = []
        group.append((index, header))
    if group:
        await context.inflation.run(max(each.payload_bytes for _, each in group), inflate)
    return found
