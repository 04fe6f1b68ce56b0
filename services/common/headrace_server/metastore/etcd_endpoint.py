"""Connection to one member of etcd, and the interpretation of its errors.

Used by `etcd.EtcdMetastore` on the event loop and by `etcd_lease.EtcdLeaseRenewer` from a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from headrace.wire.errors import InvalidConfigError, InvalidRequestError, MetastoreUnavailableError, Outcome

from headrace_server.certificate_files import Certificates
from headrace_server.metastore import etcd3_stubs as stubs
from headrace_server.metastore.api import CompactedError, LeaseNotFoundError
from headrace_server.metastore.etcd_login import EtcdRefusedError, TokenRefusal, token_refusal
from headrace_server.metastore.keep_alive import KeepAliveStream
from headrace_server.tls import TlsIdentity, open_channel

CHANNEL_OPTIONS = (
    ("grpc.enable_retries", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # It is also the timeout of one attempt to connect.
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class EtcdEndpoint:
    """Connection to one member."""

    address: str
    channel: grpc.aio.Channel
    kv: Any
    watch: Any
    lease: Any
    maintenance: Any
    auth: Any
    keep_alive: KeepAliveStream
    certificates: Certificates | None
    """Certificates of the connection; `None` means no TLS."""


def check_endpoints(endpoints: Sequence[str]) -> None:
    """Check that there is at least one endpoint and each is `host:port`.

    Raises:
        InvalidConfigError: If one is not; names it.
    """
    if isinstance(endpoints, str) or not endpoints:
        raise InvalidConfigError("etcd_endpoints is empty", action="Set etcd_endpoints to host:port,host:port.")
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65_536:
            raise InvalidConfigError(
                f"the etcd endpoint {endpoint!r} is not host:port", action="Write it as host:port, without a scheme."
            )


def connect(address: str, identity: TlsIdentity | None) -> EtcdEndpoint:
    """Return a connection that uses the active certificates."""
    certificates = None if identity is None else identity.current
    channel = open_channel(address, CHANNEL_OPTIONS, identity)
    lease = stubs.LeaseStub(channel)
    return EtcdEndpoint(
        address,
        channel,
        stubs.KVStub(channel),
        stubs.WatchStub(channel),
        lease,
        stubs.MaintenanceStub(channel),
        stubs.AuthStub(channel),
        KeepAliveStream(lease),
        certificates,
    )


async def disconnect(endpoint: EtcdEndpoint, grace_s: float | None = None) -> None:
    """Close a connection; calls on it have `grace_s` to complete."""
    await endpoint.keep_alive.close()
    await endpoint.channel.close(grace_s)


def raise_definite(what: str, address: str, error: grpc.RpcError) -> None:
    """Raise an error if the response proves that nothing was applied; return otherwise."""
    if is_lease_gone(error):
        raise LeaseNotFoundError(f"{what}: the lease has ended", action="Get a new lease and register anew.") from error
    code, details = error.code(), error.details() or ""
    if code == grpc.StatusCode.OUT_OF_RANGE and "compacted" in details:
        raise CompactedError(f"{what}: {details}", compact_revision=0) from error
    if code == grpc.StatusCode.UNIMPLEMENTED:
        raise InvalidConfigError(
            f"{address} serves gRPC and is no etcd: it has no method for {what}",
            action="Let etcd_endpoints name members of etcd (port 2379), not brokers or coordinators.",
        ) from error
    refusal = token_refusal(details)
    if refusal is TokenRefusal.MISSING:
        raise EtcdRefusedError(
            f"etcd refused {what}, because this process has no user there",
            action="Set etcd_user and etcd_password_file.",
        ) from error
    if refusal is not None or code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        raise EtcdRefusedError(
            f"etcd refused {what}: {details}",
            action="Give the user in etcd its role: `headrace-coordinator etcd-auth` prints the commands.",
        ) from error
    if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE):
        raise InvalidRequestError(f"etcd refused {what}: {details}", action="Report this bug.") from error


def is_lease_gone(error: grpc.RpcError) -> bool:
    """Return whether the error means that the lease has ended."""
    return error.code() == grpc.StatusCode.NOT_FOUND and "lease not found" in (error.details() or "")


def describe_reason(error: grpc.RpcError) -> str:
    """Return the status and the details of a failed call."""
    return f"{error.code().name} {error.details() or ''}".strip()


def unavailable(what: str, endpoint: EtcdEndpoint, reason: str) -> MetastoreUnavailableError:
    """Return the error of a call that was certainly not applied."""
    return MetastoreUnavailableError(f"{what} at etcd {endpoint.address}: {reason}", outcome=Outcome.NOT_APPLIED)
