"""The shipped `LeaseKeeper` with a task of a virtual loop in the place of its thread.

What it makes of an answer, or of none, is its own; how often it asks is repeated here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headrace.wire.errors import MetastoreUnavailableError
from headrace_server.metastore.lease import LeaseKeeper, LeaseState

if TYPE_CHECKING:
    from tests.simulation.virtual_loop import LoopMetastore


class LoopRenewer:
    """Renews through the metastore of a virtual loop."""

    def __init__(self, metastore: LoopMetastore) -> None:
        self._metastore = metastore

    async def renew_soon(self, lease_id: int, timeout_s: float) -> int:
        """As `LeaseRenewer.renew`, for a task. Raises TimeoutError, too."""
        async with asyncio.timeout(timeout_s):
            return await self._metastore.renew_lease(lease_id)

    def close(self) -> None:
        """Nothing is held."""


class VirtualKeeper(LeaseKeeper):
    """See the module."""

    def start(self) -> None:
        """Begin to renew."""
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._keep())

    async def stop(self) -> None:
        """Renew no more."""
        self._stopping = True
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _keep(self) -> None:
        pause_s = self._ttl_ms / 3_000
        renewer: Any = self._renewer
        await asyncio.sleep(pause_s)
        while self._state is not LeaseState.LOST:
            sent_ms = self._clock.boottime_ms()
            try:
                ttl_ms = await renewer.renew_soon(self.lease_id, pause_s)
            except (MetastoreUnavailableError, TimeoutError):
                self._note_silence()
                await asyncio.sleep(pause_s / 4)
            else:
                self._take_answer(sent_ms, ttl_ms)
                await asyncio.sleep(pause_s)
