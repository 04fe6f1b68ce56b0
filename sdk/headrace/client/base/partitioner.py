"""Which partition a record goes to, unless the caller names one.

Records with a key go to CRC-32 (zlib) of the key modulo the number of partitions, as librdkafka's default does, so that
mixed producers agree. Records without a key stick to one partition until its batch is sealed, then move on (KIP-480):
batches fill sooner than by round robin. PAPER row 16.
"""

import random
import zlib
from collections.abc import Callable, Sequence

from headrace.client.base.errors import ConfigError

Partitioner = Callable[[str, bytes | None, int], int]
"""(topic, key, partitions) -> partition, 0 <= partition < partitions."""


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition for a key."""
    return zlib.crc32(key) % partitions


def next_sticky(current: int, available: Sequence[int], partitions: int, rng: random.Random) -> int:
    """Return the partition that records without a key move to.

    Args:
        current: the partition they leave, -1 for none.
        available: the partitions that have a leader, ascending; where there is none, all count.
        partitions: how many the topic has, at least 1.
        rng: chance.
    """
    candidates = [p for p in (available or range(partitions)) if p != current]
    return rng.choice(candidates) if candidates else (available[0] if available else 0)


def check_partition(chosen: object, partitions: int, topic: str) -> int:
    """Check what a custom partitioner gave.

    Raises:
        ConfigError: not an int within range.
    """
    if not isinstance(chosen, int) or not 0 <= chosen < partitions:
        raise ConfigError(
            f"the partitioner gave {chosen!r} for topic {topic}, which has partitions 0 to {partitions - 1}"
        )
    return chosen
