"""Limits of the metadata that public calls may add: groups, members, their bytes, and a reserve of etcd's quota.

Metadata written by calls stays in etcd, and every coordinator has a copy. A full etcd rejects all writes, so that no
leader can be elected. Calls that add metadata are therefore rejected earlier; elections, registrations, moves and
deletions are not. The counts lag slightly behind, so that concurrent calls may exceed a limit together. Belongs to the
event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.wire.errors import MetadataLimitError
from headrace_server.metastore.api import MemberStatus
from headrace_server.metastore.etcd_status import effective_quota_bytes

from headrace_coordinator.runtime.group_view import GroupView

RESERVE_FROM = 0.7
"""Used share of etcd's quota above which calls that add metadata are rejected."""

REPLACED_BYTES = 64
"""A value up to this size, such as an offset's metadata, may replace a shorter one at any time."""


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """Limits of all groups of the cluster together."""

    groups: int
    members: int
    key_bytes: int
    """Maximum size of the keys and values of groups, members and offsets in etcd."""


class MetadataLimits:
    """Checks of calls against the limits."""

    def __init__(self, bounds: GroupBounds, groups: GroupView | None = None) -> None:
        self._bounds = bounds
        self._groups = groups
        self._used_bytes = 0
        self._quota_bytes = 0

    def follow(self, groups: GroupView) -> None:
        """Use the counts of this view."""
        self._groups = groups

    def look_at(self, members: Sequence[MemberStatus]) -> None:
        """Record the fill level of the etcd members that responded; keep the last one if none did."""
        if members:
            self._used_bytes = max(member.used_bytes or member.database_bytes for member in members)
            self._quota_bytes = effective_quota_bytes(members)

    @property
    def is_reserve(self) -> bool:
        """Whether the rest of etcd's quota is reserved for elections, registrations and deletions."""
        return bool(self._quota_bytes) and self._used_bytes >= RESERVE_FROM * self._quota_bytes

    def check_reserve(self, what: str) -> None:
        """Check that etcd has room for a call that adds metadata.

        Raises:
            MetadataLimitError: If etcd is nearly full; retriable, because compaction and deletions free space.
        """
        if self.is_reserve:
            raise MetadataLimitError(
                f"{what} is refused: etcd uses {self._used_bytes >> 20} of {self._quota_bytes >> 20} MiB, and from "
                f"{RESERVE_FROM:.0%} on the rest is kept for elections",
                retriable=True,
                action="Delete groups and topics that are not needed, or raise etcd's quota.",
            )

    def check_group(self, group_id: str) -> None:
        """Check the number of groups; existing ones pass.

        Raises:
            MetadataLimitError: If there are too many groups, or as `check_reserve`.
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
        """Check the number of members; raises as `check_group` and `check_growth`."""
        self.check_group(group_id)
        self.check_growth("a further member", None, 0)
        if self._known.members >= self._bounds.members:
            raise MetadataLimitError(
                f"groups have {self._known.members} members: max_group_members = {self._bounds.members}",
                action="Stop members, or raise max_group_members of the coordinators.",
            )

    def check_growth(self, what: str, before: int | None, after: int) -> None:
        """Check the bytes of all groups against a change of one value.

        `before` and `after` are the bytes of the part that a caller chooses; `None` means that nothing is stored yet. A
        value that is not longer than the one it replaces passes, so that existing groups continue after another caller
        has used up the limit.

        Raises:
            MetadataLimitError: If the limit is exceeded.
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
