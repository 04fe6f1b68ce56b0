"""Producer ids: given out once and never again, in blocks that are taken from etcd by compare-and-swap (PROTOCOL H53).

A block counts as ours only if etcd answered that our transaction won. Where the answer was lost the block is given up
and another one is taken: ids are plenty. The first block of generation g begins at g * 2^40, so that a cluster restored
from a backup, whose generation is higher, gives out none a second time.
"""

from __future__ import annotations

import asyncio

from headrace.wire.errors import MetastoreUnavailableError, Outcome
from headrace.wire.ids import ProducerId
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace
from headrace_server.metastore.api import Metastore, ModRevisionIs, Put

from headrace_coordinator.metrics import CoordinatorMetrics

FIRST_ID_BITS = 40
ATTEMPTS = 20


class ProducerIds:
    """The ids that this coordinator may still give out. Belongs to the event loop."""

    def __init__(
        self, metastore: Metastore, keyspace: Keyspace, metrics: CoordinatorMetrics, *, block_size: int
    ) -> None:
        self._metastore = metastore
        self._keyspace = keyspace
        self._metrics = metrics
        self._block_size = block_size
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    async def take(self) -> ProducerId:
        """Return an id that nobody had before.

        Raises:
            MetastoreUnavailableError: a block is needed and etcd does not answer; no id was given out, try again.
        """
        async with self._lock:
            if self._next == self._end:
                self._next = await self._take_block()
                self._end = self._next + self._block_size
            producer_id = self._next
            self._next += 1
        self._metrics.producer_ids.inc()
        return ProducerId(producer_id)

    async def _take_block(self) -> int:
        """Move the key on by one block and return the block's first id."""
        key = self._keyspace.producer_ids()
        try:
            for _ in range(ATTEMPTS):
                found = (await self._metastore.get(key)).key_value
                if found is None:
                    first, revision = self._keyspace.generation << FIRST_ID_BITS, 0
                else:
                    first = metadata_pb2.ProducerIdBlock.FromString(found.value).next_producer_id
                    revision = found.mod_revision
                value = metadata_pb2.ProducerIdBlock(next_producer_id=first + self._block_size)
                result = await self._metastore.txn(
                    [ModRevisionIs(key, revision)], [Put(key, value.SerializeToString())]
                )
                if result.succeeded:
                    return first
        except MetastoreUnavailableError as error:
            # Whatever became of the block, no id of it was given out.
            raise MetastoreUnavailableError(error.message, outcome=Outcome.NOT_APPLIED) from error
        raise MetastoreUnavailableError(
            f"another coordinator took the block {ATTEMPTS} times in a row", outcome=Outcome.NOT_APPLIED
        )
