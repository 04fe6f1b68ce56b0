"""Choice of the partition of a record, unless the caller names one.

Records with a key go to CRC-32 (zlib) of the key modulo the number of partitions, as in librdkafka's default, so that
mixed producers agree. Records without a key stick to one partition until its batch is sealed, then change (KIP-480):
batches fill sooner than by round robin. PAPER row 16.
"""

import random
from collections.abc import Callable, Sequence

from headrace.client.base.errors import ConfigError

Partitioner = Callable[[str, bytes | None, int], int]
"""(topic, key, partitions) -> partition, 0 <= partition < partitions."""


def next_sticky(current: int, available: Sequence[int], partitions: int, rng: random.Random) -> int:
    """Return the next partition for records without a key.

    Args:
        current: their present partition; -1 means none.
        available: the partitions that have a leader, ascending; if empty, all are candidates.
        partitions: number of partitions of the topic, at least 1.
        rng: source of randomness.
    """
    candidates = [p for p in (available or range(partitions)) if p != current]
    return rng.choice(candidates) if candidates else (available[0] if available else 0)


def check_partition(chosen: object, partitions: int, topic: str) -> int:
    """Check and return the result of a custom partitioner.

    Raises:
        ConfigError: If it is not an int within range.
    """
    if not isinstance(chosen, int) or not 0 <= chosen < partitions:
        raise ConfigError(
            f"the partitioner gave {chosen!r} for topic {topic}, which has partitions 0 to {partitions - 1}"
        )
    return chosen
