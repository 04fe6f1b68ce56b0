"""Creates the topic of the audit log, once the cluster asks for identities. `run` is a task of the app."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from headrace.wire.errors import HeadraceError, TopicAlreadyExistsError
from headrace_server.audit.audit_writer import AUDIT_TOPIC
from headrace_server.metadata_view import ClusterView

from headrace_coordinator.core.topics import CheckedTopic, place_new_topic
from headrace_coordinator.runtime.topic_store import TopicStore

log = structlog.get_logger(__name__)

LOOK_SECONDS = 2.0
BROKERS_SECONDS = 30.0
"""Time for which a cluster that starts may have fewer brokers than replicas are wanted."""
CREATE_SECONDS = 10.0
RETENTION_MS = 90 * 86_400_000


class AuditTopic:
    """See the module."""

    def __init__(
        self, view: ClusterView, store: TopicStore, replication_factor: int, is_wanted: Callable[[], bool]
    ) -> None:
        """`is_wanted` tells whether this coordinator is to create it: it is the controller, and events are written."""
        self._view = view
        self._store = store
        self._replication_factor = replication_factor
        self._is_wanted = is_wanted

    async def run(self) -> None:
        """Create the topic whenever it is wanted and missing, until cancelled."""
        loop = asyncio.get_running_loop()
        wanted_since: float | None = None
        while True:
            if not self._is_wanted() or AUDIT_TOPIC in self._view.topics:
                wanted_since = None
            else:
                wanted_since = wanted_since or loop.time()
                brokers = len(self._store.candidates())
                if brokers >= self._replication_factor or (brokers and loop.time() - wanted_since > BROKERS_SECONDS):
                    await self._create(min(brokers, self._replication_factor))
            await asyncio.sleep(LOOK_SECONDS)

    async def _create(self, replicas: int) -> None:
        configs = {"retention_ms": str(RETENTION_MS)}
        topic = CheckedTopic(AUDIT_TOPIC, 1, replicas, configs, 0)
        try:
            placement = place_new_topic(topic, self._store.candidates())
            await self._store.create(topic, placement, asyncio.get_running_loop().time() + CREATE_SECONDS)
        except TopicAlreadyExistsError:
            return
        except HeadraceError as error:
            log.warning("audit_topic_not_created", cause=error.message)
        else:
            log.info("audit_topic_created", replicas=replicas)
