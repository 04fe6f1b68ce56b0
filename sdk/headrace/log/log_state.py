"""State shared by the parts of one log: its segments, epochs and bounds, and whether it is offline or closed."""

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
        # Position of the next batch.
        self.end = recovered.end
        # All bytes below are fsynced.
        self.flushed = recovered.end
        # Last value passed to `checkpoint`.
        self.high_watermark = recovered.high_watermark
        # First I/O error; afterwards every operation is refused (H34).
        self.offline_error: StorageOfflineError | None = None
        # Set by `close` under the round lock; afterwards every operation is refused.
        self.closed = False
        # Number of truncations: results of a look-up before a truncation are invalid after it.
        self.truncations = 0
        # The disk has bytes, segments or epochs beyond the log end; they are removed before the next append (H32, H35).
        self.uncut = False

    def check_online(self) -> None:
        """Raise an error if the log is closed or had an I/O error."""
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
        """Record an I/O error permanently and return the error to raise."""
        failure = storage_offline(self.directory, error)
        if self.offline_error is None:
            self.offline_error = failure
            self.environment.on_io_error()
        return failure

    def failed(self, error: OSError) -> HeadraceError:
        """Return the error to raise for a failed disk call; unless it is a refusal, take the log offline."""
        return storage_error(self.directory, error) if is_refused(error) else self.go_offline(error)

    @contextmanager
    def disk(self) -> Iterator[None]:
        """Run disk calls: a refusal is raised, any other failure takes the log offline."""
        try:
            yield
        except OSError as error:
            raise self.failed(error) from error
