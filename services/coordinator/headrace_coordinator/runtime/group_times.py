"""How long something of a group has lasted, by this coordinator's own count.

The group's state says since when, by the wall clock of its writer: that is for people, and tells one occasion
from another. Time is counted from when this coordinator saw it first, on its monotonic clock. So a coordinator that
takes over, or starts anew, grants more time and never less, however far apart the clocks of coordinators are. Belongs
to the event loop.
"""

from __future__ import annotations

from collections.abc import Container

from headrace_server.clock import Clock

from headrace_coordinator.core.group_state import Group


class GroupTimes:
    """See the module; asked at every change of a group, so that nothing is seen late."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._revoking: dict[str, dict[bytes, tuple[int, int]]] = {}
        """By group and member: since when it is to give up something as the state says, and first seen at."""
        self._empty: dict[str, tuple[int, int]] = {}
        """By group: since when it has no members as the state says, and first seen at."""

    def overdue(self, group_id: str, group: Group) -> frozenset[bytes]:
        """Members that did not give up in their rebalance timeout what they were to give up."""
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
        """How long the group has had no members, and no offset was set of it; 0: it has some."""
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
        """Drop what is remembered of groups that are not in `groups`."""
        for times in (self._revoking, self._empty):
            for group_id in [group_id for group_id in times if group_id not in groups]:
                del times[group_id]
