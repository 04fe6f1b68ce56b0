"""Who writes: the number under which brokers know a task of a query, the same for every try of it. Pure."""

import hashlib
from typing import NamedTuple

from headrace.client.base.errors import ConfigError
from headrace.wire.ids import OWN_PRODUCER_IDS, PRODUCER_FAMILY_BITS

DRIVER_TASK = (1 << PRODUCER_FAMILY_BITS) - 1
"""Under this number the driver stores what its tasks have left to it; tasks have lower ones."""


class TaskIdentity(NamedTuple):
    """A task of a micro-batch, or of a batch write."""

    query: str
    """A streaming query's id, or one of a batch write's own."""
    batch_id: int
    """A micro-batch's number; 0 for a batch write."""
    task: int
    """The number of Spark's partition, or `DRIVER_TASK`."""

    @property
    def producer_id(self) -> int:
        """A number that only this task of the query has. Micro-batches share it: each is an epoch.

        All tasks of a query are a family (`PRODUCER_FAMILY_BITS`).

        Raises:
            ConfigError: a number of a task is too high.
        """
        if not 0 <= self.task <= DRIVER_TASK:
            raise ConfigError(f"{self.task + 1} tasks are too many to write with", action="Use coalesce.")
        digest = hashlib.blake2b(self.query.encode(), digest_size=8).digest()
        family = (int.from_bytes(digest, "big") % OWN_PRODUCER_IDS) >> PRODUCER_FAMILY_BITS
        return OWN_PRODUCER_IDS | family << PRODUCER_FAMILY_BITS | self.task
