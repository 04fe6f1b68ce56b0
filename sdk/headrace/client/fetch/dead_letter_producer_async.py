"""Producer of dead letters of one asyncio consumer or reader. `dead_letter_producer` is the blocking one."""

import contextlib
from collections.abc import Iterable

from headrace.client.base.config import ClientConfig
from headrace.client.fetch.dead_letters import DeadLetter, producer_settings
from headrace.client.producer.producer_async import Producer
from headrace.wire.errors import HeadraceError


class AsyncDeadLetterProducer:
    """Producer owned by one consumer, reader or run. It connects when it writes the first dead letter."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._producer: Producer | None = None

    async def write(self, topic: str, letters: Iterable[DeadLetter]) -> None:
        """Write dead letters and wait until they are stored.

        Raises:
            HeadraceError: If a letter was not stored.
        """
        if self._producer is None:
            self._producer = Producer(**producer_settings(self._config))
        send = self._producer.send
        futures = [await send(topic, letter.value, letter.key, headers=letter.headers) for letter in letters]
        for future in futures:
            await future

    async def close(self, timeout: float = 0) -> None:
        """Close the producer. Errors of failed letters were already raised by `write`."""
        if self._producer is not None:
            with contextlib.suppress(HeadraceError):
                await self._producer.close(timeout)
