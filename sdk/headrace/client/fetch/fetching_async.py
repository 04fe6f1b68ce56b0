"""I/O of asyncio readers: connections and dead letters. Used on one event loop.

`FetchManager` makes the decisions; its operations run in the background of this fetcher.
"""

from collections.abc import Callable
from typing import Any

from headrace.client.base.acompat import ashielded
from headrace.client.base.background_async import AsyncBackgroundLoop
from headrace.client.base.config import FetchConfig
from headrace.client.fetch.corrupt_batches import WriteLetters
from headrace.client.fetch.dead_letter_producer_async import AsyncDeadLetterProducer
from headrace.client.fetch.fetch_manager import FetchManager
from headrace.client.net.transport import open_connections_async

STOP_TIMEOUT_S = 5.0


class AsyncFetcher:
    """I/O layer of one consumer or reader."""

    def __init__(self, config: FetchConfig, what: str, auto_offset_reset: str) -> None:
        """See `FetchManager`. Connects when first used."""
        self._connections = open_connections_async(what, config)
        self._dead_letters = AsyncDeadLetterProducer(config)
        self._background = AsyncBackgroundLoop(f"headrace-{what.lower()}", self.arun_step)
        self.manager = FetchManager(config, what, self._background, auto_offset_reset)

    async def arun_step(self, step: Any) -> Any:
        """Perform one step; return its result."""
        match step:
            case WriteLetters():
                return await self._dead_letters.write(step.topic, step.letters)
        return await self._connections.run_step(step)

    @property
    def grpc_fallbacks(self) -> int:
        """See `CallStats`."""
        return self._connections.native.ports.fallbacks

    async def aclose(self) -> None:
        """End the background and close the connections, within seconds. Calling it again does nothing."""
        if self.manager.begin_close():
            await ashielded(self._close())

    async def _close(self) -> None:
        self._background.close()
        await self._connections.close()
        await self._dead_letters.close()
        await self._background.join(STOP_TIMEOUT_S)

    def close_unclosed(self, owner: object, close: Callable[[], Any]) -> None:
        """Close the connections of an owner that was garbage-collected without a close."""
        if self._connections.is_open and self.manager.is_usable:
            self._background.close_unclosed(owner, close)
