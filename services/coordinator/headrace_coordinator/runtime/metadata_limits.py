"""How much metadata public calls may make: groups, members and bytes of them, and a reserve of etcd's quota.

What a coordinator's calls write stays in etcd, and every coordinator keeps a copy. When etcd is full it takes no write
at all, and then no leader is elected. So calls that add something are refused in time; elections, registrations, moves
and deletions never are. What is counted is a moment old: calls that are under way at once may pass a limit together.
Belongs to the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.wire.errors import MetadataLimitError
from headrace_server.metastore.etcd_status import MemberStatus, effective_quota_bytes

from headrace_coordinator.runtime.group_view import GroupView

RESERVE_FROM = 0.7
"""The used share of etcd's quota from which calls that add something are refused."""

REPLACED_BYTES = 64
"""What is no longer than this may take the place of something shorter: an offset's metadata."""


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """What all groups of a cluster may have together."""

    groups: int
    members: int
    key_bytes: int
    """Keys and values of groups, members and offsets in etcd."""


class MetadataLimits:
    """See the module."""

    def __init__(self, bounds: GroupBounds, groups: GroupView | None = None) -> None:
        self._bounds = bounds
        self._groups = groups
        self._used_bytes = 0
        self._quota_bytes = 0

    def follow(self, groups: GroupView) -> None:
        """Count what this view holds."""
        self._groups = groups

    def look_at(self, members: Sequence[MemberStatus]) -> None:
        """Record the fill level of the etcd members that answered; without any, the last one stays."""
        if members:
            self._used_bytes = max(member.used_bytes or member.database_bytes for member in members)
            self._quota_bytes = effective_quota_bytes(members)

    @property
    def is_reserve(self) -> bool:
        """Whether what is left of etcd's quota is kept for elections, registrations and deletions."""
        return bool(self._quota_bytes) and self._used_bytes >= RESERVE_FROM * self._quota_bytes

    def check_reserve(self, what: str) -> None:
        """Refuse a call that adds metadata while etcd is nearly full.

        Raises:
            MetadataLimitError: retriable, since compaction and deletions give space back.
        """
        if self.is_reserve:
            raise MetadataLimitError(
                f"{what} is refused: etcd uses {self._used_bytes >> 20} of {self._quota_bytes >> 20} MiB, and from "
                f"{RESERVE_FROM:.0%} on the rest is kept for elections",
                retriable=True,
                action="Delete groups and topics that are not needed, or raise etcd's quota.",
            )

    def check_group(self, group_id: str) -> None:
        """Refuse a group that would be one too many; known ones pass.

        Raises:
            MetadataLimitError: with the limit; or as for `check_reserve`.
        """
        self.check_reserve("a change of a group")
        groups = self._known
        if group_id in groups.groups:
            return
        count = len(groups.groups)
        if count >= self._bounds.groups:
            raise MetadataLimitError(
                f"there are {count} groups, all that max_groups = {self._bounds.groups} allows",
                action="Delete groups that are not used, or raise max_groups of the coordinators.",
            )

    def check_member(self, group_id: str) -> None:
        """Refuse a member that would be one too many; raises as `check_group` and `check_growth`."""
        self.check_group(group_id)
        self.check_growth("a further member", None, 0)
        if self._known.members >= self._bounds.members:
            raise MetadataLimitError(
                f"groups have {self._known.members} members: max_group_members = {self._bounds.members}",
                action="Stop members, or raise max_group_members of the coordinators.",
            )

    def check_growth(self, what: str, before: int | None, after: int) -> None:
        """Refuse what adds to the bytes of groups while all groups together have their share.

        `before` and `after` are the bytes of the part that a caller chooses; None: nothing is stored yet. What takes
        the place of something no shorter passes, so that existing groups continue where another caller has filled
        the share.

        Raises:
            MetadataLimitError: with the limit.
        """
        if before is not None and after <= max(before, REPLACED_BYTES):
            return
        if self._known.key_bytes >= self._bounds.key_bytes:
            raise MetadataLimitError(
                f"{what} is refused: groups take {self._known.key_bytes} bytes of etcd, all that max_group_bytes = "
                f"{self._bounds.key_bytes} allows",
                action="Delete groups that are not used, or raise max_group_bytes of the coordinators.",
            )

    @property
    def _known(self) -> GroupView:
        assert self._groups is not None, "calls are served once the view is there"
        return self._groups
