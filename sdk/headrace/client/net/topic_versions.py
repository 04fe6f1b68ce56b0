"""Known incarnation of each topic and the version of the GetMetadata response that reported it. Pure; its owner locks.

Servers that cannot reach etcd respond for hours with their last known state (PROTOCOL H84), so responses arrive in any
order of age. A statement that a topic has another incarnation, none, or fewer partitions, counts only if its response
is at least as new as that of the present state. Other statements about the same incarnation need no such order: leader
epochs have their own.
"""

from typing import NamedTuple

from headrace.v1 import cluster_pb2
from headrace.wire.errors import ErrorCode


class MetadataVersion(NamedTuple):
    """Version of a response. A restore from a backup starts a later generation at a lower revision (PROTOCOL H81)."""

    generation: int
    revision: int

    def __str__(self) -> str:
        return f"revision {self.revision} of generation {self.generation}"


OLDEST = MetadataVersion(0, 0)


def version_of(response: cluster_pb2.GetMetadataResponse) -> MetadataVersion:
    """Return the version of a response."""
    return MetadataVersion(response.generation, response.revision)


class _Life(NamedTuple):
    """Newest statement about a topic."""

    version: MetadataVersion
    topic_id: bytes
    """Empty means that the topic was deleted."""
    partitions: int = 0


class TopicVersions:
    """Newest incarnation of every topic seen. Topics that never existed are not stored."""

    def __init__(self) -> None:
        self._known: dict[str, _Life] = {}
        self.cluster_id = ""

    def is_foreign(self, response: cluster_pb2.GetMetadataResponse) -> bool:
        """Return whether the response is of another cluster than earlier ones."""
        return self.cluster_id not in ("", response.cluster_id)

    def refuted(self, response: cluster_pb2.GetMetadataResponse, *, lists_all: bool = False) -> dict[str, str]:
        """Return the topics that a newer response contradicts, with the reason by name.

        `lists_all` means that the response claims to list every topic, so an omitted topic does not exist.
        """
        if self.is_foreign(response):
            return {}
        version = version_of(response)
        found = {}
        for topic in response.topics:
            known = self._known.get(topic.name)
            if known is not None and version < known.version and _claims_other(topic, known):
                found[topic.name] = _refutation(topic.name, version, known)
        if lists_all:
            listed = {topic.name for topic in response.topics}
            for name, known in self._known.items():
                if name not in listed and known.topic_id and version < known.version:
                    found[name] = _refutation(name, version, known)
        return found

    def take(self, response: cluster_pb2.GetMetadataResponse, *, lists_all: bool = False) -> dict[str, str]:
        """Store a response except for contradicted topics, which are returned; another cluster's replaces all."""
        if self.is_foreign(response):
            self._known.clear()
        self.cluster_id = response.cluster_id
        refuted = self.refuted(response, lists_all=lists_all)
        version = version_of(response)
        for topic in response.topics:
            if topic.name in refuted or not topic.name:
                continue
            if not topic.HasField("error"):
                self._note(topic.name, _Life(version, topic.topic_id, len(topic.partitions)))
            elif claims_absence(topic) and topic.name in self._known:
                self._note(topic.name, _Life(version, b""))
        if lists_all:
            listed = {topic.name for topic in response.topics}
            for name in [name for name in self._known if name not in listed and name not in refuted]:
                self._note(name, _Life(version, b""))
        return refuted

    def _note(self, name: str, life: _Life) -> None:
        known = self._known.get(name)
        if known is None or life.version >= known.version:
            self._known[name] = life


def claims_absence(topic: cluster_pb2.TopicMetadata) -> bool:
    """Return whether an entry means that the topic does not exist; other errors say nothing about its incarnation."""
    return topic.HasField("error") and int(topic.error.code) == ErrorCode.UNKNOWN_TOPIC


def _claims_other(topic: cluster_pb2.TopicMetadata, known: _Life) -> bool:
    """Return whether an entry claims another incarnation than the known one, none, or fewer partitions."""
    if topic.HasField("error"):
        return claims_absence(topic) and bool(known.topic_id)
    return topic.topic_id != known.topic_id or len(topic.partitions) < known.partitions


def _refutation(name: str, version: MetadataVersion, known: _Life) -> str:
    said = f"topic {name} was deleted"
    if known.topic_id:
        said = f"topic {name} has id {known.topic_id.hex()} and {known.partitions} partitions"
    return f"its metadata is of {version}, and by {known.version} {said}"
