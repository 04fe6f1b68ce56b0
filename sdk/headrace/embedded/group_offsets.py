"""Committed offsets of groups: a file of sealed JSON for each in `<directory>/groups`, replaced as a whole.

    format     FORMAT_VERSION
    group_id   id of the group; see `_file_name` for the name of the file
    epoch      highest epoch of the group so far: an epoch is never used twice
    empty_ms   since when it has no members
    offsets    topic_id (hexadecimal), partition, offset, leader_epoch, metadata, committed_ms
    begun      by topic id, the number of partitions when the group began to read it

`<directory>/group_epoch` has the highest epoch of the groups that were deleted; a new group begins above it.

A change is durable before it takes effect. One thread at a time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.groups.assignors import TopicPartition
from headrace.log.checkpoint import SMALL_FILE_LIMIT, replace_file, seal, unseal
from headrace.log.errors import WrongDirectoryError, storage_error
from headrace.log.filesystem import FileSystem, read_file

FOLDER = "groups"
EPOCH_FILE = "group_epoch"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class DirectoryOffset:
    """Committed offset of one partition."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int


@dataclass(slots=True)
class GroupFile:
    """Content of a group's file."""

    epoch: int = 0
    empty_ms: int = 0
    offsets: dict[TopicPartition, DirectoryOffset] = field(default_factory=dict)
    begun: dict[bytes, int] = field(default_factory=dict)
    """By topic id, the number of partitions when the group began to read it; later ones are read from their start."""


class GroupFiles:
    """Files of all groups of a directory."""

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self._filesystem = filesystem
        self._root = path
        self._path = f"{path}/{FOLDER}"

    def read_all(self) -> Iterator[tuple[str, GroupFile]]:
        """Yield all groups. Raises WrongDirectoryError, StorageOfflineError."""
        try:
            if not self._filesystem.is_directory(self._path):
                return
            for name in self._filesystem.list_directory(self._path):
                data = (
                    None
                    if name.endswith(".tmp")
                    else read_file(self._filesystem, f"{self._path}/{name}", SMALL_FILE_LIMIT)
                )
                if data is not None:  # The writer may have deleted the group meanwhile.
                    yield self._decode(name, unseal(data))
        except OSError as error:
            raise storage_error(self._path, error) from error

    def _decode(self, name: str, payload: bytes | None) -> tuple[str, GroupFile]:
        stored = None if payload is None else json.loads(payload)
        if stored is None or stored["format"] != FORMAT_VERSION:
            raise WrongDirectoryError(
                f"{self._path}/{name} is corrupt, or of a newer release",
                retriable=False,
                action="Upgrade headrace, or remove the file: the group then begins anew, with its epochs.",
            )
        return stored["group_id"], GroupFile(
            stored["epoch"],
            stored["empty_ms"],
            {
                (bytes.fromhex(topic_id), number): DirectoryOffset(*rest)
                for topic_id, number, *rest in stored["offsets"]
            },
            {bytes.fromhex(topic_id): partitions for topic_id, partitions in stored["begun"].items()},
        )

    def write(self, group_id: str, group: GroupFile) -> None:
        """Replace a group's file. Raises StorageFullError, StorageOfflineError."""
        content = {
            "format": FORMAT_VERSION,
            "group_id": group_id,
            "epoch": group.epoch,
            "empty_ms": group.empty_ms,
            "offsets": [
                [topic_id.hex(), number, each.offset, each.leader_epoch, each.metadata, each.committed_ms]
                for (topic_id, number), each in sorted(group.offsets.items())
            ],
            "begun": {topic_id.hex(): partitions for topic_id, partitions in group.begun.items()},
        }
        try:
            if not self._filesystem.is_directory(self._path):
                self._filesystem.make_directory(self._path)
                self._filesystem.fsync_directory(self._root)
            replace_file(self._filesystem, self._path, _file_name(group_id), seal(json.dumps(content).encode()))
        except OSError as error:
            raise storage_error(f"{self._path}/{group_id}", error) from error

    def read_epoch(self) -> int:
        """Return the highest epoch of the groups that were deleted. Raises WrongDirectoryError, StorageOfflineError."""
        path = f"{self._root}/{EPOCH_FILE}"
        try:
            data = read_file(self._filesystem, path, SMALL_FILE_LIMIT)
        except OSError as error:
            raise storage_error(path, error) from error
        epoch = b"0" if data is None else unseal(data)
        if epoch is None:
            raise WrongDirectoryError(
                f"{path} is corrupt",
                retriable=False,
                action="Restore it from a backup, or remove it: a deleted group then begins anew, with its epochs.",
            )
        return int(epoch)

    def write_epoch(self, epoch: int) -> None:
        """Replace what `read_epoch` returns. Raises StorageFullError, StorageOfflineError."""
        try:
            replace_file(self._filesystem, self._root, EPOCH_FILE, seal(b"%d" % epoch))
        except OSError as error:
            raise storage_error(f"{self._root}/{EPOCH_FILE}", error) from error

    def remove(self, group_id: str) -> None:
        """Remove a group's file. Raises StorageOfflineError."""
        path = f"{self._path}/{_file_name(group_id)}"
        try:
            if self._filesystem.exists(path):
                self._filesystem.unlink(path)
                self._filesystem.fsync_directory(self._path)
        except OSError as error:
            raise storage_error(path, error) from error


def _file_name(group_id: str) -> str:
    """Return the name of a group's file: its id, unless that could be the file of another group.

    File systems of macOS take `A` for `a`, and `a.tmp` is the file of group `a` while it is replaced.
    """
    if group_id == group_id.lower() and not group_id.endswith(".tmp"):
        return group_id
    return f"%{hashlib.sha256(group_id.encode()).hexdigest()[:32]}"
