"""Types of identifiers: offsets, epochs, brokers, producers, topics, partitions. No behaviour."""

from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
"""Position of a record in its partition, from 0; an int64. Ends are exclusive unless the name contains `last`."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Number of a partition's leader, from 0; an int32. -1 means unknown."""

BrokerId = NewType("BrokerId", int)
"""Number of a broker, assigned by its operator, from 0; an int32. -1 means none."""

ProducerId = NewType("ProducerId", int)
"""Number of an idempotent producer, drawn by the coordinator and never reused, from 0; an int64. -1 means none."""

OWN_PRODUCER_IDS = 2**62
"""Coordinators assign only smaller producer ids; callers choose ids from here on themselves."""

PRODUCER_FAMILY_BITS = 20
"""Own producer ids that differ only in this number of lowest bits are a family: the parts of one writer."""

TopicId = NewType("TopicId", bytes)
"""Sixteen random bytes that identify one incarnation of a topic: a re-created topic has another id."""


class TopicPartition(NamedTuple):
    """Partition of a topic, by the topic's name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return `topic-partition`, as in messages and file names."""
        return f"{self.topic}-{self.partition}"
