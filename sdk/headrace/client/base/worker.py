"""Periodic background work of a client on its own thread; `worker_async` has the task of an event loop."""

import threading
from collections.abc import Callable


class Worker:
    """Calls `work` soon after each `wake`, and once per interval. The thread starts with the first `wake`."""

    def __init__(self, name: str, work: Callable[[], object], *, interval_s: float, pause_s: float) -> None:
        """`name` is that of the thread; two calls are at least `pause_s` apart."""
        self._name = name
        self._work = work
        self._interval_s = interval_s
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._woken = threading.Event()
        self._stopped = threading.Event()

    def wake(self) -> None:
        """Call `work` soon; any thread."""
        with self._lock:
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        self._woken.set()

    def stop(self, timeout: float) -> bool:
        """Stop the calls; return whether a call may have been running and has ended in time."""
        with self._lock:
            self._stopped.set()
            self._woken.set()
        if self._thread is None:
            return False
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            self._woken.wait(self._interval_s)
            self._woken.clear()
            if self._stopped.is_set():
                return
            self._work()
            self._stopped.wait(self._pause_s)
