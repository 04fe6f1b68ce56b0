"""Produce and the calls about the records of a directory other than Fetch: what `BrokerService` answers."""

from __future__ import annotations

from contextlib import suppress
from typing import cast

from headrace.embedded.appends import Written
from headrace.embedded.catalogue import DirectoryTopic
from headrace.embedded.open_partition import DirectoryPartition
from headrace.embedded.partitions import GONE, Partitions, answer_topic, known
from headrace.log.log import TimestampKind
from headrace.v1 import broker_pb2
from headrace.wire.errors import HeadraceError, InvalidRequestError, to_detail
from headrace.wire.zero_copy import SplicedMessage


class DirectoryRecords:
    """Handlers of one directory. Thread-safe."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

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
            topic, topic_result = answer_topic(self._partitions, asked.topic, response.topics)
            for part in asked.partitions:
                batches = cast("list[bytes]", next(in_order))
                result = topic_result.partitions.add(partition=part.partition, append_timestamp_ms=-1)
                try:
                    partition = self._partitions.writable(known(topic), part.partition)
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
            topic, topic_result = answer_topic(self._partitions, asked.topic, response.topics)
            for part in asked.partitions:
                result = topic_result.partitions.add(
                    partition=part.partition, offset=-1, timestamp_ms=-1, leader_epoch=-1
                )
                try:
                    self._list_offset(known(topic), part, result)
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
            topic, topic_result = answer_topic(self._partitions, asked.topic, response.topics)
            for part in asked.partitions:
                result = topic_result.partitions.add(partition=part.partition, log_start_offset=-1)
                try:
                    if part.before_offset < -1:
                        raise InvalidRequestError(f"before_offset {part.before_offset} is below -1")
                    partition = self._partitions.writable(known(topic), part.partition)
                    result.log_start_offset = partition.delete_records(part.before_offset)
                except HeadraceError as error:
                    result.error.CopyFrom(to_detail(error))
        return response

    def describe_logs(self, request: broker_pb2.DescribeLogsRequest) -> broker_pb2.DescribeLogsResponse:
        """Answer a DescribeLogs, without the disk."""
        response = broker_pb2.DescribeLogsResponse()
        for reference in request.topics:
            self._describe_logs(self._partitions.topic(reference), response)
        for topic in () if request.topics else self._partitions.all_topics():
            with suppress(*GONE):
                self._describe_logs(topic, response)
        return response

    def _describe_logs(self, topic: DirectoryTopic, response: broker_pb2.DescribeLogsResponse) -> None:
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
