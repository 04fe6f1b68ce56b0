"""Drain requests of administrators: `drained_brokers/{broker_id}`, written by any coordinator.

Belongs to the event loop.
"""

from __future__ import annotations

from headrace.wire.errors import UnknownBrokerError
from headrace_server.clock import Clock
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.key_table import DrainedBrokerKey
from headrace_server.keys import Keyspace
from headrace_server.metastore.api import Delete, ModRevisionIs, Operation, Put

from headrace_coordinator.core.topic_writes import Write
from headrace_coordinator.runtime.ambiguous_writes import AmbiguousWriteResolver, WriteTracker


class BrokerStore:
    """Drains brokers and ends drains, each call within its deadline (loop time, seconds)."""

    def __init__(self, writes: AmbiguousWriteResolver, keyspace: Keyspace, clock: Clock) -> None:
        self._writes = writes
        self._keyspace = keyspace
        self._clock = clock

    async def drain(self, broker_id: int, drain: bool, deadline: float) -> tuple[int, bool]:
        """Drain a broker or end its drain; return the revision, and whether anything changed.

        A broker that was ever registered can be drained, live or not; ending a drain needs no registration.

        Raises:
            UnknownBrokerError: If no broker with this id was ever registered.
            MetastoreUnavailableError, TimedOutError: If etcd does not respond in time; has the outcome.
        """
        key = self._keyspace.drained_broker(broker_id)

        async def attempt(tracker: WriteTracker) -> tuple[int, bool] | None:
            found = await self._writes.read(key, deadline)
            # A key on a lease belongs to a broker that is shutting down and is deleted with it; a drain must persist.
            persistent = found is not None and not found.lease_id
            if persistent if drain else found is None:
                return 0, tracker.unanswered is not None
            if drain and not await self._is_known(broker_id, deadline):
                raise UnknownBrokerError(f"broker {broker_id} was never registered")
            value = metadata_pb2.DrainedBroker(since_ms=self._clock.now_ms()).SerializeToString()
            operation: Operation = Put(key, value) if drain else Delete(key)
            revision = 0 if found is None else found.mod_revision
            result = await self._writes.send(tracker, Write((ModRevisionIs(key, revision),), (operation,)))
            return (result.revision, True) if result.succeeded else None

        return await self._writes.resolve(attempt, deadline, f"draining broker {broker_id}")

    async def drained(self, deadline: float) -> list[int]:
        """Return the drained brokers, registered or not, ascending.

        Raises:
            MetastoreUnavailableError: If etcd does not respond in time.
        """
        found = await self._writes.read_prefix(self._keyspace.drained_broker_prefix(), deadline)
        parsed = (self._keyspace.parse(each.key) for each in found.key_values)
        return sorted(each.broker_id for each in parsed if isinstance(each, DrainedBrokerKey))

    async def _is_known(self, broker_id: int, deadline: float) -> bool:
        keys = (self._keyspace.broker_session(broker_id), self._keyspace.broker(broker_id))
        return any([await self._writes.read(key, deadline) is not None for key in keys])
