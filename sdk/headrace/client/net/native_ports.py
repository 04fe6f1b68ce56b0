"""Native addresses of brokers and their availability, shared by the blocking and the asyncio client. Any thread."""

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from headrace.client.base.config import ClientConfig
from headrace.client.base.credentials import refuse_plaintext
from headrace.client.net.native_calls import (
    Done,
    MakeRequest,
    NativeCallMethod,
    NativeRequest,
    NotConnectedError,
    not_connected,
    parse_answer,
)
from headrace.v1 import cluster_pb2
from headrace.wire.errors import HeadraceError
from headrace.wire.frames import Frame

_log = logging.getLogger("headrace.client")

CONNECT_S = 1.0
"""Timeout of a connection including its greeting."""
STALL_S = 30.0
"""Time after which a broker that neither accepts nor sends any byte of a frame counts as lost."""
AVOID_S = 10.0
"""Time after which an unreachable port is tried again."""


class NativePorts:
    """Native addresses of brokers, by their gRPC address. Owned by the connections of one client."""

    def __init__(self, config: ClientConfig) -> None:
        self._transport = config.transport if os.name == "posix" else "grpc"
        self._lock = threading.Lock()
        self._native: dict[str, str] = {}
        self._avoided: dict[str, float] = {}
        self.fallbacks = 0
        """Number of calls made over gRPC although metadata has a native address."""

    def learn(self, answer: cluster_pb2.GetMetadataResponse) -> None:
        """Store the broker addresses of a metadata response."""
        if self._transport == "grpc":
            return
        with self._lock:
            for broker in answer.brokers:
                if self._native.get(broker.address) != broker.native_address:
                    self._native[broker.address] = broker.native_address
                    self._avoided.pop(broker.address, None)

    def find(self, address: str) -> str:
        """Return the native address of the broker at `address`; empty means that gRPC must be used.

        Of a port that is avoided, one call in `AVOID_S` gets the address, and waits for the connection.
        """
        native = self._native.get(address, "")
        if not native or address not in self._avoided or self._transport != "auto":
            return native
        with self._lock:
            now, until = time.monotonic(), self._avoided.get(address)
            if until is not None and now < until:
                self.fallbacks += 1
                return ""
            if until is not None:
                self._avoided[address] = now + AVOID_S
            return native

    def require(self, address: str) -> None:
        """Check that the broker at `address` may be called over gRPC.

        Raises:
            NotConnectedError: With transport='native'; a retry may work once metadata has a native address.
        """
        if self._transport == "native":
            raise not_connected(address, "metadata has no native address for this broker")

    @property
    def may_fall_back(self) -> bool:
        """Whether a call may use gRPC if no connection could be made."""
        return self._transport == "auto"

    def reached(self, address: str) -> None:
        """Take note of a response, after which an outage is a new one."""
        if address in self._avoided:
            with self._lock:
                self._avoided.pop(address, None)

    def avoid(self, address: str, native_address: str, error: HeadraceError) -> None:
        """Do not try a port for a while; log a warning the first time since it was reached."""
        with self._lock:
            is_first = address not in self._avoided
            self._avoided[address] = time.monotonic() + AVOID_S
            self.fallbacks += 1
        if is_first and self.may_fall_back:
            _log.warning(
                "the native protocol at %s cannot be used, so broker %s is called over gRPC; tried again every %g s: "
                "%s",
                native_address, address, AVOID_S, error.message,
            )  # fmt: skip


class BegunConnection(Protocol):
    """A connection to one broker."""

    def begin(self, request: NativeRequest, done: Done, session: str = "") -> int:
        """Send a request, after `session` if the server does not have this token yet; `done` is called with its result.

        Return its number.
        """

    def cancel(self, number: int) -> None:
        """Cancel a request."""


class NativeCaller(ABC):
    """Native calls of one client, blocking or asyncio."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self.ports = NativePorts(config)

    @abstractmethod
    def connection(self, native_address: str, session: str = "") -> BegunConnection:
        """Return the connection to an address, opened on first use with the token `session`.

        Raises:
            ClosedError: After `close`.
            ConfigError: If the token would be sent in plain text.
        """

    def check_session(self, native_address: str, session: str) -> None:
        """Refuse to open a connection that would carry a token in plain text; raise as `refuse_plaintext`."""
        if session:
            refuse_plaintext(self._config, native_address)

    def begin(
        self, address: str, make_request: MakeRequest, done: Done, session: str = ""
    ) -> Callable[[], None] | None:
        """Send a request to the broker at `address`; return a function that cancels it, or `None` if gRPC must be used.

        `done` is called with a `NotConnectedError` if nothing was sent; the call may use gRPC if `may_fall_back`.

        Raises:
            ClosedError: After `close`.
            ConfigError: If the token `session` would be sent in plain text.
            NotConnectedError: If the broker supports gRPC only, and transport='native'.
        """
        native_address = self.ports.find(address)
        if not native_address:
            self.ports.require(address)
            return None
        connection = self.connection(native_address, session)

        def ended(frame: Frame | None, error: HeadraceError | None) -> None:
            if isinstance(error, NotConnectedError):
                self.ports.avoid(address, native_address, error)
            elif frame is not None:
                self.ports.reached(address)
            done(frame, error)

        number = connection.begin(make_request(), ended, session)
        return lambda: connection.cancel(number)

    def outcome(
        self, address: str, method: NativeCallMethod, frame: Frame | None, error: HeadraceError | None
    ) -> tuple[bool, Any]:
        """Return the result of `call`, or raise its error."""
        if isinstance(error, NotConnectedError) and self.ports.may_fall_back:
            return False, None
        if frame is None:
            assert error is not None
            raise error
        return True, parse_answer(method.parse, frame, address)
