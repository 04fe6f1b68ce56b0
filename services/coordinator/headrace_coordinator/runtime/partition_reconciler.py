"""Partitions that the controller must examine, and the changes that they need.

A change of a broker, a topic or a drain marks every partition dirty, a change of a partition's key that partition.
`core.control` computes the changes. Belongs to the event loop; used only by the controller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import structlog
from headrace.wire.ids import TopicId
from headrace_server.key_table import BrokerKey, DrainedBrokerKey, PartitionKey, TopicKey
from headrace_server.metadata_view import ClusterView
from headrace_server.partition_state import PartitionState
from headrace_server.rpc import let_others_run

from headrace_coordinator.core.control import PlannedChange, Step, change_partition, is_under_replicated
from headrace_coordinator.core.election import RegisteredBroker, sessions_of
from headrace_coordinator.metrics import CoordinatorMetrics

log = structlog.get_logger(__name__)

URGENT = (Step.ELECT, Step.RELIEVE)
"""Changes that are written first: a producer waits for a leader, or a broker for its shutdown."""


def registered_sessions(view: ClusterView) -> dict[int, RegisteredBroker]:
    """Return the registered brokers of the view, as input of `core`."""
    return sessions_of(
        ((broker_id, broker.broker_epoch, broker.live) for broker_id, broker in view.brokers.items()), view.drained
    )


class PartitionReconciler:
    """Collects dirty partitions until `changes` examines them."""

    def __init__(self, view: ClusterView, metrics: CoordinatorMetrics) -> None:
        self._view = view
        self._keyspace = view.keyspace
        self._metrics = metrics
        self._look_at_all = True
        self._look_at: dict[str, tuple[TopicId, int]] = {}
        self._rebalance: dict[str, None] = {}
        self._written: dict[str, int] = {}
        self._offline: dict[str, None] = {}
        self._under_replicated: dict[str, None] = {}
        self._moving: dict[str, None] = {}
        self._replicas: dict[str, tuple[int, ...]] = {}
        self._held: Counter[int] = Counter()
        self._missing: tuple[int, ...] = ()
        self.live: dict[int, RegisteredBroker] = {}
        """Registered brokers when all partitions were last marked dirty."""

    def begin(self) -> None:
        """Reset after an election: every partition is dirty, nothing was written."""
        self._look_at_all = True
        self._written.clear()

    def end(self) -> None:
        """Clear the gauges, which the next controller sets."""
        self._missing = ()
        for gauge in (
            self._metrics.partitions,
            self._metrics.offline_partitions,
            self._metrics.under_replicated_partitions,
            self._metrics.moving_partitions,
            self._metrics.missing_brokers,
        ):
            gauge.set(0)

    def note(self, keys: Sequence[str]) -> bool:
        """Mark the partitions affected by changed keys; return False if there are none."""
        noted = False
        for key in keys:
            match self._keyspace.parse(key):
                case PartitionKey(topic_id, partition):
                    self._look_at[key] = (topic_id, partition)
                    noted = True
                case BrokerKey() | TopicKey() | DrainedBrokerKey():
                    self._look_at_all = noted = True
        return noted

    def note_again(self, change: PlannedChange, *, written: bool) -> None:
        """Mark a partition again after its write ended; `written` means that it succeeded and the view will show it."""
        key = self._keyspace.partition(change.topic_id, change.partition)
        self._look_at[key] = (change.topic_id, change.partition)
        if written:
            self._written[key] = change.mod_revision

    def note_rebalance(self) -> None:
        """Include the step `PREFER` for all partitions once."""
        self._look_at_all = True
        self._rebalance = dict.fromkeys(
            self._keyspace.partition(topic.topic_id, number)
            for topic in self._view.topics.values()
            for number in range(topic.partitions)
        )

    async def changes(self) -> list[tuple[str, PlannedChange]]:
        """Return the next values of dirty partitions, by key; urgent ones come first.

        A partition whose last write the view does not show yet stays dirty. The method yields to the event loop:
        partitions marked meanwhile are left for the next call, and a write compares the version that was examined.
        """
        if self._look_at_all:
            self._look_at_everything()
        looked_at, self._look_at = self._look_at, {}
        found: list[tuple[str, PlannedChange]] = []
        for index, (key, (topic_id, number)) in enumerate(looked_at.items()):
            await let_others_run(index)
            if (change := self._change(key, topic_id, number)) is not None:
                found.append((key, change))
        found.sort(key=lambda entry: entry[1].step not in URGENT)
        self._metrics.offline_partitions.set(len(self._offline))
        self._metrics.under_replicated_partitions.set(len(self._under_replicated))
        self._metrics.moving_partitions.set(len(self._moving))
        self._look_for_missing()
        return found

    def _change(self, key: str, topic_id: TopicId, number: int) -> PlannedChange | None:
        """Return the next value of one partition, or `None`, and update the gauges."""
        topic = self._view.topic_by_id(topic_id)
        partition = self._view.partition(topic_id, number)
        if topic is None or partition is None:
            self._count(key, None)
            self._written.pop(key, None)
            self._rebalance.pop(key, None)
            return None
        state = partition.state
        self._count(key, state)
        if self._written.get(key) == partition.mod_revision:
            return None
        decision = change_partition(
            state,
            self.live,
            topic.config.min_insync_replicas,
            rebalance=key in self._rebalance,
        )
        if decision is None:
            self._rebalance.pop(key, None)
            return None
        return PlannedChange(topic_id, number, partition.mod_revision, state, decision.after, decision.step)

    def _look_at_everything(self) -> None:
        """Reload the brokers and mark every partition, by topic name and number."""
        self._look_at_all = False
        self.live = registered_sessions(self._view)
        for counted in (self._offline, self._under_replicated, self._moving):
            counted.clear()
        self._replicas.clear()
        self._held.clear()
        self._look_at = {
            self._keyspace.partition(topic.topic_id, number): (topic.topic_id, number)
            for _, topic in sorted(self._view.topics.items())
            for number in range(topic.partitions)
        }
        self._metrics.partitions.set(len(self._look_at))

    def _count(self, key: str, state: PartitionState | None) -> None:
        """Update the counts of the gauges; `None` means that the partition is gone."""
        for counted, counts in (
            (self._offline, state is not None and state.leader is None),
            (self._under_replicated, state is not None and is_under_replicated(state)),
            (self._moving, state is not None and bool(state.adding or state.removing)),
        ):
            if counts:
                counted[key] = None
            else:
                counted.pop(key, None)
        self._held.subtract(self._replicas.pop(key, ()))
        if state is not None:
            self._replicas[key] = state.replicas
            self._held.update(state.replicas)

    def _look_for_missing(self) -> None:
        """Count brokers with replicas that are not registered, and log each once."""
        missing = tuple(sorted(each for each, count in self._held.items() if count > 0 and each not in self.live))
        if missing and missing != self._missing:
            log.warning("brokers_missing", broker_ids=missing)
        elif self._missing and not missing:
            log.info("brokers_returned", broker_ids=self._missing)
        self._missing = missing
        self._metrics.missing_brokers.set(len(missing))
