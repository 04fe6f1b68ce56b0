"""Partitions of a directory as its handlers see them, in the process that writes and in those that read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from headrace.embedded.catalogue import DirectoryTopic
from headrace.embedded.open_partition import DirectoryPartition
from headrace.log.log_reader import LogReader
from headrace.v1 import topics_pb2
from headrace.wire.errors import HeadraceError, Outcome, UnknownPartitionError, UnknownTopicIdError

GONE = (UnknownTopicIdError, UnknownPartitionError)
"""Errors for a topic of a list that was deleted meanwhile, or is not complete yet for a reader of the directory."""


class ReadablePartition(Protocol):
    """Partition whose records can be read, of a directory that this process or another one writes to."""

    topic: DirectoryTopic
    number: int
    leader_epoch: int

    @property
    def missed_deletions_end(self) -> int:
        """A state that ends below this offset may miss deletions, which the files do not have any more."""

    @property
    def removed_deletions_end(self) -> int:
        """Offset below which compaction may have removed deletions; see `LogCompaction.deletions_end`."""

    def await_compaction(self) -> None:
        """Wait until the compaction in progress has ended."""

    @property
    def reader(self) -> LogReader:
        """Reader of the log."""

    @property
    def snapshot_reader(self) -> LogReader:
        """Reader of the files as listed last; raises CorruptLogError if another process has removed one since."""

    def list_files(self) -> bool:
        """List the files again; return `False` if no other process changes them."""

    @property
    def log(self) -> Any:
        """Log, for its epochs, size and segments."""

    @property
    def visible_end(self) -> int:
        """End of the visible records."""

    @property
    def chain_crc(self) -> int | None:
        """Chain value at `visible_end`; `None` if it is not known."""

    @property
    def log_start_offset(self) -> int:
        """First offset that can be read."""

    @property
    def log_end_offset(self) -> int:
        """Offset of the next record."""


class Partitions(Protocol):
    """Partitions of a directory."""

    def topic(self, reference: topics_pb2.TopicRef) -> DirectoryTopic:
        """Return a topic; raises as `DirectoryTopics.find`."""

    def readable(self, topic: DirectoryTopic, number: int) -> ReadablePartition:
        """Return a partition as it is now. Raises UnknownPartitionError."""

    def writable(self, topic: DirectoryTopic, number: int) -> DirectoryPartition:
        """Return a partition. Raises UnknownPartitionError, DirectoryInUseError."""

    def all_topics(self) -> Iterable[DirectoryTopic]:
        """Return all topics."""


def check_partition(topic: DirectoryTopic, number: int) -> None:
    """Raise UnknownPartitionError if a topic lacks a partition."""
    if not 0 <= number < topic.partitions:
        raise UnknownPartitionError(f"topic {topic.name} has no partition {number}", outcome=Outcome.NOT_APPLIED)


def answer_topic(
    partitions: Partitions, reference: topics_pb2.TopicRef, results: Any
) -> tuple[DirectoryTopic | HeadraceError, Any]:
    """Return the topic of a part of a request, or the error, and the new element of the response."""
    try:
        topic = partitions.topic(reference)
    except HeadraceError as error:
        return error, results.add(name=reference.name, topic_id=reference.topic_id)
    return topic, results.add(name=topic.name, topic_id=topic.topic_id)


def known(found: DirectoryTopic | HeadraceError) -> DirectoryTopic:
    """Return the topic that `answer_topic` has found, or raise its error."""
    if isinstance(found, HeadraceError):
        raise found
    return found
