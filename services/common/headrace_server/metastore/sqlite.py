"""SQLite as the journal of a `LocalMetastore`: the metastore of a cluster in one process, in one file.

The file is in WAL mode with `synchronous=FULL`: a commit is on the disk when it returns, and after a crash SQLite
recovers whole transactions. One process has it open: SQLite's exclusive lock, which ends with the process in any way.
The file has keys with their revisions, leases, the revision and the next lease id, but no history: watches are those
of the same process, and a watch from before the start is refused as compacted.

Leases survive a restart and have their whole time again, as at a new leader of etcd. What the dead process itself had
registered is ended by the processes that start (`single`), which know that it is dead by the lock.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headrace.wire.errors import InvalidConfigError, Outcome

from headrace_server.clock import Clock, SystemClock
from headrace_server.metastore.api import KeyValue, PutEvent
from headrace_server.metastore.local import JournalFailedError, JournalFullError, LocalMetastore
from headrace_server.metastore.state import Change, Committed, LeaseGranted, MetastoreState, Snapshot

QUOTA_BYTES = 256 << 20
"""Maximum size of the database; beyond it writes are refused. The whole content is in memory, too."""
MAX_HISTORY_BYTES = 16 << 20
"""Memory of the history for watches, about; a watch that falls behind it reads everything again."""
TICK_SECONDS = 0.25
"""Interval at which leases end by themselves."""
MAX_GAP_MS = 1_000
"""Time between two readings of the lease clock that counts; see `LeaseClock`."""
WAL_BYTES = 4 << 20
"""Size to which the write-ahead log is truncated after a checkpoint."""

_APPLICATION_ID = 0x48524D53
_FORMAT_VERSION = 1
_SCHEMA = """
CREATE TABLE meta(
    id INTEGER PRIMARY KEY CHECK (id = 1), cluster_id INTEGER NOT NULL, revision INTEGER NOT NULL,
    next_lease_id INTEGER NOT NULL
);
CREATE TABLE leases(lease_id INTEGER PRIMARY KEY, ttl_ms INTEGER NOT NULL);
CREATE TABLE keys(
    key TEXT PRIMARY KEY, value BLOB NOT NULL, create_revision INTEGER NOT NULL, mod_revision INTEGER NOT NULL,
    version INTEGER NOT NULL, lease_id INTEGER NOT NULL
);
"""


class MetastoreInUseError(InvalidConfigError):
    """Another process has the database open. Stop it, or use another directory."""


class MetastoreDamagedError(InvalidConfigError):
    """The database cannot be read, or is none of headrace. Restore it, or start with an empty directory."""


class LeaseClock:
    """Time in which leases expire: that in which the store was there to renew them.

    While the process is stopped or the machine sleeps, no holder can renew, and none has failed: of a pause between two
    readings at most `MAX_GAP_MS` counts. The store reads it every `TICK_SECONDS`.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._read_ms = clock.monotonic_ms()
        self._now_ms = 0

    def now_ms(self) -> int:
        """Return the milliseconds since the start that count."""
        read_ms = self._clock.monotonic_ms()
        self._now_ms += min(max(0, read_ms - self._read_ms), MAX_GAP_MS)
        self._read_ms = read_ms
        return self._now_ms


def open_sqlite(path: Path, *, clock: Clock | None = None, quota_bytes: int = QUOTA_BYTES) -> LocalMetastore:
    """Open the metastore in the file `path`, and create it if it is missing. Call it on the event loop; run `run`.

    Raises:
        MetastoreInUseError: If another process has it open.
        MetastoreDamagedError: If the file is damaged, or no metastore.
    """
    journal = SqliteJournal(path, quota_bytes)
    now_ms: Callable[[], int] = LeaseClock(clock or SystemClock()).now_ms
    try:
        state = MetastoreState(journal.load(), max_history_bytes=MAX_HISTORY_BYTES)
    except BaseException:
        journal.close()
        raise
    return LocalMetastore(state, now_ms=now_ms, cluster_id=journal.cluster_id, journal=journal)


class SqliteJournal:
    """`local.Journal` in a file. Any thread, one at a time."""

    def __init__(self, path: Path, quota_bytes: int = QUOTA_BYTES) -> None:
        """Open and check the file; raises as `open_sqlite`."""
        self.path = str(path)
        self.quota_bytes = quota_bytes
        self.version = f"SQLite {sqlite3.sqlite_version}"
        try:
            is_new = _create(path)
        except OSError as error:
            raise MetastoreDamagedError(f"{path}: {error.strerror}", action="Check the directory.") from error
        try:
            self._connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise MetastoreDamagedError(f"{path} cannot be opened: {error}", action="Check the directory.") from error
        try:
            self._prepare(quota_bytes)
            (self.cluster_id,) = self._one("SELECT cluster_id FROM meta")
            self._sizes = self._measure()
        except BaseException as error:
            self._connection.close()
            if isinstance(error, sqlite3.Error):
                raise _opening_error(path, error) from error
            raise
        if is_new:
            _sync_directory(path.parent)

    def _prepare(self, quota_bytes: int) -> None:
        """Lock, check and, if it is empty, create the database."""
        run = self._connection.execute
        run("PRAGMA locking_mode = EXCLUSIVE")
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = FULL")
        run("PRAGMA fullfsync = ON")  # Only macOS differs: there fsync alone leaves data in the disk's cache.
        run("PRAGMA checkpoint_fullfsync = ON")
        run(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        (page_bytes,) = self._one("PRAGMA page_size")
        run(f"PRAGMA max_page_count = {quota_bytes // page_bytes}")
        run("BEGIN EXCLUSIVE")
        (application_id,), (tables,) = (
            self._one("PRAGMA application_id"),
            self._one("SELECT count(*) FROM sqlite_schema"),
        )
        if not tables and not application_id:
            for statement in _SCHEMA.split(";"):
                run(statement)
            run(f"PRAGMA application_id = {_APPLICATION_ID}")
            run(f"PRAGMA user_version = {_FORMAT_VERSION}")
            run("INSERT INTO meta VALUES (1, ?, 1, 1)", (secrets.randbits(62) + 1,))
        run("COMMIT")
        (application_id,), (version,) = self._one("PRAGMA application_id"), self._one("PRAGMA user_version")
        if application_id != _APPLICATION_ID or version != _FORMAT_VERSION:
            raise MetastoreDamagedError(
                f"{self.path} is no metastore of this release (application {application_id:#x}, format {version})",
                action="Use the release that wrote it, or another directory.",
            )
        (verdict,) = self._one("PRAGMA quick_check(1)")
        if verdict != "ok":
            raise _damaged(Path(self.path), verdict)

    def load(self) -> Snapshot:
        """See `Journal.load`. Also raises MetastoreDamagedError."""
        try:
            revision, next_lease_id = self._one("SELECT revision, next_lease_id FROM meta")
            key_values = tuple(
                KeyValue(*row)
                for row in self._connection.execute(
                    "SELECT key, value, create_revision, mod_revision, version, lease_id FROM keys ORDER BY key"
                )
            )
            leases = dict(self._connection.execute("SELECT lease_id, ttl_ms FROM leases ORDER BY lease_id").fetchall())
        except sqlite3.Error as error:
            raise _failed(self.path, error) from error
        orphan = next((found for found in key_values if found.lease_id and found.lease_id not in leases), None)
        if orphan is not None or any(found.mod_revision > revision for found in key_values):
            raise _damaged(Path(self.path), "keys and revisions contradict each other")
        return Snapshot(revision, next_lease_id, key_values, leases)

    def commit(self, revision: int, next_lease_id: int, changes: Sequence[Change]) -> None:
        """See `Journal.commit`."""
        keys: dict[str, KeyValue | None] = {}
        leases: dict[int, int | None] = {}
        for change in changes:
            match change:
                case Committed(events=events):
                    for event in events:
                        if isinstance(event, PutEvent):
                            keys[event.key_value.key] = event.key_value
                        else:
                            keys[event.key] = None
                case LeaseGranted(lease_id, ttl_ms):
                    leases[lease_id] = ttl_ms
                case _:
                    leases[change.lease_id] = None
        try:
            self._store(revision, next_lease_id, keys, leases)
            self._sizes = self._measure()
        except sqlite3.Error as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL and self._roll_back():
                raise JournalFullError(f"no space for {self.path}", outcome=Outcome.NOT_APPLIED) from error
            raise _failed(self.path, error) from error

    def _store(
        self, revision: int, next_lease_id: int, keys: dict[str, KeyValue | None], leases: dict[int, int | None]
    ) -> None:
        run, run_many = self._connection.execute, self._connection.executemany
        run("BEGIN IMMEDIATE")
        run_many("DELETE FROM keys WHERE key = ?", [(key,) for key, found in keys.items() if found is None])
        run_many("DELETE FROM leases WHERE lease_id = ?", [(each,) for each, ttl_ms in leases.items() if not ttl_ms])
        run_many("INSERT INTO leases VALUES (?, ?)", [item for item in leases.items() if item[1]])
        run_many(
            "INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?, ?, ?)",
            [
                (found.key, found.value, found.create_revision, found.mod_revision, found.version, found.lease_id)
                for found in keys.values()
                if found is not None
            ],
        )
        run("UPDATE meta SET revision = ?, next_lease_id = ?", (revision, next_lease_id))
        run("COMMIT")

    def _roll_back(self) -> bool:
        """End a transaction that was not stored; return whether that succeeded."""
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            return False
        return True

    def sizes(self) -> tuple[int, int]:
        """See `Journal.sizes`."""
        return self._sizes

    def close(self) -> None:
        """See `Journal.close`. The last connection moves the write-ahead log into the file."""
        self._connection.close()

    def _measure(self) -> tuple[int, int]:
        (page_bytes,) = self._one("PRAGMA page_size")
        (pages,), (free_pages,) = self._one("PRAGMA page_count"), self._one("PRAGMA freelist_count")
        return pages * page_bytes, (pages - free_pages) * page_bytes

    def _one(self, statement: str) -> tuple[Any, ...]:
        found: tuple[Any, ...] = self._connection.execute(statement).fetchone()
        return found


def _opening_error(path: Path, error: sqlite3.Error) -> InvalidConfigError:
    if error.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return MetastoreInUseError(
            f"another process has {path} open", action="Use the cluster that runs on it, or stop that."
        )
    if error.sqlite_errorcode in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _damaged(path, str(error))
    return MetastoreDamagedError(f"{path} cannot be opened: {error}", action="Check its directory and its volume.")


def _damaged(path: Path, cause: object) -> MetastoreDamagedError:
    return MetastoreDamagedError(
        f"{path} is damaged: {' '.join(str(cause).split())}",
        action="Put back a copy of the whole directory, or begin again with an empty one. The logs of partitions are "
        "not affected.",
    )


def _failed(path: str, error: sqlite3.Error) -> JournalFailedError:
    return JournalFailedError(
        f"{path} failed: {error}",
        outcome=Outcome.UNKNOWN,
        retriable=False,
        fatal=True,
        action="Check the disk, then start the process again: it reads what is stored.",
    )


def _create(path: Path) -> bool:
    """Create the file, which has secrets, for its owner alone; return False if it was there."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True


def _sync_directory(path: Path) -> None:
    """Make a new file's name durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
