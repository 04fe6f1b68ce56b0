"""Which coordinator a group's member asks. No I/O.

All members of a group prefer the same coordinator (`group_routing`); another one is asked when it fails.
"""

from typing import Any

import grpc

from headrace.client.base.background import LongPollCall, Signal
from headrace.client.base.config import ClientConfig
from headrace.client.base.errors import NoBrokersAvailableError
from headrace.client.base.operations import Call, Operation
from headrace.client.net.bootstrap_client import BootstrapClient, error_of_call
from headrace.client.net.group_routing import coordinators_for
from headrace.v1 import cluster_pb2


class CoordinatorSelector:
    """Owned by one of a session's loops. A failure moves on to the next coordinator, an answer stays with it."""

    def __init__(self, config: ClientConfig, group_id: str, bootstrap: BootstrapClient) -> None:
        self._config = config
        self._group_id = group_id
        self._bootstrap = bootstrap
        self._turn = 0
        self.failures = 0
        """In a row."""

    def ask(self, method: str, request: Any, timeout: float, *, until: Signal | None = None) -> Operation[Any]:
        """Call the coordinator whose turn it is; None where `until` was set first.

        Raises:
            HeadraceError: why there is no answer.
        """
        call = yield from self._next_call(method, request, timeout)
        try:
            return (yield call if until is None else LongPollCall(call, until))
        except grpc.RpcError as error:
            raise error_of_call(error) from error

    def _next_call(self, method: str, request: Any, timeout: float) -> Operation[Call]:
        """Make the call to be sent next; asks for the coordinators where they are not known or have all failed.

        Raises:
            NoBrokersAvailableError: nobody knows a coordinator.
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
            raise NoBrokersAvailableError(dict.fromkeys(self._config.addresses, "knows no coordinator"))
        ranked = coordinators_for(self._group_id, known)
        return Call(ranked[self._turn % len(ranked)], "groups", method, request, timeout)

    def answered(self) -> None:
        """Note an answer, also one that refuses."""
        self.failures = 0

    def failed(self) -> None:
        """Note that there was none: the next one is asked."""
        self.failures += 1
        self._turn += 1
