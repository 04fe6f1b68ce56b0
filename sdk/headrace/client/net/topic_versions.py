"""Which life of each topic the client has seen, and in how new an answer of GetMetadata. Pure; its owner locks.

Servers that etcd does not reach answer for hours with what they last read (PROTOCOL H84), so answers arrive in any
order of age. A statement about which life a topic has, or that it has none, counts only if its answer is at least as
new as the one behind the present knowledge. Statements about one and the same life need no such order: leader epochs
have their own.
"""

from typing import NamedTuple

from headrace.v1 import cluster_pb2
from headrace.wire.errors import ErrorCode


class MetadataVersion(NamedTuple):
    """How new an answer is. A restore from a backup begins a later generation at a lower revision (PROTOCOL H81)."""

    generation: int
    revision: int

    def __str__(self) -> str:
        return f"revision {self.revision} of generation {self.generation}"


OLDEST = MetadataVersion(0, 0)


def version_of(response: cluster_pb2.GetMetadataResponse) -> MetadataVersion:
    """Return how new an answer is."""
    return MetadataVersion(response.generation, response.revision)


class _Life(NamedTuple):
    """The newest answer about a topic."""

    version: MetadataVersion
    topic_id: bytes
    """Empty: the topic was deleted."""


class TopicVersions:
    """The newest life of every topic seen. Topics that were never there are not kept."""

    def __init__(self) -> None:
        self._known: dict[str, _Life] = {}
        self.cluster_id = ""

    def is_foreign(self, response: cluster_pb2.GetMetadataResponse) -> bool:
        """Return whether another cluster answered than before."""
        return self.cluster_id not in ("", response.cluster_id)

    def refuted(self, response: cluster_pb2.GetMetadataResponse, *, lists_all: bool = False) -> dict[str, str]:
        """Return the topics about which a newer answer differs: why, by name.

        `lists_all`: the answer claims to list every topic, so that a topic it leaves out is not there.
        """
        if self.is_foreign(response):
            return {}
        version = version_of(response)
        found = {}
        for topic in response.topics:
            known = self._known.get(topic.name)
            if known is not None and version < known.version and _claims_other(topic, known.topic_id):
                found[topic.name] = _refutation(topic.name, version, known)
        if lists_all:
            listed = {topic.name for topic in response.topics}
            for name, known in self._known.items():
                if name not in listed and known.topic_id and version < known.version:
                    found[name] = _refutation(name, version, known)
        return found

    def take(self, response: cluster_pb2.GetMetadataResponse, *, lists_all: bool = False) -> dict[str, str]:
        """Take an answer in, but for what is refuted, which is returned; another cluster's replaces everything."""
        if self.is_foreign(response):
            self._known.clear()
        self.cluster_id = response.cluster_id
        refuted = self.refuted(response, lists_all=lists_all)
        version = version_of(response)
        for topic in response.topics:
            if topic.name in refuted or not topic.name:
                continue
            if not topic.HasField("error"):
                self._note(topic.name, _Life(version, topic.topic_id))
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
    """Return whether an entry means that there is no such topic; other errors mean nothing for its life."""
    return topic.HasField("error") and int(topic.error.code) == ErrorCode.UNKNOWN_TOPIC


def _claims_other(topic: cluster_pb2.TopicMetadata, topic_id: bytes) -> bool:
    """Return whether an entry claims another life than `topic_id`, or none."""
    if topic.HasField("error"):
        return claims_absence(topic) and bool(topic_id)
    return topic.topic_id != topic_id


def _refutation(name: str, version: MetadataVersion, known: _Life) -> str:
    said = f"topic {name} has id {known.topic_id.hex()}" if known.topic_id else f"topic {name} was deleted"
    return f"its metadata is of {version}, and by {known.version} {said}"
