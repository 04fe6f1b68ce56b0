"""Topics to which a producer sends: the buffers of their partitions, and the choice of a partition. No I/O."""

import random

from headrace.client.base.config import ProducerConfig
from headrace.client.base.partitioner import check_partition, next_sticky
from headrace.client.net.cluster_metadata import ClusterMetadata, TopicLeaders
from headrace.client.producer.accumulator import PartitionBuffer
from headrace.client.producer.inflight import MAX_BATCHES_IN_FLIGHT
from headrace.client.producer.partition_queue import PartitionQueue
from headrace.client.producer.sender import ProducerIO
from headrace.wire.errors import HeadraceError, Outcome, UnknownPartitionError
from headrace.wire.ids import TopicPartition
from headrace.wire.partitioning import partition_for_key
from headrace.wire.typed.topic_columns import TopicColumns, parse_columns

DEFAULT_MAX_BATCH_BYTES = 1024 * 1024
LARGEST_BATCH_BYTES = 24 * 1024 * 1024
UNNUMBERED_BATCHES = 1_024
"""Maximum number of batches sealed together if the leader does not have to remember them."""


class ProducerTopic:
    """Producer state for one incarnation of a topic. Changed under the topics' lock."""

    __slots__ = ("buffers", "columns", "sticky", "topic_leaders")

    def __init__(self, topic_leaders: TopicLeaders, buffers: list[PartitionBuffer], sticky: int) -> None:
        self.topic_leaders = topic_leaders
        self.columns = columns_of(topic_leaders)
        """Columns of a typed topic; `None` for another."""
        self.buffers = buffers
        self.sticky = sticky
        """Partition of records without a key."""


class ProducerTopics:
    """Topics of one producer's core."""

    def __init__(
        self, config: ProducerConfig, io: ProducerIO, cluster_metadata: ClusterMetadata, chance: random.Random
    ) -> None:
        self._config = config
        self._io = io
        self._cluster_metadata = cluster_metadata
        self._chance = chance
        self.known: dict[str, ProducerTopic] = {}
        """Topics by name; read without the lock."""
        self.lock = io.make_lock()

    def install(self, topic_leaders: TopicLeaders) -> ProducerTopic:
        """Create buffers for the partitions that have none yet; those that exist keep their columns.

        Called under the lock.
        """
        known = self.known.get(topic_leaders.name)
        buffers = [] if known is None else known.buffers
        if known is not None and topic_leaders.columns != known.topic_leaders.columns:
            known.topic_leaders, known.columns = topic_leaders, columns_of(topic_leaders)
        if known is not None and len(buffers) >= topic_leaders.partitions:
            return known
        more = [self._make_buffer(topic_leaders, number) for number in range(len(buffers), topic_leaders.partitions)]
        sticky = next_sticky(-1, topic_leaders.led_partitions(), topic_leaders.partitions, self._chance)
        topic = ProducerTopic(topic_leaders, [*buffers, *more], sticky)
        self.known[topic_leaders.name] = topic
        return topic

    def _make_buffer(self, topic_leaders: TopicLeaders, partition: int) -> PartitionBuffer:
        where = TopicPartition(topic_leaders.name, partition)
        return PartitionBuffer(
            where,
            PartitionQueue(where, topic_leaders.topic_id),
            self._io.make_lock(),
            batch_bytes=self._config.batch_bytes,
            max_batch_bytes=min(topic_leaders.max_batch_bytes or DEFAULT_MAX_BATCH_BYTES, LARGEST_BATCH_BYTES),
            batch_records=self._config.batch_records,
            run_batches=MAX_BATCHES_IN_FLIGHT if self._config.idempotent else UNNUMBERED_BATCHES,
            columns=columns_of(topic_leaders),
        )

    def choose(self, topic: ProducerTopic, key: bytes | None, partition: int | None) -> int:
        """Return the partition of a record.

        Raises:
            UnknownPartitionError: If `partition`, or a custom partitioner's result, is not a partition of the topic.
        """
        count, name = len(topic.buffers), topic.topic_leaders.name
        if partition is not None:
            if not 0 <= partition < count:
                message = f"{name} has partitions 0 to {count - 1}, not {partition}"
                raise UnknownPartitionError(message, outcome=Outcome.NOT_APPLIED)
            return partition
        if self._config.partitioner is not None:
            return check_partition(self._config.partitioner(name, key, count), count, name)
        return topic.sticky if key is None else partition_for_key(key, count)

    def moves_sticky(self, buffer: PartitionBuffer) -> bool:
        """Choose another partition for records without a key, if this is the current one; return whether it was."""
        name, partition = buffer.where
        topic = self.known.get(name)
        if topic is None or topic.sticky != partition or len(topic.buffers) == 1:
            return False
        with self.lock:
            if self.known.get(name) is not topic:
                return False
            topic_leaders = self._cluster_metadata.topic(name) or topic.topic_leaders
            led = [number for number in topic_leaders.led_partitions() if number < len(topic.buffers)]
            topic.sticky = next_sticky(partition, led, len(topic.buffers), self._chance)
        return True


def columns_of(topic_leaders: TopicLeaders) -> TopicColumns | None:
    """Return the columns of a typed topic."""
    return parse_columns(topic_leaders.columns) if topic_leaders.columns else None


def is_unknown_topic(error: HeadraceError) -> bool:
    """Return whether the error means that a server does not have the topic."""
    return error.code.name in {"UNKNOWN_TOPIC", "UNKNOWN_TOPIC_ID", "UNKNOWN_PARTITION"}
