"""Completed fetch that a consumer is delivering, decoded one batch at a time. Does not wait."""

from collections.abc import Iterator

from headrace.client.base.config import ConsumerConfig
from headrace.client.base.records import DecodedBatch
from headrace.client.fetch.decoding import decoded_batches_of, deserializers_of
from headrace.client.fetch.partition_fetch_state import CompletedFetch
from headrace.wire.ids import TopicPartition


class OpenFetch:
    """State of one consumer, used on the thread that reads."""

    def __init__(self, config: ConsumerConfig) -> None:
        """Create it with nothing open.

        Raises:
            ConfigError: If a deserializer is unknown.
        """
        self._max_payload_bytes = config.max_payload_bytes
        self._deserializers = deserializers_of(config)
        self.completed: CompletedFetch | None = None
        """The completed fetch; `None` means that nothing is open."""
        self._decoded_batches: Iterator[DecodedBatch] = iter(())
        self.rest: DecodedBatch | None = None
        """Part of the last decoded batch that was not delivered."""

    def begin(self, completed: CompletedFetch) -> None:
        """Start decoding this fetch."""
        self.completed = completed
        self._decoded_batches = decoded_batches_of(completed, self._deserializers, self._max_payload_bytes)

    def forget(self, where: TopicPartition | None = None) -> None:
        """Drop the open fetch if it belongs to this partition; `None` means any partition."""
        if self.completed is not None and where in (None, self.completed.where):
            self.completed, self._decoded_batches, self.rest = None, iter(()), None

    def generation_of(self, decoded: DecodedBatch) -> int:
        """Return the generation for which a decoded batch was fetched; -1 means it is not of the open fetch."""
        completed = self.completed
        return completed.generation if completed is not None and completed.where == decoded.source else -1

    def take_rest(self) -> DecodedBatch | None:
        """Return the part of the last decoded batch that was not delivered, once."""
        rest, self.rest = self.rest, None
        return rest

    def decode(self) -> DecodedBatch | None:
        """Decode the next batch; return `None` if none is left. After an error nothing is open.

        Raises:
            CorruptBatchError, UnsupportedCodecError: If the batch cannot be decoded.
        """
        if self.completed is None:
            return None
        try:
            return self._next()
        except Exception:
            self.forget()
            raise

    def decode_unless_error(self) -> DecodedBatch | None:
        """Decode the next batch; `None` if none is left, or if that fails: the fetch stays open, and `decode` raises.

        So a poll that has received records returns them before the error.
        """
        try:
            return self._next()
        except Exception as error:
            self._decoded_batches = map(_raise, (error,))
            return None

    def _next(self) -> DecodedBatch | None:
        decoded = next(self._decoded_batches, None)
        if decoded is None:
            self.completed = None
        return decoded


def _raise(error: Exception) -> DecodedBatch:
    raise error
