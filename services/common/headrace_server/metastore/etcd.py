"""etcd as a `Metastore`, over grpc.aio.

One channel an endpoint. Calls go to the current endpoint; one that fails or stays silent makes the next call, and the
next try of a read, go to the next endpoint. A write is sent once (PROTOCOL H79): gRPC's own retries are off, and an
error after sending is an unknown outcome. Reads are linearizable, which is etcd's default (H82). `EtcdLeaseRenewer` is
the synchronous half that `lease.LeaseKeeper` uses from its thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from headrace.wire.errors import InvalidConfigError, InvalidRequestError, MetastoreUnavailableError, Outcome

from headrace_server.certificate_files import Certificates
from headrace_server.metastore import etcd3_stubs as stubs
from headrace_server.metastore.api import (
    CompactedError,
    Compare,
    GetResult,
    KeyValue,
    LeaseGrant,
    LeaseNotFoundError,
    MetastoreRolledBackError,
    MetastoreStatus,
    MetastoreUnknownOutcomeError,
    Operation,
    RangeResult,
    TxnResult,
    WatchEvents,
    check_txn,
)
from headrace_server.metastore.etcd_messages import (
    by_revision,
    compare_message,
    found_by,
    key_value,
    operation_message,
    prefix_end,
)
from headrace_server.metastore.etcd_status import MemberStatus, describe_member
from headrace_server.metastore.keep_alive import KeepAliveStream, NoKeepAliveError
from headrace_server.tls import TlsIdentity, open_blocking_channel, open_channel

_PAGE_KEYS = 1_000
_WRITE_SHARE = 5
_PROGRESS_SECONDS = 1.0
_SILENT_INTERVALS = 3
_CHANNEL_OPTIONS = (
    ("grpc.enable_retries", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # What one attempt to connect may take.
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
)
# A member that has lost its leader ends the watch, so that the client goes to another one.
_REQUIRE_LEADER = (("hasleader", "true"),)


@dataclass(frozen=True, slots=True)
class _Endpoint:
    address: str
    channel: grpc.aio.Channel
    kv: Any
    watch: Any
    lease: Any
    maintenance: Any
    keep_alive: KeepAliveStream
    certificates: Certificates | None
    """With which it was connected; None: without TLS."""


class EtcdMetastore:
    """A client of one etcd cluster. Owned by the event loop that was running when it was made.

    Args:
        endpoints: `host:port` of members of one cluster, at least one.
        timeout_s: the deadline of every call, all tries of a read together. A write has a fifth of it: what a member
            has forwarded to a failed leader gets no answer, and the next leader answers a retry.
        observe: told of every call how long it took, in seconds, and whether etcd answered it.
        identity: speak TLS, with the certificates that are in force when a connection is made.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        timeout_s: float = 5.0,
        observe: Callable[[str, float, bool], None] | None = None,
        identity: TlsIdentity | None = None,
    ) -> None:
        check_endpoints(endpoints)
        self._timeout_s = timeout_s
        self._try_s = timeout_s / _WRITE_SHARE
        self._observe = observe
        self._current = 0
        self._cluster_id = 0
        self._identity = identity
        self._endpoints = [_connect(endpoint, identity) for endpoint in endpoints]
        self._retired: dict[str, _Endpoint] = {}
        self._closing: dict[asyncio.Task[None], None] = {}

    async def get(self, key: str) -> GetResult:
        """See `Metastore.get`."""
        if not key:
            raise InvalidRequestError("a read of an empty key", action="Name a key.")
        request = stubs.rpc_pb2.RangeRequest(key=key.encode())
        answer = await self._read("get", lambda endpoint, timeout: endpoint.kv.Range(request, timeout=timeout))
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
        """One page of `range`; revision 0: the newest."""
        request = stubs.rpc_pb2.RangeRequest(key=start, range_end=end, limit=_PAGE_KEYS, revision=revision)
        return await self._read("range", lambda endpoint, timeout: endpoint.kv.Range(request, timeout=timeout))

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
        answer = await self._write("txn", lambda endpoint: endpoint.kv.Txn(request, timeout=self._try_s))
        responses = tuple(found_by(response) for response in answer.responses)
        return TxnResult(answer.succeeded, answer.header.revision, responses, answer.header.cluster_id)

    async def grant_lease(self, ttl_ms: int) -> LeaseGrant:
        """See `Metastore.grant_lease`."""
        if ttl_ms < 1_000:
            raise InvalidRequestError(f"a lease of {ttl_ms} ms", action="Ask for 1000 ms or more.")
        request = stubs.rpc_pb2.LeaseGrantRequest(TTL=-(-ttl_ms // 1_000))
        answer = await self._write(
            "grant_lease", lambda endpoint: endpoint.lease.LeaseGrant(request, timeout=self._try_s)
        )
        return LeaseGrant(answer.ID, answer.TTL * 1_000)

    async def revoke_lease(self, lease_id: int) -> bool:
        """See `Metastore.revoke_lease`."""
        request = stubs.rpc_pb2.LeaseRevokeRequest(ID=lease_id)
        try:
            await self._write("revoke_lease", lambda endpoint: endpoint.lease.LeaseRevoke(request, timeout=self._try_s))
        except LeaseNotFoundError:
            return False
        return True

    async def renew_lease(self, lease_id: int) -> int:
        """See `Metastore.renew_lease`. Renewing twice does no harm, so it may go to several endpoints."""
        answer = await self._read("renew_lease", lambda endpoint, timeout: endpoint.keep_alive.renew(lease_id, timeout))
        return max(0, int(answer.TTL)) * 1_000

    async def watch(
        self, prefix: str, start_revision: int, *, progress_interval_s: float = 5.0
    ) -> AsyncIterator[WatchEvents]:
        """See `Metastore.watch`. A member that is silent for three seconds is left for another one.

        The connection alone would tell of a machine that is gone after fifteen.
        """
        assert prefix, "an empty prefix"
        assert start_revision > 0, start_revision
        endpoint = self._endpoint(self._current)
        create = stubs.rpc_pb2.WatchRequest(
            create_request=stubs.rpc_pb2.WatchCreateRequest(
                key=prefix.encode(), range_end=prefix_end(prefix), start_revision=start_revision, progress_notify=True
            )
        )

        async def requests() -> AsyncIterator[Any]:
            yield create
            while True:
                await asyncio.sleep(min(progress_interval_s, _PROGRESS_SECONDS))
                yield stubs.PROGRESS_REQUEST

        call = endpoint.watch.Watch(requests(), metadata=_REQUIRE_LEADER)
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
                    raise _unavailable("watch", endpoint, answer.cancel_reason or "etcd cancelled the watch")
                for events in by_revision(answer):
                    yield events
            self._leave(endpoint)
            raise _unavailable("watch", endpoint, "etcd closed the stream")
        except TimeoutError:
            self._leave(endpoint)
            raise _unavailable("watch", endpoint, "etcd has fallen silent") from None
        except grpc.aio.AioRpcError as error:
            self._leave(endpoint)
            raise _unavailable("watch", endpoint, _reason(error)) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # This task was not cancelled: gRPC reports a cancellation for a stream whose channel was closed, here by
            # `_endpoint`.
            raise _unavailable("watch", endpoint, "newer certificates are in force than its connection has") from None
        finally:
            call.cancel()

    async def compact(self, revision: int) -> None:
        """See `Metastore.compact`."""
        request = stubs.rpc_pb2.CompactionRequest(revision=revision, physical=True)
        await self._write("compact", lambda endpoint: endpoint.kv.Compact(request, timeout=self._timeout_s))

    async def status(self) -> MetastoreStatus:
        """See `Metastore.status`."""
        request = stubs.rpc_pb2.StatusRequest()
        answer = await self._read(
            "status", lambda endpoint, timeout: endpoint.maintenance.Status(request, timeout=timeout)
        )
        return MetastoreStatus(answer.version, answer.header.revision, answer.header.cluster_id, answer.dbSize)

    async def describe_members(self) -> list[MemberStatus]:
        """How each endpoint is, in the order of the settings; one that does not answer says so."""
        return await asyncio.gather(
            *(
                describe_member(found.address, found.maintenance, self._timeout_s)
                for found in map(self._endpoint, range(len(self._endpoints)))
            )
        )

    async def close(self) -> None:
        """See `Metastore.close`."""
        for endpoint in [*self._endpoints, *self._retired.values()]:
            await _disconnect(endpoint)
        if self._closing:
            await asyncio.wait(self._closing)

    def _endpoint(self, index: int) -> _Endpoint:
        """The endpoint of that number, connected anew where certificates have come in force since.

        Calls that are under way end on the old connection, which is closed when it happens once more; then watches on
        it break, and are made anew by who reads them.
        """
        endpoint = self._endpoints[index]
        if self._identity is None or endpoint.certificates is self._identity.current:
            return endpoint
        before = self._retired.pop(endpoint.address, None)
        if before is not None:
            closing = asyncio.create_task(_disconnect(before, self._timeout_s))
            self._closing[closing] = None
            closing.add_done_callback(lambda done: self._closing.pop(done, None))
        self._retired[endpoint.address] = endpoint
        self._endpoints[index] = _connect(endpoint.address, self._identity)
        return self._endpoints[index]

    async def _read(self, what: str, send: Callable[[_Endpoint, float], Awaitable[Any]]) -> Any:
        """Call until one endpoint answers, each endpoint once, all within the deadline."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        failures: list[str] = []
        for tries_left in range(len(self._endpoints), 0, -1):
            endpoint = self._endpoint(self._current)
            started = loop.time()
            timeout = max(0.05, (deadline - started) / tries_left)
            try:
                answer = await send(endpoint, timeout)
            except grpc.aio.AioRpcError as error:
                self._note(what, started, error)
                _raise_definite(what, endpoint.address, error, read=True)
                failures.append(f"{endpoint.address}: {_reason(error)}")
                self._leave(endpoint)
            except NoKeepAliveError as error:
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

    async def _write(self, what: str, send: Callable[[_Endpoint], Awaitable[Any]]) -> Any:
        """Call once; whatever is not an answer is an unknown outcome. A cancelled call stays a cancelled task."""
        endpoint, started = self._endpoint(self._current), asyncio.get_running_loop().time()
        try:
            answer = await send(endpoint)
        except grpc.aio.AioRpcError as error:
            self._note(what, started, error)
            _raise_definite(what, endpoint.address, error, read=False)
            self._leave(endpoint)
            raise MetastoreUnknownOutcomeError(
                f"etcd at {endpoint.address} did not say how {what} ended: {_reason(error)}"
            ) from error
        self._note(what, started, None)
        self._check_cluster(answer.header)
        return answer

    def _note(self, what: str, started: float, error: Exception | None) -> None:
        """Report a completed call; `LeaseNotFoundError` is an answer, too."""
        if self._observe is not None:
            answered = error is None or (isinstance(error, grpc.aio.AioRpcError) and _is_lease_gone(error))
            self._observe(what, asyncio.get_running_loop().time() - started, answered)

    def _leave(self, endpoint: _Endpoint) -> None:
        """Let the next call go to another endpoint, unless one has moved on already."""
        if self._endpoints[self._current] is endpoint:
            self._current = (self._current + 1) % len(self._endpoints)

    def _check_cluster(self, header: Any) -> None:
        """Refuse the answer of another cluster than the first that answered (PROTOCOL H81)."""
        if self._cluster_id and header.cluster_id != self._cluster_id:
            raise MetastoreRolledBackError(
                f"etcd cluster {header.cluster_id:x} answered where {self._cluster_id:x} did before"
            )
        self._cluster_id = header.cluster_id


class EtcdLeaseRenewer:
    """Renews a lease over a synchronous channel of its own, so that no event loop is needed (PROTOCOL H89).

    One thread uses it: the `lease.LeaseKeeper`'s.
    """

    def __init__(self, endpoints: Sequence[str], identity: TlsIdentity | None = None) -> None:
        check_endpoints(endpoints)
        self._addresses = list(endpoints)
        self._identity = identity
        self._certificates: Certificates | None = None
        self._channels: list[grpc.Channel] = []
        self._stubs: list[Any] = []
        self._current = 0
        self._connect()

    def _connect(self) -> None:
        """Make the channels, of the certificates that are in force."""
        self.close()
        self._certificates = None if self._identity is None else self._identity.current
        self._channels = [
            open_blocking_channel(address, _CHANNEL_OPTIONS, self._identity) for address in self._addresses
        ]
        self._stubs = [stubs.LeaseStub(channel) for channel in self._channels]

    def renew(self, lease_id: int, timeout_s: float) -> int:
        """Renew once; the new time to live in ms, 0 where the lease has ended.

        Raises:
            MetastoreUnavailableError: no answer within `timeout_s`; the next call tries the next endpoint.
        """
        if self._identity is not None and self._certificates is not self._identity.current:
            self._connect()
        address = self._addresses[self._current]
        request = stubs.rpc_pb2.LeaseKeepAliveRequest(ID=lease_id)
        call = self._stubs[self._current].LeaseKeepAlive(iter([request]), timeout=timeout_s)
        try:
            for answer in call:
                return max(0, int(answer.TTL)) * 1_000
            reason = "the stream ended without an answer"
        except grpc.RpcError as error:
            if _is_lease_gone(error):
                return 0
            reason = _reason(error)
        finally:
            call.cancel()
        self._current = (self._current + 1) % len(self._channels)
        raise MetastoreUnavailableError(
            f"etcd at {address} did not answer a keep-alive: {reason}", outcome=Outcome.UNKNOWN
        )

    def close(self) -> None:
        """Close the connections; a renewal in progress fails."""
        for channel in self._channels:
            channel.close()


def check_endpoints(endpoints: Sequence[str]) -> None:
    """Check that there is at least one endpoint and each is `host:port`.

    Raises:
        InvalidConfigError: names the one that is not.
    """
    if isinstance(endpoints, str) or not endpoints:
        raise InvalidConfigError("etcd_endpoints is empty", action="Set etcd_endpoints to host:port,host:port.")
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65_536:
            raise InvalidConfigError(
                f"the etcd endpoint {endpoint!r} is not host:port", action="Write it as host:port, without a scheme."
            )


def _connect(address: str, identity: TlsIdentity | None) -> _Endpoint:
    certificates = None if identity is None else identity.current
    channel = open_channel(address, _CHANNEL_OPTIONS, identity)
    lease = stubs.LeaseStub(channel)
    return _Endpoint(
        address,
        channel,
        stubs.KVStub(channel),
        stubs.WatchStub(channel),
        lease,
        stubs.MaintenanceStub(channel),
        KeepAliveStream(lease),
        certificates,
    )


async def _disconnect(endpoint: _Endpoint, grace_s: float | None = None) -> None:
    """Close a connection, once the calls on it have ended, where they have that much time."""
    await endpoint.keep_alive.close()
    await endpoint.channel.close(grace_s)


def _raise_definite(what: str, address: str, error: grpc.RpcError, *, read: bool) -> None:
    """Raise where etcd's answer says for certain that nothing was done; return otherwise."""
    if _is_lease_gone(error):
        raise LeaseNotFoundError(f"{what}: the lease has ended", action="Get a new lease and register anew.") from error
    code, details = error.code(), error.details() or ""
    if code == grpc.StatusCode.OUT_OF_RANGE and "compacted" in details:
        raise CompactedError(f"{what}: {details}", compact_revision=0) from error
    if code == grpc.StatusCode.UNIMPLEMENTED:
        raise InvalidConfigError(
            f"{address} serves gRPC and is no etcd: it has no method for {what}",
            action="Let etcd_endpoints name members of etcd (port 2379), not brokers or coordinators.",
        ) from error
    if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE):
        raise InvalidRequestError(f"etcd refused {what}: {details}", action="Report it: a bug.") from error
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED) and read:
        raise MetastoreUnavailableError(
            f"etcd refused {what}: {details}", outcome=Outcome.NOT_APPLIED, action="Check the rights in etcd."
        ) from error


def _is_lease_gone(error: grpc.RpcError) -> bool:
    return error.code() == grpc.StatusCode.NOT_FOUND and "lease not found" in (error.details() or "")


def _reason(error: grpc.RpcError) -> str:
    return f"{error.code().name} {error.details() or ''}".strip()


def _unavailable(what: str, endpoint: _Endpoint, reason: str) -> MetastoreUnavailableError:
    return MetastoreUnavailableError(f"{what} at etcd {endpoint.address}: {reason}", outcome=Outcome.NOT_APPLIED)
