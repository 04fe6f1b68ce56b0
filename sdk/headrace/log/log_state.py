"""What the parts of one log share: its segments, epochs and bounds, and whether it has failed or is closed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.log.environment import LogEnvironment
from headrace.log.errors import LogClosedError, is_refused, storage_error, storage_offline
from headrace.log.recovery import Recovered
from headrace.log.segments import SegmentList
from headrace.log.settings import LogSettings
from headrace.wire.errors import HeadraceError, Outcome, StorageOfflineError


class LogState:
    """Bounds of a log. Changed by its `PartitionLog` under the lock of its segment list; read by any thread."""

    __slots__ = (
        "closed",
        "directory",
        "end",
        "environment",
        "epochs",
        "flushed",
        "high_watermark",
        "log_start_offset",
        "offline_error",
        "segments",
        "settings",
        "truncations",
        "uncut",
    )

    def __init__(
        self, environment: LogEnvironment, segments: SegmentList, settings: LogSettings, recovered: Recovered
    ) -> None:
        self.environment = environment
        self.segments = segments
        self.directory = segments.directory
        self.settings = settings
        # Guarded by the segment list's lock.
        self.epochs = recovered.epochs
        self.log_start_offset = recovered.log_start_offset
        # Where the next batch goes.
        self.end = recovered.end
        # Everything below is fsynced.
        self.flushed = recovered.end
        # As last given to `checkpoint`.
        self.high_watermark = recovered.high_watermark
        # The first I/O error; after it the log does nothing any more (H34).
        self.offline_error: StorageOfflineError | None = None
        # Set by `close`, under the round lock; the log does nothing any more.
        self.closed = False
        # How often the end was cut: what a look-up has found before a cut is of no use after it.
        self.truncations = 0
        # The disk has bytes, segments or epochs beyond the log end; they go before anything is appended (H32, H35).
        self.uncut = False

    def check_online(self) -> None:
        """Raise if an I/O error was met before, or if the log is closed."""
        if self.closed:
            raise LogClosedError(
                f"the log {self.directory} is closed", outcome=Outcome.NOT_APPLIED, retriable=True, action="Try again."
            )
        if self.offline_error is not None:
            raise StorageOfflineError(
                f"the log {self.directory} is offline since: {self.offline_error.message}",
                action=self.offline_error.action,
            )

    def go_offline(self, error: OSError) -> StorageOfflineError:
        """Note an I/O error for ever and return the error to raise."""
        failure = storage_offline(self.directory, error)
        if self.offline_error is None:
            self.offline_error = failure
            self.environment.on_io_error()
        return failure

    def failed(self, error: OSError) -> HeadraceError:
        """Return the error to raise for a failed disk call; one that is not a refusal takes the log offline."""
        return storage_error(self.directory, error) if is_refused(error) else self.go_offline(error)

    @contextmanager
    def disk(self) -> Iterator[None]:
        """Run disk calls: a refusal is raised, every other failure takes the log offline."""
        try:
            yield
        except OSError as error:
            raise self.failed(error) from error
