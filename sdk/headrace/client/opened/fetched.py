"""`headrace.fetch`: a copy of a cluster's topic in a directory, byte for byte.

Batches are copied as they are: the copy has the offsets, leader epochs, checksums and chain of the original. A copy
that was interrupted continues where it ended.
"""

import os
import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from functools import partial
from typing import NamedTuple, TypeAlias, Unpack

from headrace.client.admin.admin import Admin
from headrace.client.admin.partition_calls import PartitionCalls
from headrace.client.base.config import AdminConfig, build
from headrace.client.base.errors import ConfigError
from headrace.client.base.operations import execute
from headrace.client.base.settings_types import AdminSettings
from headrace.client.net.transport import open_connections
from headrace.client.opened.directory import LogDirectory
from headrace.display.progress import progress_bar
from headrace.embedded.open_partition import DirectoryPartition
from headrace.wire.batch import read_header
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import DivergedLogError, OffsetOutOfRangeError, Outcome, TimedOutError
from headrace.wire.ids import TopicPartition

FETCHED_BYTES = 4 << 20
FETCH_MAX_WAIT_MS = 500
"""Time for which a broker waits for records: after an election they are visible again once its followers have them."""


class CopiedPartition(NamedTuple):
    """One partition of a copy."""

    partition: int
    start_offset: int
    """First offset of the copy."""
    end_offset: int
    """Offset after its last record."""
    records: int
    """Offsets that this call has copied."""
    size_bytes: int
    """Bytes that this call has copied."""


Progress: TypeAlias = Callable[[CopiedPartition], object]
"""Called after each answer of a broker."""


def fetch(
    topic: str,
    directory: str | os.PathLike[str],
    *,
    until: int | datetime | None = None,
    progress: Progress | None = None,
    **settings: Unpack[AdminSettings],
) -> list[CopiedPartition]:
    """Copy a topic of a cluster to a directory, which is made if there is none; return its partitions.

    The copy is read only: another call continues it with what the cluster has then. It keeps the records that it has
    after the cluster has removed them, and has no records where the cluster had none left when it was continued.

    Args:
        topic: name of the topic.
        directory: path of the directory; see `open`.
        until: end of the copy in each partition: an offset, or the time of the first record that is not needed. Whole
            batches are copied, so that the last one may exceed it. By default everything visible now.
        progress: called while it is copied, besides the bar that people see.
        settings: see `AdminConfig`.

    Raises:
        TopicAlreadyExistsError: If the directory has another topic of that name.
        CorruptBatchError, DivergedLogError: If the topic does not continue the copy: the cluster has lost records.
        TimedOutError: If records that were visible at the beginning were not for `request_timeout_ms`, after an
            election; fetch again, which continues the copy.
        NoBrokersAvailableError: If no address responded.
        HeadraceError: As `open`.
    """
    config = build(AdminConfig, settings)
    if config.directory:
        raise ConfigError("a topic is fetched from a cluster, and bootstrap_servers is a directory")
    with LogDirectory(directory) as log, Admin(**settings) as admin:
        opened = log._server.directory.writer()
        described = admin.describe_topic(topic)
        configs = {name: each.value for name, each in admin.describe_config(topic).items() if not each.is_default}
        opened.adopt(topic, described.topic_id, len(described.partitions), configs, admin.describe_cluster().cluster_id)
        ends = {where.partition: at.offset for where, at in admin.list_offsets(topic, "latest").items()}
        if isinstance(until, datetime):
            found = admin.list_offsets(topic, until)
            ends = {number: min(end, found[TopicPartition(topic, number)].offset) for number, end in ends.items()}
        elif until is not None:
            ends = {number: min(end, until) for number, end in ends.items()}
        starts = {where.partition: at.offset for where, at in admin.list_offsets(topic, "earliest").items()}
        begun = {n: opened.copied(described.topic_id, n).log_end_offset or starts[n] for n in ends}
        total = sum(max(0, end - begun[number]) for number, end in ends.items())
        done: list[CopiedPartition] = []
        calls = PartitionCalls(topic, described.topic_id, config)
        with (
            closing(open_connections("Admin", config)) as connections,
            progress_bar(f"fetch {topic}", "records", total) as bar,
        ):

            def fetch_from(number: int, offset: int, max_bytes: int = FETCHED_BYTES) -> ReadableBuffer:
                fetching = calls.fetch(number, offset, max_wait_ms=FETCH_MAX_WAIT_MS, max_bytes=max_bytes)
                return execute(fetching, connections.run_step).batches

            def advance(copied: CopiedPartition) -> None:
                parts = [*done, copied]
                megabytes = sum(each.size_bytes for each in parts) / 1e6
                bar.reach(sum(each.records for each in parts), f"{megabytes:,.1f} MB")
                if progress is not None:
                    progress(copied)

            for number, end in ends.items():
                partition = opened.copied(described.topic_id, number)
                _check_same(partition, starts[number], end, partial(fetch_from, number, max_bytes=1))
            for number, end in sorted(ends.items()):
                partition = opened.copied(described.topic_id, number)
                fetching = partial(fetch_from, number)
                done.append(_copy(partition, starts[number], end, fetching, advance, config.request_timeout_ms / 1000))
                opened.show()
        return done


def _check_same(
    partition: DirectoryPartition, log_start: int, end_offset: int, fetch_from: Callable[[int], ReadableBuffer]
) -> None:
    """Check the last record that a copy and the cluster's log, `log_start` to `end_offset`, both have.

    Without anything to copy, no batch would be found that does not continue the copy.

    Raises:
        DivergedLogError: If they have different ones.
    """
    last = min(partition.log_end_offset, end_offset) - 1
    if last < max(partition.log_start_offset, log_start):
        return
    try:
        batches = fetch_from(last)
    except OffsetOutOfRangeError:  # The cluster's log start was raised meanwhile.
        return
    if not batches:  # An election has hidden it.
        return
    theirs, ours = read_header(batches), partition.reader.batch_with(last)
    if theirs.end_offset != ours.end_offset:
        is_same = theirs.is_compacted or ours.is_compacted  # Perhaps: compaction has merged batches.
    else:
        is_same = theirs.chain_crc == ours.chain_crc
    if not is_same:
        raise DivergedLogError(
            f"partition {partition.number} of {partition.topic.name} has another record in the cluster than in the "
            f"copy at offset {last}: the cluster has lost records, or was restored from a backup",
            outcome=Outcome.NOT_APPLIED,
            action="Fetch the topic into another directory.",
        )


def _copy(
    partition: DirectoryPartition,
    log_start: int,
    end_offset: int,
    fetch_from: Callable[[int], ReadableBuffer],
    progress: Progress,
    timeout: float,
) -> CopiedPartition:
    """Copy one partition, whose log begins at `log_start` in the cluster.

    Raises:
        TimedOutError: If the cluster had no records below `end_offset` for `timeout` seconds.
    """
    first = partition.log_end_offset
    copied = CopiedPartition(partition.number, partition.log_start_offset, first, 0, 0)
    if not first:
        first = log_start
        copied = copied._replace(start_offset=first, end_offset=first)
    progressed = time.monotonic()
    while (offset := max(copied.end_offset, log_start)) < end_offset:
        batches = fetch_from(offset)
        if not batches:
            if time.monotonic() - progressed >= timeout:
                raise TimedOutError(
                    f"partition {partition.number} of {partition.topic.name} has visible records up to offset {offset} "
                    f"only, and had them up to {end_offset}",
                    outcome=Outcome.NOT_APPLIED,
                    action="Fetch again: the copy continues.",
                )
            continue
        progressed = time.monotonic()
        size_bytes = partition.copy(batches, end_offset)
        if not size_bytes:
            break  # They begin at `end_offset` or after it.
        end, total = partition.log_end_offset, copied.size_bytes + size_bytes
        copied = CopiedPartition(partition.number, partition.log_start_offset, end, end - first, total)
        progress(copied)
    partition.flush()
    return copied
