"""Consumer groups of the fake cluster: the group methods of `Admin` over a dictionary."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.client.admin.groups import (
    CommittedOffset,
    GroupDescription,
    GroupListing,
    GroupMember,
    GroupResult,
    OffsetResult,
    PartitionLag,
)
from headrace.wire.errors import ConflictError, GroupNotEmptyError, HeadraceError, UnknownGroupError
from headrace.wire.ids import TopicPartition

COMMITTED_MS = 1_700_000_500_000


@dataclass
class FakeGroup:
    """One group."""

    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    members: list[GroupMember] = field(default_factory=list)
    unowned: list[TopicPartition] = field(default_factory=list)
    group_epoch: int = 5
    # Called before a change, as if another client was faster.
    before_change: Callable[[], object] | None = None
    # What is not known of partitions, and why.
    problems: dict[TopicPartition, str] = field(default_factory=dict)
    # Raised where its lag is asked for.
    lag_failure: HeadraceError | None = None

    def join(
        self,
        number: int,
        owned: Mapping[TopicPartition, int],
        target: Sequence[TopicPartition] | None = None,
        **fields: Any,
    ) -> None:
        """Add a member that owns partitions since epochs."""
        values: dict[str, Any] = {
            "member_id": bytes([number]) * 16,
            "instance_id": f"worker-{number}",
            "client_id": "app",
            "host": f"10.0.0.{number}",
            "rack": "",
            "member_epoch": 3,
            "topics": ("clicks",),
            "topic_pattern": "",
            "owned": dict(owned),
            "target": tuple(owned) if target is None else tuple(target),
            "joined_ms": 1,
            "session_timeout_ms": 30_000,
            "revoking_ms": 0,
            "live": True,
        }
        self.members.append(GroupMember(**{**values, **fields}))

    def listing(self, group_id: str) -> GroupListing:
        state = "stable" if self.members else "empty"
        partitions = len({where for member in self.members for where in member.target})
        since = 0 if self.members else COMMITTED_MS
        return GroupListing(group_id, state, len(self.members), partitions, "uniform", since)  # type: ignore[arg-type]


class FakeGroupMethods:
    """The group methods of the fake `Admin`. Records are 1 s apart, and the last one is 1 s old."""

    held: Any

    def list_groups(self) -> list[GroupListing]:
        return [group.listing(name) for name, group in sorted(self.held.groups.items())]

    def describe_group(self, group: str) -> GroupDescription:
        if group not in self.held.groups:
            raise UnknownGroupError(f"there is no group {group!r}")
        found: FakeGroup = self.held.groups[group]
        offsets = {
            where: CommittedOffset(each, 4, "", COMMITTED_MS, b"") for where, each in sorted(found.offsets.items())
        }
        named = {where.topic for where in [*offsets, *found.unowned]}
        named |= {where.topic for member in found.members for where in member.owned}
        ids = {name: self.held.topics[name].topic_id for name in sorted(named) if name in self.held.topics}
        return GroupDescription(
            found.listing(group),
            found.group_epoch,
            found.group_epoch,
            tuple(found.members),
            offsets,
            tuple(found.unowned),
            ids,
            99,
        )

    def group_lag(self, group: str | GroupDescription, *, times: bool = True) -> list[PartitionLag]:
        description = group if isinstance(group, GroupDescription) else self.describe_group(group)
        held: FakeGroup = self.held.groups[description.listing.group_id]
        if held.lag_failure is not None:
            raise held.lag_failure
        return [self._lag(held, where, times) for where in description.partitions]

    def _lag(self, group: FakeGroup, where: TopicPartition, times: bool) -> PartitionLag:
        stored = group.offsets.get(where, -1)
        if where in group.problems:
            return PartitionLag(*where, stored, -1, -1, None, None, group.problems[where])
        start, end = self.held.starts.get(where, 0), len(self.held.records[where])
        records = max(0, end - max(stored, start)) if stored >= 0 else None
        behind = None if records is None or (records and not times) else records * 1000
        return PartitionLag(*where, stored, start, end, records, behind, "")

    def delete_groups(
        self, groups: Sequence[str], *, expected_group_epochs: Mapping[str, int] | None = None
    ) -> list[GroupResult]:
        results: list[GroupResult] = []
        for name in groups:
            error: HeadraceError | None = None
            if name not in self.held.groups:
                error = UnknownGroupError(f"there is no group {name!r}")
            elif self.held.groups[name].members:
                error = GroupNotEmptyError(f"group {name} has members")
            elif (expected_group_epochs or {}).get(name) not in (None, self.held.groups[name].group_epoch):
                error = ConflictError(f"the members or the offsets of group {name} changed", retriable=False)
            else:
                del self.held.groups[name]
            results.append(GroupResult(name, error))
        return results

    def reset_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], *, expected_group_epoch: int | None = None
    ) -> list[OffsetResult]:
        self.held.changes.append(("reset", (group, dict(offsets))))
        held = self.held.groups.setdefault(group, FakeGroup(group_epoch=0))
        if held.before_change is not None:
            held.before_change()
        if held.members:
            raise GroupNotEmptyError(f"group {group} has members")
        if expected_group_epoch not in (None, held.group_epoch):
            raise ConflictError(f"the members or the offsets of group {group} changed", retriable=False)
        held.group_epoch += 1
        results = []
        for where, offset in offsets.items():
            refused = self.held.refused.get(where)
            results.append(OffsetResult(*where, offset, refused))
            if refused is None and offset < 0:
                held.offsets.pop(where, None)
            elif refused is None:
                held.offsets[where] = offset
        return results
