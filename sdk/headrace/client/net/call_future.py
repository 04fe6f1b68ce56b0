"""Future of a call that a client has begun."""

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any


class CallFuture(Future[Any]):
    """Future of a call that may begin later, or be made twice."""

    def __init__(self) -> None:
        super().__init__()
        self._cancel: Callable[[], object] | None = None

    def begun(self, cancel: Callable[[], object]) -> None:
        """Keep what cancels the call in flight."""
        self._cancel = cancel
        if self.cancelled():
            cancel()

    def cancel(self) -> bool:
        """Cancel the call in flight, or do not begin it."""
        is_cancelled = super().cancel()
        if self._cancel is not None:
            self._cancel()
        return is_cancelled

    def ended(self, answer: Any, error: Exception | None) -> None:
        """Set the result; ignored after `cancel`."""
        try:
            if error is None:
                self.set_result(answer)
            else:
                self.set_exception(error)
        except InvalidStateError:
            return
