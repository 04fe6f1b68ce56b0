"""Highest etcd revisions seen by a broker: `<data_dir>/metadata`, sealed JSON (PROTOCOL H25, H81).

    generation    of the cluster's metadata; values of an earlier one are ignored
    revision      the highest revision of etcd that the broker has seen
    partitions    for each log, the revision of the last write of its partition's key that named this broker
    begun         the logs that were open on this disk: one of them that is missing was removed

An etcd that is behind any of these was restored from a backup. A log that is not listed was never recorded as assigned
to this broker; this is no evidence that it may be deleted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from headrace.log.checkpoint import read_sealed, replace_file, seal
from headrace.log.errors import storage_error
from headrace.log.filesystem import FileSystem

FILE = "metadata"


class SeenMetadata:
    """Read at the start, written before it takes effect. One thread at a time writes; the event loop may read."""

    def __init__(self, filesystem: FileSystem, path: str, generation: int) -> None:
        """Read `path`; raises OSError."""
        self._filesystem = filesystem
        self._path = path
        self._generation = generation
        self.revision = 0
        self._partitions: Mapping[str, int] = {}
        self._begun: frozenset[str] = frozenset()
        payload = read_sealed(filesystem, f"{path}/{FILE}")
        if payload is None:
            return
        noted = json.loads(payload)
        if noted["generation"] == generation:
            self.revision = int(noted["revision"])
            self._partitions = {str(name): int(revision) for name, revision in noted["partitions"].items()}
            self._begun = frozenset(noted["begun"])

    def revision_of(self, log_name: str) -> int | None:
        """Return the recorded revision at which a partition's key last named this broker; `None` if there is none."""
        return self._partitions.get(log_name)

    def was_begun(self, log_name: str) -> bool:
        """Return whether the log is recorded as open on this disk before."""
        return log_name in self._begun

    def note(
        self,
        revision: int,
        partitions: Mapping[str, int],
        *,
        begun: frozenset[str] = frozenset(),
        held: frozenset[str] | None = None,
    ) -> bool:
        """Raise the recorded revisions and sync them; return whether a write was needed.

        `begun` are open logs, `held` those on disk: others are forgotten. `None` forgets none. Raises as
        `storage_error`.
        """
        kept = {name: known for name, known in self._partitions.items() if held is None or name in held}
        raised = kept | {name: max(found, kept.get(name, 0)) for name, found in partitions.items()}
        highest = max(revision, self.revision)
        known = begun | (self._begun if held is None else self._begun & held)
        if (highest, raised, known) == (self.revision, self._partitions, self._begun):
            return False
        noted = {"generation": self._generation, "revision": highest, "partitions": raised, "begun": sorted(known)}
        try:
            replace_file(self._filesystem, self._path, FILE, seal(json.dumps(noted).encode()))
        except OSError as error:
            raise storage_error(f"{self._path}/{FILE}", error) from error
        self.revision, self._partitions, self._begun = highest, raised, known
        return True
