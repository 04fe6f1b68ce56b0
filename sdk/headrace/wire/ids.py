"""Types of identifiers: offsets, epochs, brokers, producers, topics, partitions. No behaviour."""

from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
"""The position of a record in its partition, from 0; an int64. Ends are exclusive unless the name says `last`."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Counts the leaders of a partition, from 0; an int32. -1: none known."""

BrokerId = NewType("BrokerId", int)
"""A broker's number, given by its operator, from 0; an int32. -1: none."""

ProducerId = NewType("ProducerId", int)
"""An idempotent producer's number, drawn by the coordinator and never used twice, from 0; an int64. -1: none."""

OWN_PRODUCER_IDS = 2**62
"""Coordinators assign only smaller producer ids; ids from here on are chosen by the callers that use them."""

PRODUCER_FAMILY_BITS = 20
"""Own producer ids that differ only in this number of lowest bits are a family: the parts of one writer."""

TopicId = NewType("TopicId", bytes)
"""Sixteen random bytes that name one life of a topic: a topic deleted and created again has another id."""


class TopicPartition(NamedTuple):
    """One partition of one topic, by the topic's name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return `topic-partition`, as messages and file names show it."""
        return f"{self.topic}-{self.partition}"
