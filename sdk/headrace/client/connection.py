"""Channels to brokers and coordinators, and the calls that need no leader. Blocking; any thread.

One channel an address. Bootstrap addresses may be brokers or coordinators: both serve `GetMetadata`, on services of
different names, so the first call to an address finds out which it is.
"""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import grpc

from headrace.client.config import MAX_MESSAGE_BYTES, ClientConfig
from headrace.client.errors import ClosedError, NoBrokersAvailableError
from headrace.v1 import broker_pb2, broker_pb2_grpc, cluster_pb2, cluster_pb2_grpc
from headrace.wire.errors import HeadraceError, Outcome, from_rpc_error

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)
"""gRPC retries nothing by itself: every retry is ours, so that it knows what the first try may have done."""

PRODUCE = "/headrace.v1.BrokerService/Produce"

PROBE_TIMEOUT_S = 5.0
"""How long one address may take to answer for metadata while others are left to try."""


class Endpoint:
    """One address: its channel and its stubs. `kind` is `broker`, `coordinator`, or empty until the first answer."""

    __slots__ = ("address", "broker", "channel", "cluster", "kind", "produce")

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self.broker = broker_pb2_grpc.BrokerServiceStub(self.channel)
        self.cluster = cluster_pb2_grpc.ClusterServiceStub(self.channel)
        self.produce: Any = self.channel.unary_unary(
            PRODUCE, response_deserializer=broker_pb2.ProduceResponse.FromString
        )
        """Takes a request that is serialised already; see `produce_rpc`."""
        self.kind = ""


class Connections:
    """The channels of one client. Owned by the client, closed with it; any thread."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._endpoints: dict[str, Endpoint] = {}
        self._closed = False

    def endpoint(self, address: str) -> Endpoint:
        """Give the endpoint of an address, made when first asked for.

        Raises:
            ClosedError: after `close`.
        """
        with self._lock:
            if self._closed:
                raise ClosedError(self._what)
            found = self._endpoints.get(address)
            if found is None:
                found = self._endpoints[address] = Endpoint(address)
            return found

    def close(self) -> None:
        """Close every channel; calls in flight are cancelled."""
        with self._lock:
            self._closed = True
            endpoints = list(self._endpoints.values())
            self._endpoints.clear()
        for endpoint in endpoints:
            endpoint.channel.close()


def is_unimplemented(error: grpc.RpcError) -> bool:
    """Whether the server does not have the service: it is of the other kind."""
    return status_of(error)[0] == grpc.StatusCode.UNIMPLEMENTED


class ClusterClient:
    """Calls that any coordinator, or any server, answers. Owned by one client; any thread.

    Addresses are tried in an order that begins with the last one that answered. What a call that may have been applied
    answers with a lost connection is never sent again by itself.
    """

    def __init__(self, config: ClientConfig, connections: Connections) -> None:
        self._config = config
        self._connections = connections
        self._brokers: list[str] = []
        self._coordinators: list[str] = []
        self._preferred = ""

    def get_metadata(self, request: cluster_pb2.GetMetadataRequest, timeout: float) -> cluster_pb2.GetMetadataResponse:
        """Read metadata from the first server that answers; learn the other servers' addresses.

        Args:
            request: what to ask; `client_id` is filled in.
            timeout: for all tries together, in seconds.

        Raises:
            NoBrokersAvailableError: none answered; lists each address with its own cause.
        """
        request.client_id = self._config.client_id

        def call(endpoint: Endpoint, left: float) -> Any:
            return self._metadata_at(endpoint, request, left)

        response: cluster_pb2.GetMetadataResponse = self._first(self._all_addresses(), call, timeout, True)
        self.learn(response)
        return response

    def learn(self, response: cluster_pb2.GetMetadataResponse) -> None:
        """Take the addresses of servers from an answer."""
        self._brokers = [broker.address for broker in response.brokers if broker.address]
        self._coordinators = list(response.coordinators)

    def call_coordinator(self, method: str, request: Any, timeout: float, *, repeatable: bool = True) -> Any:
        """Call `ClusterService.method` at the first coordinator that answers.

        Args:
            method: the method's name.
            request: its request; `client_id` is filled in.
            timeout: for all tries together, in seconds.
            repeatable: whether sending it twice does no harm. Otherwise an answer that was lost is raised with outcome
                UNKNOWN, not asked for elsewhere.

        Raises:
            NoBrokersAvailableError: no coordinator could be reached.
            HeadraceError: what the coordinator answered.
        """
        if not self._coordinators:
            self.get_metadata(cluster_pb2.GetMetadataRequest(brokers_only=True), timeout)
        request.client_id = self._config.client_id

        def call(endpoint: Endpoint, left: float) -> Any:
            return getattr(endpoint.cluster, method)(request, timeout=left)

        brokers = set(self._brokers)
        known = [*self._coordinators, *(address for address in self._config.addresses if address not in brokers)]
        return self._first(dict.fromkeys(known), call, timeout, repeatable)

    def _all_addresses(self) -> Iterable[str]:
        first = [self._preferred] if self._preferred else []
        return dict.fromkeys([*first, *self._config.addresses, *self._coordinators, *self._brokers])

    def _metadata_at(self, endpoint: Endpoint, request: cluster_pb2.GetMetadataRequest, timeout: float) -> Any:
        stubs: dict[str, Any] = {"coordinator": endpoint.cluster, "broker": endpoint.broker}
        kinds = [endpoint.kind] if endpoint.kind else ["coordinator", "broker"]
        for kind in kinds:
            try:
                answer = stubs[kind].GetMetadata(request, timeout=timeout)
            except grpc.RpcError as error:
                if is_unimplemented(error) and kind != kinds[-1]:
                    continue
                raise
            endpoint.kind = kind
            return answer
        raise AssertionError("unreachable")

    def _first(
        self, addresses: Iterable[str], call: Callable[[Endpoint, float], Any], timeout: float, repeatable: bool
    ) -> Any:
        """Try addresses in order until one answers, sharing the time."""
        deadline = time.monotonic() + timeout
        causes: dict[str, str] = {}
        remaining = list(addresses)
        for position, address in enumerate(remaining):
            left = deadline - time.monotonic()
            if left <= 0:
                causes[address] = "not tried: the time was up"
                continue
            if position + 1 < len(remaining):
                left = min(left, max(PROBE_TIMEOUT_S, left / (len(remaining) - position)))
            try:
                answer = call(self._connections.endpoint(address), left)
            except grpc.RpcError as error:
                typed = from_rpc_error(error)
                if not _try_elsewhere(typed, error, repeatable):
                    raise typed from error
                causes[address] = _cause(error, typed)
                continue
            except ValueError as error:  # grpc raises it for a channel that was closed meanwhile
                raise ClosedError("client") from error
            self._preferred = address
            return answer
        raise NoBrokersAvailableError(causes)


def _try_elsewhere(typed: HeadraceError, error: grpc.RpcError, repeatable: bool) -> bool:
    """Whether another server may be asked where this one did not answer.

    A connection that was never made has done nothing. An answer that was lost may have done something.
    """
    if typed.outcome == Outcome.NOT_APPLIED:
        return typed.retriable
    status, details = status_of(error)
    if status == grpc.StatusCode.UNIMPLEMENTED:
        return True
    if status not in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}:
        return False
    return repeatable or never_connected(details)


def status_of(error: BaseException) -> tuple[grpc.StatusCode | None, str]:
    """Give the gRPC status and the details of a failed call, blocking or asyncio."""
    code: Any = getattr(error, "code", None)
    details: Any = getattr(error, "details", None)
    return (code() if callable(code) else None), ((details() if callable(details) else "") or "")


def never_connected(details: str) -> bool:
    """Whether a call that failed as UNAVAILABLE never left, by gRPC's own words: then it has done nothing."""
    return "failed to connect" in details.lower() or "name resolution" in details.lower()


def _cause(error: grpc.RpcError, typed: HeadraceError) -> str:
    status, details = status_of(error)
    return str(typed) if typed.outcome == Outcome.NOT_APPLIED or status is None else f"{status.name}: {details}"
