"""Limits of the metadata that public calls may add: groups, members, their bytes, and a reserve of etcd's quota.

Metadata written by calls stays in etcd, and every coordinator has a copy. A full etcd rejects all writes, so that no
leader can be elected. Calls that add metadata are therefore rejected earlier; elections, registrations, moves and
deletions are not. Of a limit of groups that is scarce no user gets more than its share; a group counts for the user
that created it. The counts lag slightly behind, so that concurrent calls may exceed a limit together. Belongs to the
event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.wire.errors import MetadataLimitError
from headrace_server.metastore.api import MemberStatus
from headrace_server.metastore.etcd_status import effective_quota_bytes
from headrace_server.places import share_of

from headrace_coordinator.runtime.group_view import GroupView

RESERVE_FROM = 0.7
"""Used share of etcd's quota above which calls that add metadata are rejected."""

SCARCE_FROM = 0.75
"""Used share of a limit of groups above which a user that has its share adds nothing."""
_LIMITS = {
    "groups": ("max_groups", "groups"),
    "members": ("max_group_members", "members"),
    "key_bytes": ("max_group_bytes", "bytes of etcd"),
}
"""Setting and unit of each field of `GroupBounds` and `GroupUse`."""

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

    def check_group(self, group_id: str, user: str) -> None:
        """Check the number of groups; existing ones pass.

        Raises:
            MetadataLimitError: If there are too many groups, or too many of `user`, or as `check_reserve`.
        """
        self.check_reserve("a change of a group")
        if group_id not in self._known.groups:
            self._check_room("a further group", "groups", user)

    def check_member(self, group_id: str, user: str) -> None:
        """Check the number of members; raises as `check_group` and `check_growth`."""
        self.check_group(group_id, user)
        payer = self._known.entry(group_id).payer(user)
        self.check_growth("a further member", None, 0, payer)
        self._check_room("a further member", "members", payer)

    def check_growth(self, what: str, before: int | None, after: int, payer: str) -> None:
        """Check the bytes of all groups against a change of one value, for which `payer` has its share.

        `before` and `after` are the bytes of the part that a caller chooses; `None` means that nothing is stored yet. A
        value that is not longer than the one it replaces passes, so that existing groups continue after another caller
        has used up the limit.

        Raises:
            MetadataLimitError: If the limit is exceeded.
        """
        if before is not None and after <= max(before, REPLACED_BYTES):
            return
        self._check_room(what, "key_bytes", payer)

    def _check_room(self, what: str, name: str, user: str) -> None:
        """Check that groups take less than a limit, and, of one that is scarce, those of a user less than its share."""
        setting, unit = _LIMITS[name]
        bound: int = getattr(self._bounds, name)
        used: int = getattr(self._known.used, name)
        if used >= bound:
            raise MetadataLimitError(
                f"{what} is refused: groups have {used} {unit}, all that {setting} = {bound} allows",
                action=f"Delete groups that are not used, or raise {setting} of the coordinators.",
            )
        users = self._known.used_by
        if not user or user not in users or used < SCARCE_FROM * bound:
            return
        own, share = getattr(users[user], name), share_of(bound, len(users))
        if own >= share:
            raise MetadataLimitError(
                f"{what} is refused: groups that {user!r} created have {own} {unit}, and {share} are its share of "
                f"{setting} = {bound}, of which {used} are used",
                action=f"Delete groups that are not used, or raise {setting} of the coordinators.",
            )

    @property
    def _known(self) -> GroupView:
        assert self._groups is not None, "calls are served once the view is there"
        return self._groups
