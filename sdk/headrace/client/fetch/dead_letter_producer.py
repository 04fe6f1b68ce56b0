"""Producer of dead letters of one blocking consumer or reader. `dead_letter_producer_async` is the asyncio one."""

import contextlib
import threading
from collections.abc import Iterable

from headrace.client.base.config import ClientConfig
from headrace.client.fetch.dead_letters import DeadLetter, producer_settings
from headrace.client.producer.producer import Producer
from headrace.wire.errors import HeadraceError


class DeadLetterProducer:
    """Producer owned by one consumer, reader or run; any thread. It connects when it writes the first dead letter."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._producer: Producer | None = None

    def write(self, topic: str, letters: Iterable[DeadLetter]) -> None:
        """Write dead letters and wait until they are stored.

        Raises:
            HeadraceError: If a letter was not stored.
        """
        with self._lock:
            if self._producer is None:
                self._producer = Producer(**producer_settings(self._config))
        send = self._producer.send
        futures = [send(topic, letter.value, letter.key, headers=letter.headers) for letter in letters]
        for future in futures:
            future.result()

    def close(self, timeout: float = 0) -> None:
        """Close the producer. Errors of failed letters were already raised by `write`."""
        if self._producer is not None:
            with contextlib.suppress(HeadraceError):
                self._producer.close(timeout)
