"""Renewal of an etcd lease from a thread, for `lease.LeaseKeeper`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
from headrace.wire.errors import MetastoreUnavailableError, Outcome

from headrace_server.certificate_files import Certificates
from headrace_server.metastore import etcd3_stubs as stubs
from headrace_server.metastore.etcd_endpoint import CHANNEL_OPTIONS, check_endpoints, describe_reason, is_lease_gone
from headrace_server.tls import TlsIdentity, open_blocking_channel


class EtcdLeaseRenewer:
    """Renews a lease over its own synchronous channels, so that no event loop is needed (PROTOCOL H89).

    Only the thread of `lease.LeaseKeeper` uses it.
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
        """Make the channels with the active certificates."""
        self.close()
        self._certificates = None if self._identity is None else self._identity.current
        self._channels = [
            open_blocking_channel(address, CHANNEL_OPTIONS, self._identity) for address in self._addresses
        ]
        self._stubs = [stubs.LeaseStub(channel) for channel in self._channels]

    def renew(self, lease_id: int, timeout_s: float) -> int:
        """Renew once; return the time to live in ms, `0` if the lease has ended.

        Raises:
            MetastoreUnavailableError: If there is no response within `timeout_s`; the next call uses the next endpoint.
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
            if is_lease_gone(error):
                return 0
            reason = describe_reason(error)
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
