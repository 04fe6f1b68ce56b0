"""What the parts of one log share: its bounds, and whether its disk has failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.wire.errors import StorageOfflineError

from headrace_broker.storage.checkpoint import Mark
from headrace_broker.storage.errors import storage_offline
from headrace_broker.storage.settings import LogSettings


class LogState:
    """Bounds of a log. Changed by its `PartitionLog` under the lock of its segment list; read by any thread."""

    __slots__ = (
        "_on_io_error",
        "directory",
        "end",
        "flushed",
        "high_watermark",
        "log_start_offset",
        "offline_error",
        "settings",
    )

    def __init__(self, directory: str, settings: LogSettings, end: Mark, on_io_error: Callable[[], None]) -> None:
        self.directory = directory
        self._on_io_error = on_io_error
        self.settings = settings
        self.log_start_offset = 0
        # Where the next batch goes.
        self.end = end
        # Everything below is fsynced.
        self.flushed = end
        # As last given to `checkpoint`.
        self.high_watermark = 0
        # The first I/O error; after it the log does nothing any more (H34).
        self.offline_error: StorageOfflineError | None = None

    def check_online(self) -> None:
        """Raise if an I/O error was met before."""
        if self.offline_error is not None:
            raise StorageOfflineError(
                f"the log {self.directory} is offline since: {self.offline_error.message}",
                action="Restart the broker after the disk is repaired.",
            )

    def go_offline(self, error: OSError) -> StorageOfflineError:
        """Note an I/O error for ever and give the error to raise."""
        failure = storage_offline(self.directory, error)
        if self.offline_error is None:
            self.offline_error = failure
            self._on_io_error()
        return failure

    @contextmanager
    def disk(self) -> Iterator[None]:
        """Run disk calls of which each failure takes the log offline."""
        try:
            yield
        except OSError as error:
            raise self.go_offline(error) from error
