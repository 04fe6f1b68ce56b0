"""Moves of replicas to brokers that have less than their share, as the setting `fill_bytes_per_second` allows.

Belongs to the event loop; used only by the controller, which writes the changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.placement.moves import PlanBroker, PlanPartition
from headrace.wire.ids import TopicId, TopicPartition
from headrace_server.clock import Clock
from headrace_server.metadata_view import ClusterView, PartitionEntry

from headrace_coordinator.core.control import PlannedChange, Step
from headrace_coordinator.core.filling import MAX_FILL_MOVES, next_fill
from headrace_coordinator.core.reassignment import plan_move

INTERVAL_MS = 1_000
"""Milliseconds between two searches while there are moves to start."""
IDLE_INTERVAL_MS = 30_000
"""Milliseconds to the next search if there were none."""


class BrokerFiller:
    """Finds the moves, and when the next search is due."""

    def __init__(self, view: ClusterView, clock: Clock, *, bytes_per_second: int) -> None:
        """`bytes_per_second` is for all copies together; `0` disables the search."""
        self._view = view
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._due_ms = 0

    def wait_ms(self) -> int | None:
        """Return the milliseconds until the next search; `None` means that there is none."""
        return max(0, self._due_ms - self._clock.monotonic_ms()) if self._bytes_per_second else None

    def note_brokers(self) -> None:
        """Search again soon: brokers or topics have changed."""
        self._due_ms = min(self._due_ms, self._clock.monotonic_ms() + INTERVAL_MS)

    def changes(self) -> list[tuple[str, PlannedChange]]:
        """Return the moves to start, by the key of their partitions; none before the next search is due."""
        if self.wait_ms() != 0:
            return []
        entries: dict[TopicPartition, tuple[TopicId, PartitionEntry]] = {}
        partitions: list[PlanPartition] = []
        for name, topic in self._view.topics.items():
            policy = topic.config.placement_policy
            for entry in self._view.partitions(topic.topic_id):
                state, where = entry.state, TopicPartition(name, entry.partition)
                entries[where] = topic.topic_id, entry
                target = tuple(broker_id for broker_id in state.replicas if broker_id not in state.removing)
                is_moving = bool(state.adding or state.removing)
                partitions.append(PlanPartition(where, target, policy=policy, is_moving=is_moving))
        moves = next_fill(partitions, self._brokers(partitions))
        has_work = bool(moves) or any(each.is_moving for each in partitions)
        self._due_ms = self._clock.monotonic_ms() + (INTERVAL_MS if has_work else IDLE_INTERVAL_MS)
        rate = max(1, self._bytes_per_second // MAX_FILL_MOVES)
        found = []
        for move in moves:
            topic_id, entry = entries[move.where]
            after = plan_move(entry.state, move.after, rate)
            assert after is not None, "the plan changes the replicas"
            change = PlannedChange(topic_id, entry.partition, entry.mod_revision, entry.state, after, Step.FILL)
            found.append((self._view.keyspace.partition(topic_id, entry.partition), change))
        return found

    def _brokers(self, partitions: Sequence[PlanPartition]) -> list[PlanBroker]:
        """Return all brokers; those that are down, draining or too small receive nothing."""
        holders = {broker_id for each in partitions for broker_id in each.replicas}
        found = {broker_id: PlanBroker(broker_id, receives=False) for broker_id in holders}
        for broker_id, broker in self._view.brokers.items():
            live = broker.live
            receives = not self._view.is_draining(broker_id) and not live.takes_no_replicas
            found[int(broker_id)] = PlanBroker(
                int(broker_id), live.rack, live.host, receives=receives, data_center=live.data_center
            )
        return list(found.values())
