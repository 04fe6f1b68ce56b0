"""A metastore whose answers get lost, between code under test and a metastore in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headrace_server.metastore.api import MetastoreUnknownOutcomeError

LOST, NEVER, LATE = "answer lost", "never arrived", "arrives late"


class LossyMetastore:
    """Passes on to another metastore; the next transactions lose their answer, or never arrive, as `faults` says."""

    def __init__(self, inner: Any, faults: Sequence[str] = ()) -> None:
        self._inner = inner
        self.faults = list(faults)
        """One a transaction: empty, `LOST` (it is applied), `NEVER`, or `LATE`: with `arrive`."""
        self._late: list[tuple[Sequence[Any], Sequence[Any], Sequence[Any]]] = []
        self.sent: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = []
        self.before_txn: Callable[[Any, Any], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def txn(self, compares: Sequence[Any], success: Sequence[Any], failure: Sequence[Any] = ()) -> Any:
        """Pass on a transaction, as the next fault says."""
        self.sent.append((tuple(compares), tuple(success)))
        if self.before_txn is not None:
            await self.before_txn(compares, success)
        fault = self.faults.pop(0) if self.faults else ""
        if fault == LATE:
            self._late.append((compares, success, failure))
        if fault in (NEVER, LATE):
            raise MetastoreUnknownOutcomeError(fault)
        result = await self._inner.txn(compares, success, failure)
        if fault == LOST:
            raise MetastoreUnknownOutcomeError(fault)
        return result

    async def arrive(self) -> None:
        """Let the late transactions arrive."""
        while self._late:
            await self._inner.txn(*self._late.pop(0))
