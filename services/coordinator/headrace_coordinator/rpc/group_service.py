"""`GroupService`: membership, offsets and administration of consumer groups. Every coordinator serves every call.

Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from headrace.groups.heartbeats import (
    MemberDeparture,
    MemberHeartbeat,
    needs_transaction,
    no_member,
    replaced_member,
    taken_by_another_user,
)
from headrace.groups.messages import (
    check_group_id,
    check_member_id,
    read_member,
    read_owned,
    subscribed_bytes,
    write_group,
    write_listing,
    write_offsets,
    write_requested_offsets,
)
from headrace.groups.state import Member
from headrace.v1 import groups_pb2, groups_pb2_grpc
from headrace.wire.errors import (
    HeadraceError,
    MetastoreUnavailableError,
    Outcome,
    TimedOutError,
    UnknownGroupError,
)
from headrace.wire.releases import MEMBER_NEEDS
from headrace_server.clock import Clock
from headrace_server.handshakes import check_handshake
from headrace_server.identity.gate import access
from headrace_server.identity.quotas import Use
from headrace_server.identity.rights import Operation, ResourceKind
from headrace_server.identity.topic_access import is_shown, literal_prefix
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import LeaseNotFoundError, Metastore, MetastoreRolledBackError
from headrace_server.rpc import unary

from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.rpc.answers import Answers
from headrace_coordinator.rpc.group_messages import write_heartbeat
from headrace_coordinator.rpc.offset_commits import OffsetCommits
from headrace_coordinator.runtime.group_offsets import GroupOffsets
from headrace_coordinator.runtime.group_transactions import GroupTransactions
from headrace_coordinator.runtime.group_view import GroupEntry, GroupView
from headrace_coordinator.runtime.metadata_limits import MetadataLimits

SERVICE_NAME = "headrace.v1.GroupService"
HEARTBEATS_A_SESSION = 4
"""Minimum number of heartbeats per session timeout, which limits the heartbeat interval of members."""
LONGEST_INTERVAL_MS = 3_000
HIDDEN_ID_BYTES = 4
"""Part of a member id that other users see: the member's name in lists, of no use in a request."""
BEHIND_SECONDS = 1.0
"""Maximum wait of a heartbeat for the view to show a member that joined at another coordinator."""


class GroupServicer(groups_pb2_grpc.GroupServiceServicer):
    """The servicer of one coordinator."""

    def __init__(
        self,
        metastore: Metastore,
        view: ClusterView,
        groups: GroupView,
        *,
        transactions: GroupTransactions,
        offsets: GroupOffsets,
        answers: Answers,
        metrics: CoordinatorMetrics,
        clock: Clock,
        limits: MetadataLimits,
    ) -> None:
        self._metastore = metastore
        self._view = view
        self._groups = groups
        self._transactions = transactions
        self._offsets = offsets
        self._commits = OffsetCommits(view, groups, offsets, answers, limits)
        self._answers = answers
        self._metrics = metrics
        self.call_errors = metrics.common.call_errors
        self.call_seconds = metrics.timers(SERVICE_NAME, but=("Heartbeat",))
        self._clock = clock
        self._limits = limits

    # --- membership ---

    @unary
    async def Heartbeat(self, request: groups_pb2.HeartbeatRequest, context: Any) -> groups_pb2.HeartbeatResponse:
        """See the proto."""
        if request.member_epoch == 0:
            check_handshake(f"client {request.client_id[:64]!r}", request.handshake, MEMBER_NEEDS)
        member = read_member(request, access().caller.identity.user)
        _require_topics(member)
        started = asyncio.get_running_loop().time()
        deadline = self._answers.deadline(0, context.time_remaining())
        speak = self._join if request.member_epoch == 0 else self._stay
        try:
            async with asyncio.timeout_at(deadline):
                await speak(request, member, deadline)
        except (TimeoutError, TimedOutError):
            raise _silent() from None  # Before the caller's deadline, so that it can tell etcd from this coordinator.
        self._metrics.heartbeat_seconds.observe(asyncio.get_running_loop().time() - started)
        interval_ms = min(LONGEST_INTERVAL_MS, request.session_timeout_ms // HEARTBEATS_A_SESSION)
        # 0.75 to 1 of the wait, by member id: members that joined together do not stay synchronized.
        share = 1 - int.from_bytes(member.member_id[:2], "big") / (4 << 16)
        wait_until = min(deadline, started + min(request.max_wait_ms, interval_ms) * share / 1000)

        def has_news() -> bool:
            stored = self._groups.entry(request.group_id).assignments.get(member.member_id)
            return stored is None or stored.mod_revision != request.known_revision

        if request.known_revision and request.max_wait_ms:
            await self._groups.wait_until(request.group_id, has_news, wait_until, member.member_id)
            access().recheck()
            access().require(Operation.READ, ResourceKind.GROUP, request.group_id)
        entry = self._groups.entry(request.group_id)
        stored = entry.assignments.get(member.member_id)
        is_live = member.member_id in entry.group.members and member.member_id in entry.live
        if stored is None or not is_live or not _may_act(entry, member.member_id):
            raise _not_in(entry, request)
        return write_heartbeat(entry.group, stored, interval_ms)

    async def _join(self, request: groups_pb2.HeartbeatRequest, member: Member, deadline: float) -> None:
        """Add a member: grant its lease, then write its key together with the group's state."""
        entry = self._groups.entry(request.group_id)
        if taken_by_another_user(entry.group.members, member):
            entry = await self._read_again(request.group_id, deadline)
        _check_user(entry, member)
        present = entry.live.get(member.member_id)
        if present is not None:  # An earlier attempt joined; its response was lost.
            if not await self._renew(request.group_id, member.member_id, present.lease_id):
                raise await self._no_session(request, present.lease_id)
            lease_id = present.lease_id
        else:
            replaced = replaced_member(entry.group, entry.live, member)
            if replaced is None:
                self._limits.check_member(request.group_id, member.user)
            else:
                self._limits.check_group(request.group_id, member.user)
                self._check_subscription(entry, replaced, member)
            lease_id = (await self._metastore.grant_lease(member.session_timeout_ms)).lease_id
        joining = replace(member, lease_id=lease_id, joined_ms=self._clock.now_ms())
        heartbeat = MemberHeartbeat(joining, 0, request.assignor, read_owned(request))
        try:
            await self._transactions.heartbeat(request.group_id, heartbeat, deadline)
        except HeadraceError as error:
            if error.outcome is Outcome.NOT_APPLIED and present is None:
                await self._give_back(lease_id)
            raise
        joined = self._groups.entry(request.group_id).group.members.get(member.member_id)
        if joined is not None and joined.lease_id != lease_id:
            await self._give_back(lease_id)  # An earlier attempt joined at another coordinator.

    async def _read_again(self, group_id: str, deadline: float) -> GroupEntry:
        """Return a group as it is in etcd now, for an answer that the caller takes for final: the view may be old.

        Raises:
            MetastoreUnavailableError: If etcd or the view is too late; nothing was written.
        """
        try:
            async with asyncio.timeout_at(deadline):
                found = (await self._metastore.get(self._groups.keyspace.group(group_id))).key_value
                await self._offsets.wait_for(0 if found is None else found.mod_revision, deadline)
        except (TimeoutError, TimedOutError):
            raise _behind() from None
        return self._groups.entry(group_id)

    async def _give_back(self, lease_id: int) -> None:
        try:
            await self._metastore.revoke_lease(lease_id)
        except MetastoreRolledBackError:
            raise
        except MetastoreUnavailableError:
            pass  # It expires.

    async def _stay(self, request: groups_pb2.HeartbeatRequest, member: Member, deadline: float) -> None:
        """Renew a member's lease, and run a transaction if the heartbeat changes the group."""
        if request.known_revision > self._groups.source.revision:
            await self._catch_up(request.known_revision)
        entry = self._groups.entry(request.group_id)
        _check_user(entry, member)
        known = entry.group.members.get(member.member_id)
        heartbeat = MemberHeartbeat(member, request.member_epoch, request.assignor, read_owned(request))
        if known is not None:
            if not await self._renew(request.group_id, member.member_id, known.lease_id):
                raise await self._no_session(request, known.lease_id)
            if not needs_transaction(entry.group, known, heartbeat):
                return
            self._check_subscription(entry, known, member)
        await self._transactions.heartbeat(request.group_id, heartbeat, deadline)

    def _check_subscription(self, entry: GroupEntry, before: Member, after: Member) -> None:
        sizes = subscribed_bytes(before), subscribed_bytes(after)
        self._limits.check_growth("a longer subscription", *sizes, entry.payer(after.user))

    async def _catch_up(self, known_revision: int) -> None:
        """Wait until this coordinator's view is as new as a member's last response, perhaps from another coordinator.

        Raises:
            MetastoreUnavailableError: If it is not in time; the state of the member is unknown (H73).
        """
        try:
            await self._offsets.wait_for(known_revision, asyncio.get_running_loop().time() + BEHIND_SECONDS)
        except HeadraceError:
            raise _behind() from None

    async def _renew(self, group_id: str, member_id: bytes, lease_id: int) -> bool:
        """Renew a session; return False if it has ended, which this coordinator's view may not show yet (H73, H76)."""
        key = self._groups.keyspace.group_member(group_id, member_id)
        try:
            left_ms, live = await asyncio.gather(self._metastore.renew_lease(lease_id), self._metastore.get(key))
        except LeaseNotFoundError:
            return False
        return left_ms > 0 and live.key_value is not None and live.key_value.lease_id == lease_id

    async def _no_session(self, request: groups_pb2.HeartbeatRequest, lease_id: int) -> HeadraceError:
        """Return why a session ended, for a static member after the view shows whether the member was replaced."""
        if not request.instance_id:
            return no_member({}, request.member_id, "")

        def is_over() -> bool:
            present = self._groups.entry(request.group_id).live.get(request.member_id)
            return present is None or present.lease_id != lease_id

        deadline = asyncio.get_running_loop().time() + BEHIND_SECONDS
        if not await self._groups.wait_until(request.group_id, is_over, deadline):
            return _behind()
        return _not_in(self._groups.entry(request.group_id), request)

    @unary
    async def LeaveGroup(self, request: groups_pb2.LeaveGroupRequest, context: Any) -> groups_pb2.LeaveGroupResponse:
        """See the proto. A member that is already gone has left, and so has one of another user."""
        check_group_id(request.group_id)
        check_member_id(request.member_id)
        deadline = self._answers.deadline(0, context.time_remaining())
        entry = self._groups.entry(request.group_id)
        if request.member_id not in entry.group.members:  # As far as this view shows: it may have joined elsewhere.
            entry = await self._read_again(request.group_id, deadline)
        present = entry.live.get(request.member_id) if _may_act(entry, request.member_id) else None
        departure = MemberDeparture(request.member_id, access().caller.identity.user)
        await self._transactions.leave(request.group_id, departure, deadline)
        if present is not None:
            await self._give_back(present.lease_id)
        return groups_pb2.LeaveGroupResponse()

    # --- offsets ---

    @unary
    async def CommitOffsets(
        self, request: groups_pb2.CommitOffsetsRequest, context: Any
    ) -> groups_pb2.CommitOffsetsResponse:
        """See the proto."""
        return await self._commits.commit(request, self._answers.deadline(0, context.time_remaining()))

    @unary
    async def FetchOffsets(
        self, request: groups_pb2.FetchOffsetsRequest, context: Any
    ) -> groups_pb2.FetchOffsetsResponse:
        """See the proto."""
        check_group_id(request.group_id)
        await self._see(request.min_revision, context, request.group_id)
        entry = self._groups.entry(request.group_id)
        response = groups_pb2.FetchOffsetsResponse(revision=self._groups.source.revision)
        if request.topics:
            known = [entry.group.topics.get(topic.topic_id) for topic in request.topics]
            first = {topic.topic_id: topic.first_partitions for topic in known if topic is not None}
            response.topics.extend(write_requested_offsets(entry.find_offset, request.topics, first))
        else:
            response.topics.extend(write_offsets(entry.all_offsets(), self._names()))
            _leave_out_hidden(response.topics)
        return response

    # --- administration ---

    @unary
    async def ListGroups(self, request: groups_pb2.ListGroupsRequest, context: Any) -> groups_pb2.ListGroupsResponse:
        """See the proto."""
        await self._see(request.min_revision, context)
        groups, sees = sorted(self._groups.groups.items()), access().sees
        listings = [
            write_listing(group_id, entry.group, len(entry.offsets))
            for group_id, entry in groups
            if sees(ResourceKind.GROUP, group_id)
        ]
        return groups_pb2.ListGroupsResponse(groups=listings)

    @unary
    async def DescribeGroup(
        self, request: groups_pb2.DescribeGroupRequest, context: Any
    ) -> groups_pb2.DescribeGroupResponse:
        """See the proto."""
        check_group_id(request.group_id)
        await self._see(request.min_revision, context, request.group_id)
        entry = self._groups.groups.get(request.group_id)
        revision = self._groups.source.revision
        if entry is None:
            raise UnknownGroupError(f"there is no group {request.group_id!r}")
        group, names = entry.group, self._names()
        present = set(names.values())
        # A deleted topic has its own name, unless that is another topic's now.
        deleted = {topic.topic_id: topic.name for topic in group.topics.values() if topic.name not in present}
        names = {**deleted, **names}
        response = write_group(
            request.group_id, group, entry.live, entry.all_offsets(), names, self._clock.now_ms(), revision
        )
        _leave_out_hidden(response.offsets, response.unowned)
        for member in response.members:
            _leave_out_hidden(member.owned, member.target)
            member.topics[:] = filter(is_shown, member.topics)
            if not _sees_whole_id(group.members[member.member_id]):
                member.member_id = member.member_id[:HIDDEN_ID_BYTES]
        return response

    @unary
    async def DeleteGroups(
        self, request: groups_pb2.DeleteGroupsRequest, context: Any
    ) -> groups_pb2.DeleteGroupsResponse:
        """See the proto."""
        response = groups_pb2.DeleteGroupsResponse()
        deadline = self._answers.deadline(0, context.time_remaining())
        for group_id in request.group_ids:
            answer = response.groups.add(group_id=group_id)
            try:
                check_group_id(group_id)
                access().require(Operation.DELETE, ResourceKind.GROUP, group_id)
                if (await self._read_again(group_id, deadline)).is_gone:
                    raise UnknownGroupError(f"there is no group {group_id!r}")
                expected = request.expected_group_epochs.get(group_id)
                await self._offsets.delete_group(group_id, deadline, expected_group_epoch=expected)
                access().charge(Use.CHANGE)
            except HeadraceError as error:
                self._answers.put_error(answer, error)
        response.revision = self._groups.source.revision
        return response

    async def _see(self, min_revision: int, context: Any, group_id: str = "") -> None:
        """Wait until the view has reached a revision; check the caller, and its right to describe a group, after that.

        Raises:
            TimedOutError: If the view does not reach it in time.
            UnauthenticatedError, NotAuthorizedError: As `Access`.
        """
        if self._groups.source.revision >= min_revision:
            return
        await self._offsets.wait_for(min_revision, self._answers.deadline(0, context.time_remaining()))
        access().recheck()
        if group_id:
            access().require(Operation.DESCRIBE, ResourceKind.GROUP, group_id)

    def _names(self) -> dict[bytes, str]:
        return {bytes(topic.topic_id): topic.name for topic in self._view.topics.values()}


def _not_in(entry: GroupEntry, request: groups_pb2.HeartbeatRequest) -> HeadraceError:
    others = {m: member for m, member in entry.group.members.items() if m != request.member_id}
    return no_member(others, request.member_id, request.instance_id)


def _may_act(entry: GroupEntry, member_id: bytes) -> bool:
    """Return whether the caller may act for a member, as far as this coordinator knows it; a transaction decides."""
    known = entry.group.members.get(member_id)
    return known is None or known.belongs_to(access().caller.identity.user)


def _check_user(entry: GroupEntry, member: Member) -> None:
    """Raise UnknownMemberError for another user's member, before its lease is renewed."""
    if not _may_act(entry, member.member_id):
        raise no_member({}, member.member_id, "")


def _leave_out_hidden(*lists: Any) -> None:
    """Remove topics that the caller may not describe from lists in a response; one that is deleted may have no name."""
    for topics in lists:
        for index in reversed(range(len(topics))):
            if topics[index].name and not is_shown(topics[index].name):
                del topics[index]


def _sees_whole_id(member: Member) -> bool:
    caller = access().caller
    return member.belongs_to(caller.identity.user) or caller.allows(Operation.OPERATE, ResourceKind.CLUSTER)


def _require_topics(member: Member) -> None:
    """Check that a member may read what it subscribes to, also topics that a pattern matches later."""
    for name in member.topics:
        access().require(Operation.READ, ResourceKind.TOPIC, name)
    if member.topic_pattern:
        access().require_all(Operation.READ, ResourceKind.TOPIC, literal_prefix(member.topic_pattern))


def _silent() -> MetastoreUnavailableError:
    return MetastoreUnavailableError("etcd did not answer in time", outcome=Outcome.UNKNOWN)


def _behind() -> MetastoreUnavailableError:
    return MetastoreUnavailableError("this coordinator's metadata is behind", outcome=Outcome.NOT_APPLIED)
