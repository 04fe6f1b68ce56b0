"""Snapshots of the producer windows of one log: `producers-<offset>.snapshot`, sealed, replaced atomically (H48).

Belongs to a `PartitionLog`. The broker defines the content of a snapshot.
"""

from __future__ import annotations

from headrace.log.checkpoint import read_sealed, replace_file, seal
from headrace.log.durability import LogDurability
from headrace.log.log_state import LogState
from headrace.wire.ids import Offset

_PREFIX, _SUFFIX = "producers-", ".snapshot"
_KEPT = 2


class ProducerSnapshots:
    """The newest two snapshot files of one log."""

    def __init__(self, state: LogState, durability: LogDurability) -> None:
        self._filesystem = state.environment.filesystem
        self._space = state.environment.space
        self._state = state
        self._round_lock = durability.round_lock

    def store(self, offset: int, snapshot: bytes) -> None:
        """Store `snapshot` (the broker's encoding) as the producer state at `offset`: atomic, fsynced, with a CRC.

        Two are kept. After a crash that lost those records, opening the log removes a snapshot beyond `flushed_offset`.
        """
        state = self._state
        name = f"{_PREFIX}{offset:020d}{_SUFFIX}"
        with self._round_lock, state.disk():
            state.check_online()
            self._space.with_reserve(lambda: replace_file(self._filesystem, state.directory, name, seal(snapshot)))
            for old in self._offsets()[:-_KEPT]:
                self._filesystem.unlink(self._path(old))

    def load(self) -> tuple[Offset, bytes] | None:
        """Return the newest valid snapshot at an offset within the log; rebuild from there with `checked_headers`."""
        state = self._state
        state.check_online()
        with state.disk():
            for offset in reversed(self._offsets()):
                if state.log_start_offset <= offset <= state.end.offset:
                    content = read_sealed(self._filesystem, self._path(offset))
                    if content is not None:
                        return Offset(offset), content
        return None

    def drop_above(self, end_offset: int) -> None:
        """Remove the snapshots that include records at or after `end_offset`. Raises OSError.

        Called before a truncation and on open, because new records at these offsets have other producers.
        """
        above = [offset for offset in self._offsets() if offset > end_offset]
        for offset in above:
            self._filesystem.unlink(self._path(offset))
        if above:
            self._filesystem.fsync_directory(self._state.directory)

    def _offsets(self) -> list[int]:
        names = self._filesystem.list_directory(self._state.directory)
        return sorted(
            int(name.removeprefix(_PREFIX).removesuffix(_SUFFIX))
            for name in names
            if name.startswith(_PREFIX) and name.endswith(_SUFFIX)
        )

    def _path(self, offset: int) -> str:
        return f"{self._state.directory}/{_PREFIX}{offset:020d}{_SUFFIX}"
