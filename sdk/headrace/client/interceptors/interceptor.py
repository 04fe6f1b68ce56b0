"""Producer interceptors: objects of the application that are called for each batch (Kafka's `ProducerInterceptor`)."""

import contextlib
import logging
from collections.abc import Awaitable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from headrace.client.base.errors import ConfigError
from headrace.wire.errors import HeadraceError
from headrace.wire.ids import TopicPartition

_log = logging.getLogger("headrace.client")


class ProducedBatch(NamedTuple):
    """What an interceptor receives of a batch; `on_sealed` and `on_finished` receive equal ones."""

    where: TopicPartition
    record_count: int
    timestamp_ms: int
    """The timestamp of the records that have none of their own, in ms since 1970."""
    timestamps_ms: Sequence[int | None] | None
    """One entry a record, None for `timestamp_ms`; None: no record has a timestamp of its own."""


@runtime_checkable
class ProducerInterceptor(Protocol):
    """Is called for each batch of a producer, in `Producer(interceptors=[...])`.

    `on_sealed` and `on_finished` are called once a batch, from any thread, and must return quickly and not call the
    producer: they run under its locks. An exception is logged and changes nothing for the records.
    """

    def on_sealed(self, batch: ProducedBatch) -> None:
        """Note a batch that is complete and queued; retries are not reported."""

    def on_finished(self, batch: ProducedBatch, error: HeadraceError | None) -> None:
        """Note what became of a batch: None, or why it failed; `error.outcome` is whether it may be in the log."""

    def close(self, timeout: float | None) -> Awaitable[None] | None:
        """Release what it holds, within `timeout` seconds (None: no limit), after every batch has finished.

        `headrace.aio.Producer` awaits what it returns; with `headrace.Producer` it returns None.
        """


class Interceptors:
    """The interceptors of one producer. An exception of one is logged, and the others are still called."""

    def __init__(self, interceptors: Sequence[ProducerInterceptor]) -> None:
        """Check them.

        Raises:
            ConfigError: one does not have the methods of a `ProducerInterceptor`.
        """
        for each in interceptors:
            if not isinstance(each, ProducerInterceptor):
                raise ConfigError(f"interceptors: {each!r} does not have on_sealed, on_finished and close")
        self._all = tuple(interceptors)

    def __bool__(self) -> bool:
        return bool(self._all)

    def on_sealed(self, batch: ProducedBatch) -> None:
        """Call each for a batch that is queued."""
        for each in self._all:
            with _logged(each):
                each.on_sealed(batch)

    def on_finished(self, batch: ProducedBatch, error: HeadraceError | None) -> None:
        """Call each with the result of a batch."""
        for each in self._all:
            with _logged(each):
                each.on_finished(batch, error)

    def close(self, timeout: float | None) -> None:
        """Close each."""
        for each in self._all:
            with _logged(each):
                each.close(timeout)

    async def aclose(self, timeout: float | None) -> None:
        """Close each, and await what it returns."""
        for each in self._all:
            with _logged(each):
                closing = each.close(timeout)
                if closing is not None:
                    await closing


@contextlib.contextmanager
def _logged(interceptor: ProducerInterceptor) -> Iterator[None]:
    try:
        yield
    except Exception:
        _log.exception("the interceptor %r failed; records are not affected", interceptor)
