"""Lag of consumer groups, measured by the controller.

Committed offsets are in this coordinator's view; log ends and append times are only at the leaders. Every `interval_ms`
the controller sends one `ListOffsets` request to each leader for all partitions with committed offsets: the latest
offset, and the first record at or after each committed offset. The lag is only exported as metrics. If a leader does
not respond, the lag of its partitions is unknown, not zero; their committed offsets are exported. Belongs to the event
loop, and lets others run between the offsets, of which there may be millions; `run` is a task of the app.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import count, groupby, islice

import grpc
import structlog
from headrace.groups.assignors import TopicPartition
from headrace.v1 import broker_pb2, broker_pb2_grpc, topics_pb2
from headrace.wire.ids import BrokerId
from headrace_server.calls import AUTHORIZATION_KEY
from headrace_server.clock import Clock
from headrace_server.metadata_view import ClusterView
from headrace_server.rpc import LIGHTEST_ITEMS_PER_TURN, let_others_run
from headrace_server.tls import TlsIdentity, open_channel

from headrace_coordinator.metrics import CoordinatorMetrics, GroupSample, LagRound, PartitionLagSample, TopicLag
from headrace_coordinator.runtime.group_view import GroupEntry, GroupView

log = structlog.get_logger(__name__)

MAX_LAGS = 2_000
"""Maximum number of exported pairs of group and topic, those with the largest lag, and of exported groups."""
MAX_CHANNELS = 256
ASK_SECONDS = 5.0
ASK_PARTITIONS = 4_000
"""Maximum entries of one request; brokers accept 10,000."""
CLIENT_ID = "headrace-controller-lag"

_QUESTIONS = (broker_pb2.OFFSET_SPEC_RECORD, broker_pb2.OFFSET_SPEC_LATEST)

_Committed = Mapping[str, Sequence[tuple[TopicPartition, int]]]
"""Committed offsets by group."""
_RankedLag = tuple[int, str, str, TopicLag]
"""Lag behind what it is ordered by, the largest first; group and topic occur once."""

Ask = Callable[[str, broker_pb2.ListOffsetsRequest], Awaitable[broker_pb2.ListOffsetsResponse]]


@dataclass(slots=True)
class _Answers:
    """Collected responses of the leaders."""

    ends: dict[TopicPartition, int] = field(default_factory=dict)
    """High watermarks by partition."""
    records: dict[tuple[TopicPartition, int], tuple[int, int]] = field(default_factory=dict)
    """Offset and append time of the first record at or after an offset, by partition and requested offset."""

    def lag(self, partition: TopicPartition, offset: int, now_ms: int) -> PartitionLagSample:
        """Return the lag of `offset`, if known."""
        end, found = self.ends.get(partition), self.records.get((partition, offset))
        if end is None or found is None:
            return PartitionLagSample(partition[1], offset)
        first, appended_ms = found
        behind_ms = max(0, now_ms - appended_ms) if appended_ms >= 0 else 0
        return PartitionLagSample(
            partition[1], offset, max(0, end - first) if appended_ms >= 0 else 0, behind_ms / 1000
        )


class GroupLag:
    """Periodic measurement of all groups' lag."""

    def __init__(
        self,
        view: ClusterView,
        groups: GroupView,
        metrics: CoordinatorMetrics,
        clock: Clock,
        *,
        interval_ms: int,
        is_controller: Callable[[], bool],
        ask: Ask,
    ) -> None:
        """`ask` sends a request to a broker's address and raises grpc.aio.AioRpcError on failure."""
        self._view = view
        self._groups = groups
        self._lags = metrics.lags
        self._clock = clock
        self._interval_ms = interval_ms
        self._is_controller = is_controller
        self._ask = ask

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            await self.turn()

    async def turn(self) -> None:
        """Measure once if this is the controller; otherwise clear the metrics, so that only one process shows lags."""
        if self._is_controller():
            await self._measure()
        else:
            self._lags.round = None

    async def _measure(self) -> None:
        started_ms = self._clock.monotonic_ms()
        committed = await self._committed()
        answers = await self._ask_leaders(committed)
        ranked, unknown = await self._compare(committed, answers)
        largest = await asyncio.to_thread(nsmallest, MAX_LAGS, ranked)
        ended_ms = self._clock.monotonic_ms()
        self._lags.age_seconds = lambda: (self._clock.monotonic_ms() - ended_ms) / 1000
        self._lags.round = LagRound(
            [lag for *_, lag in largest],
            [
                _sample(name, entry, unknown.get(name, 0))
                for name, entry in islice(self._groups.groups.items(), MAX_LAGS)
            ],
            omitted_lags=max(0, len(ranked) - MAX_LAGS),
            omitted_groups=max(0, len(self._groups.groups) - MAX_LAGS),
            took_seconds=(ended_ms - started_ms) / 1000,
        )

    async def _compare(self, committed: _Committed, answers: _Answers) -> tuple[list[_RankedLag], dict[str, int]]:
        """Return the lags by group and topic, and the number of partitions whose lag is unknown by group."""
        turns, now_ms = count(), self._clock.now_ms()
        ranked: list[_RankedLag] = []
        unknown: dict[str, int] = {}
        for group_id, offsets in committed.items():
            by_topic: dict[bytes, list[PartitionLagSample]] = {}
            for partition, offset in sorted(offsets):
                await let_others_run(next(turns), LIGHTEST_ITEMS_PER_TURN)
                lag = answers.lag(partition, offset, now_ms)
                by_topic.setdefault(partition[0], []).append(lag)
                if lag.lag_records is None:
                    unknown[group_id] = unknown.get(group_id, 0) + 1
            for topic_id, parts in by_topic.items():
                topic = self._view.topic_by_id(topic_id)
                if topic is not None:
                    lag_of_topic = TopicLag(group_id, topic.name, tuple(parts))
                    ranked.append((-(lag_of_topic.lag_records or 0), group_id, topic.name, lag_of_topic))
        return ranked, unknown

    async def _committed(self) -> _Committed:
        """Return the groups with their offsets in existing topics."""
        turns, committed = count(), {}
        for group_id, entry in list(self._groups.groups.items()):
            offsets: list[tuple[TopicPartition, int]] = []
            for partition, stored in list(entry.offsets.items()):
                await let_others_run(next(turns), LIGHTEST_ITEMS_PER_TURN)
                if self._view.partition(*partition) is not None:
                    offsets.append((partition, stored.message.offset))
            if offsets:
                committed[group_id] = offsets
        return committed

    async def _ask_leaders(self, committed: _Committed) -> _Answers:
        """Request the offsets of all partitions with committed offsets from their leaders."""
        turns = count()
        wanted: dict[bytes, dict[int, set[int]]] = {}
        for offsets in committed.values():
            for (topic_id, number), offset in offsets:
                await let_others_run(next(turns), LIGHTEST_ITEMS_PER_TURN)
                wanted.setdefault(topic_id, {}).setdefault(number, set()).add(offset)
        by_leader: dict[str, list[tuple[TopicPartition, int]]] = {}
        for topic_id, partitions in wanted.items():
            for number in sorted(partitions):
                await let_others_run(next(turns), LIGHTEST_ITEMS_PER_TURN)
                entry = self._view.partition(topic_id, number)
                leader = None if entry is None or entry.state.leader is None else entry.state.leader.broker_id
                broker = None if leader is None else self._view.brokers.get(BrokerId(leader))
                if broker is not None:
                    asked = by_leader.setdefault(broker.live.internal_address, [])
                    asked.extend(((topic_id, number), offset) for offset in sorted(partitions[number]))
        answers = _Answers()
        await asyncio.gather(*(self._ask_leader(address, asked, answers) for address, asked in by_leader.items()))
        return answers

    async def _ask_leader(self, address: str, asked: Sequence[tuple[TopicPartition, int]], answers: _Answers) -> None:
        """Collect one broker's responses, in as many requests as needed."""
        for first in range(0, len(asked), ASK_PARTITIONS):
            some = asked[first : first + ASK_PARTITIONS]
            try:
                response = await self._ask(address, _request(some))
            except grpc.aio.AioRpcError as error:
                log.info("lag_not_known", address=address, partitions=len(some), cause=error.code().name)
                return
            _take_in(response, some, answers)


def _request(asked: Sequence[tuple[TopicPartition, int]]) -> broker_pb2.ListOffsetsRequest:
    """Return the request for both offsets of each entry of `asked`, sorted because brokers reject a repeated topic."""
    request = broker_pb2.ListOffsetsRequest(client_id=CLIENT_ID)
    for topic_id, entries in groupby(asked, key=lambda entry: entry[0][0]):
        topic = request.topics.add(topic=topics_pb2.TopicRef(topic_id=topic_id))
        for (_, number), offset in entries:
            for spec in _QUESTIONS:
                topic.partitions.add(partition=number, spec=spec, offset=offset)
    return request


def _take_in(
    response: broker_pb2.ListOffsetsResponse, asked: Sequence[tuple[TopicPartition, int]], answers: _Answers
) -> None:
    results = [result for topic in response.topics for result in topic.partitions]
    if len(results) != len(_QUESTIONS) * len(asked):
        return
    for (partition, offset), record, latest in zip(asked, results[::2], results[1::2], strict=True):
        if not record.HasField("error") and not latest.HasField("error"):
            answers.ends[partition] = latest.offset
            answers.records[(partition, offset)] = (record.offset, record.timestamp_ms)


def _sample(group_id: str, entry: GroupEntry, unknown_partitions: int) -> GroupSample:
    group = entry.group
    return GroupSample(group_id, len(group.members), group.group_epoch, not group.is_stable, unknown_partitions)


class BrokerChannels:
    """Channels to brokers, made on first use and replaced when certificates change. Owned by the app."""

    def __init__(self, make_token: Callable[[], str], tls: TlsIdentity | None = None) -> None:
        """`make_token` returns a token of this server; `tls` is the client identity, `None` means plain text."""
        self._make_token = make_token
        self._tls = tls
        self._certificates = None if tls is None else tls.current
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def list_offsets(
        self, address: str, request: broker_pb2.ListOffsetsRequest
    ) -> broker_pb2.ListOffsetsResponse:
        """Send a request to a broker; the `ask` of `GroupLag`."""
        if self._tls is not None and self._certificates is not self._tls.current:
            self._certificates = self._tls.current
            await self.close()
        channel = self._channels.get(address)
        if channel is None:
            if len(self._channels) >= MAX_CHANNELS:
                await self._channels.pop(next(iter(self._channels))).close()
            channel = self._channels[address] = open_channel(address, _CHANNEL_OPTIONS, self._tls)
        answer: broker_pb2.ListOffsetsResponse = await broker_pb2_grpc.BrokerServiceStub(channel).ListOffsets(
            request, timeout=ASK_SECONDS, metadata=((AUTHORIZATION_KEY, f"Bearer {self._make_token()}"),)
        )
        return answer

    async def close(self) -> None:
        """Close all channels."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()


_CHANNEL_OPTIONS = (
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", 32 << 20),
    ("grpc.use_local_subchannel_pool", 1),
)
