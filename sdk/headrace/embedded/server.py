"""Directories that this process has open, and the handlers of their calls.

A directory is open at most once for writing in a process, and once only for reading, and shared by the clients:
`acquire` and `release` count them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

from headrace.embedded.appends import AppendQueue
from headrace.embedded.cluster import DirectoryCluster
from headrace.embedded.dump import dump_metadata
from headrace.embedded.fetches import DirectoryFetches
from headrace.embedded.followed import FollowedDirectory, is_closed
from headrace.embedded.group_offsets import GroupFiles
from headrace.embedded.groups import DirectoryGroups
from headrace.embedded.open_partition import DirectoryPartition
from headrace.embedded.opened import OpenDirectory
from headrace.embedded.polls import Attempt, Ended, Polls
from headrace.embedded.records import DirectoryRecords
from headrace.embedded.tables import DirectoryTables
from headrace.groups.assignors import AssignableTopic
from headrace.log.errors import DirectoryInUseError
from headrace.v1 import topics_pb2
from headrace.wire.errors import HeadraceError, InvalidRequestError, Outcome, ShuttingDownError
from headrace.wire.zero_copy import SplicedMessage

_log = logging.getLogger("headrace.embedded")

FOLLOW_SECONDS = 0.01
"""Interval in which a waiting call looks for what another process has written."""
GROUPS_SECONDS = 0.5
"""Interval in which sessions of members are looked at."""


CHANGING_CALLS = frozenset({
    ("cluster", "CreateTopics"),
    ("cluster", "DeleteTopics"),
    ("cluster", "CreatePartitions"),
    ("cluster", "AlterConfigs"),
    ("cluster", "InitProducerId"),
    ("broker", "DeleteRecords"),
    ("groups", "Heartbeat"),
    ("groups", "LeaveGroup"),
    ("groups", "CommitOffsets"),
    ("groups", "DeleteGroups"),
    ("tables", "WriteRow"),
    ("tables", "PurgeRows"),
})  # fmt: skip
"""Service and method of the calls that only the writer answers. Records are written by `DirectoryServer.produce`."""


class OpenMode(Enum):
    """How to open a directory."""

    WRITE = "write"
    READ = "read"
    """Change nothing."""
    ANY = "any"
    """Share the writer of this process if it has one, or else read; what a crash has left is recovered first."""


class DirectoryServer:
    """One open directory. Thread-safe."""

    def __init__(self, path: str, mode: OpenMode, *, creates: bool) -> None:
        """Open `path`; raises as `OpenDirectory` and `FollowedDirectory`."""
        self.path = path
        self.directory: OpenDirectory | FollowedDirectory
        self.directory = directory = (
            OpenDirectory(path, creates=creates) if mode is OpenMode.WRITE else FollowedDirectory(path)
        )
        self.is_writer = isinstance(directory, OpenDirectory)
        self._polls = Polls(None if self.is_writer else FOLLOW_SECONDS)
        self._records = DirectoryRecords(directory)
        self._tables = DirectoryTables(directory)
        self._cluster = DirectoryCluster(directory)
        self._files = GroupFiles(directory.filesystem, path)
        self._groups: DirectoryGroups | None = None
        self._appends: AppendQueue | None = None
        self._closing = threading.Event()
        self._looking: threading.Thread | None = None
        if isinstance(directory, OpenDirectory):
            try:
                self._groups = self._make_groups()
                self._groups.forget_deleted_topics()  # A crash may have left some.
            except BaseException:
                directory.close()
                raise
            self._appends = AppendQueue(self._records.write, self._visible)
            directory.compaction_end = self._tables.expired_end  # type: ignore[method-assign]
            directory.start()
        self._handlers, fetches = self._make_handlers(), DirectoryFetches(directory)
        self._polled: dict[tuple[str, str], Callable[[Any], tuple[Attempt, float]]] = {
            ("broker", "Fetch"): fetches.fetch_whole,
            ("broker", "FetchZeroCopy"): fetches.fetch,
            ("groups", "Heartbeat"): self._heartbeat,
        }

    def _make_handlers(self) -> dict[tuple[str, str], Callable[[Any], Any]]:
        cluster, records, tables = self._cluster, self._records, self._tables
        return {
            ("cluster", "GetMetadata"): cluster.metadata,
            ("cluster", "DescribeCluster"): cluster.describe_cluster,
            ("cluster", "DumpMetadata"): lambda request: dump_metadata(cluster, self._reading_groups(), request),
            ("cluster", "CreateTopics"): self._changing(cluster.create),
            ("cluster", "DeleteTopics"): self._changing(self._delete_topics),
            ("cluster", "CreatePartitions"): self._changing(cluster.grow),
            ("cluster", "DescribeConfigs"): cluster.describe_configs,
            ("cluster", "AlterConfigs"): self._changing(cluster.alter_configs),
            ("cluster", "InitProducerId"): self._changing(cluster.init_producer_id),
            ("broker", "ListOffsets"): records.list_offsets,
            ("broker", "DeleteRecords"): self._changing(records.delete_records),
            ("broker", "DescribeLogs"): records.describe_logs,
            ("groups", "LeaveGroup"): lambda request: self._writing_groups().leave(request),
            ("groups", "CommitOffsets"): lambda request: self._writing_groups().commit(request),
            ("groups", "DeleteGroups"): lambda request: self._writing_groups().delete(request),
            ("groups", "FetchOffsets"): lambda request: self._reading_groups().fetch_offsets(request),
            ("groups", "ListGroups"): lambda request: self._reading_groups().list(request),
            ("groups", "DescribeGroup"): lambda request: self._reading_groups().describe(request),
            ("tables", "GetRows"): tables.get_rows,
            ("tables", "ScanRows"): tables.scan_rows,
            ("tables", "CountRows"): tables.count_rows,
            ("tables", "WriteRow"): self._changing(tables.write_row),
            ("tables", "PurgeRows"): self._changing(tables.purge_rows),
        }

    def _changing(self, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def handle(request: Any) -> Any:
            self.directory.writer()
            try:
                return handler(request)
            finally:
                self._visible()

        return handle

    def _visible(self, partitions: Iterable[DirectoryPartition] | None = None) -> None:
        """Let readers see what has changed, in some partitions or in all."""
        if isinstance(self.directory, OpenDirectory):
            self.directory.show(partitions)
        self._polls.notify()

    def _delete_topics(self, request: Any) -> Any:
        response = self._cluster.delete(request)
        self._tables.keep({topic.topic_id for topic in self.directory.all_topics()})
        self._writing_groups().forget_deleted_topics()
        return response

    # --- calls ---

    def call(self, service: str, method: str, request: Any) -> Any:
        """Make a call and wait for its response. Raises HeadraceError."""
        self._check_open()
        polled = self._polled.get((service, method))
        if polled is not None:
            return self._polls.wait(*polled(request))
        handler = self._handlers.get((service, method))
        if handler is None:
            raise InvalidRequestError(
                f"a directory has no {method}", action="It is a call of a cluster.", outcome=Outcome.NOT_APPLIED
            )
        return handler(request)

    def begin(self, owner: object, service: str, method: str, request: Any, ended: Ended) -> Callable[[], None]:
        """Start a call of a client; `ended` is called once, perhaps at once. Return what cancels it."""
        response, failure = None, None
        try:
            self._check_open()
            polled = self._polled.get((service, method))
            if polled is None:
                response = self.call(service, method, request)
            else:
                attempt, deadline = polled(request)
                response = attempt(time.monotonic() >= deadline)
                if response is None:
                    poll = self._polls.begin(owner, attempt, deadline, ended)
                    return lambda: self._polls.cancel(poll)
        except Exception as error:
            failure = error
        ended(response, failure)
        return _nothing

    def produce(self, request: SplicedMessage, done: Callable[[Any, HeadraceError | None], None]) -> None:
        """Append the batches of a ProduceRequest; `done` is called once, perhaps on another thread."""
        if self._appends is None:
            try:
                self.directory.writer()
            except HeadraceError as error:
                done(None, error)
        else:
            self._appends.put(request, done)

    def abandon(self, owner: object, error: Exception) -> None:
        """End the waiting calls of a client with an error."""
        self._polls.cancel_all(owner, error)

    def has_every_offset(self, topic: str) -> bool:
        """Return whether each offset of a topic is a record. Raises UnknownTopicError."""
        return self._records.has_every_offset(self.directory.topic(topics_pb2.TopicRef(name=topic)))

    def check_writable(self) -> None:
        """Raise DirectoryInUseError if this process only reads the directory."""
        self.directory.writer()

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise ShuttingDownError(f"{self.path} is closed", outcome=Outcome.NOT_APPLIED, retriable=False)

    # --- groups ---

    def _make_groups(self) -> DirectoryGroups:
        groups = DirectoryGroups(self._files, self._assignable)
        groups.changed = self._polls.notify  # type: ignore[method-assign]
        return groups

    def _assignable(self) -> Mapping[str, AssignableTopic]:
        return {
            topic.name: AssignableTopic(topic.topic_id, topic.name, topic.partitions)
            for topic in self.directory.all_topics()
        }

    def _writing_groups(self) -> DirectoryGroups:
        if self._groups is None:
            self.directory.writer()
            raise AssertionError("only a writer has groups")
        return self._groups

    def _reading_groups(self) -> DirectoryGroups:
        return self._make_groups() if self._groups is None else self._groups

    def _heartbeat(self, request: Any) -> tuple[Attempt, float]:
        groups = self._writing_groups()
        if self._looking is None:
            self._looking = threading.Thread(target=self._look, name="headrace-groups", daemon=True)
            self._looking.start()
        return groups.heartbeat(request)

    def _look(self) -> None:
        while not self._closing.wait(GROUPS_SECONDS):
            assert self._groups is not None
            self._groups.look()

    # --- the end ---

    @property
    def threads(self) -> set[threading.Thread | None]:
        """Threads that run callbacks, for which `close` waits."""
        return {self._polls.thread, *(() if self._appends is None else self._appends.threads)}

    def close(self) -> None:
        """Complete what was begun and close the files. Raises as `OpenDirectory.close`."""
        self._closing.set()
        if self._appends is not None:
            self._appends.close()
        self._polls.close()
        if self._looking is not None:
            self._looking.join()
        self.directory.close()


def _nothing() -> None:
    """Cancel nothing: the call has ended."""


class _Entry:
    """Directory that is open in this process, or is being opened or closed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held while it is opened or closed."""
        self.server: DirectoryServer | None = None
        self.users = 0
        """Clients that have it, or wait for it."""
        self.is_closing = False


class _Registry:
    """Open directories of this process, by their real paths and whether they are open for writing."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Guards entries and their users; nothing is opened or closed meanwhile, of this directory or another one."""
        self.entries: dict[tuple[str, bool], _Entry] = {}
        self._waiting: dict[threading.Thread | None, _Entry] = {}
        """Threads that wait for what holds the lock of an entry, to have it."""

    def join(self, key: tuple[str, bool]) -> _Entry:
        """Add a user to an entry, which is made if there is none."""
        with self.lock:
            entry = self.entries.setdefault(key, _Entry())
            entry.users += 1
            return entry

    def leave(self, key: tuple[str, bool], entry: _Entry) -> None:
        """Take out a user of an entry."""
        with self.lock:
            entry.users -= 1
            self._forget_unused(key, entry)

    def begin_close(self, entry: _Entry, server: DirectoryServer) -> bool:
        """Return whether an entry has this server and no users; then `end_close` follows."""
        with self.lock:
            entry.is_closing = not entry.users and entry.server is server
            return entry.is_closing

    def end_close(self, key: tuple[str, bool], entry: _Entry) -> None:
        """Forget the server of an entry."""
        with self.lock:
            entry.server, entry.is_closing = None, False
            self._forget_unused(key, entry)

    def _forget_unused(self, key: tuple[str, bool], entry: _Entry) -> None:
        if not entry.users and entry.server is None and self.entries.get(key) is entry:
            del self.entries[key]

    @contextlib.contextmanager
    def locked(self, key: tuple[str, bool], entry: _Entry) -> Iterator[None]:
        """Hold the lock of an entry, of which this thread is a user.

        Raises:
            ShuttingDownError: If it is being closed, and this waits for a callback that this thread runs, or for one
                that waits for this thread.
        """
        thread = threading.current_thread()
        with self.lock:
            if self._is_awaited(thread, entry):
                raise ShuttingDownError(f"{key[0]} is being closed", outcome=Outcome.NOT_APPLIED, retriable=False)
            self._waiting[thread] = entry
        try:
            entry.lock.acquire()
        finally:
            with self.lock:
                self._waiting.pop(thread, None)
        try:
            yield
        finally:
            entry.lock.release()

    def _is_awaited(self, thread: threading.Thread, entry: _Entry) -> bool:
        """Return whether the close of an entry waits for a thread. No close waits for itself yet."""
        if not entry.is_closing or entry.server is None:
            return False
        threads = entry.server.threads
        return thread in threads or any(
            self._is_awaited(thread, self._waiting[each]) for each in threads if each in self._waiting
        )

    def runs_callback(self) -> bool:
        """Return whether this thread runs a callback of an open directory."""
        with self.lock:
            servers = [entry.server for entry in self.entries.values() if entry.server is not None]
        return any(threading.current_thread() in server.threads for server in servers)

    def shared_writer(self, path: str) -> DirectoryServer | None:
        """Return the writer of a directory, with another user, if this process has one."""
        with self.lock:
            entry = self.entries.get((path, True))
            if entry is None or entry.server is None or entry.is_closing:
                return None
            entry.users += 1
            return entry.server

    def forget(self) -> None:
        """Begin again, in a child after a fork: the lock may have been held by a thread of the parent."""
        self.__init__()  # type: ignore[misc]


_registry = _Registry()


def acquire(path: str | os.PathLike[str], mode: OpenMode = OpenMode.ANY, *, creates: bool = False) -> DirectoryServer:
    """Open a directory, or share it with the other clients of this process; `release` it once.

    Waits only for those who open or close the same directory.

    Raises:
        DirectoryInUseError: If another process writes to it, and `mode` is WRITE.
        ShuttingDownError: If a callback of a directory that is being closed opens the same directory, or one whose
            close waits for that callback.
        HeadraceError: As `OpenDirectory` and `FollowedDirectory`.
    """
    real = os.path.realpath(path)
    return _share(real, creates=creates) if mode is OpenMode.ANY else _acquire(real, mode, creates=creates)


def _acquire(real: str, mode: OpenMode, *, creates: bool = False) -> DirectoryServer:
    key = real, mode is OpenMode.WRITE
    entry = _registry.join(key)
    try:
        with _registry.locked(key, entry):
            if entry.server is None:
                entry.server = DirectoryServer(real, mode, creates=creates)
            return entry.server
    except BaseException:
        _registry.leave(key, entry)
        raise


def _share(real: str, *, creates: bool) -> DirectoryServer:
    writer = _registry.shared_writer(real)
    if writer is None and not is_closed(real):
        with contextlib.suppress(DirectoryInUseError):
            recovered = _acquire(real, OpenMode.WRITE, creates=creates)
            with contextlib.suppress(HeadraceError):  # A full disk refuses the snapshots; what it has can be read.
                release(recovered)
        writer = _registry.shared_writer(real)
    return writer or _acquire(real, OpenMode.READ)


def release(server: DirectoryServer) -> None:
    """Close a directory that no client of this process uses any more. Raises as `DirectoryServer.close`.

    A callback of a directory does not wait for the close, which may wait for the callback: another thread closes.
    """
    key = server.path, server.is_writer
    entry = _registry.entries.get(key)
    if entry is None or entry.server is not server:
        return  # This process is a child of the one that has opened it.
    _registry.leave(key, entry)
    if entry.users:
        return
    if _registry.runs_callback():
        threading.Thread(target=_close_later, args=(key, entry, server), name="headrace-close").start()
    else:
        _close_unused(key, entry, server)


def _close_later(key: tuple[str, bool], entry: _Entry, server: DirectoryServer) -> None:
    try:
        _close_unused(key, entry, server)
    except HeadraceError as error:
        _log.error("%s: %s", server.path, error)


def _close_unused(key: tuple[str, bool], entry: _Entry, server: DirectoryServer) -> None:
    with entry.lock:
        if _registry.begin_close(entry, server):
            try:
                server.close()
            finally:  # Until then a child of a fork has to give up the lock.
                _registry.end_close(key, entry)


def _after_fork() -> None:
    """Leave the directories to the parent process; the clients of this one refuse their calls."""
    for entry in _registry.entries.values():
        if entry.server is not None and isinstance(entry.server.directory, OpenDirectory):
            entry.server.directory.abandon()
    _registry.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
