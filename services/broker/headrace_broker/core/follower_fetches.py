"""Which fetch of a follower awaits an answer, so that no answer is used twice, late, or of another leader (H6).

Owned by a `PartitionReplica`, which calls `follow` and `stop` as its role changes.
"""

from __future__ import annotations

from headrace.wire.ids import LeaderEpoch, Offset


class FollowerFetches:
    """The fetches of one replica while it follows; a token identifies one of them for the life of the replica."""

    def __init__(self) -> None:
        self._leader_epoch: LeaderEpoch | None = None  # of the leader that is followed; None: none is
        self._last_token = 0
        self._awaited: int | None = None  # the token of the fetch whose answer may be used
        self.ahead_offset = Offset(0)  # where its answer begins, if it was sent before the log reached there

    def follow(self, leader_epoch: LeaderEpoch) -> None:
        """Fetch from the leader of `leader_epoch` from now on."""
        self._leader_epoch = leader_epoch
        self._awaited = None

    def stop(self) -> None:
        """Fetch no more: the replica does not follow."""
        self._leader_epoch = self._awaited = None

    def begin(self, *, replace: bool = False, ahead_offset: int = 0) -> int | None:
        """Return the token of a fetch to send; None: it does not follow, or awaits an answer (unless `replace`).

        `ahead_offset`: the answer is to begin there, and can be used once the log ends there. Such a fetch waits for
        nothing at the leader, so none takes its place.
        """
        if self._leader_epoch is None:
            return None
        if self._awaited is not None and (not replace or self.ahead_offset):
            return None
        self._last_token += 1
        self._awaited = self._last_token
        self.ahead_offset = Offset(ahead_offset)
        return self._awaited

    def end(self) -> None:
        """Await no answer any more, and use none that comes: the connection is gone."""
        self._awaited = None

    def take_answer(self, token: int, leader_epoch: int) -> bool:
        """Return whether an answer may be used: it is awaited, role and epoch have not changed. Only once (H6)."""
        if self._leader_epoch is None or token != self._awaited or leader_epoch != self._leader_epoch:
            return False
        self._awaited = None
        return True
