"""Owner of a data directory: `<data_dir>/identity`, sealed JSON (PROTOCOL H42).

format          FORMAT_VERSION
cluster_id      of the cluster to which the directory belongs
generation      of that cluster's metadata
broker_id       of the broker that may use it
storage_id      16 random bytes in hexadecimal, drawn for this directory; part of the broker's session key
"""

from __future__ import annotations

import json
from typing import Any

from headrace.log.checkpoint import read_sealed, replace_file, seal
from headrace.log.errors import WrongDirectoryError, storage_error
from headrace.log.filesystem import FileSystem
from headrace.log.os_filesystem import OsFileSystem

FILE = "identity"
FORMAT_VERSION = 1


class DirectoryIdentity:
    """Identity of an open data directory."""

    def __init__(
        self, filesystem: FileSystem, path: str, wanted: dict[str, Any], new_storage_id: bytes, adopts: bytes
    ) -> None:
        """Check that the directory has the identity `wanted`, which lacks the storage id.

        A directory without logs is given `wanted`, with `new_storage_id`; one of an earlier generation whose storage id
        is `adopts` is continued. Raises WrongDirectoryError, OSError.
        """
        self._filesystem = filesystem
        self._path = path
        self._wanted = wanted
        if not filesystem.exists(f"{path}/{FILE}"):
            self.write(new_storage_id)
            return
        stored = _read(filesystem, path)
        self.storage_id = bytes.fromhex(stored["storage_id"])
        is_earlier = stored["generation"] < wanted["generation"]
        if is_earlier and stored == {**stored, **wanted, "generation": stored["generation"]}:
            if self.storage_id != adopts:
                raise WrongDirectoryError(
                    f"{path} is of generation {stored['generation']}, and generation {wanted['generation']} began "
                    "without it: etcd was restored from a backup",
                    action="Set it aside and start with an empty data directory; the other replicas have the records.",
                    retriable=False,
                )
            self.write(adopts)
            return
        for name, value in wanted.items():
            if stored[name] != value:
                raise wrong_directory(f"{path} belongs to {name} {stored[name]}, not {value}")

    def write(self, storage_id: bytes) -> None:
        """Replace the storage id, synced. Raises OSError."""
        identity = {"format": FORMAT_VERSION, **self._wanted, "storage_id": storage_id.hex()}
        replace_file(self._filesystem, self._path, FILE, seal(json.dumps(identity).encode()))
        self.storage_id = storage_id


def read_identity(path: str, filesystem: FileSystem | None = None) -> dict[str, Any]:
    """Return the fields of the identity file.

    Raises WrongDirectoryError if the identity file is absent or corrupt; StorageOfflineError.
    """
    try:
        return _read(filesystem or OsFileSystem(), path)
    except OSError as error:
        raise storage_error(path, error) from error


def _read(filesystem: FileSystem, path: str) -> dict[str, Any]:
    if not filesystem.exists(f"{path}/{FILE}"):
        raise wrong_directory(f"{path} holds no identity file")
    payload = read_sealed(filesystem, f"{path}/{FILE}")
    if payload is None:
        raise wrong_directory(f"{path}/{FILE} is corrupt")
    identity: dict[str, Any] = json.loads(payload)
    if identity["format"] != FORMAT_VERSION:
        raise WrongDirectoryError(
            f"{path} has format {identity['format']}, and this release supports {FORMAT_VERSION}: it was written by a "
            f"{'newer' if identity['format'] > FORMAT_VERSION else 'much older'} release",
            action="Start that release; the data are left as they are.",
            retriable=False,
        )
    return identity


def wrong_directory(message: str) -> WrongDirectoryError:
    """Return the error for a directory that is not this broker's, or may not be."""
    return WrongDirectoryError(
        message, action="Use this broker's own data directory, or an empty one.", retriable=False
    )
