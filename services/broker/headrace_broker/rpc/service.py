"""`headrace.v1.BrokerService`: checks before every call, and the implementation of the small calls.

Owned by the broker's app, belongs to the event loop. Every call is checked for a deadline (by `unary`), whether the
broker is stopping, and, with `fence_on_lease_loss`, whether its lease is valid.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import grpc
from headrace.log.directory import DataDirectory, LogId
from headrace.log.log import TimestampKind
from headrace.v1 import broker_pb2, broker_pb2_grpc, cluster_pb2
from headrace.wire.errors import (
    FencedBrokerError,
    HeadraceError,
    InvalidRequestError,
    Outcome,
    ShuttingDownError,
    to_detail,
)
from headrace.wire.zero_copy import SplicedMessage, fetch_response_bytes, parse_produce_request
from headrace_server.call_spans import current_trace_id
from headrace_server.calls import CALLER
from headrace_server.identity.gate import access
from headrace_server.identity.quotas import Use
from headrace_server.identity.rights import Operation, ResourceKind
from headrace_server.identity.topic_access import describe_metadata, resolve_topic
from headrace_server.metadata_view import ClusterView, Topic
from headrace_server.rpc import LIGHT_ITEMS_PER_TURN, let_others_run, unary

from headrace_broker.core.leadership import Leadership
from headrace_broker.core.roles import Role
from headrace_broker.rpc.checks import seconds_of
from headrace_broker.rpc.fetch import FetchHandler, Located
from headrace_broker.rpc.produce import ProduceHandler
from headrace_broker.rpc.topics import answer_topic
from headrace_broker.runtime.budget import MemoryBudget
from headrace_broker.runtime.failure_detector import PeerFailureDetector
from headrace_broker.runtime.partition import Partition, PartitionContext
from headrace_broker.runtime.registration import Registration
from headrace_broker.runtime.replica_manager import ReplicaManager
from headrace_broker.runtime.waiters import FetchWaiters

SERVICE_NAME = "headrace.v1.BrokerService"


class BrokerService(broker_pb2_grpc.BrokerServiceServicer):
    """Servicer of one broker."""

    def __init__(
        self,
        view: ClusterView,
        replica_manager: ReplicaManager,
        directory: DataDirectory,
        registration: Registration,
        *,
        failure_detector: PeerFailureDetector,
        partition_context: PartitionContext,
        tasks: asyncio.TaskGroup,
    ) -> None:
        """`tasks` runs the appends of calls with `acks=0`."""
        settings = partition_context.settings
        self._view = view
        self._replica_manager = replica_manager
        self._directory = directory
        self._registration = registration
        self._failure_detector = failure_detector
        self._partition_context = partition_context
        self.call_errors = partition_context.metrics.common.call_errors
        self._starting = True
        self._stopping = False
        self.waiters = FetchWaiters(settings.max_waiting_fetches, partition_context.metrics)
        """Calls that wait for commits."""
        self.budget = MemoryBudget(settings.max_inflight_bytes, partition_context.metrics)
        """Memory of requests and responses."""
        self._produce = ProduceHandler(replica_manager, self.budget, partition_context, tasks)
        self._fetch = FetchHandler(replica_manager, self.budget, self.waiters, partition_context)

    def begin_serving(self) -> None:
        """Accept calls after the logs are recovered."""
        self._starting = False

    def begin_stop(self) -> None:
        """Reject new calls and answer waiting fetches."""
        self._stopping = True
        self.waiters.close()

    def check_serving(self) -> None:
        """Raise ShuttingDownError or FencedBrokerError if no calls are accepted."""
        if self._starting:
            raise FencedBrokerError("the broker is starting: it recovers its logs", outcome=Outcome.NOT_APPLIED)
        if self._stopping:
            raise ShuttingDownError("the broker is shutting down", outcome=Outcome.NOT_APPLIED)
        self.check_lease(Outcome.NOT_APPLIED)

    def check_lease(self, outcome: Outcome, *, is_linearizable: bool = False) -> None:
        """Raise FencedBrokerError if the lease is not valid, and if that matters.

        It does for an answer that must be linearizable, since another broker may have been elected and have written;
        for others only with `fence_on_lease_loss`.
        """
        session, fences = self._registration.session, self._partition_context.settings.fence_on_lease_loss
        if (fences or is_linearizable) and (session is None or not session.keeper.alive_now()):
            raise FencedBrokerError("the broker cannot confirm its lease", outcome=outcome)

    @unary
    async def Produce(self, request: SplicedMessage, context: Any) -> broker_pb2.ProduceResponse:
        """See the proto."""
        return await self.produce(request, context.peer())

    async def produce(self, request: SplicedMessage, connection: str) -> broker_pb2.ProduceResponse:
        """Return the response to a Produce of `connection`, after the checks."""
        self.check_serving()
        caller = access()
        caller.check_quota(Use.PRODUCE)
        started = time.perf_counter()
        response = await self._produce.produce(request, connection)
        self.check_lease(Outcome.UNKNOWN)
        self._partition_context.metrics.produce_seconds.observe(time.perf_counter() - started, current_trace_id())
        response.throttle_ms = await caller.hold(Use.PRODUCE, request.message.timeout_ms / 2000)
        return response

    @unary
    async def Fetch(self, request: broker_pb2.FetchRequest, context: Any) -> SplicedMessage:
        """See the proto."""
        self.check_serving()
        await self.hold_fetch()

        def when_done(callback: Callable[[], None]) -> None:
            context.add_done_callback(lambda _: callback())

        response = await self._fetch.fetch(request, CALLER.get(), when_done)
        self.check_lease(Outcome.NOT_APPLIED)
        return response

    async def locate(self, request: broker_pb2.FetchRequest) -> Located:
        """Return the response to a Fetch as file ranges, after the checks; the caller checks the lease at the end."""
        self.check_serving()
        await self.hold_fetch()
        return await self._fetch.locate(request, CALLER.get())

    async def hold_fetch(self) -> None:
        """Wait until the bytes that the user has fetched are within its quota; raise as `Quotas.check`.

        After a wait raise as `Access.recheck`, too.
        """
        caller = access()
        caller.check_quota(Use.FETCH)
        if await caller.hold(Use.FETCH):
            caller.recheck()

    @unary
    async def ListOffsets(self, request: broker_pb2.ListOffsetsRequest, context: Any) -> broker_pb2.ListOffsetsResponse:
        """See the proto."""
        return await self.list_offsets(request)

    async def list_offsets(self, request: broker_pb2.ListOffsetsRequest) -> broker_pb2.ListOffsetsResponse:
        """Return the response to a ListOffsets, after the checks."""
        self.check_serving()
        self._check_count(len(topic.partitions) for topic in request.topics)
        response = broker_pb2.ListOffsetsResponse()
        for asked in request.topics:
            topic, unknown, topic_result = answer_topic(self._view, asked.topic, response.topics, Operation.DESCRIBE)
            for index, part in enumerate(asked.partitions):
                await let_others_run(index, LIGHT_ITEMS_PER_TURN)
                result = topic_result.partitions.add(
                    partition=part.partition, offset=-1, timestamp_ms=-1, leader_epoch=-1
                )
                try:
                    await self._list_offset(self._find(topic, unknown, part.partition), part, result)
                except HeadraceError as error:
                    self._set_error(result, error)
        return response

    async def _list_offset(
        self,
        partition: Partition,
        asked: broker_pb2.PartitionListOffsets,
        result: broker_pb2.PartitionListOffsetsResult,
    ) -> None:
        replica = partition.replica
        leadership = replica.check_leading(asked.leader_epoch if asked.HasField("leader_epoch") else -1)
        result.leader_epoch = replica.leader_epoch
        match asked.spec:
            case broker_pb2.OFFSET_SPEC_EARLIEST:
                leadership.check_earliest()
                result.offset = replica.log_start_offset
            case broker_pb2.OFFSET_SPEC_LATEST:
                leadership.check_latest()
                result.offset = replica.high_watermark
            case broker_pb2.OFFSET_SPEC_TIMESTAMP | broker_pb2.OFFSET_SPEC_APPEND_TIMESTAMP:
                leadership.check_latest()
                by_append = asked.spec == broker_pb2.OFFSET_SPEC_APPEND_TIMESTAMP
                kind = TimestampKind.APPEND if by_append else TimestampKind.RECORD
                found = await partition.reads.offset_for_timestamp(asked.timestamp_ms, kind)
                result.offset = replica.high_watermark if found is None else found.offset
                if found is not None:
                    result.timestamp_ms = found.timestamp_ms
            case broker_pb2.OFFSET_SPEC_RECORD:
                leadership.check_latest()
                at = await partition.reads.append_time(asked.offset)
                result.offset = replica.high_watermark if at is None else at.offset
                if at is not None:
                    result.timestamp_ms = at.timestamp_ms
            case broker_pb2.OFFSET_SPEC_PRODUCER | broker_pb2.OFFSET_SPEC_PRODUCER_FAMILY:
                who, family = asked.producer, asked.spec == broker_pb2.OFFSET_SPEC_PRODUCER_FAMILY
                appended = replica.producers.appended(who.producer_id, who.producer_epoch, family=family)
                if appended is not None:
                    result.offset, result.end_offset = appended
            case _:
                raise InvalidRequestError(f"offset spec {asked.spec} is unknown", action="Name one of OffsetSpec.")

    @unary
    async def DeleteRecords(
        self, request: broker_pb2.DeleteRecordsRequest, context: Any
    ) -> broker_pb2.DeleteRecordsResponse:
        """See the proto."""
        self.check_serving()
        self._check_count(len(topic.partitions) for topic in request.topics)
        timeout_seconds = seconds_of(request.timeout_ms)
        response = broker_pb2.DeleteRecordsResponse()
        async with asyncio.TaskGroup() as tasks:
            for asked in request.topics:
                topic, unknown, topic_result = answer_topic(self._view, asked.topic, response.topics, Operation.DELETE)
                for index, part in enumerate(asked.partitions):
                    await let_others_run(index)
                    result = topic_result.partitions.add(partition=part.partition, log_start_offset=-1)
                    tasks.create_task(self._delete_records(topic, unknown, part, result, timeout_seconds))
        return response

    async def _delete_records(
        self,
        topic: Topic | None,
        unknown: HeadraceError | None,
        asked: broker_pb2.PartitionDeleteRecords,
        result: broker_pb2.PartitionDeleteRecordsResult,
        timeout_seconds: float,
    ) -> None:
        try:
            if asked.before_offset < -1:
                raise InvalidRequestError(f"before_offset {asked.before_offset} is below -1")
            partition = self._find(topic, unknown, asked.partition)
            result.log_start_offset = await partition.log_start.delete_records(asked.before_offset, timeout_seconds)
        except HeadraceError as error:
            self._set_error(result, error)

    @unary
    async def DescribeLogs(
        self, request: broker_pb2.DescribeLogsRequest, context: Any
    ) -> broker_pb2.DescribeLogsResponse:
        """See the proto."""
        self._check_count([len(request.topics)])
        if not request.topics:
            access().require(Operation.DESCRIBE, ResourceKind.CLUSTER)
        wanted = {resolve_topic(self._view, reference, Operation.DESCRIBE).topic_id for reference in request.topics}
        usage = await asyncio.get_running_loop().run_in_executor(
            self._partition_context.executor, self._directory.check_space
        )
        response = broker_pb2.DescribeLogsResponse(broker_id=self._partition_context.broker_id)
        if access().sees(ResourceKind.CLUSTER, ""):
            response.disk_total_bytes, response.disk_free_bytes = usage.total_bytes, usage.free_bytes
        for index, partition in enumerate(list(self._replica_manager.partitions)):
            await let_others_run(index)
            if not wanted or partition.topic_id in wanted:
                response.logs.append(_describe(partition, self._failure_detector))
        return response

    @unary
    async def DeleteUnclaimedLogs(
        self, request: broker_pb2.DeleteUnclaimedLogsRequest, context: Any
    ) -> broker_pb2.DeleteUnclaimedLogsResponse:
        """See the proto."""
        self.check_serving()
        self._check_count([len(request.logs)])
        if not request.logs and not request.validate_only:
            raise InvalidRequestError("no log is named", action="Name the logs; validate_only alone lists all.")
        deletion = self._replica_manager.deletion
        asked = [LogId(log.topic_id, log.partition) for log in request.logs] or deletion.unclaimed
        response = broker_pb2.DeleteUnclaimedLogsResponse(broker_id=self._partition_context.broker_id)
        for log_id in asked:
            topic = self._view.topic_by_id(log_id.topic_id)
            result = response.logs.add(topic_id=log_id.topic_id, partition=log_id.partition)
            result.name = "" if topic is None else topic.name
            try:
                found = await deletion.delete_unclaimed(log_id, validate_only=request.validate_only)
                result.size_bytes = found.size_bytes
                if found.refusal is not None:
                    raise found.refusal
            except HeadraceError as error:
                result.error.CopyFrom(to_detail(error))
        return response

    @unary
    async def GetMetadata(
        self, request: cluster_pb2.GetMetadataRequest, context: Any
    ) -> cluster_pb2.GetMetadataResponse:
        """See the proto."""
        self._check_count([len(request.topics)])
        return describe_metadata(self._view, request, f"broker-{self._partition_context.broker_id}")

    def _check_count(self, counts: Iterable[int]) -> None:
        limit = self._partition_context.settings.max_request_partitions
        if (total := sum(counts)) > limit:
            raise InvalidRequestError(f"{total} partitions or topics are over the limit of {limit}")

    def _find(self, topic: Topic | None, unknown: HeadraceError | None, number: int) -> Partition:
        if topic is None:
            _raise(unknown)
        return self._replica_manager.find_in(topic, number)

    def _set_error(
        self,
        result: broker_pb2.PartitionListOffsetsResult | broker_pb2.PartitionDeleteRecordsResult,
        error: HeadraceError,
    ) -> None:
        result.error.CopyFrom(to_detail(self._replica_manager.with_leader_address(error)))


def register(service: BrokerService, server: grpc.aio.Server) -> None:
    """Add the service to a server; handlers of the two calls with `SplicedMessage`s precede the generated ones."""
    handlers: dict[str, Any] = {
        "Produce": grpc.unary_unary_rpc_method_handler(
            service.Produce,
            request_deserializer=parse_produce_request,
            response_serializer=broker_pb2.ProduceResponse.SerializeToString,
        ),
        "Fetch": grpc.unary_unary_rpc_method_handler(
            service.Fetch,
            request_deserializer=broker_pb2.FetchRequest.FromString,
            response_serializer=fetch_response_bytes,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
    broker_pb2_grpc.add_BrokerServiceServicer_to_server(service, server)


def _raise(error: HeadraceError | None) -> NoReturn:
    assert error is not None
    raise error


def _describe(partition: Partition, failure_detector: PeerFailureDetector) -> broker_pb2.LogDescription:
    replica, partition_log, load = partition.replica, partition.log, partition.meter.load
    description = broker_pb2.LogDescription(
        name=partition.topic,
        topic_id=partition.topic_id,
        partition=partition.number,
        log_start_offset=replica.log_start_offset,
        log_end_offset=replica.log_end_offset,
        high_watermark=replica.high_watermark,
        flushed_offset=replica.flushed_offset,
        size_bytes=0 if partition_log is None else partition_log.size_bytes,
        segments=0 if partition_log is None else partition_log.segment_count,
        leader_epoch=replica.leader_epoch,
        is_leader=replica.role is Role.LEADING,
        is_follower=replica.role is Role.FOLLOWING,
        offline_reason=replica.offline_reason,
        bytes_in_per_second=load.bytes_in,
        bytes_out_per_second=load.bytes_out,
        requests_per_second=load.requests,
        compacted_offset=0 if partition_log is None else partition_log.compaction.end_offset,
    )
    if replica.leadership is not None:
        description.followers.extend(_describe_followers(partition, replica.leadership, failure_detector))
    return description


def _describe_followers(
    partition: Partition, leadership: Leadership, failure_detector: PeerFailureDetector
) -> Iterator[broker_pb2.FollowerDescription]:
    """Yield this leader's descriptions of the other replicas, in replica order."""
    replica, now_ms = partition.replica, partition.context.clock.monotonic_ms()
    state = leadership.state
    in_sync = {entry.broker_id for entry in state.in_sync}
    fetched = {follower.replica.broker_id: follower for follower in leadership.followers}
    for broker_id in state.replicas:
        if broker_id == replica.broker_id:
            continue
        follower = fetched.get(broker_id)
        if follower is None:
            yield broker_pb2.FollowerDescription(
                broker_id=broker_id,
                broker_epoch=-1,
                log_end_offset=-1,
                durable_offset=-1,
                behind_ms=now_ms - leadership.followers.started_ms,
                in_sync=broker_id in in_sync,
                phi=failure_detector.level(broker_id),
            )
            continue
        caught_up = follower.acknowledged(leadership.flushed_only) >= replica.log_end_offset
        yield broker_pb2.FollowerDescription(
            broker_id=broker_id,
            broker_epoch=follower.replica.broker_epoch,
            log_end_offset=follower.offset,
            durable_offset=follower.durable_offset,
            behind_ms=0 if caught_up else now_ms - follower.caught_up_ms,
            in_sync=broker_id in in_sync,
            phi=failure_detector.level(broker_id),
        )
