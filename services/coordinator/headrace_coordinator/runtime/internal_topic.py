"""Creates a topic that servers write, once it is wanted: of the audit log, or of the trace of tables.

`run` is a task of the app.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog
from headrace.partition.topic_configs import CENTURY_MS
from headrace.wire.errors import HeadraceError, TopicAlreadyExistsError
from headrace_server.metadata_view import ClusterView

from headrace_coordinator.core.topics import CheckedTopic, place_new_topic
from headrace_coordinator.runtime.topic_store import TopicStore

log = structlog.get_logger(__name__)

LOOK_SECONDS = 2.0
SETTLED_SECONDS = 10.0
"""Time since the last broker registered after which a cluster has all that it will have, if fewer than replicas."""
CREATE_SECONDS = 10.0
AUDIT_CONFIGS = {"retention_ms": str(90 * 86_400_000), "timestamp_after_max_ms": str(CENTURY_MS)}
"""A server whose clock is ahead writes its events nevertheless."""
TRACE_CONFIGS = {"retention_bytes": str(1 << 30), "segment_bytes": str(64 << 20), "durability": "async"}


class InternalTopic:
    """See the module."""

    def __init__(
        self,
        name: str,
        configs: Mapping[str, str],
        view: ClusterView,
        store: TopicStore,
        replication_factor: int,
        is_wanted: Callable[[], bool],
    ) -> None:
        """`is_wanted` tells whether this coordinator is to create it: it is the controller, and records are written."""
        self._name = name
        self._configs = dict(configs)
        self._view = view
        self._store = store
        self._replication_factor = replication_factor
        self._is_wanted = is_wanted

    async def run(self) -> None:
        """Create the topic whenever it is wanted and missing, until cancelled."""
        loop = asyncio.get_running_loop()
        brokers, changed_at = 0, loop.time()
        while True:
            if len(self._store.candidates()) != brokers:
                brokers, changed_at = len(self._store.candidates()), loop.time()
            is_settled = brokers > 0 and loop.time() - changed_at >= SETTLED_SECONDS
            is_missing = self._name not in self._view.topics and self._is_wanted()
            if is_missing and (is_settled or brokers >= self._replication_factor):
                await self._create(min(brokers, self._replication_factor))
            await asyncio.sleep(LOOK_SECONDS)

    async def _create(self, replicas: int) -> None:
        topic = CheckedTopic(self._name, 1, replicas, self._configs, 0)
        try:
            placement = place_new_topic(topic, self._store.candidates())
            await self._store.create(topic, placement, asyncio.get_running_loop().time() + CREATE_SECONDS)
        except TopicAlreadyExistsError:
            return
        except HeadraceError as error:
            log.warning("internal_topic_not_created", topic=self._name, cause=error.message)
        else:
            log.info("internal_topic_created", topic=self._name, replicas=replicas)
