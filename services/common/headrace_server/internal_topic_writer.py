"""Writes records of a server to a topic of the cluster, over the brokers' internal listeners.

Each server writes to one partition. A write whose response was lost may be repeated by the caller, so that a record may
be there twice. Belongs to the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import grpc
from headrace.v1 import broker_pb2, broker_pb2_grpc, topics_pb2
from headrace.wire.ids import BrokerId

from headrace_server.calls import AUTHORIZATION_KEY
from headrace_server.metadata_view import ClusterView
from headrace_server.tls import TlsIdentity, open_channel

WRITE_SECONDS = 10.0


class NotWrittenError(Exception):
    """The records were not written, or not acknowledged; the message says why."""


class InternalTopicWriter:
    """See the module."""

    def __init__(
        self,
        topic: str,
        client_id: str,
        view: ClusterView,
        server_name: str,
        make_token: Callable[[], str],
        tls: TlsIdentity | None,
    ) -> None:
        """`make_token` returns a token of this server; `tls` is its client identity, `None` means plain text."""
        self._topic = topic
        self._client_id = client_id
        self._view = view
        self._server_name = server_name
        self._make_token = make_token
        self._tls = tls

    async def write(self, records: Sequence[topics_pb2.Record]) -> None:
        """Write records until they are acknowledged.

        Raises:
            NotWrittenError: If they are not.
        """
        try:
            await self._write(records)
        except grpc.aio.AioRpcError as error:
            raise NotWrittenError(error.code().name) from None

    async def _write(self, records: Sequence[topics_pb2.Record]) -> None:
        topic = self._view.topics.get(self._topic)
        if topic is None:
            raise NotWrittenError("the controller has not created the topic yet")
        partition = sum(self._server_name.encode()) % topic.partitions
        entry = self._view.partition(topic.topic_id, partition)
        leader = None if entry is None else self._view.brokers.get(BrokerId(entry.state.leader_id))
        if leader is None:
            raise NotWrittenError("the partition has no leader")
        request = broker_pb2.ProduceRequest(
            client_id=self._client_id,
            acks=broker_pb2.ACKS_ALL,
            timeout_ms=round(WRITE_SECONDS * 1000),
            topics=[
                broker_pb2.TopicProduce(
                    topic=topics_pb2.TopicRef(topic_id=topic.topic_id),
                    partitions=[broker_pb2.PartitionProduce(partition=partition, records=records)],
                )
            ],
        )
        metadata = ((AUTHORIZATION_KEY, f"Bearer {self._make_token()}"),)
        async with open_channel(leader.live.internal_address, _CHANNEL_OPTIONS, self._tls) as channel:
            stub = broker_pb2_grpc.BrokerServiceStub(channel)
            response = await stub.Produce(request, timeout=WRITE_SECONDS + 1, metadata=metadata)
        result = response.topics[0].partitions[0]
        if result.HasField("error"):
            raise NotWrittenError(result.error.message)


_CHANNEL_OPTIONS = (("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1))
