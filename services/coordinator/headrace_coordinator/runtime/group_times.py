"""Durations of group states, measured by this coordinator's monotonic clock.

The start times in the group's state are wall-clock times of the writer: they are informational and identify the
occurrence. A duration counts from when this coordinator first saw it. A coordinator that takes over or restarts
therefore allows more time and never less, however far coordinators' clocks differ. Belongs to the event loop.
"""

from __future__ import annotations

from collections.abc import Container

from headrace.groups.state import Group
from headrace_server.clock import Clock


class GroupTimes:
    """Durations of revocations and empty groups; call it at every change of a group, so that times start at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._revoking: dict[str, dict[bytes, tuple[int, int]]] = {}
        """`revoking_since_ms` of the state, and when it was first seen, by group and member."""
        self._empty: dict[str, tuple[int, int]] = {}
        """`empty_since_ms` of the state, and when it was first seen, by group."""

    def overdue(self, group_id: str, group: Group) -> frozenset[bytes]:
        """Return members that did not release revoked partitions within their rebalance timeout."""
        revoking = [member for member in group.members.values() if member.revoking_since_ms]
        if not revoking:
            self._revoking.pop(group_id, None)
            return frozenset()
        now_ms, known = self._clock.monotonic_ms(), self._revoking.get(group_id, {})
        seen: dict[bytes, tuple[int, int]] = {}
        overdue = []
        for member in revoking:
            since_ms, first_ms = known.get(member.member_id, (0, now_ms))
            if since_ms != member.revoking_since_ms:
                first_ms = now_ms
            seen[member.member_id] = member.revoking_since_ms, first_ms
            if now_ms - first_ms >= member.rebalance_timeout_ms > 0:
                overdue.append(member.member_id)
        self._revoking[group_id] = seen
        return frozenset(overdue)

    def empty_ms(self, group_id: str, group: Group) -> int:
        """Return for how long the group has had no members and no commits; `0` if it has members."""
        if group.members or not group.empty_since_ms:
            self._empty.pop(group_id, None)
            return 0
        now_ms = self._clock.monotonic_ms()
        since_ms, first_ms = self._empty.get(group_id, (0, now_ms))
        if since_ms != group.empty_since_ms:
            first_ms = now_ms
        self._empty[group_id] = group.empty_since_ms, first_ms
        return now_ms - first_ms

    def forget(self, groups: Container[str]) -> None:
        """Drop the times of groups that are not in `groups`."""
        for times in (self._revoking, self._empty):
            for group_id in [group_id for group_id in times if group_id not in groups]:
                del times[group_id]
