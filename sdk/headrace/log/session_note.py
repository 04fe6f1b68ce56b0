"""Version of a data directory: `<data_dir>/session`, sealed JSON (PROTOCOL H16, H42, H81).

generation      of the cluster's metadata to which `broker_epoch` belongs
version         a number that only increases, raised here before it is raised in etcd: a directory with a smaller one
                than etcd has is an older copy of itself
broker_epoch    of the last session that served from this directory; 0 means none in this generation
announced       etcd's revision at the last version that it is known to have of this directory: no other process
                writes that key, so an etcd that has it at a lower one was restored; 0 means none in this generation
"""

from __future__ import annotations

import json

from headrace.log.checkpoint import read_sealed, replace_file, seal
from headrace.log.errors import storage_error
from headrace.log.filesystem import FileSystem
from headrace.log.space import DiskSpaceGuard

FILE = "session"


class SessionNote:
    """Read at the start; each change is synced before it takes effect. One thread at a time."""

    def __init__(self, filesystem: FileSystem, space: DiskSpaceGuard, path: str, generation: int) -> None:
        """Read `path`; a missing or corrupt file counts as the oldest version. Raises OSError."""
        self._filesystem = filesystem
        self._space = space
        self._path = path
        self._generation = generation
        self.version = 0
        self.broker_epoch = self.announced = 0
        payload = read_sealed(filesystem, f"{path}/{FILE}")
        if payload is not None:
            noted = json.loads(payload)
            self.version = int(noted["version"])
            if noted["generation"] == generation:
                self.broker_epoch = int(noted["broker_epoch"])
                self.announced = int(noted.get("announced", self.broker_epoch))

    def write(self, version: int, broker_epoch: int, announced: int) -> None:
        """Write all three values, synced. Raises as `storage_error`."""
        assert version >= self.version, (version, self.version)
        numbers = {"version": version, "broker_epoch": broker_epoch, "announced": announced}
        noted = seal(json.dumps({"generation": self._generation, **numbers}).encode())
        try:
            self._space.with_reserve(lambda: replace_file(self._filesystem, self._path, FILE, noted))
        except OSError as error:
            raise storage_error(f"{self._path}/{FILE}", error) from error
        self.version, self.broker_epoch, self.announced = version, broker_epoch, announced
