"""Record of the etcd state seen by a data directory, by which a broker detects a restored etcd (H25, H81).

Owned by `ReplicaManager`, belongs to the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import structlog
from headrace.log.directory import DataDirectory, LogId
from headrace.wire.errors import HeadraceError, InvalidConfigError
from headrace_server.metadata_view import ClusterView

from headrace_broker.runtime.directory_calls import DirectoryCalls
from headrace_broker.runtime.partition import Partition
from headrace_broker.runtime.partition_context import PartitionContext

log = structlog.get_logger(__name__)

NOTE_SECONDS = 10
"""Maximum age of the record. A shorter time would not detect more, because backups of etcd are older."""


def etcd_restored(found: str) -> InvalidConfigError:
    """Return the error for a data directory that has seen a newer state of etcd."""
    return InvalidConfigError(
        f"{found}: etcd was restored from a backup",
        action="Stop all and run `headrace-coordinator recover-metadata`: see the guide disaster-recovery.",
    )


class RestoreGuard:
    """Record of the seen etcd state in one data directory."""

    def __init__(
        self, view: ClusterView, directory: DataDirectory, calls: DirectoryCalls, context: PartitionContext
    ) -> None:
        self._view = view
        self._directory = directory
        self._calls = calls
        self._context = context
        self._noted_ms = context.clock.monotonic_ms()

    def check(self, log_ids: Sequence[LogId]) -> None:
        """Raise if etcd is older than the state that the directory has seen (H81).

        The revision of each key is compared as well as etcd's own, which a restore with `--bump-revision` raises.
        """
        seen, revision = self._directory.seen, self._view.source.revision
        if revision < seen.revision:
            raise etcd_restored(f"etcd is at revision {revision}, this data directory has seen {seen.revision}")
        session = self._view.source.get(self._view.keyspace.broker_session(self._context.broker_id))
        noted_epoch, broker_epoch = self._directory.session.broker_epoch, 0 if session is None else session.mod_revision
        if broker_epoch < noted_epoch:
            raise etcd_restored(
                f"etcd has broker epoch {broker_epoch} as this broker's last, this data directory has {noted_epoch}"
            )
        for log_id in log_ids:
            entry, noted = self._view.partition(*log_id), seen.revision_of(log_id.directory_name)
            if entry is not None and noted is not None and entry.mod_revision < noted:
                raise etcd_restored(
                    f"the key of partition {log_id.partition} of topic {log_id.topic_id.hex()} is of revision "
                    f"{entry.mod_revision}, this data directory has seen it at {noted}"
                )

    async def note_if_old(self, held: Mapping[tuple[bytes, int], Partition]) -> None:
        """Call `note` if the last record is older than NOTE_SECONDS."""
        if self._context.clock.monotonic_ms() - self._noted_ms >= NOTE_SECONDS * 1000:
            try:
                await self.note(held)
            except HeadraceError as error:
                log.warning("seen_metadata_not_recorded", reason=str(error))

    async def note(
        self,
        held: Mapping[tuple[bytes, int], Partition],
        wanted: Iterable[tuple[bytes, int]] | None = None,
        *,
        all_held: frozenset[str] | None = None,
    ) -> None:
        """Record etcd's revision, and those of the keys of `wanted` (`None`: of `held`) that name this broker.

        Call it before anything relies on them.
        """
        revisions = {}
        for topic_id, number in held if wanted is None else wanted:
            entry = self._view.partition(topic_id, number)
            if entry is not None and self._context.broker_id in entry.state.replicas:
                revisions[LogId(topic_id, number).directory_name] = entry.mod_revision
        revision, seen = self._view.source.revision, self._directory.seen
        begun = frozenset(LogId(*key).directory_name for key, partition in held.items() if partition.log is not None)
        self._noted_ms = self._context.clock.monotonic_ms()
        await self._calls.run(lambda: seen.note(revision, revisions, begun=begun, held=all_held))
