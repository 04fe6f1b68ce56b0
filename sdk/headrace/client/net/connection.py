"""Channels to brokers and coordinators, one per address, and the execution of steps. Blocking; any thread."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import grpc

from headrace.client.base.config import MAX_MESSAGE_BYTES, ClientConfig
from headrace.client.base.errors import ClosedError
from headrace.client.base.operations import BeginCall, Call, InvokeCallback, Pause, StartCall, WaitUntil
from headrace.client.base.request_ids import operation_metadata
from headrace.client.net.native import NativeConnections
from headrace.client.net.native_calls import NATIVE_METHODS, native_request
from headrace.client.net.security import ChannelSecurity, ClientCertificates, Options, credentials_of
from headrace.v1 import broker_pb2, broker_pb2_grpc, cluster_pb2_grpc, groups_pb2_grpc, process_pb2_grpc
from headrace.wire.errors import HeadraceError
from headrace.wire.frames import Frame
from headrace.wire.zero_copy import parse_fetch_response

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)
"""gRPC itself never retries: every retry is made by the client, which considers the effect of the first try.

`min_reconnect_backoff_ms` is also the timeout of one connection attempt. Servers allow a ping every 10 s.
"""

PRODUCE = "/headrace.v1.BrokerService/Produce"
FETCH = "/headrace.v1.BrokerService/Fetch"


class Endpoint:
    """Channel and stubs of one address."""

    __slots__ = ("address", "broker", "certificates", "channel", "cluster", "groups", "process", "produce")

    def __init__(self, address: str, certificates: ClientCertificates | None, options: Options) -> None:
        """`certificates` are used for TLS; `None` means plain text."""
        self.address = address
        self.certificates = certificates
        if certificates is None:
            self.channel = grpc.insecure_channel(address, options=options)
        else:
            self.channel = grpc.secure_channel(address, credentials_of(certificates), options=options)
        self.broker = cast(Any, broker_pb2_grpc.BrokerServiceStub(self.channel))
        """`FetchZeroCopy` is a Fetch that returns a `SplicedMessage`: the batches are not copied."""
        self.broker.FetchZeroCopy = self.channel.unary_unary(
            FETCH,
            request_serializer=broker_pb2.FetchRequest.SerializeToString,
            response_deserializer=parse_fetch_response,
        )
        self.cluster = cluster_pb2_grpc.ClusterServiceStub(self.channel)
        self.groups = groups_pb2_grpc.GroupServiceStub(self.channel)
        self.process = process_pb2_grpc.ProcessServiceStub(self.channel)
        self.produce: Any = self.channel.unary_unary(
            PRODUCE, response_deserializer=broker_pb2.ProduceResponse.FromString
        )
        """Sends a request that is already serialised; see `produce_rpc`."""


class Connections:
    """Channels of one client. Owned by the client and closed with it; any thread."""

    def __init__(self, what: str, config: ClientConfig) -> None:
        """Read the certificates that `config` names.

        Raises:
            ConfigError: If they cannot be used.
        """
        self._what = what
        self._lock = threading.Lock()
        self._security = ChannelSecurity(config)
        self._options = self._security.options(CHANNEL_OPTIONS)
        self._endpoints: dict[str, Endpoint] = {}
        self._retired: dict[str, Endpoint] = {}
        self._closed = False
        self.native = NativeConnections(what, config, self._security)
        """Connections preferred for calls to brokers."""

    def endpoint(self, address: str) -> Endpoint:
        """Return the endpoint of an address, created on first use.

        Raises:
            ClosedError: After `close`.
        """
        with self._lock:
            if self._closed:
                raise ClosedError(self._what)
            found, certificates = self._endpoints.get(address), self._security.certificates()
            if found is None or found.certificates is not certificates:
                if found is not None:
                    self._retire(found)
                found = self._endpoints[address] = Endpoint(address, certificates, self._options)
            return found

    def _retire(self, endpoint: Endpoint) -> None:
        """Keep an endpoint open for its calls in flight; close the one retired before, which has none left."""
        before = self._retired.get(endpoint.address)
        if before is not None:
            before.channel.close()
        self._retired[endpoint.address] = endpoint

    @property
    def is_open(self) -> bool:
        """Whether there is a channel to close."""
        return bool(self._endpoints)

    def close(self) -> None:
        """Close every channel; calls in flight are cancelled."""
        with self._lock:
            self._closed = True
            endpoints = [*self._endpoints.values(), *self._retired.values()]
            self._endpoints.clear()
            self._retired.clear()
        for endpoint in endpoints:
            endpoint.channel.close()
        self.native.close()

    def run_step(self, step: Any) -> Any:
        """Run one step of `headrace.client.base.operations`; return its result.

        Raises:
            grpc.RpcError, HeadraceError: If the call failed.
            ClosedError: If the client was closed before or during the step.
        """
        match step:
            case Call() | StartCall():
                call = step if isinstance(step, Call) else step.call
                if call is step and (native := NATIVE_METHODS.get((call.service, call.method))) is not None:
                    is_answered, answer = self.native.call(call.address, native, partial(native_request, native, call))
                    if is_answered:
                        return answer
                method = getattr(getattr(self.endpoint(call.address), call.service), call.method)
                try:
                    send = method if call is step else method.future
                    answer = send(call.request, timeout=call.timeout, metadata=operation_metadata())
                except ValueError as error:  # grpc raises it for a channel that was closed in the meantime
                    raise ClosedError(self._what) from error
                if call is step and call.method == "GetMetadata":
                    self.native.ports.learn(answer)
                return answer
            case BeginCall():
                self._begin(step.call, step.ended)
                return None
            case Pause():
                time.sleep(step.seconds)
                return None
            case InvokeCallback():
                return step.callback(step.argument)
            case WaitUntil():
                with step.changes:
                    return step.changes.wait_for(step.condition, step.seconds)
        raise AssertionError(f"no such step: {step!r}")

    def _begin(self, call: Call, ended: Callable[[Any, Exception | None], None]) -> None:
        def over_grpc() -> None:
            self.run_step(StartCall(call)).add_done_callback(partial(_future_ended, ended))

        native = NATIVE_METHODS.get((call.service, call.method))
        if native is None:
            over_grpc()
            return

        def done(frame: Frame | None, error: HeadraceError | None) -> None:
            try:
                is_answered, answer = self.native.outcome(call.address, native, frame, error)
                if not is_answered:
                    over_grpc()
                    return
            except Exception as failure:
                ended(None, failure)
            else:
                ended(answer, None)

        if self.native.begin(call.address, partial(native_request, native, call), done) is None:
            over_grpc()


def _future_ended(ended: Callable[[Any, Exception | None], None], future: "grpc.Future[Any]") -> None:
    try:
        answer = future.result()
    except grpc.FutureCancelledError:
        ended(None, ClosedError("client"))
    except Exception as error:
        ended(None, error)
    else:
        ended(answer, None)
