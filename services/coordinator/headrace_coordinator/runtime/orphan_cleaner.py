"""Removal of orphans, the keys of partially created topics that a dead coordinator left; see `core.orphans`.

Belongs to the event loop; used only by the controller.
"""

from __future__ import annotations

import structlog
from headrace.wire.ids import TopicId
from headrace_server.clock import Clock
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.key_table import PartitionKey, TopicIdKey
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import CreateRevisionIs, Metastore
from headrace_server.rpc import let_others_run

from headrace_coordinator.core import topic_writes
from headrace_coordinator.core.orphans import Orphan, TopicIdEntry, find_orphans, nameless_topics, ripe_orphans
from headrace_coordinator.metrics import CoordinatorMetrics

log = structlog.get_logger(__name__)

LOOKS_PER_GRACE = 4
"""Searches for orphans per grace time."""
NEXT_STEP = "Its key topic/NAME is missing; put it back with the value of tid/TOPIC_ID, or restore etcd from a backup."


class OrphanCleaner:
    """Searches for orphans. A search reads every key of the view, so it runs only a few times per grace time."""

    def __init__(
        self, metastore: Metastore, view: ClusterView, metrics: CoordinatorMetrics, clock: Clock, *, grace_ms: int
    ) -> None:
        self._metastore = metastore
        self._view = view
        self._keyspace = view.keyspace
        self._metrics = metrics
        self._clock = clock
        self._grace_ms = grace_ms
        self._seen: dict[tuple[TopicId, int], int] = {}
        self._look_ms = 0
        self._nameless: frozenset[TopicId] = frozenset()

    @property
    def interval_ms(self) -> int:
        """Milliseconds between two searches."""
        return self._grace_ms // LOOKS_PER_GRACE

    def begin(self) -> None:
        """Reset at the start of a controller epoch."""
        self._seen.clear()
        self._look_ms = self._clock.monotonic_ms()

    async def ripe(self) -> dict[str, Orphan]:
        """Return the orphans that may be removed now, by the key that identifies each.

        All are of one revision of the view, although the search yields to the event loop.
        """
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._look_ms or self._view.undecodable:
            return {}  # A topic that this release cannot decode is not an orphan.
        self._look_ms = now_ms + self.interval_ms
        source, keyspace = self._view.source, self._keyspace
        visible = {topic.topic_id: topic.partitions for topic in self._view.topics.values()}
        deleted = frozenset(self._view.deleted)
        topic_ids, states = source.items(keyspace.topic_by_id_prefix()), source.items(keyspace.partition_prefix())
        entries: dict[TopicId, TopicIdEntry] = {}
        for index, key_value in enumerate(topic_ids):
            await let_others_run(index)
            parsed = keyspace.parse(key_value.key)
            if isinstance(parsed, TopicIdKey):
                stored = keyspace.decode_value(key_value.key, key_value.value)
                if not isinstance(stored, metadata_pb2.Topic):
                    return {}
                entries[parsed.topic_id] = TopicIdEntry(key_value.mod_revision, stored.partitions)
        partitions: list[tuple[TopicId, int]] = []
        for index, key_value in enumerate(states):
            await let_others_run(index)
            key = keyspace.parse(key_value.key)
            if isinstance(key, PartitionKey):
                partitions.append((key.topic_id, key.partition))
        found = find_orphans(visible, entries, partitions, deleted)
        for topic_id in nameless_topics(visible, entries):
            if topic_id not in self._nameless:
                log.error("topic_without_name", topic_id=topic_id.hex(), action=NEXT_STEP)
        self._nameless = frozenset(nameless_topics(visible, entries))
        return {
            keyspace.topic_by_id(orphan.topic_id): orphan
            for orphan in ripe_orphans(found, self._seen, now_ms, self._grace_ms)
        }

    async def clear(self, orphan: Orphan, controller_epoch: int) -> None:
        """Remove one orphan, comparing the versions that the search saw.

        Raises:
            MetastoreUnavailableError: If etcd does not respond; the next search finds the remaining keys.
        """
        key = self._keyspace.topic_by_id(orphan.topic_id)
        value = self._view.source.get(key) if orphan.visible else None
        if orphan.visible and value is None:
            return  # The topic was deleted after the search.
        write = topic_writes.clear_orphan(
            self._keyspace,
            orphan.topic_id,
            orphan.tid_revision,
            None if value is None else value.value,
            orphan.partitions,
        )
        compares = (*write.compares, CreateRevisionIs(self._keyspace.controller(), controller_epoch))
        result = await self._metastore.txn(compares, write.success)
        if result.succeeded:
            self._metrics.orphans_cleared.inc()
            log.warning("orphan_cleared", topic_id=orphan.topic_id.hex(), partitions=len(orphan.partitions))
