"""Forgets deleted topics when brokers have had time to delete their logs: the controller's slow side work.

`deleted/{topic_id}` is the evidence that brokers delete logs on. A broker that was away for longer keeps its log of the
topic as unclaimed, so that forgetting too early costs disk space and no record. Belongs to the event loop; used by the
controller alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

import structlog
from headrace_server.clock import Clock
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import MAX_TXN_OPERATIONS, CreateRevisionIs, Metastore
from headrace_server.topic_configs import read_stored_topic_config

from headrace_coordinator.core import topic_writes

log = structlog.get_logger(__name__)

INTERVAL_MS = 60_000
"""Between two looks at the times of all deleted topics."""


class DeletedTopics:
    """See the module."""

    def __init__(self, metastore: Metastore, view: ClusterView, clock: Clock, *, retention_ms: int) -> None:
        self._metastore = metastore
        self._view = view
        self._clock = clock
        self._retention_ms = retention_ms
        self._look_ms = clock.monotonic_ms()

    def expired(self) -> dict[bytes, int]:
        """Return as many as one transaction takes, with the mod_revision of their keys."""
        now_ms = self._clock.monotonic_ms()
        interval_ms = min(INTERVAL_MS, self._retention_ms)
        if now_ms < self._look_ms + interval_ms or self._view.undecodable:
            return {}
        found = {
            bytes(topic_id): each.mod_revision
            for topic_id, each in self._view.deleted.items()
            if self._is_over(topic_id)
        }
        some = dict(islice(sorted(found.items()), MAX_TXN_OPERATIONS - 1))
        if len(some) == len(found):
            self._look_ms = now_ms
        return some

    def _is_over(self, topic_id: bytes) -> bool:
        message = self._view.deleted[topic_id].message  # type: ignore[index]
        delay_ms = read_stored_topic_config(message.topic.configs)[0].file_delete_delay_ms
        return self._clock.now_ms() - message.deleted_ms >= self._retention_ms + delay_ms

    async def remove(self, revisions: Mapping[bytes, int], controller_epoch: int) -> None:
        """Remove their keys, where they are as they were seen.

        Raises:
            MetastoreUnavailableError: etcd did not answer; the next look finds what is left.
        """
        keyspace = self._view.keyspace
        write = topic_writes.remove_deleted(keyspace, revisions)
        compares = (*write.compares, CreateRevisionIs(keyspace.controller(), controller_epoch))
        if (await self._metastore.txn(compares, write.success)).succeeded:
            log.info("deleted_topics_forgotten", count=len(revisions))
