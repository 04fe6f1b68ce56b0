"""Writes of partition keys by a broker: in-sync sets of partitions that it leads, and its own removal (C1 to C3).

Owned by `replication`; belongs to the event loop. Each write is sent once; its outcome is reported to the core, which
then decides again.
"""

from __future__ import annotations

import asyncio

import structlog
from headrace.wire.errors import MetastoreUnavailableError
from headrace_server.keys import Keyspace
from headrace_server.metastore.api import (
    CreateRevisionIs,
    Get,
    Metastore,
    MetastoreRolledBackError,
    ModRevisionIs,
    Put,
)
from headrace_server.partition_state import PartitionState, decode, encode, leave_failed

from headrace_broker.core.messages import ProposalFailed, ProposalSucceeded, ProposalUnanswered, Propose
from headrace_broker.metrics import BrokerMetrics
from headrace_broker.runtime.partition import Partition

log = structlog.get_logger(__name__)

MAX_WRITES_AT_ONCE = 32
RETRY_SECONDS = 0.5


class IsrUpdater:
    """Writer of partition keys of one broker."""

    def __init__(self, metastore: Metastore, keyspace: Keyspace, broker_id: int, metrics: BrokerMetrics) -> None:
        self._metastore = metastore
        self._keyspace = keyspace
        self._broker_id = broker_id
        self._metrics = metrics
        self._permits = asyncio.Semaphore(MAX_WRITES_AT_ONCE)

    async def write(self, partition: Partition, proposal: Propose) -> None:
        """Send one proposal and report its outcome."""
        key = self._keyspace.partition(partition.topic_id, partition.number)
        before = partition.replica.state  # The watch may show the write before its response arrives.
        sessions = [
            CreateRevisionIs(self._keyspace.broker(replica.broker_id), replica.broker_epoch)
            for replica in proposal.sessions
        ]
        try:
            async with self._permits:
                result = await self._metastore.txn(
                    [ModRevisionIs(key, proposal.base_revision), *sessions],
                    success=[Put(key, encode(proposal.state))],
                    failure=[Get(key)],
                )
        except MetastoreRolledBackError:
            raise
        except MetastoreUnavailableError as error:
            self._metrics.isr_update_timeouts.inc()
            log.warning(
                "in_sync_change_unanswered", topic=partition.topic, partition=partition.number, cause=str(error)
            )
            partition.handle(ProposalUnanswered(proposal.number))
            return
        if result.succeeded:
            self._report(partition, before, proposal)
            partition.handle(ProposalSucceeded(proposal.number, result.revision))
            return
        found = result.responses[0]
        state = decode(found[0].value) if found else None
        partition.handle(ProposalFailed(proposal.number, state, found[0].mod_revision if found else result.revision))

    def _report(self, partition: Partition, before: PartitionState | None, proposal: Propose) -> None:
        if before is None:
            return
        old = {entry.broker_id for entry in before.in_sync}
        new = {entry.broker_id for entry in proposal.state.in_sync}
        self._metrics.in_sync_shrinks.inc(len(old - new))
        self._metrics.in_sync_expands.inc(len(new - old))
        bound = log.bind(topic=partition.topic, partition=partition.number, in_sync=sorted(new))
        leader = proposal.state.leader
        if leader is not None and leader != before.leader:
            self._metrics.hand_overs.inc()
            log.info("handed_over", topic=partition.topic, partition=partition.number, to=leader.broker_id)
        elif before.successors and not proposal.state.successors:
            self._metrics.hand_overs_abandoned.inc()
            log.warning("hand_over_abandoned", topic=partition.topic, partition=partition.number)
        if old - new:
            bound.warning("in_sync_set_shrank", left=sorted(old - new))
        if new - old:
            bound.info("in_sync_set_grew", joined=sorted(new - old))

    async def leave(self, topic_id: bytes, number: int, *, corrupt: bool) -> int:
        """Remove this broker from a partition's key by `leave_failed`, retried until etcd responds (H33, H34).

        Return the revision of the write, or of a key that needs no change; no earlier write can follow it (C3).
        """
        key = self._keyspace.partition(topic_id, number)
        while True:
            try:
                found = (await self._metastore.get(key)).key_value
                state = None if found is None else decode(found.value)
                left = None if state is None else leave_failed(state, self._broker_id, corrupt=corrupt)
                unchanged = [ModRevisionIs(key, 0 if found is None else found.mod_revision)]
                if left is None:
                    # A read may be stale, also one without a result; only a compare proves the current state (C4).
                    if (await self._metastore.txn(unchanged, success=[Get(key)])).succeeded:
                        return 0 if found is None else found.mod_revision
                    continue
                result = await self._metastore.txn(unchanged, success=[Put(key, encode(left))])
                if result.succeeded:
                    return result.revision
            except MetastoreRolledBackError:
                raise
            except MetastoreUnavailableError as error:
                log.warning("leave_delayed", topic_id=topic_id.hex(), partition=number, cause=str(error))
                await asyncio.sleep(RETRY_SECONDS)
