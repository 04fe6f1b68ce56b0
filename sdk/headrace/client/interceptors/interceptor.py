"""Producer interceptors: application objects that are called for each batch (Kafka's `ProducerInterceptor`)."""

import contextlib
import logging
from collections.abc import Awaitable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from headrace.client.base.errors import ConfigError
from headrace.wire.errors import HeadraceError
from headrace.wire.ids import TopicPartition

_log = logging.getLogger("headrace.client")


class ProducedBatch(NamedTuple):
    """Batch as an interceptor receives it; `on_sealed` and `on_finished` receive equal ones."""

    where: TopicPartition
    record_count: int
    timestamp_ms: int
    """Timestamp of records without their own, in ms since 1970."""
    timestamps_ms: Sequence[int | None] | None
    """One entry per record, `None` for `timestamp_ms`; `None` means that no record has its own timestamp."""


@runtime_checkable
class ProducerInterceptor(Protocol):
    """Interceptor of a producer, passed as `Producer(interceptors=[...])`.

    `on_sealed` and `on_finished` are called once per batch, on any thread, and must return quickly and not call the
    producer: they run under its locks. An exception is logged and has no effect on the records.
    """

    def on_sealed(self, batch: ProducedBatch) -> None:
        """Process a batch that is complete and queued; retries are not reported."""

    def on_finished(self, batch: ProducedBatch, error: HeadraceError | None) -> None:
        """Process the result of a batch: `None`, or its error; `error.outcome` states whether it may be in the log."""

    def close(self, timeout: float | None) -> Awaitable[None] | None:
        """Release resources within `timeout` seconds (`None` disables the limit), after every batch has finished.

        `headrace.aio.Producer` awaits the result; with `headrace.Producer` it must be `None`.
        """


class Interceptors:
    """Interceptors of one producer. An exception of one is logged, and the others are still called."""

    def __init__(self, interceptors: Sequence[ProducerInterceptor]) -> None:
        """Check the interceptors.

        Raises:
            ConfigError: If one does not have the methods of a `ProducerInterceptor`.
        """
        for each in interceptors:
            if not isinstance(each, ProducerInterceptor):
                raise ConfigError(f"interceptors: {each!r} does not have on_sealed, on_finished and close")
        self._all = tuple(interceptors)

    def __bool__(self) -> bool:
        return bool(self._all)

    def on_sealed(self, batch: ProducedBatch) -> None:
        """Call each interceptor for a queued batch."""
        for each in self._all:
            with _logged(each, BaseException):
                each.on_sealed(batch)

    def on_finished(self, batch: ProducedBatch, error: HeadraceError | None) -> None:
        """Call each interceptor with the result of a batch."""
        for each in self._all:
            with _logged(each, BaseException):
                each.on_finished(batch, error)

    def close(self, timeout: float | None) -> None:
        """Close each interceptor."""
        for each in self._all:
            with _logged(each):
                each.close(timeout)

    async def aclose(self, timeout: float | None) -> None:
        """Close each interceptor, and await its result."""
        for each in self._all:
            with _logged(each):
                closing = each.close(timeout)
                if closing is not None:
                    await closing


@contextlib.contextmanager
def _logged(interceptor: ProducerInterceptor, logged: type[BaseException] = Exception) -> Iterator[None]:
    """`logged` is BaseException where SystemExit would end a thread that other batches need."""
    try:
        yield
    except KeyboardInterrupt:  # On the main thread.
        raise
    except logged:
        _log.exception("the interceptor %r failed; records are not affected", interceptor)
