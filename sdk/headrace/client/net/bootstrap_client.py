"""Calls that need no leader: choice and order of servers, and which failures another server may resolve. No I/O.

Bootstrap addresses may be brokers or coordinators. Both serve `GetMetadata`, on services of different names, so the
first call to an address detects its kind. A call that may have been applied and whose connection was lost is never
repeated automatically.

A server that cannot reach etcd responds with its last known state. If that contradicts a newer response about a topic,
another server is tried. A response of another cluster counts only if no server of the known one responds.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from headrace.client.base.config import ClientConfig
from headrace.client.base.errors import NoBrokersAvailableError
from headrace.client.base.operations import Call, Operation
from headrace.client.base.retry import Tries
from headrace.client.net.group_routing import coordinators_for
from headrace.client.net.topic_versions import OLDEST, TopicVersions, version_of
from headrace.v1 import cluster_pb2, errors_pb2, handshake_pb2
from headrace.wire.call_tries import CallTry
from headrace.wire.errors import (
    ConflictError,
    HeadraceError,
    MetastoreUnavailableError,
    Outcome,
    from_rpc_error,
    rpc_failures,
    to_detail,
)
from headrace.wire.handshakes import Explanation, explain_handshake
from headrace.wire.releases import CAPABILITIES, CLIENT_NEEDS, RELEASE, check_peer

if TYPE_CHECKING:
    import grpc

log = logging.getLogger("headrace.client")

PROBE_TIMEOUT_S = 5.0
"""Timeout of one coordinator while others have not been tried."""
METADATA_PROBE_S = 1.0
"""Timeout of each address for metadata, before all of them are tried again with the remaining time.

It bounds the cost of a server that hangs and keeps its connections open.
"""


class _OlderAnswerError(Exception):
    """The metadata of a server is older than the client's, or that of another cluster."""


class BootstrapClient:
    """Servers of one cluster. Owned by one client, which executes its operations; any thread."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._brokers: list[str] = []
        self._coordinators: list[str] = []
        self._kinds: dict[str, str] = {}
        self._preferred = ""
        self._lock = threading.Lock()
        self._versions = TopicVersions()
        self._servers_version = OLDEST

    @property
    def coordinators(self) -> tuple[str, ...]:
        """Addresses of the coordinators in the last metadata."""
        return tuple(self._coordinators)

    def metadata(
        self, request: cluster_pb2.GetMetadataRequest, timeout: float
    ) -> Operation[cluster_pb2.GetMetadataResponse]:
        """Read metadata from the first server whose response contradicts nothing newer; store the servers' addresses.

        If every response is older than one seen before, the contradicted topics are given an error that a retry may
        resolve.

        Args:
            request: the request; `client_id` is filled in.
            timeout: for all tries together, in seconds.

        Raises:
            NoBrokersAvailableError: If none responded; lists each address with its own cause.
            UnsupportedVersionError: If the server's release is incompatible with this one.
        """
        request.client_id = self._config.client_id
        request.handshake.CopyFrom(own_handshake())
        first = [self._preferred] if self._preferred else []
        addresses = dict.fromkeys([*first, *self._config.addresses, *self._coordinators, *self._brokers])

        older: list[cluster_pb2.GetMetadataResponse] = []
        lists_all = not request.topics and not request.brokers_only

        def ask(address: str, left: float) -> Operation[Any]:
            answer = yield from self._metadata_at(address, request, left)
            problem = self._problem_of(answer, lists_all)
            if problem:
                older.append(answer)
                raise _OlderAnswerError(problem)
            return answer

        started = time.monotonic()
        try:
            response: cluster_pb2.GetMetadataResponse = yield from self._first(
                addresses, ask, timeout, Tries("GetMetadata"), True, METADATA_PROBE_S
            )
        except NoBrokersAvailableError:
            left = timeout - (time.monotonic() - started)
            if older:
                response = self._newest_of(older)
            elif left <= METADATA_PROBE_S:
                raise
            else:
                response = yield from self._first(addresses, ask, left, Tries("GetMetadata"), True)
        return self._take(response, lists_all)

    def _problem_of(self, answer: cluster_pb2.GetMetadataResponse, lists_all: bool) -> str:
        """Return why another server should be tried, or an empty string."""
        with self._lock:
            if self._versions.is_foreign(answer):
                return f"belongs to cluster {answer.cluster_id}, not to {self._versions.cluster_id}"
            return "; ".join(self._versions.refuted(answer, lists_all=lists_all).values())

    def _newest_of(self, older: list[cluster_pb2.GetMetadataResponse]) -> cluster_pb2.GetMetadataResponse:
        """Return the newest response of the known cluster, or of another one if there is no other."""
        with self._lock:
            known = [answer for answer in older if not self._versions.is_foreign(answer)]
        if not known:
            log.warning("response from cluster %s, expected cluster %s", older[0].cluster_id, self._versions.cluster_id)
        return max(known or older, key=version_of)

    def _take(self, response: cluster_pb2.GetMetadataResponse, lists_all: bool) -> cluster_pb2.GetMetadataResponse:
        """Store a response; return it with an error for each topic that newer metadata contradicts."""
        with self._lock:
            if self._versions.is_foreign(response):
                self._servers_version = OLDEST
            refuted = self._versions.take(response, lists_all=lists_all)
            if version_of(response) >= self._servers_version:
                self._servers_version = version_of(response)
                self._brokers = [broker.address for broker in response.brokers if broker.address]
                self._coordinators = list(response.coordinators)
        if not refuted:
            return response
        corrected = cluster_pb2.GetMetadataResponse()
        corrected.CopyFrom(response)
        del corrected.topics[:]
        corrected.topics.extend(topic for topic in response.topics if topic.name not in refuted)
        for name, reason in sorted(refuted.items()):
            error = MetastoreUnavailableError(
                f"no server has current metadata of topic {name}: {response.answered_by} answered, but {reason}",
                outcome=Outcome.NOT_APPLIED,
            )
            corrected.topics.add(name=name, error=to_detail(error))
        return corrected

    def coordinator(
        self,
        method: str,
        request: Any,
        timeout: float,
        *,
        repeatable: bool = True,
        group_id: str | None = None,
        service: str = "cluster",
    ) -> Operation[Any]:
        """Call a method on the first coordinator that responds.

        Args:
            method: name of the method.
            request: its request; `client_id` is filled in.
            timeout: for all tries together, in seconds.
            repeatable: whether the request is idempotent. Otherwise a lost response is raised with outcome UNKNOWN,
                without another try. Errors in a response to another try have this outcome, too.
            group_id: for `GroupService`: the group that determines the first coordinator.
            service: service of the method without `group_id`; see `Call`.

        Raises:
            NoBrokersAvailableError: If no coordinator could be reached.
            HeadraceError: The coordinator's error.
        """
        if not self._coordinators:
            yield from self.metadata(cluster_pb2.GetMetadataRequest(brokers_only=True), timeout)
        request.client_id = self._config.client_id
        called = service if group_id is None else "groups"
        tries = Tries(method)
        call_try = CallTry.first() if repeatable and tries.has_effect and group_id is None else None

        def ask(address: str, left: float) -> Operation[Any]:
            nonlocal call_try
            if call_try is not None and tries.in_doubt:
                call_try = call_try.next()
            return (yield Call(address, called, method, request, left, call_try=call_try))

        brokers = set(self._brokers)
        first = self._coordinators if group_id is None else coordinators_for(group_id, self._coordinators)
        known = [*first, *(address for address in self._config.addresses if address not in brokers)]
        return (yield from self._first(dict.fromkeys(known), ask, timeout, tries, repeatable))

    def _metadata_at(self, address: str, request: cluster_pb2.GetMetadataRequest, timeout: float) -> Operation[Any]:
        known = self._kinds.get(address)
        kinds = [known] if known else ["cluster", "broker"]
        for kind in kinds:
            try:
                answer = yield Call(address, kind, "GetMetadata", request, timeout)
            except rpc_failures() as error:
                if _is_no_such_service(error) and kind != kinds[-1]:
                    continue
                raise
            self._kinds[address] = kind
            said = answer.handshake
            check_peer(f"{answer.answered_by} at {address}", said.release, said.capabilities, CLIENT_NEEDS)
            return answer
        raise AssertionError("unreachable")

    def _first(
        self,
        addresses: Iterable[str],
        ask: Callable[[str, float], Operation[Any]],
        timeout: float,
        tries: Tries,
        repeatable: bool,
        probe: float | None = None,
    ) -> Operation[Any]:
        """Try addresses in order until one responds, within the shared time, or at most `probe` seconds for each."""
        deadline = time.monotonic() + timeout
        causes: dict[str, str] = {}
        explanations: list[Explanation] = []
        remaining = list(addresses)
        for position, address in enumerate(remaining):
            left = deadline - time.monotonic()
            if left <= 0:
                causes[address] = "not tried: the time was up"
                continue
            if probe is not None:
                left = min(left, probe)
            elif position + 1 < len(remaining):
                left = min(left, max(PROBE_TIMEOUT_S, left / (len(remaining) - position)))
            try:
                answer = yield from ask(address, left)
            except _OlderAnswerError as error:
                causes[address] = str(error)
                continue
            except rpc_failures() as error:
                typed = from_rpc_error(error)
                tries.failed(error_of_call(error))
                if not _try_elsewhere(typed, error, repeatable):
                    raise tries.final(typed) from error
                if isinstance(typed, ConflictError) and position + 1 == len(remaining):
                    raise tries.final(typed) from error  # It has responded, and it is the last one.
                explained = self._explain(address, error)
                causes[address] = explained.message if explained else _cause(error, typed)
                explanations += [explained] if explained else []
                continue
            self._preferred = address
            if tries.in_doubt:
                _put_in_doubt(answer)
            return answer
        # TLS failures at every address from the start are permanent; a client that was connected once keeps waiting.
        hopeless = len(explanations) == len(causes) and all(each.is_certain for each in explanations)
        raise tries.final(
            NoBrokersAvailableError(
                causes,
                action=explanations[0].action if explanations else "",
                retriable=bool(self._preferred) or not hopeless,
            )
        )

    def _explain(self, address: str, error: "grpc.RpcError") -> Explanation | None:
        config = self._config
        if _is_no_such_service(error) and address not in self._kinds:
            return _NOT_HEADRACE
        return explain_handshake(
            status_of(error)[1],
            speaks_tls=config.security_protocol == "SSL",
            shows_certificate=bool(config.ssl_certfile),
        )


_NOT_HEADRACE = Explanation(
    "it serves gRPC, but is neither a broker nor a coordinator of headrace",
    "Name a coordinator (port 7170) or a broker (port 7181); 2379 is the port of etcd.",
)


def own_handshake() -> handshake_pb2.Handshake:
    """Return the handshake of this client."""
    return handshake_pb2.Handshake(release=RELEASE, capabilities=CAPABILITIES)


def _put_in_doubt(response: Message) -> None:
    """Change the outcome of errors in a response to UNKNOWN: an earlier try of the call may have been applied."""
    for field, value in response.ListFields():
        if field.message_type is None:
            continue
        for part in [value] if isinstance(value, Message) else value:
            if isinstance(part, errors_pb2.ErrorDetail):
                if part.outcome == errors_pb2.OUTCOME_NOT_APPLIED:
                    part.outcome = errors_pb2.OUTCOME_UNKNOWN
            elif isinstance(part, Message):
                _put_in_doubt(part)


def _is_no_such_service(error: "grpc.RpcError") -> bool:
    """Return whether the server lacks the service; one that has it and refuses this release sends a typed error."""
    is_unimplemented = status_of(error)[0] == "UNIMPLEMENTED"
    return is_unimplemented and from_rpc_error(error).outcome != Outcome.NOT_APPLIED


def _try_elsewhere(typed: HeadraceError, error: "grpc.RpcError", repeatable: bool) -> bool:
    """Return whether another server may be tried after this one did not respond.

    A connection that was never made has had no effect. A lost response may have had one.
    """
    if typed.outcome == Outcome.NOT_APPLIED:
        return typed.retriable
    status, details = status_of(error)
    if status == "UNIMPLEMENTED":
        return True
    if status not in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"):
        return False
    return repeatable or never_connected(details)


def status_of(error: BaseException) -> tuple[str, str]:
    """Return the name of the gRPC status and the details of a failed call, blocking or asyncio; or empty ones."""
    code: Any = getattr(error, "code", None)
    details: Any = getattr(error, "details", None)
    return (code().name if callable(code) else ""), ((details() if callable(details) else "") or "")


def error_of_call(error: "grpc.RpcError") -> HeadraceError:
    """Return the typed error of a call to a partition's leader; not raised.

    A call that was never sent was not applied. A call that the server cancelled, for example on shutdown, may be
    retried; calls cancelled by this client are not passed here.
    """
    typed = from_rpc_error(error)
    status, details = status_of(error)
    if never_connected(details):
        typed.outcome = Outcome.NOT_APPLIED
    if status == "CANCELLED":
        typed.retriable = True
    return typed


def never_connected(details: str) -> bool:
    """Return whether a call that failed as UNAVAILABLE was never sent, by gRPC's message: then it had no effect."""
    return "failed to connect" in details.lower() or "name resolution" in details.lower()


def _cause(error: "grpc.RpcError", typed: HeadraceError) -> str:
    status, details = status_of(error)
    return str(typed) if typed.outcome == Outcome.NOT_APPLIED or not status else f"{status}: {details}"
