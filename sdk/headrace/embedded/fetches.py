"""Fetches from a directory: several partitions, and long polls over all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

from headrace.embedded.catalogue import DirectoryTopic
from headrace.embedded.open_partition import LIMITS
from headrace.embedded.partitions import Partitions, ReadablePartition, answer_topic, known
from headrace.partition.selections import LOCATED_FACTOR, read_selected, selection_of
from headrace.v1 import broker_pb2
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import (
    HeadraceError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    Outcome,
    UnknownLeaderEpochError,
    to_detail,
)
from headrace.wire.typed.selection import ColumnSelection
from headrace.wire.zero_copy import SplicedMessage


class DirectoryFetches:
    """Handlers of one directory. Thread-safe."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._turn = 0

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
            topic, topic_result = answer_topic(self._partitions, asked.topic, response.topics)
            for part in asked.partitions:
                result = topic_result.partitions.add(
                    partition=part.partition, high_watermark=-1, log_start_offset=-1, leader_epoch=-1,
                    preferred_replica=-1,
                )  # fmt: skip
                wanted.append(_Wanted(part, topic, selection, result))
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


class _Wanted:
    """Partition of a fetch."""

    def __init__(
        self,
        asked: broker_pb2.PartitionFetch,
        topic: DirectoryTopic | HeadraceError,
        selection: ColumnSelection | None,
        result: broker_pb2.PartitionFetchResult,
    ) -> None:
        self._asked = asked
        self._topic = topic
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
            partition = self._partition = partitions.readable(known(self._topic), asked.partition)
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
