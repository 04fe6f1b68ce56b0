"""Decides who may read the pages of metrics, which name topics, groups and users.

It is the right `describe` on the cluster, which the role `monitor` gives, as the posture says; health needs no
identity. The HTTP endpoint asks from its own thread and the process's event loop decides, because the identities
belong to it. While that loop is blocked, who read a page before may read it again: metrics show why it is blocked.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from headrace.wire.errors import HeadraceError, NotAuthorizedError, UnauthenticatedError

from headrace_server.identity.gate import IdentityGate
from headrace_server.identity.rights import Operation, ResourceKind
from headrace_server.methods import KIB, Method, Right

METHOD = "Metrics"
"""Name of a page of metrics in metrics and in the audit log."""
DECISION_SECONDS = 1.0
"""Time for a decision of the event loop."""
MAX_REMEMBERED_READERS = 100
_ROW = Method(16 * KIB, 1, right=Right(Operation.DESCRIBE, ResourceKind.CLUSTER))


class PageRefusal(NamedTuple):
    """Why a page is not served."""

    status: str
    """HTTP status with its phrase."""
    reason: str


_STARTING = PageRefusal("503 Service Unavailable", "this process does not know its callers yet; try again soon")
_BLOCKED = PageRefusal("503 Service Unavailable", "the event loop of this process is blocked; try again soon")


class MetricsAccess:
    """See the module. Made on the event loop of the process.

    Args:
        is_closed: whether pages need an identity before the gate is known.
    """

    def __init__(self, *, is_closed: bool) -> None:
        self.gate: IdentityGate | None = None
        """Set once the cluster is known."""
        self._is_closed = is_closed
        self._loop = asyncio.get_running_loop()
        self._readers: OrderedDict[tuple[str, ...], None] = OrderedDict()

    async def refusal(self, token: str, names: Sequence[str], address: str) -> PageRefusal | None:
        """Return why a page is not served, or `None`; called on the loop of the HTTP endpoint.

        Args:
            token: session token or API key of the request; may be empty.
            names: names in the verified certificate of the connection, if any.
        """
        reader = (token, *names)
        deciding = asyncio.run_coroutine_threadsafe(self._decide(token, names, address), self._loop)
        try:
            refused = await asyncio.wait_for(asyncio.wrap_future(deciding), DECISION_SECONDS)
        except TimeoutError:
            return None if reader in self._readers else _BLOCKED
        self._readers.pop(reader, None)
        if refused is None:
            self._readers[reader] = None
            if len(self._readers) > MAX_REMEMBERED_READERS:
                self._readers.popitem(last=False)
        return refused

    async def _decide(self, token: str, names: Sequence[str], address: str) -> PageRefusal | None:
        if self.gate is None or not self.gate.view.source.revision:
            return _STARTING if self._is_closed else None
        try:
            self.gate.admit(self.gate.identify(token, names, METHOD, address), METHOD, _ROW, address)
        except UnauthenticatedError as error:
            return PageRefusal("401 Unauthorized", f"{error}")
        except NotAuthorizedError as error:
            return PageRefusal("403 Forbidden", f"{error}")
        except HeadraceError as error:
            return PageRefusal("503 Service Unavailable", f"{error}")
        return None
