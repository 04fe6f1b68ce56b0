"""Lag of each follower behind this leader over all partitions, for the metrics."""

from __future__ import annotations

from collections.abc import Container

from headrace_broker.metrics import BrokerMetrics
from headrace_broker.runtime.partition import Partition


class FollowerLags:
    """Maximum lag of each follower at one time. Belongs to the event loop."""

    def __init__(self, registered: Container[int], at_ms: int) -> None:
        """Only `registered` brokers have a series; in-sync sets show the others."""
        self._registered = registered
        self._at_ms = at_ms
        self._records: dict[int, int] = {}
        self._ms: dict[int, int] = {}

    def look_at(self, partition: Partition) -> None:
        """Add a partition that this broker leads."""
        replica, leadership = partition.replica, partition.replica.leadership
        assert leadership is not None
        fetched = {follower.replica.broker_id: follower for follower in leadership.followers}
        for broker_id in leadership.state.replicas:
            if broker_id == replica.broker_id:
                continue
            follower = fetched.get(broker_id)
            if follower is None:
                records, behind_ms = int(replica.log_end_offset), self._at_ms - leadership.followers.started_ms
            else:
                records = max(0, replica.log_end_offset - follower.offset)
                caught_up = follower.acknowledged(leadership.flushed_only) >= replica.log_end_offset
                behind_ms = 0 if caught_up else self._at_ms - follower.caught_up_ms
            self._records[broker_id] = max(records, self._records.get(broker_id, 0))
            self._ms[broker_id] = max(behind_ms, self._ms.get(broker_id, 0))

    def tell(self, metrics: BrokerMetrics, before: tuple[int, ...]) -> tuple[int, ...]:
        """Set the gauges, and remove those of followers in `before` that are gone; return the current followers."""
        peers = tuple(broker_id for broker_id in self._ms if broker_id in self._registered)
        for broker_id in peers:
            metrics.follower_lag_records.labels(str(broker_id)).set(self._records[broker_id])
            metrics.follower_lag_seconds.labels(str(broker_id)).set(self._ms[broker_id] / 1000)
        for broker_id in before:
            if broker_id not in peers:
                metrics.follower_lag_records.remove(str(broker_id))
                metrics.follower_lag_seconds.remove(str(broker_id))
        return peers
