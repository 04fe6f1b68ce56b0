"""`headrace.fetch`: a copy of a cluster's topic in a directory, byte for byte.

Batches are copied as they are: the copy has the offsets, leader epochs, checksums and chain of the original. A copy
that was interrupted continues where it ended.
"""

import os
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias, Unpack

from headrace.client.admin import rpc
from headrace.client.admin.admin import Admin
from headrace.client.admin.broker_calls import BrokerCalls
from headrace.client.base.config import AdminConfig, build
from headrace.client.base.errors import ConfigError
from headrace.client.base.operations import execute
from headrace.client.base.settings_types import AdminSettings
from headrace.client.net.bootstrap_client import BootstrapClient
from headrace.client.net.transport import open_connections
from headrace.client.opened.directory import LogDirectory
from headrace.display.progress import progress_bar
from headrace.embedded.opened import OpenDirectory
from headrace.v1 import broker_pb2
from headrace.wire.batch import iter_batches
from headrace.wire.ids import TopicPartition

FETCHED_BYTES = 4 << 20


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
    after the cluster has removed them.

    Args:
        topic: name of the topic.
        directory: path of the directory; see `open`.
        until: end of the copy in each partition: an offset, or the time of the first record that is not needed. Whole
            batches are copied, so that the last one may exceed it. By default everything visible now.
        progress: called while it is copied, besides the bar that people see.
        settings: see `AdminConfig`.

    Raises:
        TopicAlreadyExistsError: If the directory has another topic of that name.
        CorruptBatchError: If the topic does not continue the copy: records were lost by the cluster and replaced.
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
        with (
            _Source(topic, described.topic_id, config) as source,
            progress_bar(f"fetch {topic}", "records", total) as bar,
        ):

            def advance(copied: CopiedPartition) -> None:
                parts = [*done, copied]
                megabytes = sum(each.size_bytes for each in parts) / 1e6
                bar.reach(sum(each.records for each in parts), f"{megabytes:,.1f} MB")
                if progress is not None:
                    progress(copied)

            for number, end in sorted(ends.items()):
                done.append(_copy(opened, source, number, end, advance))
        return done


class _Source:
    """Topic from which batches are fetched."""

    def __init__(self, topic: str, topic_id: bytes, config: AdminConfig) -> None:
        self.topic_id = topic_id
        self._topic = topic
        self._config = config
        self._connections = open_connections("Admin", config)
        self._calls = BrokerCalls(config, BootstrapClient(config))

    def __enter__(self) -> "_Source":
        return self

    def __exit__(self, *_: object) -> None:
        self._connections.close()

    def fetch(self, number: int, offset: int) -> Any:
        """Return the result of a fetch of one partition, from the log start if `offset` is below that."""

        def build_request(parts: list[tuple[int, int]], topic_id: bytes) -> Any:
            request = broker_pb2.FetchRequest(client_id=self._config.client_id, max_bytes=FETCHED_BYTES)
            entry = request.topics.add(topic=rpc.by_id(topic_id))
            entry.partitions.add(partition=number, offset=offset)
            return request

        fetching = self._calls.at_leaders("Fetch", self._topic, [number], build_request, None, self.topic_id)
        _, results = execute(fetching, self._connections.run_step)
        return results[0]

    def start_of(self, number: int) -> int:
        """Return the log start of a partition."""

        def build_request(parts: list[tuple[int, int]], topic_id: bytes) -> Any:
            request = broker_pb2.ListOffsetsRequest(client_id=self._config.client_id)
            entry = request.topics.add(topic=rpc.by_id(topic_id))
            entry.partitions.add(partition=number, spec=broker_pb2.OFFSET_SPEC_EARLIEST)
            return request

        asking = self._calls.at_leaders("ListOffsets", self._topic, [number], build_request, None, self.topic_id)
        _, results = execute(asking, self._connections.run_step)
        return int(results[0].offset)


def _below(batches: bytes, end_offset: int) -> bytes:
    """Return the batches that begin below an offset."""
    size_bytes = 0
    for header, _ in iter_batches(batches):
        if header.base_offset >= end_offset:
            break
        size_bytes += header.batch_bytes
    return batches[:size_bytes]


def _copy(opened: OpenDirectory, source: _Source, number: int, end_offset: int, progress: Progress) -> CopiedPartition:
    partition = opened.copied(source.topic_id, number)
    first = partition.log_end_offset
    copied = CopiedPartition(number, partition.log_start_offset, first, 0, 0)
    if not first:
        first = source.start_of(number)
        copied = copied._replace(start_offset=first, end_offset=first)
    while copied.end_offset < end_offset:
        data = _below(source.fetch(number, copied.end_offset).batches, end_offset)
        if not data:
            break
        end = partition.copy(data)
        copied = CopiedPartition(number, partition.log_start_offset, end, end - first, copied.size_bytes + len(data))
        progress(copied)
    partition.flush()
    opened.show()
    return copied
