"""Expiry of `deleted_topics/{topic_id}` keys after brokers have had time to delete their logs.

Brokers delete a log only if this key exists. A broker that was offline for longer keeps its log of the topic as
unclaimed, so that expiry too early costs disk space but no records. Therefore the oldest keys expire early if there
are more than `MAX_DELETED_TOPICS`, and frequent creation and deletion of topics does not fill etcd.
Belongs to the event loop; used only by the controller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import structlog
from headrace.partition.topic_configs import read_stored_topic_config
from headrace.wire.ids import TopicId
from headrace_server.clock import Clock
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import MAX_TXN_OPERATIONS, CreateRevisionIs, Metastore

from headrace_coordinator.core import topic_writes

log = structlog.get_logger(__name__)

INTERVAL_MS = 60_000
"""Interval between checks of all deleted topics."""
MAX_DELETED_TOPICS = 50_000
"""Maximum number of keys, about 10 MiB of etcd, not counting those of the last `MIN_RETENTION_MS`."""
MIN_RETENTION_MS = 600_000
"""Minimum retention, in which every running broker sees the deletion and starts to delete its logs."""


class DeletedTopics:
    """Keys of deleted topics, and when they expire."""

    def __init__(self, metastore: Metastore, view: ClusterView, clock: Clock, *, retention_ms: int) -> None:
        self._metastore = metastore
        self._view = view
        self._clock = clock
        self._retention_ms = retention_ms
        self._look_ms = clock.monotonic_ms()
        self._due: deque[TopicId] = deque()

    def expired(self) -> dict[bytes, int]:
        """Return the oldest expired topics that fit into one transaction, with the mod_revision of their keys."""
        if self._view.undecodable:
            return {}
        now_ms = self._clock.monotonic_ms()
        if not self._due and now_ms >= self._look_ms + min(INTERVAL_MS, self._retention_ms):
            self._look_ms = now_ms
            self._due.extend(self._find_due())
        some: dict[bytes, int] = {}
        while self._due and len(some) < MAX_TXN_OPERATIONS - 1:
            topic_id = self._due.popleft()
            if (found := self._view.deleted.get(topic_id)) is not None:
                some[bytes(topic_id)] = found.mod_revision
        return some

    def _find_due(self) -> list[TopicId]:
        known = self._view.deleted
        oldest = sorted(known, key=lambda topic_id: known[topic_id].message.deleted_ms)
        too_many = max(0, len(oldest) - MAX_DELETED_TOPICS)
        early_ms = min(MIN_RETENTION_MS, self._retention_ms)
        return [
            topic_id
            for index, topic_id in enumerate(oldest)
            if self._is_over(topic_id, early_ms if index < too_many else self._retention_ms)
        ]

    def _is_over(self, topic_id: TopicId, retention_ms: int) -> bool:
        message = self._view.deleted[topic_id].message
        delay_ms = read_stored_topic_config(message.topic.configs)[0].file_delete_delay_ms
        return self._clock.now_ms() - message.deleted_ms >= retention_ms + delay_ms

    async def remove(self, revisions: Mapping[bytes, int], controller_epoch: int) -> None:
        """Remove the keys that still have these revisions.

        Raises:
            MetastoreUnavailableError: If etcd does not respond; the next check finds the remaining keys.
        """
        keyspace = self._view.keyspace
        write = topic_writes.remove_deleted(keyspace, revisions)
        compares = (*write.compares, CreateRevisionIs(keyspace.controller(), controller_epoch))
        if (await self._metastore.txn(compares, write.success)).succeeded:
            log.info("deleted_topics_forgotten", count=len(revisions))
