"""Outstanding fetch of a follower. No response is used twice, late, or if it is from another leader (H6).

Owned by a `PartitionReplica`, which calls `follow` and `stop` when its role changes.
"""

from __future__ import annotations

from headrace.wire.ids import LeaderEpoch, Offset


class FollowerFetches:
    """The fetches of one replica while it follows; a token identifies one of them for the life of the replica."""

    def __init__(self) -> None:
        self._leader_epoch: LeaderEpoch | None = None  # of the followed leader; None means that no leader is followed
        self._last_token = 0
        self._awaited: int | None = None  # token of the fetch whose response may be used
        self.ahead_offset = Offset(0)  # where its response begins, if it was sent before the log reached that offset

    def follow(self, leader_epoch: LeaderEpoch) -> None:
        """Fetch from the leader of `leader_epoch` from now on."""
        self._leader_epoch = leader_epoch
        self._awaited = None

    def stop(self) -> None:
        """Stop fetching: the replica no longer follows."""
        self._leader_epoch = self._awaited = None

    def begin(self, *, replace: bool = False, ahead_offset: int = 0) -> int | None:
        """Return the token of a fetch to send; `None` if not following, or if a fetch is outstanding without `replace`.

        With `ahead_offset` the response begins there and can be used once the log end reaches it. The leader answers
        such a fetch at once, so it is never replaced.
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
        """Drop the outstanding fetch after the connection closed; its response is not used."""
        self._awaited = None

    def take_answer(self, token: int, leader_epoch: int) -> bool:
        """Return whether a response may be used: it is awaited, and role and epoch have not changed. True once (H6)."""
        if self._leader_epoch is None or token != self._awaited or leader_epoch != self._leader_epoch:
            return False
        self._awaited = None
        return True
