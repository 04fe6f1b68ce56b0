"""`Metastore` implementation on etcd over grpc.aio.

There is one channel per endpoint. Calls go to the current endpoint; after a failure or timeout the next call, and the
next attempt of a read, goes to the next endpoint. A write is sent once (PROTOCOL H79): gRPC's own retries are off, and
an error after sending is an unknown outcome. Only a call that etcd refused because of its token is sent again, which
`etcd_login` does. Reads are linearizable, which is etcd's default (H82).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import grpc
import grpc.aio
from headrace.wire.errors import InvalidRequestError, MetastoreUnavailableError, Outcome

from headrace_server.metastore import etcd3_stubs as stubs
from headrace_server.metastore.api import (
    CompactedError,
    Compare,
    GetResult,
    KeyValue,
    LeaseGrant,
    LeaseNotFoundError,
    MemberStatus,
    MetastoreRolledBackError,
    MetastoreStatus,
    MetastoreUnknownOutcomeError,
    Operation,
    RangeResult,
    TxnResult,
    WatchEvents,
    check_txn,
)
from headrace_server.metastore.etcd_endpoint import (
    EtcdEndpoint,
    check_endpoints,
    connect,
    describe_reason,
    disconnect,
    is_lease_gone,
    raise_definite,
    unavailable,
)
from headrace_server.metastore.etcd_lease import EtcdLeaseRenewer
from headrace_server.metastore.etcd_login import EtcdLogin, EtcdRefusedError, Metadata, NotAuthenticatedError
from headrace_server.metastore.etcd_messages import (
    by_revision,
    compare_message,
    found_by,
    key_value,
    operation_message,
    prefix_end,
)
from headrace_server.metastore.etcd_releases import reports_future_watches
from headrace_server.metastore.etcd_status import describe_member, read_published
from headrace_server.metastore.keep_alive import NoKeepAliveError
from headrace_server.tls import TlsIdentity

_PAGE_KEYS = 1_000
_WRITE_SHARE = 5
_PROGRESS_SECONDS = 1.0
_SILENT_INTERVALS = 3
# A member without a leader ends the watch, so that the client switches to another one.
_REQUIRE_LEADER = (("hasleader", "true"),)


class EtcdMetastore:
    """Client of one etcd cluster. Belongs to the event loop that was running when it was made.

    Args:
        endpoints: `host:port` of members of one cluster, at least one.
        timeout_s: the timeout of every call, for all attempts of a read together. A write has a fifth of it: a write
            that a member forwarded to a failed leader gets no response, and a retry is answered by the next leader.
        observe: called after every call with its operation, its duration in seconds, and whether etcd responded.
        identity: the certificates for TLS, those active when a connection is made; `None` means plain text.
        login: the user and password; `None` means none, or the common name of the certificate, as etcd is configured.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        timeout_s: float = 5.0,
        observe: Callable[[str, float, bool], None] | None = None,
        identity: TlsIdentity | None = None,
        login: EtcdLogin | None = None,
    ) -> None:
        check_endpoints(endpoints)
        self._timeout_s = timeout_s
        self._try_s = timeout_s / _WRITE_SHARE
        self._observe = observe
        self._current = 0
        self._cluster_id = 0
        self._identity = identity
        self._login = login
        self._reports_future_watches = False
        self._endpoints = [connect(endpoint, identity) for endpoint in endpoints]
        self._retired: dict[str, EtcdEndpoint] = {}
        self._closing: dict[asyncio.Task[None], None] = {}

    async def get(self, key: str) -> GetResult:
        """See `Metastore.get`."""
        if not key:
            raise InvalidRequestError("a read of an empty key", action="Name a key.")
        request = stubs.rpc_pb2.RangeRequest(key=key.encode())
        answer = await self._read("get", lambda endpoint: endpoint.kv.Range, request)
        found = key_value(answer.kvs[0]) if answer.kvs else None
        return GetResult(found, answer.header.revision, answer.header.cluster_id)

    async def range(self, prefix: str) -> RangeResult:
        """See `Metastore.range`. Read in pages of 1000 keys at the revision of the first page (PROTOCOL H85)."""
        if not prefix:
            raise InvalidRequestError("a read of an empty prefix", action="Name a prefix.")
        start, end, revision = prefix.encode(), prefix_end(prefix), 0
        found: list[KeyValue] = []
        while True:
            answer = await self._range_page(start, end, revision)
            revision = revision or answer.header.revision
            found.extend(key_value(kv) for kv in answer.kvs)
            if not answer.more:
                return RangeResult(tuple(found), revision, answer.header.cluster_id)
            start = answer.kvs[-1].key + b"\0"

    async def _range_page(self, start: bytes, end: bytes, revision: int) -> Any:
        """Return one page of `range`; revision `0` means the newest."""
        request = stubs.rpc_pb2.RangeRequest(key=start, range_end=end, limit=_PAGE_KEYS, revision=revision)
        return await self._read("range", lambda endpoint: endpoint.kv.Range, request)

    async def txn(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TxnResult:
        """See `Metastore.txn`."""
        check_txn(compares, success, failure)
        request = stubs.rpc_pb2.TxnRequest(
            compare=[compare_message(compare) for compare in compares],
            success=[operation_message(operation) for operation in success],
            failure=[operation_message(operation) for operation in failure],
        )
        answer = await self._write("txn", lambda endpoint: endpoint.kv.Txn, request)
        responses = tuple(found_by(response) for response in answer.responses)
        return TxnResult(answer.succeeded, answer.header.revision, responses, answer.header.cluster_id)

    async def grant_lease(self, ttl_ms: int) -> LeaseGrant:
        """See `Metastore.grant_lease`."""
        if ttl_ms < 1_000:
            raise InvalidRequestError(
                f"lease TTL {ttl_ms} ms is below the minimum of 1000 ms", action="Ask for 1000 ms or more."
            )
        request = stubs.rpc_pb2.LeaseGrantRequest(TTL=-(-ttl_ms // 1_000))
        answer = await self._write("grant_lease", lambda endpoint: endpoint.lease.LeaseGrant, request)
        return LeaseGrant(answer.ID, answer.TTL * 1_000)

    async def revoke_lease(self, lease_id: int) -> bool:
        """See `Metastore.revoke_lease`."""
        request = stubs.rpc_pb2.LeaseRevokeRequest(ID=lease_id)
        try:
            await self._write("revoke_lease", lambda endpoint: endpoint.lease.LeaseRevoke, request)
        except LeaseNotFoundError:
            return False
        return True

    async def renew_lease(self, lease_id: int) -> int:
        """See `Metastore.renew_lease`. It is idempotent, so it may go to several endpoints."""
        answer = await self._read("renew_lease", lambda endpoint: endpoint.keep_alive.renew, lease_id)
        return max(0, int(answer.TTL)) * 1_000

    async def watch(
        self, prefix: str, start_revision: int, *, progress_interval_s: float = 5.0
    ) -> AsyncIterator[WatchEvents]:
        """See `Metastore.watch`. After three seconds of silence the stream fails over to another member.

        The connection itself would detect a dead machine only after fifteen. It begins a revision earlier where etcd
        does not report the progress otherwise: etcd then sends the first events a tenth of a second later.
        """
        assert prefix, "an empty prefix"
        assert start_revision > 0, start_revision
        endpoint = self._endpoint(self._current)
        create = stubs.rpc_pb2.WatchRequest(
            create_request=stubs.rpc_pb2.WatchCreateRequest(
                key=prefix.encode(),
                range_end=prefix_end(prefix),
                start_revision=start_revision if self._reports_future_watches else max(1, start_revision - 1),
                progress_notify=True,
            )
        )

        async def requests() -> AsyncIterator[Any]:
            yield create
            while True:
                await asyncio.sleep(min(progress_interval_s, _PROGRESS_SECONDS))
                yield stubs.PROGRESS_REQUEST

        token = await self._watch_token(endpoint)
        call = endpoint.watch.Watch(requests(), metadata=(*_REQUIRE_LEADER, *token))
        try:
            while True:
                async with asyncio.timeout(_PROGRESS_SECONDS * _SILENT_INTERVALS):
                    answer = await call.read()
                if answer is grpc.aio.EOF:
                    break
                self._check_cluster(answer.header)
                if answer.canceled:
                    if answer.compact_revision:
                        raise CompactedError(
                            f"the watch of {prefix} from revision {start_revision} came too late",
                            compact_revision=answer.compact_revision,
                        )
                    self._leave(endpoint)
                    raise unavailable("watch", endpoint, answer.cancel_reason or "etcd cancelled the watch")
                for events in by_revision(answer):
                    if not events.events or events.revision >= start_revision:
                        yield events
            self._leave(endpoint)
            raise unavailable("watch", endpoint, "etcd closed the stream")
        except TimeoutError:
            self._leave(endpoint)
            raise unavailable("watch", endpoint, "etcd does not respond") from None
        except grpc.aio.AioRpcError as error:
            self._leave(endpoint)
            raise unavailable("watch", endpoint, describe_reason(error)) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # This task was not cancelled: gRPC reports a cancellation for a stream whose channel `_endpoint` closed.
            raise unavailable("watch", endpoint, "newer certificates are in force than its connection has") from None
        finally:
            call.cancel()

    async def compact(self, revision: int) -> None:
        """See `Metastore.compact`."""
        request = stubs.rpc_pb2.CompactionRequest(revision=revision, physical=True)
        await self._write("compact", lambda endpoint: endpoint.kv.Compact, request, self._timeout_s)

    async def status(self) -> MetastoreStatus:
        """See `Metastore.status`."""
        request = stubs.rpc_pb2.StatusRequest()
        try:
            answer = await self._read("status", lambda endpoint: endpoint.maintenance.Status, request)
        except EtcdRefusedError:  # Newer releases answer it to root only.
            header = (await self._read("status", lambda endpoint: endpoint.kv.Txn, stubs.rpc_pb2.TxnRequest())).header
            member = await self._read_published(self._endpoint(self._current))
            self._reports_future_watches = reports_future_watches(member.version)
            return MetastoreStatus(member.version, header.revision, header.cluster_id, member.database_bytes)
        self._reports_future_watches = reports_future_watches(answer.version)
        return MetastoreStatus(answer.version, answer.header.revision, answer.header.cluster_id, answer.dbSize)

    @property
    def has_user(self) -> bool:
        """Whether etcd knows this process as a user: by a login that it requires, or perhaps by its certificate."""
        if self._login is not None:
            return self._login.is_needed
        return self._identity is not None and self._identity.current.chain is not None

    def make_renewer(self) -> EtcdLeaseRenewer:
        """See `Metastore.make_renewer`. It has connections of its own."""
        return EtcdLeaseRenewer([endpoint.address for endpoint in self._endpoints], self._identity, self._login)

    async def describe_members(self) -> list[MemberStatus]:
        """Return the status of each endpoint, in the order of the settings; an unreachable one has an `error`."""
        return await asyncio.gather(
            *(
                describe_member(
                    found.address,
                    partial(self._ask_status, found),
                    partial(self._ask_nothing, found),
                    partial(self._read_published, found),
                )
                for found in map(self._endpoint, range(len(self._endpoints)))
            )
        )

    async def close(self) -> None:
        """See `Metastore.close`."""
        for endpoint in [*self._endpoints, *self._retired.values()]:
            await disconnect(endpoint)
        if self._closing:
            await asyncio.wait(self._closing)

    def _endpoint(self, index: int) -> EtcdEndpoint:
        """Return the endpoint of that index, reconnected if its certificates have changed.

        Calls in progress complete on the old connection, which is closed at the next change; then watches on it break
        and are started again by their readers.
        """
        endpoint = self._endpoints[index]
        if self._identity is None or endpoint.certificates is self._identity.current:
            return endpoint
        before = self._retired.pop(endpoint.address, None)
        if before is not None:
            closing = asyncio.create_task(disconnect(before, self._timeout_s))
            self._closing[closing] = None
            closing.add_done_callback(lambda done: self._closing.pop(done, None))
        self._retired[endpoint.address] = endpoint
        self._endpoints[index] = connect(endpoint.address, self._identity)
        return self._endpoints[index]

    async def _ask_status(self, endpoint: EtcdEndpoint) -> Any:
        """Return the response of one member's Status; raise grpc.aio.AioRpcError or NotAuthenticatedError."""
        method, request = endpoint.maintenance.Status, stubs.rpc_pb2.StatusRequest()
        return await self._send(endpoint, method, request, self._timeout_s, self._timeout_s)

    async def _ask_nothing(self, endpoint: EtcdEndpoint) -> Any:
        """Return the response of one member to an empty transaction, for which it needs a leader; raise likewise."""
        return await self._send(endpoint, endpoint.kv.Txn, stubs.rpc_pb2.TxnRequest(), self._timeout_s, self._timeout_s)

    async def _read_published(self, endpoint: EtcdEndpoint) -> MemberStatus:
        context = None if self._identity is None else self._identity.client_context()
        return await read_published(endpoint.address, context, self._timeout_s)

    async def _watch_token(self, endpoint: EtcdEndpoint) -> Metadata:
        if self._login is None:
            return ()
        try:
            return await self._login.metadata(endpoint.auth, self._timeout_s)
        except NotAuthenticatedError as error:
            self._leave(endpoint)
            raise unavailable("watch", endpoint, str(error)) from error

    async def _send(self, endpoint: EtcdEndpoint, method: Any, request: Any, try_s: float, timeout_s: float) -> Any:
        """Call a method of one endpoint; arguments and errors as of `EtcdLogin.send`."""
        if self._login is None:
            return await method(request, timeout=try_s)
        return await self._login.send(endpoint.auth, method, request, try_s, timeout_s)

    async def _read(self, what: str, method_of: Callable[[EtcdEndpoint], Any], request: Any) -> Any:
        """Call each endpoint once until one responds, all within the deadline."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        failures: list[str] = []
        for tries_left in range(len(self._endpoints), 0, -1):
            endpoint = self._endpoint(self._current)
            started = loop.time()
            timeout = max(0.05, (deadline - started) / tries_left)
            try:
                answer = await self._send(endpoint, method_of(endpoint), request, timeout, timeout)
            except grpc.aio.AioRpcError as error:
                self._note(what, started, error)
                raise_definite(what, endpoint.address, error)
                failures.append(f"{endpoint.address}: {describe_reason(error)}")
                self._leave(endpoint)
            except (NoKeepAliveError, NotAuthenticatedError) as error:
                self._note(what, started, error)
                failures.append(f"{endpoint.address}: {error}")
                self._leave(endpoint)
            else:
                self._note(what, started, None)
                self._check_cluster(answer.header)
                return answer
        raise MetastoreUnavailableError(
            f"etcd did not answer {what} within {self._timeout_s} s ({'; '.join(failures)})",
            outcome=Outcome.NOT_APPLIED,
        )

    async def _write(
        self, what: str, method_of: Callable[[EtcdEndpoint], Any], request: Any, timeout_s: float | None = None
    ) -> Any:
        """Call once; a failure without a response is an unknown outcome. A cancellation propagates."""
        endpoint, started = self._endpoint(self._current), asyncio.get_running_loop().time()
        try:
            answer = await self._send(endpoint, method_of(endpoint), request, timeout_s or self._try_s, self._timeout_s)
        except NotAuthenticatedError as error:
            self._note(what, started, error)
            self._leave(endpoint)
            raise unavailable(what, endpoint, str(error)) from error
        except grpc.aio.AioRpcError as error:
            self._note(what, started, error)
            raise_definite(what, endpoint.address, error)
            self._leave(endpoint)
            raise MetastoreUnknownOutcomeError(
                f"etcd at {endpoint.address} did not report the outcome of {what}: {describe_reason(error)}"
            ) from error
        self._note(what, started, None)
        self._check_cluster(answer.header)
        return answer

    def _note(self, what: str, started: float, error: Exception | None) -> None:
        """Report a completed call; `LeaseNotFoundError` counts as a response."""
        if self._observe is not None:
            answered = error is None or (isinstance(error, grpc.aio.AioRpcError) and is_lease_gone(error))
            self._observe(what, asyncio.get_running_loop().time() - started, answered)

    def _leave(self, endpoint: EtcdEndpoint) -> None:
        """Switch to the next endpoint, unless another call already has."""
        if self._endpoints[self._current] is endpoint:
            self._current = (self._current + 1) % len(self._endpoints)

    def _check_cluster(self, header: Any) -> None:
        """Raise MetastoreRolledBackError if the response is from another cluster than the first one (PROTOCOL H81)."""
        if self._cluster_id and header.cluster_id != self._cluster_id:
            raise MetastoreRolledBackError(
                f"etcd cluster {header.cluster_id:x} answered where {self._cluster_id:x} did before"
            )
        self._cluster_id = header.cluster_id
