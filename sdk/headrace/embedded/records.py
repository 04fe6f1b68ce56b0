"""Produce, Fetch and the other calls about the records of a directory: what `BrokerService` answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

from headrace.embedded.appends import Written
from headrace.embedded.catalogue import DirectoryTopic
from headrace.embedded.open_partition import LIMITS, DirectoryPartition
from headrace.log.log import TimestampKind
from headrace.log.log_reader import LogReader
from headrace.partition.selections import LOCATED_FACTOR, read_selected, selection_of
from headrace.v1 import broker_pb2, topics_pb2
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import (
    HeadraceError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    Outcome,
    UnknownLeaderEpochError,
    UnknownPartitionError,
    to_detail,
)
from headrace.wire.typed.selection import ColumnSelection
from headrace.wire.zero_copy import SplicedMessage


class ReadablePartition(Protocol):
    """Partition whose records can be read, of a directory that this process or another one writes to."""

    topic: DirectoryTopic
    number: int
    leader_epoch: int
    missed_deletions_end: int
    """Changes when records were removed that a reader of the log may have missed: deletions, below this offset."""

    @property
    def removed_deletions_end(self) -> int:
        """Offset below which compaction may have removed deletions; see `LogCompaction.deletions_end`."""

    @property
    def reader(self) -> LogReader:
        """Reader of the log."""

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


class DirectoryRecords:
    """Handlers of one directory. Thread-safe."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._turn = 0

    # --- produce ---

    def write(self, spliced: SplicedMessage) -> Written:
        """Append the batches of a ProduceRequest.

        Raises:
            InvalidRequestError: If the whole request is invalid.
        """
        request: broker_pb2.ProduceRequest = spliced.message
        if request.as_copies:
            raise InvalidRequestError(
                "a directory takes no copies of another log", action="Mirror to a topic of a cluster."
            )
        response = broker_pb2.ProduceResponse()
        written: list[DirectoryPartition] = []
        unflushed: list[tuple[DirectoryPartition, broker_pb2.PartitionProduceResult]] = []
        in_order = iter(spliced.batches)
        waits = request.acks in (broker_pb2.ACKS_ALL, broker_pb2.ACKS_UNSPECIFIED)
        for asked in request.topics:
            topic, unknown, topic_result = self._answer(asked.topic, response.topics)
            for part in asked.partitions:
                batches = cast("list[bytes]", next(in_order))
                result = topic_result.partitions.add(partition=part.partition, append_timestamp_ms=-1)
                try:
                    partition = self._partitions.writable(_known(topic, unknown), part.partition)
                    if not batches:
                        raise InvalidRequestError("a partition carries no batches")
                    appended = partition.append(batches)
                except HeadraceError as error:
                    result.error.CopyFrom(to_detail(error))
                    continue
                written.append(partition)
                result.base_offsets.extend(appended.base_offsets)
                result.repeated_batches = appended.repeated
                result.append_timestamp_ms = appended.append_timestamp_ms
                result.log_start_offset = appended.log_start_offset
                result.leader_epoch = appended.leader_epoch
                if appended.error is not None:
                    result.error.CopyFrom(to_detail(appended.error))
                if appended.end_offset and partition.topic.config.counts_flushed:
                    unflushed.append((partition, result))
        return Written(response, written, unflushed, waits)

    # --- fetch ---

    def fetch(self, request: broker_pb2.FetchRequest) -> tuple[Callable[[bool], SplicedMessage | None], float]:
        """Return the attempts of a Fetch, and the deadline of the last one.

        Raises:
            InvalidRequestError: If the whole request is invalid.
        """
        if request.as_records:
            raise InvalidRequestError("a directory answers batches", action="Leave out as_records.")
        if not request.topics:
            raise InvalidRequestError("the request names no topic")
        if request.max_wait_ms > LIMITS.max_fetch_wait_ms:
            raise InvalidRequestError(f"max_wait_ms {request.max_wait_ms} is over {LIMITS.max_fetch_wait_ms}")
        selections = [selection_of(asked) for asked in request.topics]
        deadline = time.monotonic() + max(0, request.max_wait_ms) / 1000
        self._turn += 1
        turn = self._turn

        def attempt(is_last: bool) -> SplicedMessage | None:
            return self._fetch(request, selections, turn, is_last=is_last)

        return attempt, deadline

    def fetch_whole(
        self, request: broker_pb2.FetchRequest
    ) -> tuple[Callable[[bool], broker_pb2.FetchResponse | None], float]:
        """As `fetch`, with the batches in the response, as administrators fetch a few; raises likewise."""
        attempt, deadline = self.fetch(request)

        def whole(is_last: bool) -> broker_pb2.FetchResponse | None:
            spliced = attempt(is_last)
            if spliced is None:
                return None
            response: broker_pb2.FetchResponse = spliced.message
            in_order = iter(spliced.batches)
            for topic in response.topics:
                for part in topic.partitions:
                    part.batches = b"".join(cast("list[bytes]", next(in_order)))
            return response

        return whole, deadline

    def _fetch(
        self, request: broker_pb2.FetchRequest, selections: list[ColumnSelection | None], turn: int, *, is_last: bool
    ) -> SplicedMessage | None:
        """Return the response, or `None` if there is less than wanted and it is not the last attempt."""
        response = broker_pb2.FetchResponse()
        wanted: list[_Wanted] = []
        for asked, selection in zip(request.topics, selections, strict=True):
            topic, unknown, topic_result = self._answer(asked.topic, response.topics)
            for part in asked.partitions:
                result = topic_result.partitions.add(
                    partition=part.partition, high_watermark=-1, log_start_offset=-1, leader_epoch=-1,
                    preferred_replica=-1,
                )  # fmt: skip
                wanted.append(_Wanted(part, topic, unknown, selection, result))
        most = min(LIMITS.max_fetch_bytes, request.max_bytes or LIMITS.max_fetch_bytes)
        first, total, is_full = turn % len(wanted) if wanted else 0, 0, False
        try:
            for index in range(len(wanted)):
                each = wanted[(first + index) % len(wanted)]
                each.locate(self._partitions, most - total, is_first=not total)
                total += each.size_bytes
                is_full |= each.does_not_fit
            has_news = any(each.result.HasField("error") or each.result.HasField("diverged") for each in wanted)
            if not (is_last or is_full or has_news or total >= min(request.min_bytes, most)):
                return None
            return SplicedMessage(response, [each.read() for each in wanted])
        finally:
            for each in wanted:
                each.close()

    # --- the others ---

    def has_every_offset(self, topic: DirectoryTopic) -> bool:
        """Return whether each offset of a topic, from its log start to its end, is a record."""
        if topic.config.compacts or topic.origin:  # A cluster's segments may have batches that were compacted there.
            return False
        partitions = [self._partitions.readable(topic, number) for number in range(topic.partitions)]
        return not any(partition.reader.has_compacted_segments for partition in partitions)

    def list_offsets(self, request: broker_pb2.ListOffsetsRequest) -> broker_pb2.ListOffsetsResponse:
        """Answer a ListOffsets."""
        response = broker_pb2.ListOffsetsResponse()
        for asked in request.topics:
            topic, unknown, topic_result = self._answer(asked.topic, response.topics)
            for part in asked.partitions:
                result = topic_result.partitions.add(
                    partition=part.partition, offset=-1, timestamp_ms=-1, leader_epoch=-1
                )
                try:
                    self._list_offset(_known(topic, unknown), part, result)
                except HeadraceError as error:
                    result.error.CopyFrom(to_detail(error))
        return response

    def _list_offset(
        self,
        topic: DirectoryTopic,
        asked: broker_pb2.PartitionListOffsets,
        result: broker_pb2.PartitionListOffsetsResult,
    ) -> None:
        partition = self._partitions.readable(topic, asked.partition)
        result.leader_epoch, end_offset = partition.leader_epoch, partition.visible_end
        match asked.spec:
            case broker_pb2.OFFSET_SPEC_EARLIEST:
                result.offset = partition.log_start_offset
            case broker_pb2.OFFSET_SPEC_LATEST:
                result.offset = end_offset
            case broker_pb2.OFFSET_SPEC_TIMESTAMP | broker_pb2.OFFSET_SPEC_APPEND_TIMESTAMP:
                by_append = asked.spec == broker_pb2.OFFSET_SPEC_APPEND_TIMESTAMP
                kind = TimestampKind.APPEND if by_append else TimestampKind.RECORD
                found = partition.reader.offset_for_timestamp(asked.timestamp_ms, kind)
                is_visible = found is not None and found.offset < end_offset
                result.offset = found.offset if found is not None and is_visible else end_offset
                if found is not None and is_visible:
                    result.timestamp_ms = found.timestamp_ms
            case broker_pb2.OFFSET_SPEC_RECORD:
                offset = max(asked.offset, partition.log_start_offset)
                result.offset = min(offset, end_offset)
                if offset < end_offset:
                    result.timestamp_ms = partition.reader.batch_with(offset).append_timestamp_ms
            case broker_pb2.OFFSET_SPEC_PRODUCER | broker_pb2.OFFSET_SPEC_PRODUCER_FAMILY:
                who, family = asked.producer, asked.spec == broker_pb2.OFFSET_SPEC_PRODUCER_FAMILY
                writer = self._partitions.writable(topic, asked.partition)
                with writer.lock:
                    appended = writer.producers.appended(who.producer_id, who.producer_epoch, family=family)
                if appended is not None:
                    result.offset, result.end_offset = appended
            case _:
                raise InvalidRequestError(f"offset spec {asked.spec} is unknown", action="Name one of OffsetSpec.")

    def delete_records(self, request: broker_pb2.DeleteRecordsRequest) -> broker_pb2.DeleteRecordsResponse:
        """Answer a DeleteRecords."""
        response = broker_pb2.DeleteRecordsResponse()
        for asked in request.topics:
            topic, unknown, topic_result = self._answer(asked.topic, response.topics)
            for part in asked.partitions:
                result = topic_result.partitions.add(partition=part.partition, log_start_offset=-1)
                try:
                    if part.before_offset < -1:
                        raise InvalidRequestError(f"before_offset {part.before_offset} is below -1")
                    partition = self._partitions.writable(_known(topic, unknown), part.partition)
                    result.log_start_offset = partition.delete_records(part.before_offset)
                except HeadraceError as error:
                    result.error.CopyFrom(to_detail(error))
        return response

    def describe_logs(self, request: broker_pb2.DescribeLogsRequest) -> broker_pb2.DescribeLogsResponse:
        """Answer a DescribeLogs, without the disk."""
        response = broker_pb2.DescribeLogsResponse()
        topics = [self._partitions.topic(each) for each in request.topics] or self._partitions.all_topics()
        for topic in topics:
            for number in range(topic.partitions):
                partition = self._partitions.readable(topic, number)
                response.logs.add(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partition=number,
                    log_start_offset=partition.log_start_offset,
                    log_end_offset=partition.log_end_offset,
                    high_watermark=partition.visible_end,
                    flushed_offset=partition.log.flushed_offset,
                    size_bytes=partition.log.size_bytes,
                    segments=partition.log.segment_count,
                    leader_epoch=partition.leader_epoch,
                    is_leader=True,
                )
        return response

    def _answer(
        self, reference: topics_pb2.TopicRef, results: Any
    ) -> tuple[DirectoryTopic | None, HeadraceError | None, Any]:
        """Return the topic of a part of a request, or the error, and the new element of the response."""
        try:
            topic = self._partitions.topic(reference)
        except HeadraceError as error:
            return None, error, results.add(name=reference.name, topic_id=reference.topic_id)
        return topic, None, results.add(name=topic.name, topic_id=topic.topic_id)


def _known(topic: DirectoryTopic | None, unknown: HeadraceError | None) -> DirectoryTopic:
    if topic is None:
        assert unknown is not None
        raise unknown
    return topic


class _Wanted:
    """Partition of a fetch."""

    def __init__(
        self,
        asked: broker_pb2.PartitionFetch,
        topic: DirectoryTopic | None,
        unknown: HeadraceError | None,
        selection: ColumnSelection | None,
        result: broker_pb2.PartitionFetchResult,
    ) -> None:
        self._asked = asked
        self._topic = topic
        self._unknown = unknown
        self._selection = selection
        self.result = result
        self._partition: ReadablePartition | None = None
        self._found: Any = None
        self._limit = 0
        self.size_bytes = 0
        self.does_not_fit = False

    def locate(self, partitions: Partitions, room: int, *, is_first: bool) -> None:
        """Find the batches, if there is room for some, and complete the result but for them."""
        asked, result = self._asked, self.result
        result.next_offset = asked.offset
        try:
            partition = self._partition = partitions.readable(_known(self._topic, self._unknown), asked.partition)
            end_offset = partition.visible_end
            result.high_watermark, result.log_start_offset = end_offset, partition.log_start_offset
            result.leader_epoch = partition.leader_epoch
            if asked.HasField("last_epoch") and self._diverges(partition):
                return
            if not partition.log_start_offset <= asked.offset <= partition.log_end_offset:
                raise OffsetOutOfRangeError(
                    f"offset {asked.offset} is outside {partition.log_start_offset} .. {partition.log_end_offset}",
                    outcome=Outcome.NOT_APPLIED,
                )
            if asked.offset >= end_offset:
                if partition.log_start_offset == asked.offset and partition.chain_crc is not None:
                    result.chain_crc = partition.chain_crc
                return
            if room <= 0:
                self.does_not_fit = True
                return
            self._limit = limit = min(room, asked.max_bytes) if asked.max_bytes > 0 else room
            located = limit if self._selection is None else limit * LOCATED_FACTOR
            found = partition.reader.read(asked.offset, located, end_offset)
            size_bytes = min(len(found), limit) if self._selection is not None else len(found)
            if size_bytes > room and not is_first:
                found.close()
                self.does_not_fit = True
                return
            self._found, self.size_bytes = found, size_bytes
            result.deletions_end = partition.removed_deletions_end  # Afterwards: it is at least that of what was found.
        except HeadraceError as error:
            self._fail(error)

    def _diverges(self, partition: ReadablePartition) -> bool:
        """Answer where the log that the reader has seen ends, if this one is another from there on; see KIP-320."""
        offset, last_epoch = self._asked.offset, self._asked.last_epoch
        if last_epoch > partition.leader_epoch:
            raise UnknownLeaderEpochError(
                f"the reader has leader epoch {last_epoch}, the directory has {partition.leader_epoch}"
            )
        if last_epoch == partition.leader_epoch and offset <= partition.log_end_offset:
            return False
        epoch, end_offset = partition.log.epoch_end(last_epoch)
        if epoch < 0 or (epoch == last_epoch and offset <= end_offset):
            return False
        self.result.diverged.leader_epoch, self.result.diverged.end_offset = epoch, end_offset
        return True

    def read(self) -> list[ReadableBuffer]:
        """Read the batches."""
        found, partition = self._found, self._partition
        if found is None or partition is None:
            return [b""]
        self._found = None
        try:
            if self._selection is not None:
                pieces, self.result.next_offset, self.result.last_epoch = read_selected(
                    found, self._selection, self._limit
                )
                return [b"".join(pieces)]
            with found:
                data = found.read()
            self.result.next_offset = found.end_offset
            self.result.last_epoch = partition.log.epoch_at(found.end_offset - 1)
            return [data]
        except HeadraceError as error:
            self._fail(error)
            return [b""]

    def _fail(self, error: HeadraceError) -> None:
        self.result.error.CopyFrom(to_detail(error))

    def close(self) -> None:
        """Close what was not read."""
        if self._found is not None:
            self._found.close()
            self._found = None
