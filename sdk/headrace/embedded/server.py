"""Directories that this process has open, and the handlers of their calls.

A directory is open once in a process, and shared by its clients: `acquire` and `release` count them. The first one to
open it becomes its writer, unless another process is; then it follows what that process writes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

from headrace.embedded.appends import AppendQueue
from headrace.embedded.cluster import DirectoryCluster
from headrace.embedded.dump import dump_metadata
from headrace.embedded.fetches import DirectoryFetches
from headrace.embedded.followed import FollowedDirectory
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

FOLLOW_SECONDS = 0.01
"""Interval in which a waiting call looks for what another process has written."""
GROUPS_SECONDS = 0.5
"""Interval in which sessions of members are looked at."""


class OpenMode(Enum):
    """How to open a directory."""

    WRITE = "write"
    READ = "read"
    ANY = "any"
    """Write, or read if another process writes."""


class DirectoryServer:
    """One open directory. Thread-safe."""

    def __init__(self, path: str, mode: OpenMode, *, creates: bool) -> None:
        """Open `path`; raises as `OpenDirectory` and `FollowedDirectory`."""
        self.path = path
        self.directory = directory = _open(path, mode, creates=creates)
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

    def close(self) -> None:
        """Complete what was begun and close the files. Raises as `OpenDirectory.close`."""
        self._closing.set()
        if self._appends is not None:
            self._appends.close()
        self._polls.close()
        if self._looking is not None:
            self._looking.join()
        self.directory.close()


def _open(path: str, mode: OpenMode, *, creates: bool) -> OpenDirectory | FollowedDirectory:
    if mode is OpenMode.READ:
        return FollowedDirectory(path)
    try:
        return OpenDirectory(path, creates=creates)
    except DirectoryInUseError:
        if mode is OpenMode.WRITE:
            raise
        return FollowedDirectory(path)


def _nothing() -> None:
    """Cancel nothing: the call has ended."""


class _Registry:
    """Open directories of this process, by their real paths."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.servers: dict[str, DirectoryServer] = {}
        self.users: dict[str, int] = {}

    def forget(self) -> None:
        """Begin again, in a child after a fork: the lock may have been held by a thread of the parent."""
        self.__init__()  # type: ignore[misc]


_registry = _Registry()


def acquire(path: str | os.PathLike[str], mode: OpenMode = OpenMode.ANY, *, creates: bool = False) -> DirectoryServer:
    """Open a directory, or share it with the other clients of this process; `release` it once.

    Raises:
        DirectoryInUseError: If another process writes to it, and `mode` is WRITE; or if this process only reads it.
        HeadraceError: As `OpenDirectory`.
    """
    real = os.path.realpath(path)
    with _registry.lock:
        server = _registry.servers.get(real)
        if server is not None and mode is OpenMode.WRITE:
            server.check_writable()
        if server is None:
            server = _registry.servers[real] = DirectoryServer(real, mode, creates=creates)
        _registry.users[real] = _registry.users.get(real, 0) + 1
        return server


def release(server: DirectoryServer) -> None:
    """Close a directory that no client of this process uses any more. Raises as `DirectoryServer.close`."""
    with _registry.lock:
        if _registry.servers.get(server.path) is not server:
            return  # This process is a child of the one that has opened it.
        _registry.users[server.path] -= 1
        if _registry.users[server.path]:
            return
        try:
            server.close()
        finally:  # Until then a child of a fork has to give up the lock.
            del _registry.servers[server.path], _registry.users[server.path]


def _after_fork() -> None:
    """Leave the directories to the parent process; the clients of this one refuse their calls."""
    for server in _registry.servers.values():
        if isinstance(server.directory, OpenDirectory):
            server.directory.abandon()
    _registry.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
