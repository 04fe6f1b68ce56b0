"""Last known topics, partitions, leaders and addresses of the cluster. Pure; not thread-safe: its owner locks.

State only moves forward: a leader of a lower epoch than the known one is ignored (PROTOCOL H4). A topic's id is its
identity: a topic that was deleted and created again replaces the old one as a whole. An older response changes neither
the known incarnation of a topic nor the fact that it was deleted (`TopicVersions`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from headrace.client.net.topic_versions import OLDEST, TopicVersions, claims_absence, version_of
from headrace.v1 import cluster_pb2
from headrace.wire.errors import HeadraceError, LeaderHint, UnknownTopicError, from_detail
from headrace.wire.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class Leader:
    """Leader of a partition."""

    broker_id: int
    """-1 means that there is none."""
    epoch: int
    """-1 means unknown."""


NO_LEADER = Leader(-1, -1)


@dataclass(frozen=True, slots=True)
class TopicLeaders:
    """Leaders of one incarnation of a topic."""

    name: str
    topic_id: bytes
    leaders: tuple[Leader, ...]
    """Leaders by partition."""
    max_batch_bytes: int
    """Maximum size of a batch, header included; 0 means unknown."""
    answer: int = 0
    """Number of the update that included the topic last."""
    columns: str = ""
    """Columns of a typed topic, see `headrace.wire.typed.topic_columns`; empty for another."""

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return len(self.leaders)

    def led_partitions(self) -> list[int]:
        """Return the partitions that have a leader, ascending."""
        return [number for number, leader in enumerate(self.leaders) if leader.broker_id >= 0]


class ClusterMetadata:
    """Topics by name, brokers by id. Changed by `update`, `learn_leader` and `forget_leader` only."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicLeaders] = {}
        self._errors: dict[str, HeadraceError] = {}
        self._addresses: dict[int, str] = {}
        self._versions = TopicVersions()
        self._brokers_version = OLDEST
        self._updates = 0

    @property
    def cluster_id(self) -> str:
        """Id of the cluster that responded last; empty before the first response."""
        return self._versions.cluster_id

    def update(self, response: cluster_pb2.GetMetadataResponse) -> None:
        """Process a GetMetadata response. Topics that it does not include stay unchanged."""
        if self._versions.is_foreign(response):
            self._topics.clear()
            self._errors.clear()
            self._addresses.clear()
            self._brokers_version = OLDEST
        refuted = self._versions.take(response)
        self._updates += 1
        self._take_brokers(response)
        for topic in response.topics:
            if topic.name in refuted or (topic.HasField("error") and not topic.name):
                continue
            if topic.HasField("error"):
                if claims_absence(topic):
                    self._topics.pop(topic.name, None)
                self._errors[topic.name] = from_detail(topic.error)
                continue
            self._errors.pop(topic.name, None)
            topic_leaders = TopicLeaders(
                topic.name,
                topic.topic_id,
                _leaders(topic),
                topic.max_batch_bytes or response.max_batch_bytes,
                self._updates,
                topic.columns,
            )
            known = self._topics.get(topic.name)
            if known is not None and known.topic_id == topic_leaders.topic_id:
                topic_leaders = replace(topic_leaders, leaders=_newest(known.leaders, topic_leaders.leaders))
            self._topics[topic.name] = topic_leaders

    def _take_brokers(self, response: cluster_pb2.GetMetadataResponse) -> None:
        """Store addresses; an older response adds unknown brokers, but changes no address."""
        is_newest = version_of(response) >= self._brokers_version
        for broker in response.brokers:
            if is_newest or broker.broker_id not in self._addresses:
                self._addresses[broker.broker_id] = broker.address
        if is_newest:
            self._brokers_version = version_of(response)

    def topic(self, name: str) -> TopicLeaders | None:
        """Return the leaders of a topic, or `None` if it is unknown."""
        return self._topics.get(name)

    def error(self, name: str) -> HeadraceError | None:
        """Return the error of a topic in the last metadata response, or `None`."""
        return self._errors.get(name)

    def require(self, name: str) -> TopicLeaders:
        """Return a topic that the last response must include.

        Raises:
            HeadraceError: The topic's error in the response; UnknownTopicError if it has none.
        """
        topic_leaders = self._topics.get(name)
        if topic_leaders is None:
            raise self._errors.get(name) or UnknownTopicError(f"there is no topic {name!r}")
        return topic_leaders

    def leader(self, where: TopicPartition, topic_id: bytes | None = None) -> tuple[int, str, int] | None:
        """Return broker id, address and leader epoch of a partition's leader, or `None` while it has none.

        With `topic_id`, also `None` if the topic has another id now: it was deleted and created again.
        """
        topic_leaders = self._leaders_of(where, topic_id)
        if topic_leaders is None:
            return None
        leader = topic_leaders.leaders[where.partition]
        address = self._addresses.get(leader.broker_id, "")
        return (leader.broker_id, address, leader.epoch) if leader.broker_id >= 0 and address else None

    def address(self, broker_id: int) -> str:
        """Return a broker's address, or an empty string if it is unknown."""
        return self._addresses.get(broker_id, "")

    def broker_count(self) -> int:
        """Return the number of known brokers, at least 1."""
        return max(1, len(self._addresses))

    def learn_leader(self, where: TopicPartition, topic_id: bytes, hint: LeaderHint) -> bool:
        """Set the leader that a NOT_LEADER error names if it is newer than the known one; return whether it was.

        `topic_id` is that of the request: the leader epochs of another incarnation of the topic are not comparable.
        """
        topic_leaders = self._leaders_of(where, topic_id)
        if topic_leaders is None or hint.leader_id < 0:
            return False
        known = topic_leaders.leaders[where.partition]
        if hint.leader_epoch < known.epoch or (hint.leader_id, hint.leader_epoch) == (known.broker_id, known.epoch):
            return False
        if hint.address:
            self._addresses[hint.leader_id] = hint.address
        self._set(topic_leaders, where.partition, Leader(hint.leader_id, hint.leader_epoch))
        return True

    def forget_leader(self, where: TopicPartition, topic_id: bytes, epoch: int) -> None:
        """Send nothing more to the leader of `epoch`; a newer leader stays, and so does one of another incarnation."""
        topic_leaders = self._leaders_of(where, topic_id)
        if topic_leaders is not None and topic_leaders.leaders[where.partition].epoch <= epoch:
            self._set(topic_leaders, where.partition, Leader(-1, topic_leaders.leaders[where.partition].epoch))

    def _leaders_of(self, where: TopicPartition, topic_id: bytes | None) -> TopicLeaders | None:
        """Return the leaders of a partition's topic; `None` if it is unknown or has another id than `topic_id`."""
        found = self._topics.get(where.topic)
        if found is None or where.partition >= len(found.leaders) or topic_id not in (None, found.topic_id):
            return None
        return found

    def names(self) -> Iterable[str]:
        """Return the names of the known topics."""
        return list(self._topics)

    def _set(self, topic_leaders: TopicLeaders, partition: int, leader: Leader) -> None:
        leaders = (*topic_leaders.leaders[:partition], leader, *topic_leaders.leaders[partition + 1 :])
        self._topics[topic_leaders.name] = replace(topic_leaders, leaders=leaders)


def _leaders(topic: cluster_pb2.TopicMetadata) -> tuple[Leader, ...]:
    count = max((partition.partition for partition in topic.partitions), default=-1) + 1
    leaders = [NO_LEADER] * count
    for partition in topic.partitions:
        leaders[partition.partition] = Leader(partition.leader_id, partition.leader_epoch)
    return tuple(leaders)


def _newest(known: tuple[Leader, ...], given: tuple[Leader, ...]) -> tuple[Leader, ...]:
    """Return the leaders of the higher epochs; the number of partitions never decreases."""
    merged = [new if new.epoch >= old.epoch else old for old, new in zip(known, given, strict=False)]
    longer = known if len(known) > len(given) else given
    return (*merged, *longer[len(merged) :])
