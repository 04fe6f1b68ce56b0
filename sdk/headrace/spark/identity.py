"""Producer ids of the tasks of a query, the same for every try of a task. Pure."""

import hashlib
from typing import NamedTuple

from headrace.client.base.errors import ConfigError
from headrace.wire.ids import OWN_PRODUCER_IDS, PRODUCER_FAMILY_BITS

DRIVER_TASK = (1 << PRODUCER_FAMILY_BITS) - 1
"""Task number of the driver when it stores rows that its tasks left to it; tasks have lower ones."""


class TaskIdentity(NamedTuple):
    """Task of a micro-batch, or of a batch write."""

    query: str
    """Id of a streaming query, or a unique one of a batch write."""
    batch_id: int
    """Number of the micro-batch; 0 for a batch write."""
    task: int
    """Number of Spark's partition, or `DRIVER_TASK`."""

    @property
    def producer_id(self) -> int:
        """Producer id of this task of the query. Micro-batches share it: each is an epoch.

        All tasks of a query are a family (`PRODUCER_FAMILY_BITS`).

        Raises:
            ConfigError: If the task number is too high.
        """
        if not 0 <= self.task <= DRIVER_TASK:
            raise ConfigError(f"{self.task + 1} tasks are too many to write with", action="Use coalesce.")
        digest = hashlib.blake2b(self.query.encode(), digest_size=8).digest()
        family = (int.from_bytes(digest, "big") % OWN_PRODUCER_IDS) >> PRODUCER_FAMILY_BITS
        return OWN_PRODUCER_IDS | family << PRODUCER_FAMILY_BITS | self.task
