"""Number of a topic's partitions: which changes of it are allowed. Pure."""

from __future__ import annotations

from headrace.partition.topic_configs import TopicConfig
from headrace.wire.errors import InvalidPartitionsError


def check_larger(name: str, partitions: int, total: int, config: TopicConfig) -> None:
    """Raise InvalidPartitionsError unless a topic may get `total` partitions.

    A mirror's topic may, whatever it is: its records are in the partitions of its source.
    """
    if total <= partitions:
        raise InvalidPartitionsError(
            f"topic {name} has {partitions} partitions, and {total} is not more",
            action="Ask for a larger total; a topic never shrinks.",
        )
    if config.is_table and not config.mirror:
        raise InvalidPartitionsError(
            f"table {name} keeps its number of partitions ({partitions}): a row's partition follows from it",
            action="Create a table with more partitions, and put the rows into that by put_many.",
        )
