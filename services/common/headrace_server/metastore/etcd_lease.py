"""Renewal of an etcd lease from a thread, for `lease.LeaseKeeper`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import grpc
from headrace.wire.errors import MetastoreUnavailableError, Outcome

from headrace_server.certificate_files import Certificates
from headrace_server.metastore import etcd3_stubs as stubs
from headrace_server.metastore.etcd_endpoint import CHANNEL_OPTIONS, check_endpoints, describe_reason, is_lease_gone
from headrace_server.metastore.etcd_login import MAX_SENDS, EtcdLogin, EtcdRefusedError, Metadata, token_refusal
from headrace_server.tls import TlsIdentity, open_blocking_channel

_LOGIN: Metadata = (("token", ""),)
"""In place of a token: one is needed."""


class EtcdLeaseRenewer:
    """Renews a lease over its own synchronous channels, so that no event loop is needed (PROTOCOL H89).

    Only the thread of `lease.LeaseKeeper` uses it. It logs in by itself if etcd requires a token, as newer releases do.
    """

    def __init__(
        self, endpoints: Sequence[str], identity: TlsIdentity | None = None, login: EtcdLogin | None = None
    ) -> None:
        check_endpoints(endpoints)
        self._login = login
        self._metadata: Metadata = ()
        """Token of a login of its own, once one was required."""
        self._addresses = list(endpoints)
        self._identity = identity
        self._certificates: Certificates | None = None
        self._channels: list[grpc.Channel] = []
        self._stubs: list[Any] = []
        self._current = 0
        self._connect()

    def _connect(self) -> None:
        """Make the channels with the active certificates."""
        self.close()
        self._certificates = None if self._identity is None else self._identity.current
        self._channels = [
            open_blocking_channel(address, CHANNEL_OPTIONS, self._identity) for address in self._addresses
        ]
        self._stubs = [stubs.LeaseStub(channel) for channel in self._channels]
        self._auth_stubs = [stubs.AuthStub(channel) for channel in self._channels]

    def renew(self, lease_id: int, timeout_s: float) -> int:
        """Renew once; return the time to live in ms, `0` if the lease has ended.

        Raises:
            MetastoreUnavailableError: If there is no response within `timeout_s`; the next call uses the next endpoint.
        """
        if self._identity is not None and self._certificates is not self._identity.current:
            self._connect()
        address, deadline = self._addresses[self._current], time.monotonic() + timeout_s
        for sends_left in reversed(range(MAX_SENDS)):
            try:
                left_s = max(0.01, deadline - time.monotonic())
                answer = self._send(stubs.rpc_pb2.LeaseKeepAliveRequest(ID=lease_id), left_s)
                if answer is not None:
                    return max(0, int(answer.TTL)) * 1_000
                reason = "the stream ended without an answer"
            except EtcdRefusedError as error:
                reason = str(error)
            except grpc.RpcError as error:
                if is_lease_gone(error):
                    return 0
                reason = describe_reason(error)
                if self._login is not None and sends_left and token_refusal(error.details()) is not None:
                    self._metadata = _LOGIN
                    continue
            break
        self._current = (self._current + 1) % len(self._channels)
        raise MetastoreUnavailableError(
            f"etcd at {address} did not answer a keep-alive: {reason}", outcome=Outcome.UNKNOWN
        )

    def _send(self, request: Any, timeout_s: float) -> Any:
        """Return the answer to one renewal, or `None`; log in first if the last one was refused."""
        deadline = time.monotonic() + timeout_s
        if self._metadata is _LOGIN:
            assert self._login is not None
            self._metadata = ()  # If there is no authentication any more, none is needed.
            answer = self._auth_stubs[self._current].Authenticate(self._login.request(), timeout=timeout_s)
            self._metadata = (("token", answer.token),)
        left_s = max(0.01, deadline - time.monotonic())
        call = self._stubs[self._current].LeaseKeepAlive(iter([request]), timeout=left_s, metadata=self._metadata)
        try:
            return next(iter(call), None)
        finally:
            call.cancel()

    def close(self) -> None:
        """Close the connections; a renewal in progress fails."""
        for channel in self._channels:
            channel.close()
