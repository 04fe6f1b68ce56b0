"""Requests of the driver to the cluster: subscribed partitions, and the starts and ends of their logs.

One connection, opened on first use; for one thread.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace.client.admin.admin import Admin
from headrace.client.admin.epoch_ends import record_epochs, truncation_points
from headrace.client.admin.operations import AdminOperations
from headrace.client.admin.rpc import OffsetAt, TopicDescription
from headrace.client.base.config import AdminConfig, build, shared_settings
from headrace.client.base.errors import ConfigError, NoBrokersAvailableError
from headrace.client.base.operations import Operation
from headrace.spark.options import SERVERS, Subscription
from headrace.spark.starting_offsets import EARLIEST, LATEST, OffsetBound
from headrace.wire.errors import UnknownTopicError, UnknownTopicIdError
from headrace.wire.ids import TopicPartition


class SubscribedCluster:
    """Cluster as seen through a subscription."""

    def __init__(self, settings: Mapping[str, Any], subscription: Subscription) -> None:
        shared = shared_settings(settings)
        self._subscription = subscription
        self._pattern = re.compile(subscription.pattern) if subscription.pattern else None
        self._names: tuple[str, ...] = ()
        self._names_until = 0.0
        config = build(AdminConfig, shared)
        self._names_age_s = config.metadata_max_age_ms / 1000
        self._client_id = config.client_id
        self.admin = Admin(**shared)
        self.topic_ids: dict[str, str] = {}
        """Ids of the topics in the last result of `partitions`, in hexadecimal."""

    def close(self) -> None:
        """Close the connections."""
        self.admin.close()

    def partitions(self) -> list[TopicPartition]:
        """Return the existing subscribed partitions, ascending; store their topics' ids.

        Raises:
            ConfigError: If a topic or partition named by an option does not exist, or no server responds.
        """
        try:
            topics = self._topics()
        except UnknownTopicError as error:
            raise ConfigError(
                f"option {self._subscription.option}: {error.message}", action="Create the topic first."
            ) from None
        except NoBrokersAvailableError as error:
            raise ConfigError(f"option {SERVERS}: {error.message}", action=error.action) from None
        self.topic_ids = {topic.name: topic.topic_id.hex() for topic in topics}
        found = {TopicPartition(topic.name, entry.partition) for topic in topics for entry in topic.partitions}
        if not self._subscription.assigned:
            return sorted(found)
        assigned = [
            TopicPartition(name, number) for name, numbers in self._subscription.assigned.items() for number in numbers
        ]
        for where in assigned:
            if where not in found:
                count = sum(1 for entry in found if entry.topic == where.topic)
                raise ConfigError(f"option assign: there is no {where}; {where.topic} has {count} partitions")
        return sorted(assigned)

    def _topics(self) -> list[TopicDescription]:
        if self._pattern is None:
            return self.admin.describe_topics(self._subscription.names or tuple(self._subscription.assigned))
        if time.monotonic() >= self._names_until:
            topics = [topic for topic in self.admin.describe_topics() if self._pattern.fullmatch(topic.name)]
            self._names = tuple(topic.name for topic in topics)
            self._names_until = time.monotonic() + self._names_age_s
            return topics
        try:
            return self.admin.describe_topics(self._names) if self._names else []
        except UnknownTopicError:  # One of them was deleted.
            self._names_until = 0.0
            return self._topics()

    def topic_ids_of(self, names: Sequence[str]) -> dict[str, str]:
        """Return the ids of those topics that exist, in hexadecimal."""
        try:
            topics = self.admin.describe_topics(names) if names else []
        except UnknownTopicError:
            topics = self.admin.describe_topics()
        return {topic.name: topic.topic_id.hex() for topic in topics if topic.name in names}

    def at_times(self, bound: OffsetBound, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Look up the times of a bound."""
        found: dict[TopicPartition, int] = {}
        for time_ms, wanted in bound.times(partitions).items():
            found.update(self.offsets(wanted, time_ms))
        return found

    def edge_offsets(
        self,
        bound: OffsetBound,
        partitions: list[TopicPartition],
        earliest: Mapping[TopicPartition, int],
        latest: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, int]:
        """Return a bound's offset in each partition.

        Raises:
            ConfigError: If it does not name every partition, or names others.
        """
        bound.check_covers(partitions)
        at_times = self.at_times(bound, partitions)
        return {where: bound.offset(where, earliest, latest, at_times) for where in partitions}

    def bounds(self, partitions: list[TopicPartition]) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Look up the start and the end of every log."""
        return self.offsets(partitions, EARLIEST), self.offsets(partitions, LATEST)

    def offsets(self, partitions: Iterable[TopicPartition], at: str | int) -> dict[TopicPartition, int]:
        """Look up the `earliest` or `latest` offset of each, or that at a time in ms since 1970."""
        return {where: answer.offset for where, answer in self.answers(partitions, at).items()}

    def answers(self, partitions: Iterable[TopicPartition], at: str | int) -> dict[TopicPartition, OffsetAt]:
        """Return the results of `offsets` with the leader epochs of the responding leaders."""
        found: dict[TopicPartition, OffsetAt] = {}
        for topic, numbers in _by_topic(partitions).items():
            found.update(self.admin.list_offsets(topic, at, partitions=numbers))
        return found

    def truncation_points(
        self, read: Mapping[TopicPartition, tuple[int, int]], topic_ids: Mapping[str, str]
    ) -> dict[TopicPartition, int]:
        """Look up the offsets from which read records are lost or replaced; omitted if none are, or without a topic.

        `read` has the offset up to which a partition was read, and the leader epoch of the record before it.
        """
        return self._look_up(truncation_points, read, topic_ids)

    def record_epochs(
        self, offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, str]
    ) -> dict[TopicPartition, int]:
        """Look up the leader epochs of records; omitted if the record or the topic was deleted."""
        return self._look_up(record_epochs, offsets, topic_ids)

    def _look_up(
        self,
        operation: Callable[[AdminOperations, str, str, Any, bytes], Operation[dict[int, int]]],
        asked: Mapping[TopicPartition, Any],
        topic_ids: Mapping[str, str],
    ) -> dict[TopicPartition, int]:
        """Run the operation for one topic after another, each in the incarnation of `topic_ids`."""
        found: dict[TopicPartition, int] = {}
        for topic, numbers in _by_topic(asked).items():
            wanted = {number: asked[TopicPartition(topic, number)] for number in numbers}
            topic_id = bytes.fromhex(topic_ids.get(topic, ""))
            with contextlib.suppress(UnknownTopicError, UnknownTopicIdError):
                answer = self.admin._run(operation(self.admin._operations, self._client_id, topic, wanted, topic_id))
                found.update({TopicPartition(topic, number): each for number, each in answer.items()})
        return found


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for where in partitions:
        by_topic.setdefault(where.topic, []).append(where.partition)
    return by_topic
