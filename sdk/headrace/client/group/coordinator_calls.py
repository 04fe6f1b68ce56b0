"""Selection of the coordinator that a group member calls. No I/O.

All members of a group prefer the same coordinator (`group_routing`) and call another one when it fails.
"""

import time
from typing import Any

from headrace.client.base.background import LongPollCall, Signal
from headrace.client.base.config import ClientConfig
from headrace.client.base.errors import ClosedError, NoBrokersAvailableError
from headrace.client.base.operations import Call, Operation, Pause
from headrace.client.base.retry import Backoff
from headrace.client.net.bootstrap_client import BootstrapClient, error_of_call
from headrace.client.net.group_routing import coordinators_for
from headrace.v1 import cluster_pb2
from headrace.wire.errors import HeadraceError, rpc_failures

TRY_TIMEOUT_S = 3.0
"""Timeout of one try, which another coordinator can repeat: a coordinator on a dead machine never responds."""


class CoordinatorSelector:
    """Selector of one loop of a session. A failure selects the next coordinator."""

    def __init__(self, config: ClientConfig, group_id: str, bootstrap: BootstrapClient) -> None:
        self._config = config
        self._group_id = group_id
        self._bootstrap = bootstrap
        self._turn = 0
        self._known: tuple[str, ...] = ()
        self._ranked: list[str] = []
        """Known coordinators, in the order in which this group calls them."""
        self.failures = 0
        """Number of consecutive failures."""

    def ask(self, method: str, request: Any, timeout: float, *, until: Signal | None = None) -> Operation[Any]:
        """Call the selected coordinator; return `None` if `until` was set first.

        Coordinators are looked up if they are unknown or have all failed.

        Raises:
            NoBrokersAvailableError: If no server has a coordinator in its metadata.
            HeadraceError: If there is no response; states the reason.
        """
        known = self._bootstrap.coordinators
        if not known or (self.failures and self.failures % len(known) == 0):
            asked = cluster_pb2.GetMetadataRequest(brokers_only=True)
            try:
                yield from self._bootstrap.metadata(asked, min(timeout, self._config.request_timeout_ms / 1000))
            except NoBrokersAvailableError:
                if not known:
                    raise
            known = self._bootstrap.coordinators or known
        if not known:
            raise NoBrokersAvailableError(dict.fromkeys(self._config.addresses, "has no coordinator in its metadata"))
        if known != self._known:
            self._known, self._ranked = known, coordinators_for(self._group_id, known)
        call = Call(self._ranked[self._turn % len(self._ranked)], "groups", method, request, timeout)
        try:
            return (yield call if until is None else LongPollCall(call, until))
        except rpc_failures() as error:
            raise error_of_call(error) from error

    def ask_until(self, method: str, request: Any, seconds: float, backoff: Backoff) -> Operation[Any]:
        """Repeat a call until a coordinator responds or the time is up.

        Raises:
            HeadraceError: The error that a coordinator returned, or the last failure at the timeout.
        """
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.1, deadline - time.monotonic())
            try:
                return (yield from self.ask(method, request, min(left, TRY_TIMEOUT_S)))
            except ClosedError:
                raise
            except HeadraceError as error:
                if not error.retriable or time.monotonic() >= deadline:
                    raise
                self.failed()
            yield Pause(backoff.delay_ms(self.failures) / 1000)

    def answered(self) -> None:
        """Record a response, which may be an error of the coordinator."""
        self.failures = 0

    def failed(self) -> None:
        """Record that there was no response, and select the next coordinator."""
        self.failures += 1
        self._turn += 1
