"""Writes of a partition's key that its leader has sent and whose end it does not know yet (C2, C3, H11, H12).

Owned by a `Leadership`. All are computed from one version of the key. Until a newer version is seen, each of them
may still take effect: every replica in one of them counts for the high watermark.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace_server.partition_state import PartitionState, Replica

from headrace_broker.core.messages import Propose


class Proposals:
    """At most one is under way; those without an answer stay until the key has moved on."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._under_way: int | None = None
        self._unresolved: dict[int, PartitionState] = {}

    @property
    def under_way(self) -> bool:
        """Whether an answer is awaited: then nothing further may be proposed (H23)."""
        return self._under_way is not None

    @property
    def unresolved(self) -> bool:
        """Whether any write may still take effect."""
        return bool(self._unresolved)

    @property
    def durable(self) -> bool:
        """Whether one of them sets `durable`: that may be in effect by now."""
        return any(state.durable for state in self._unresolved.values())

    def members(self) -> list[Replica]:
        """Return all that unresolved proposals have in sync; an entry may come twice."""
        return [entry for state in self._unresolved.values() for entry in state.in_sync]

    def send(self, state: PartitionState, base_revision: int, sessions: tuple[Replica, ...]) -> Propose:
        """Make the action; from now on `state` counts."""
        assert self._under_way is None, "one proposal a partition at a time (H23)"
        number = self._under_way = next(self._numbers)
        self._unresolved[number] = state
        return Propose(number, state, base_revision, sessions)

    def take_answer(self, number: int) -> PartitionState | None:
        """Return what `number` proposed; None if the key has changed since, so that the answer has no meaning."""
        if self._under_way != number:
            return None
        self._under_way = None
        return self._unresolved[number]

    def discard(self, number: int) -> None:
        """Drop a proposal that certainly did not happen."""
        self._unresolved.pop(number, None)

    def clear(self) -> None:
        """Forget everything: the key was seen at a newer version."""
        self._under_way = None
        self._unresolved.clear()
