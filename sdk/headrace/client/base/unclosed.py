"""Clients that were dropped without `close`: a ResourceWarning, then the close itself.

`__del__` of each client calls this. The garbage collector runs it on any thread, between any two instructions, so the
thread may hold a lock of the client. Therefore nothing here takes one of these locks: the close runs on its own thread,
or in a task of the client's event loop.
"""

import atexit
import contextlib
import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from headrace.wire.errors import HeadraceError

if TYPE_CHECKING:
    import asyncio

ATEXIT_TIMEOUT_S = 5.0

_log = logging.getLogger("headrace.client")
_threads: set[threading.Thread] = set()
_tasks: set["asyncio.Task[Any]"] = set()


def warn_unclosed(client: object) -> None:
    """Warn that the application dropped an open client."""
    warnings.warn(f"unclosed {client!r}: use `with`, or call close()", ResourceWarning, stacklevel=2, source=client)


def close_in_thread(client: object, close: Callable[[], object]) -> None:
    """Warn, and run `close` on a thread. The exit of the interpreter waits a few seconds for it."""
    if not sys.is_finalizing():
        thread = threading.Thread(target=_close, args=(close,), name="headrace-close", daemon=True)
        with contextlib.suppress(RuntimeError):  # The interpreter is exiting and starts no thread.
            thread.start()
            _threads.add(thread)
    warn_unclosed(client)


def close_in_loop(
    client: object, loop: "asyncio.AbstractEventLoop", close: Callable[[], Coroutine[Any, Any, object]]
) -> None:
    """Warn, and await `close` in a task of `loop`. A closed loop has already ended the client's tasks."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(_start_task, close)
    warn_unclosed(client)


def _close(close: Callable[[], object]) -> None:
    try:
        close()
    except HeadraceError as error:
        _log.error("closing a client that the application dropped failed: %s", error)
    finally:
        _threads.discard(threading.current_thread())


async def _aclose(close: Callable[[], Coroutine[Any, Any, object]]) -> None:
    try:
        await close()
    except HeadraceError as error:
        _log.error("closing a client that the application dropped failed: %s", error)


def _start_task(close: Callable[[], Coroutine[Any, Any, object]]) -> None:
    import asyncio

    task = asyncio.ensure_future(_aclose(close))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


def _await_threads() -> None:
    deadline = time.monotonic() + ATEXIT_TIMEOUT_S
    for thread in list(_threads):
        thread.join(max(0.0, deadline - time.monotonic()))


atexit.register(_await_threads)
