"""Deletion of logs, and retention of logs without evidence that they may be deleted (PROTOCOL H25, H26, H81).

A log is deleted only on positive evidence, after the delay that its topic sets:

- its topic is gone and `deleted_topics/{topic_id}` exists, or
- its partition's key does not name this broker, at a revision after the last one at which it did.

Absence is no evidence: an etcd restored from a backup lacks topics, too, and a view omits values that it cannot decode.
While any value of the metadata cannot be decoded nothing is deleted. The evidence is checked again after the delay. A
log without evidence that no key claims for this broker is unclaimed: it stays on the disk, closed, is counted and
logged, and is opened again when a key names it. An operator can delete it: by a tombstone if no topic has its id,
otherwise on this broker if the partition's key in etcd allows it (`core.unclaimed`). Owned by `ReplicaManager`, belongs
to the event loop.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import structlog
from google.protobuf.message import DecodeError
from headrace.log.directory import DataDirectory, LogId
from headrace.log.errors import REFUSALS, RETRY_AFTER_MS
from headrace.log.log import PartitionLog
from headrace.partition.log_settings import log_settings
from headrace.partition.topic_configs import TopicConfig, read_stored_topic_config
from headrace.wire.errors import ConflictError, HeadraceError, Outcome
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import Metastore
from headrace_server.partition_state import PartitionState, decode

from headrace_broker.core.unclaimed import reason_to_keep
from headrace_broker.runtime.directory_calls import DirectoryCalls
from headrace_broker.runtime.partition_context import PartitionContext

log = structlog.get_logger(__name__)

REMOVE_AGAIN_MS = 60_000
"""Interval between attempts to remove directories of deleted logs after one failed."""
NEXT_STEP = (
    "After a restore of etcd follow the guide disaster-recovery; to delete it run `headrace broker delete-unclaimed` "
    "where its topic exists, else `headrace topic delete --unclaimed` with the topic's id."
)


@dataclass(frozen=True, slots=True)
class _Deletion:
    """Pending deletion of a log."""

    due_ms: int
    """Monotonic time."""
    log: PartitionLog | None
    """`None` if it is not open."""


class UnclaimedLog(NamedTuple):
    """Unclaimed log in an operator's request."""

    size_bytes: int
    refusal: ConflictError | None
    """Why it must be kept; `None` if it may be deleted, or was."""


class LogDeletion:
    """Logs of a data directory that belong to no partition of this broker."""

    def __init__(
        self,
        view: ClusterView,
        metastore: Metastore,
        directory: DataDirectory,
        calls: DirectoryCalls,
        context: PartitionContext,
    ) -> None:
        self._view = view
        self._metastore = metastore
        self._directory = directory
        self._calls = calls
        self._context = context
        self._pending: dict[LogId, _Deletion] = {}
        self._unclaimed: dict[LogId, None] = {}
        self._operator_calls = asyncio.Lock()
        self._remove_at_ms: int | None = 0  # A process that was killed may have left some.
        """When to remove the directories of deleted logs (monotonic); `None` means that none are on the disk."""

    @property
    def unclaimed(self) -> list[LogId]:
        """Unclaimed logs, sorted."""
        return sorted(self._unclaimed)

    def has_evidence(self, log_id: LogId) -> bool:
        """Return whether the view has evidence that a log of this broker may be deleted."""
        view = self._view
        if view.undecodable:
            return False
        if view.topic_by_id(log_id.topic_id) is None:
            is_reserved = view.source.get(view.keyspace.topic_by_id(log_id.topic_id)) is not None
            return log_id.topic_id in view.deleted and not is_reserved
        entry = view.partition(*log_id)
        if entry is None or self._context.broker_id in entry.state.replicas:
            return False
        claimed_at = self._directory.seen.revision_of(log_id.directory_name)
        return claimed_at is not None and claimed_at < entry.mod_revision

    def schedule(self, log_id: LogId, partition_log: PartitionLog | None) -> None:
        """Schedule the deletion of a log, open or not, after the delay of its topic if the evidence still holds."""
        delay_ms = self._delay_ms(log_id)
        self._pending[log_id] = _Deletion(self._context.clock.monotonic_ms() + delay_ms, partition_log)
        self._unclaimed.pop(log_id, None)
        self._count()
        log.info("partition_deleted", topic_id=log_id.topic_id.hex(), partition=log_id.partition, delay_ms=delay_ms)

    async def keep(self, log_id: LogId, partition_log: PartitionLog | None, high_watermark: int | None = None) -> None:
        """Close an unclaimed log, and keep it."""
        self._pending.pop(log_id, None)
        self._unclaimed[log_id] = None
        self._count()
        log.error(
            "log_unclaimed",
            topic_id=log_id.topic_id.hex(), partition=log_id.partition, reason=self._reason(log_id), action=NEXT_STEP,
        )  # fmt: skip
        if partition_log is not None:
            try:
                await self._calls.run(lambda: self._directory.close_log(partition_log, high_watermark=high_watermark))
            except HeadraceError as error:
                log.error("log_not_closed", topic_id=log_id.topic_id.hex(), reason=str(error))

    def review(self, log_id: LogId) -> None:
        """Schedule the deletion of an unclaimed log if there is evidence now."""
        if log_id in self._unclaimed and self.has_evidence(log_id):
            self.schedule(log_id, None)

    async def claim(self, log_id: LogId) -> None:
        """Cancel the deletion of a log that a key names again, so that its records need not be copied again."""
        deletion = self._pending.pop(log_id, None)
        if deletion is not None and deletion.log is not None:
            partition_log = deletion.log
            with suppress(*REFUSALS):  # It is closed nevertheless, and recovered when it is opened.
                await self._calls.run(lambda: self._directory.close_log(partition_log))
        if self._unclaimed.pop(log_id, 0) is None:
            self._count()
            log.info("log_claimed", topic_id=log_id.topic_id.hex(), partition=log_id.partition)

    async def delete_unclaimed(self, log_id: LogId, *, validate_only: bool) -> UnclaimedLog:
        """Delete an unclaimed log for an operator, or with `validate_only` check whether it may be deleted.

        Raises:
            ConflictError: If the log is not unclaimed.
            MetastoreUnavailableError, CorruptLogError, StorageOfflineError: If etcd or the disk fails.
        """
        async with self._operator_calls:
            state = await self._read_state(log_id)
            if log_id not in self._unclaimed:  # It cannot be claimed between this check and the call.
                raise _refusal("it is not unclaimed")
            found = await self._calls.run(lambda: self._check_and_delete(log_id, state, validate_only))
            if found.refusal is None and not validate_only:
                self._unclaimed.pop(log_id, None)
                self._pending.pop(log_id, None)
                self._remove_at_ms = 0
                self._count()
                log.warning(
                    "unclaimed_log_deleted",
                    topic_id=log_id.topic_id.hex(), partition=log_id.partition, size_bytes=found.size_bytes,
                )  # fmt: skip
            return found

    async def _read_state(self, log_id: LogId) -> PartitionState | str:
        """Return the current value of the partition's key in etcd, or why the log must be kept without one."""
        view = self._view
        if view.undecodable:
            return f"{len(view.undecodable)} values of the metadata cannot be decoded by this release"
        if view.topic_by_id(log_id.topic_id) is None:
            return "no topic has its id; run `headrace topic delete --unclaimed` with the id"
        found = (await self._metastore.get(view.keyspace.partition(*log_id))).key_value
        try:
            return "etcd has no key of the partition" if found is None else decode(found.value)
        except DecodeError:
            return "the partition's key cannot be decoded by this release"

    def _check_and_delete(self, log_id: LogId, state: PartitionState | str, validate_only: bool) -> UnclaimedLog:
        """Open the log to read its last epoch, and delete or close it. Runs in a thread."""
        partition_log = self._directory.open_log(*log_id, log_settings(TopicConfig()))
        size_bytes, last_epoch = partition_log.size_bytes, partition_log.last_epoch
        reason = state if isinstance(state, str) else reason_to_keep(state, self._context.broker_id, last_epoch)
        if reason or validate_only:
            self._directory.close_log(partition_log)
        else:
            self._directory.delete_log(partition_log)
        return UnclaimedLog(size_bytes, _refusal(reason) if reason else None)

    async def delete_due(self) -> None:
        """Delete the logs whose delay has passed and whose evidence still holds; keep the others as unclaimed."""
        if self._view.undecodable:
            return
        now_ms = self._context.clock.monotonic_ms()
        due = {log_id: deletion for log_id, deletion in self._pending.items() if deletion.due_ms <= now_ms}
        for log_id, deletion in due.items():
            if self._pending.get(log_id) is not deletion:
                continue  # It was claimed while another log was deleted.
            if not self.has_evidence(log_id):
                await self.keep(log_id, deletion.log)
                continue
            del self._pending[log_id]
            try:
                await self._delete(log_id, deletion.log)
            except HeadraceError as error:
                log.error("partition_not_removed", topic_id=log_id.topic_id.hex(), reason=str(error))
                if isinstance(error, REFUSALS):
                    self._pending[log_id] = _Deletion(now_ms + RETRY_AFTER_MS, None)
        if due:
            self._remove_at_ms = 0
        if self._remove_at_ms is not None and self._remove_at_ms <= now_ms:
            await self._remove_directories(now_ms)

    async def _remove_directories(self, now_ms: int) -> None:
        """Remove the directories of deleted logs; what is left is tried again later, and concerns no other log."""
        try:
            await self._calls.run(self._directory.remove_deleted)
            self._remove_at_ms = None
        except REFUSALS:
            self._remove_at_ms = now_ms
        except HeadraceError as error:
            self._remove_at_ms = now_ms + REMOVE_AGAIN_MS
            log.error(
                "deleted_log_not_removed",
                reason=error.message, action="Remove from its directory what the broker did not write.",
            )  # fmt: skip

    async def _delete(self, log_id: LogId, partition_log: PartitionLog | None) -> None:
        if partition_log is None:
            await self._calls.run(lambda: self._directory.delete_log_directory(log_id))
        else:
            await self._calls.run(lambda: self._directory.delete_log(partition_log))

    def _delay_ms(self, log_id: LogId) -> int:
        topic = self._view.topic_by_id(log_id.topic_id)
        if topic is not None:
            return topic.config.file_delete_delay_ms
        deleted = self._view.deleted.get(log_id.topic_id)  # type: ignore[call-overload]
        if deleted is None:
            return TopicConfig().file_delete_delay_ms
        if not deleted.message.topic.name:
            return 0  # An administrator deleted the unclaimed logs.
        return read_stored_topic_config(deleted.message.topic.configs)[0].file_delete_delay_ms

    def _reason(self, log_id: LogId) -> str:
        if self._view.undecodable:
            return f"{len(self._view.undecodable)} values of the metadata cannot be decoded by this release"
        if self._view.topic_by_id(log_id.topic_id) is None:
            return "etcd has neither a topic of this id nor a record of its deletion"
        if self._view.partition(*log_id) is None:
            return "etcd has the topic, but no readable key of this partition"
        return "the partition's key names other brokers, but a later revision may name this one"

    def _count(self) -> None:
        self._context.metrics.unclaimed_logs.set(len(self._unclaimed))


def _refusal(reason: str) -> ConflictError:
    return ConflictError(
        f"the log stays: {reason}",
        outcome=Outcome.NOT_APPLIED,
        retriable=False,
        action="Look at the partition with `headrace topic describe`, and at the runbook HeadraceUnclaimedLog.",
    )
