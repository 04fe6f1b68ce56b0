"""Writes of a partition's key that its leader has sent and whose outcome is unknown (C2, C3, H11, H12).

Owned by a `Leadership`. All are computed from one version of the key. Until a newer version is seen, each of them
may still take effect, so every replica in one of them counts for the high watermark.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace_server.partition_state import PartitionState, Replica

from headrace_broker.core.messages import Propose


class Proposals:
    """Unresolved proposals. At most one is in progress; unanswered ones stay until a newer version is seen."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._under_way: int | None = None
        self._unresolved: dict[int, PartitionState] = {}

    @property
    def under_way(self) -> bool:
        """Whether a proposal awaits its answer, so that no other may be sent (H23)."""
        return self._under_way is not None

    @property
    def unresolved(self) -> bool:
        """Whether any write may still take effect."""
        return bool(self._unresolved)

    @property
    def durable(self) -> bool:
        """Whether an unresolved proposal sets `durable`, which may already be in effect."""
        return any(state.durable for state in self._unresolved.values())

    def members(self) -> list[Replica]:
        """Return the in-sync replicas of all unresolved proposals; an entry may occur twice."""
        return [entry for state in self._unresolved.values() for entry in state.in_sync]

    def send(self, state: PartitionState, base_revision: int, sessions: tuple[Replica, ...]) -> Propose:
        """Return the action that proposes `state`, which counts from now on."""
        assert self._under_way is None, "one proposal a partition at a time (H23)"
        number = self._under_way = next(self._numbers)
        self._unresolved[number] = state
        return Propose(number, state, base_revision, sessions)

    def take_answer(self, number: int) -> PartitionState | None:
        """Return the state that `number` proposed, or `None` if the key has changed and the answer is obsolete."""
        if self._under_way != number:
            return None
        self._under_way = None
        return self._unresolved[number]

    def discard(self, number: int) -> None:
        """Discard a proposal that was certainly not applied."""
        self._unresolved.pop(number, None)

    def clear(self) -> None:
        """Discard all proposals: a newer version of the key was seen."""
        self._under_way = None
        self._unresolved.clear()
