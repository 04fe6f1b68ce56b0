"""Flush policy of a partition by its topic's settings, and the times of recent flushes."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING

from headrace.partition.topic_configs import INT64_MAX, Durability, TopicConfig
from headrace.wire.ids import Offset

from headrace_broker.core.roles import Role

if TYPE_CHECKING:
    from headrace_broker.runtime.partition import Partition

_FLUSHES_REMEMBERED = 8


def flush_settings(config: TopicConfig) -> tuple[object, ...]:
    """Return the settings of a topic that decide when records are flushed."""
    return config.durability, config.flush_messages, config.flush_ms


class FlushPolicy:
    """Flush policy of one partition. Belongs to the event loop."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._replica = partition.replica
        self._context = partition.context
        self._unflushed_records = 0
        self._timer: asyncio.TimerHandle | None = None
        self._flushes: deque[tuple[Offset, float]] = deque(maxlen=_FLUSHES_REMEMBERED)

    def note_flushed(self, durable_offset: Offset) -> None:
        """Record a flush of everything below `durable_offset`."""
        self._flushes.append((durable_offset, time.perf_counter()))

    def flushed_at(self, end_offset: int) -> float | None:
        """Return when a recent flush made everything below `end_offset` durable (`time.perf_counter`), or `None`."""
        return next((at for offset, at in self._flushes if offset >= end_offset), None)

    @property
    def is_always(self) -> bool:
        """Whether every append is flushed at once: the topic requires it, or the key is still `durable` (H30)."""
        config = self._partition.config
        if config.durability is Durability.FSYNC:
            return True
        return self._replica.flushed_only and not config.flushes_by_policy

    def note_appended(self, records: int, caller: str) -> None:
        """Schedule the flush of `records` appended by `caller` according to the topic's settings."""
        config = self._partition.config
        if self.is_always:
            self._context.flusher.request(self._partition, caller)
            return
        if not config.flushes_by_policy:
            return
        self._unflushed_records += records
        if self._unflushed_records >= config.flush_messages:
            self.flush_soon()
        elif self._timer is None and config.flush_ms < INT64_MAX:
            self._timer = asyncio.get_running_loop().call_later(config.flush_ms / 1000, self.flush_soon)

    def follow_leader(self, flushed_offset: int) -> None:
        """Request a flush if records wait for one here that the leader has flushed.

        Only records that every in-sync replica has flushed are committed, and each counts records and time for itself.
        """
        if self._unflushed_records and flushed_offset > self._replica.flushed_offset:
            self.flush_soon()

    def flush_soon(self) -> None:
        """Request a flush of everything appended so far."""
        self._unflushed_records = 0
        self.cancel_timer()
        partition = self._partition
        if partition.replica.role not in (Role.OFFLINE, Role.DELETED):
            partition.context.flusher.request(partition, partition.topic)

    def cancel_timer(self) -> None:
        """Cancel a scheduled flush."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
