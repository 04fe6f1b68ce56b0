"""What the partitions of one broker share: settings, clock, counters, threads."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass

from headrace.wire.ids import BrokerId
from headrace_server.clock import Clock

from headrace_broker.metrics import BrokerMetrics
from headrace_broker.runtime.flusher import Flusher
from headrace_broker.settings import BrokerSettings


@dataclass(frozen=True, slots=True)
class PartitionServices:
    """What all partitions of a broker share."""

    broker_id: BrokerId
    settings: BrokerSettings
    clock: Clock
    metrics: BrokerMetrics
    flusher: Flusher
    executor: Executor  # for appends that became slow, blocking reads and upkeep
