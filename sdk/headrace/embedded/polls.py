"""Calls that wait for a change of the directory: fetches at the end of a log, heartbeats of members.

An attempt is made when the call begins, after each change, and at its deadline, which is the last one. Blocking callers
wait on their own thread; the others share one thread of the directory. Thread-safe.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

Attempt: TypeAlias = Callable[[bool], Any]
"""Returns the response, or `None` to wait; its argument is whether there is no more time."""

Ended: TypeAlias = Callable[[Any, Exception | None], None]
"""Called once with the response, or with the error."""


class Poll:
    """Call that waits, of a caller that does not."""

    __slots__ = ("attempt", "deadline", "ended", "owner")

    def __init__(self, owner: object, attempt: Attempt, deadline: float, ended: Ended) -> None:
        self.owner = owner
        self.attempt = attempt
        self.deadline = deadline
        self.ended = ended


class Polls:
    """Waiting calls of one directory."""

    def __init__(self, look_seconds: float | None = None) -> None:
        """`look_seconds` is the interval of attempts without a known change: of a directory that others write."""
        self._look_seconds = look_seconds
        self._changed = threading.Condition()
        self._version = 0
        self._waiting = 0
        self._polls: dict[Poll, None] = {}
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @property
    def thread(self) -> threading.Thread | None:
        """Thread on which calls end; `None` before the first one."""
        return self._thread

    def notify(self) -> None:
        """Let the waiting calls try again. Cheap if there are none."""
        if self._waiting or self._polls:
            with self._changed:
                self._version += 1
                self._changed.notify_all()

    def wait(self, attempt: Attempt, deadline: float) -> Any:
        """Return the response of a call, at the latest at `deadline` of the monotonic clock."""
        while True:
            with self._changed:
                self._waiting += 1
                version = self._version
            try:
                response = attempt(self._is_closed or time.monotonic() >= deadline)
                if response is not None:
                    return response
                with self._changed:
                    if self._version == version:
                        self._changed.wait(self._seconds(deadline))
            finally:
                with self._changed:
                    self._waiting -= 1

    def begin(self, owner: object, attempt: Attempt, deadline: float, ended: Ended) -> Poll:
        """Start a call of `owner` without a wait for it; `ended` is called on the directory's thread."""
        poll = Poll(owner, attempt, deadline, ended)
        with self._changed:
            self._polls[poll] = None
            self._version += 1
            if self._thread is None or self._is_closed:  # Which answers the last calls, and ends.
                self._thread = threading.Thread(target=self._run, name="headrace-polls", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return poll

    def cancel(self, poll: Poll) -> None:
        """Forget a call; its `ended` may be running."""
        with self._changed:
            self._polls.pop(poll, None)

    def cancel_all(self, owner: object, error: Exception) -> None:
        """End the calls of `owner` with an error."""
        with self._changed:
            found = [poll for poll in self._polls if poll.owner is owner]
            for poll in found:
                del self._polls[poll]
        for poll in found:
            poll.ended(None, error)

    def close(self) -> None:
        """Answer all calls that wait, and end the thread."""
        with self._changed:
            self._is_closed = True
            self._version += 1
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _seconds(self, deadline: float) -> float:
        left = max(0.0, deadline - time.monotonic())
        return left if self._look_seconds is None else min(left, self._look_seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                version, polls, is_closed = self._version, list(self._polls), self._is_closed
            for poll in polls:
                self._try(poll, is_last=is_closed or time.monotonic() >= poll.deadline)
            with self._changed:
                if is_closed:
                    return
                if self._version == version:
                    deadline = min((poll.deadline for poll in self._polls), default=None)
                    self._changed.wait(None if deadline is None else self._seconds(deadline))

    def _try(self, poll: Poll, *, is_last: bool) -> None:
        response, failure = None, None
        try:
            response = poll.attempt(is_last)
        except Exception as error:
            failure = error
        if response is None and failure is None:
            return
        with self._changed:
            if poll not in self._polls:
                return
            del self._polls[poll]
        with contextlib.suppress(RuntimeError):  # The event loop of the caller is closed.
            poll.ended(response, failure)
