"""Topics of a directory: `<directory>/topics`, sealed JSON that is replaced as a whole.

    format      FORMAT_VERSION
    revision    number of the last change, from 1
    topics      name, topic_id (hexadecimal), partitions, configs (those that differ from the defaults),
                created_ms, origin (of a copy: the cluster)

A change is durable before it takes effect. Thread-safe.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from headrace.log.checkpoint import SMALL_FILE_LIMIT, replace_file, seal, unseal
from headrace.log.errors import WrongDirectoryError, storage_error
from headrace.log.filesystem import FileSystem, read_file
from headrace.partition.topic_configs import TopicConfig, read_stored_topic_config
from headrace.v1 import topics_pb2
from headrace.wire.errors import UnknownTopicError, UnknownTopicIdError

FILE = "topics"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class DirectoryTopic:
    """One topic."""

    name: str
    topic_id: bytes
    partitions: int
    configs: Mapping[str, str]
    """Settings that differ from the defaults."""
    created_ms: int
    origin: str = ""
    """Cluster of which the topic is a copy; empty for a topic of the directory itself."""

    @cached_property
    def config(self) -> TopicConfig:
        """All settings."""
        return read_stored_topic_config(self.configs)[0]


class DirectoryTopics:
    """Topics of an open directory."""

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        """Read the file of `path`; a missing one means no topics.

        Raises:
            WrongDirectoryError: If it is corrupt, or of a newer release.
            StorageOfflineError: If it cannot be read.
        """
        self._filesystem = filesystem
        self._path = path
        self._lock = threading.Lock()
        self.revision = 0
        """Number of the last change; 0 means that no file is there yet."""
        self._topics: dict[str, DirectoryTopic] = {}
        self.read()

    def read(self) -> None:
        """Read the file again; raises as the constructor."""
        path = f"{self._path}/{FILE}"
        try:
            data = read_file(self._filesystem, path, SMALL_FILE_LIMIT)
        except OSError as error:
            raise storage_error(path, error) from error
        if data is None:
            return
        payload = unseal(data)
        if payload is None:
            raise WrongDirectoryError(
                f"{path} is corrupt", retriable=False, action="Restore it from a backup of the directory."
            )
        stored = json.loads(payload)
        if stored["format"] != FORMAT_VERSION:
            raise WrongDirectoryError(
                f"{path} has format {stored['format']}, and this release supports {FORMAT_VERSION}: a newer release "
                "wrote it",
                retriable=False,
                action="Upgrade headrace; the data are left as they are.",
            )
        topics = [
            DirectoryTopic(
                each["name"],
                bytes.fromhex(each["topic_id"]),
                each["partitions"],
                each["configs"],
                each["created_ms"],
                each.get("origin", ""),
            )
            for each in stored["topics"]
        ]
        with self._lock:
            self.revision = stored["revision"]
            self._topics = {topic.name: topic for topic in topics}

    @property
    def by_name(self) -> Mapping[str, DirectoryTopic]:
        """All topics; a later change makes another mapping."""
        return self._topics

    def find(self, reference: topics_pb2.TopicRef) -> DirectoryTopic:
        """Return the topic of a reference.

        Raises:
            UnknownTopicError, UnknownTopicIdError: If there is none.
        """
        if reference.topic_id:
            found = next((each for each in self._topics.values() if each.topic_id == reference.topic_id), None)
            if found is None:
                raise UnknownTopicIdError(f"there is no topic with id {reference.topic_id[:16].hex()}")
            return found
        named = self._topics.get(reference.name)
        if named is None:
            raise UnknownTopicError(f"there is no topic named {reference.name[:249]!r}")
        return named

    def begin(self) -> None:
        """Store the file if there is none: logs without one are those of a list that was lost."""
        with self._lock:
            if not self.revision:
                self._write({})

    def put(self, topic: DirectoryTopic) -> None:
        """Store a topic under its name, instead of an earlier one."""
        with self._lock:
            self._write({**self._topics, topic.name: topic})

    def remove(self, reference: topics_pb2.TopicRef) -> DirectoryTopic:
        """Remove a topic and return it."""
        with self._lock:
            found = self.find(reference)
            self._write({name: topic for name, topic in self._topics.items() if name != found.name})
            return found

    def _write(self, topics: dict[str, DirectoryTopic]) -> None:
        content = {
            "format": FORMAT_VERSION,
            "revision": self.revision + 1,
            "topics": [topic_fields(topic) for topic in topics.values()],
        }
        try:
            replace_file(self._filesystem, self._path, FILE, seal(json.dumps(content).encode()))
        except OSError as error:
            raise storage_error(f"{self._path}/{FILE}", error) from error
        self._topics = topics
        self.revision += 1


def topic_fields(topic: DirectoryTopic) -> dict[str, object]:
    """Return a topic as it is in the file."""
    return {
        "name": topic.name,
        "topic_id": topic.topic_id.hex(),
        "partitions": topic.partitions,
        "configs": dict(topic.configs),
        "created_ms": topic.created_ms,
        "origin": topic.origin,
    }
