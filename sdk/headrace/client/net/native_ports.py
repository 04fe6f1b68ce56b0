"""Which brokers are called over the native protocol now: what the blocking and the asyncio client share. Any thread."""

import logging
import os
import threading
import time

from headrace.client.base.config import ClientConfig
from headrace.client.net.native_calls import not_connected
from headrace.v1 import cluster_pb2
from headrace.wire.errors import HeadraceError

_log = logging.getLogger("headrace.client")

AVOID_S = 10.0
"""How long a port that could not be reached is left alone."""


class NativePorts:
    """The native addresses of brokers, by their address for gRPC. Owned by the connections of one client."""

    def __init__(self, config: ClientConfig) -> None:
        self._transport = config.transport if os.name == "posix" else "grpc"
        self._lock = threading.Lock()
        self._native: dict[str, str] = {}
        self._avoided: dict[str, float] = {}
        self.fallbacks = 0
        """Calls that went over gRPC although metadata names an address."""

    def learn(self, answer: cluster_pb2.GetMetadataResponse) -> None:
        """Take the addresses of the brokers that an answer names."""
        if self._transport == "grpc":
            return
        with self._lock:
            for broker in answer.brokers:
                if self._native.get(broker.address) != broker.native_address:
                    self._native[broker.address] = broker.native_address
                    self._avoided.pop(broker.address, None)

    def find(self, address: str) -> str:
        """Return the native address of the broker at `address`; empty: call it over gRPC."""
        native = self._native.get(address, "")
        if not native or not self._avoided:
            return native
        until = self._avoided.get(address)
        if until is None or time.monotonic() >= until or self._transport != "auto":
            return native
        self.fallbacks += 1
        return ""

    def require(self, address: str) -> None:
        """Check that the broker at `address` need not be called natively.

        Raises:
            NotConnectedError: with transport='native'; where metadata names an address later, a retry may use it.
        """
        if self._transport == "native":
            raise not_connected(address, "it serves no native protocol, as far as metadata says")

    def may_fall_back(self) -> bool:
        """Return whether a call may go over gRPC where no connection could be made."""
        return self._transport == "auto"

    def avoid(self, address: str, native_address: str, error: HeadraceError) -> None:
        """Leave a port alone for a while; the first time say so."""
        with self._lock:
            is_first = address not in self._avoided
            self._avoided[address] = time.monotonic() + AVOID_S
            self.fallbacks += 1
        if is_first and self.may_fall_back():
            _log.warning(
                "the native protocol at %s cannot be used, so broker %s is called over gRPC; tried again every %g s: "
                "%s",
                native_address, address, AVOID_S, error.message,
            )  # fmt: skip
