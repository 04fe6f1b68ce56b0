"""A coordinator of one group whose test assigns, revokes, refuses and delays; tests/contract compares it with the real
one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
from headrace.v1 import cluster_pb2_grpc, groups_pb2, groups_pb2_grpc
from headrace.wire.errors import (
    GRPC_STATUS,
    STATUS_DETAILS_KEY,
    FencedMemberEpochError,
    GroupNotEmptyError,
    HeadraceError,
    MetastoreUnavailableError,
    NotOwnerError,
    UnknownMemberError,
    to_detail,
    to_status_bytes,
)

from tests.fakes.identity import FakeIdentity

if TYPE_CHECKING:
    from tests.fakes.cluster import FakeCluster

WAIT_SECONDS = 20


class FakeGroups(groups_pb2_grpc.GroupServiceServicer):
    """Starts on a port of the kernel's choice. Tests change it under `changed`."""

    def __init__(
        self,
        cluster: cluster_pb2_grpc.ClusterServiceServicer,
        topics: Mapping[str, bytes],
        identity: FakeIdentity | None = None,
    ) -> None:
        """`cluster` answers what is not about groups; `identity` refuses calls without a session."""
        self.topic_ids = dict(topics)
        self.changed = threading.Condition()
        self.assigned: dict[tuple[str, int], int] = {}
        """Assignment epoch by partition."""
        self.owned: dict[tuple[str, int], int] = {}
        """The same of all that a member may commit: also what is revoked, until a heartbeat no longer reports it."""
        self.revision = 1
        self.epoch = 1
        self.members: list[bytes] = []
        """In the order in which they joined."""
        self.left: list[bytes] = []
        self.heartbeats: list[groups_pb2.HeartbeatRequest] = []
        self.commits: list[groups_pb2.CommitOffsetsRequest] = []
        self.commit_seconds: list[float] = []
        """How long the caller of each would have waited."""
        self.looked_up: list[groups_pb2.FetchOffsetsRequest] = []
        self.offsets: dict[tuple[str, int], groups_pb2.PartitionOffset] = {}
        self.committed: dict[tuple[str, int], tuple[bytes, int]] = {}
        """By which member and with which number each offset was stored."""
        self.fenced: dict[bytes, HeadraceError] = {}
        """Why each heartbeat of a member is refused, also after an answer that the member had cancelled."""
        self.added: set[tuple[str, int]] = set()
        """Partitions that came after the group had begun."""
        self.commit_faults: deque[HeadraceError] = deque()
        """The whole call fails."""
        self.partition_faults: dict[tuple[str, int], HeadraceError] = {}
        """A commit is refused for one partition, once."""
        self.lost_commits = 0
        """The number of commits to store without an answer."""
        self.is_away = False
        """Heartbeats and commits fail for want of etcd."""
        self._server = grpc.server(futures.ThreadPoolExecutor(32), interceptors=[] if identity is None else [identity])
        if identity is not None:
            identity.serve_at(self._server)
        groups_pb2_grpc.add_GroupServiceServicer_to_server(self, self._server)
        cluster_pb2_grpc.add_ClusterServiceServicer_to_server(cluster, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self) -> None:
        """Stop the server."""
        with self.changed:
            self.changed.notify_all()
        self._server.stop(0).wait()

    # --- the test's side ---

    def assign(self, *partitions: tuple[str, int]) -> None:
        """Let the member own exactly these."""
        with self.changed:
            self.revision += 1
            self.epoch += 1
            self.assigned = {where: self.assigned.get(where, self.epoch) for where in partitions}
            self.owned |= self.assigned
            self.changed.notify_all()

    def assign_again(self, assigned: dict[tuple[str, int], int]) -> None:
        """Let the member keep these partitions of before, in their epochs."""
        with self.changed:
            self.revision += 1
            self.epoch += 1
            self.assigned = dict(assigned)
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Wait until the condition holds; fail with what was awaited."""
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_SECONDS), f"{what} did not come"

    def offset(self, topic: str, partition: int) -> int:
        """Return the committed offset of a partition, -1 without one."""
        stored = self.offsets.get((topic, partition))
        return -1 if stored is None else stored.offset

    def reported_owned(self) -> set[tuple[str, int]] | None:
        """What the last heartbeat that said so says."""
        for request in reversed(self.heartbeats):
            if request.HasField("owned"):
                return {(topic.name, n) for topic in request.owned.topics for n in topic.partitions}
        return None

    def fence(self, error: HeadraceError) -> None:
        """End the newest member's membership: refuse its heartbeats from now on, also the one that waits."""
        with self.changed:
            self.fenced[self.members[-1]] = error
            self.assigned = {}
            self.owned = {}
            self.revision += 1
            self.changed.notify_all()

    # --- the service ---

    def _fail(self, context: grpc.ServicerContext, error: HeadraceError) -> None:
        context.set_trailing_metadata(((STATUS_DETAILS_KEY, to_status_bytes(error)),))
        context.abort(GRPC_STATUS[error.code], error.message)

    def _check_etcd(self, context: grpc.ServicerContext) -> None:
        if self.is_away:
            self._fail(context, MetastoreUnavailableError("etcd is away"))

    def _check_member(self, context: grpc.ServicerContext, request: Any) -> None:
        if request.member_id not in self.members or request.member_id in self.left:
            self._fail(context, UnknownMemberError("its session is over"))
        if request.member_epoch > self.epoch:
            self._fail(context, FencedMemberEpochError(f"the member is at epoch {self.epoch}"))

    def Heartbeat(self, request: Any, context: Any) -> Any:
        """Return the assignment, once it changed or the wait is over."""
        with self.changed:
            if not context.is_active():  # The member cancelled it and has sent another one, which may be answered.
                return groups_pb2.HeartbeatResponse()
            self.heartbeats.append(request)
            self.changed.notify_all()
            self._check_etcd(context)
            if request.member_epoch:
                self._check_member(context, request)
            elif request.member_id not in self.members:
                self.members.append(request.member_id)
            if request.HasField("owned") and request.member_epoch == self.epoch:
                kept = {(topic.name, number) for topic in request.owned.topics for number in topic.partitions}
                self.owned = {place: self.owned[place] for place in self.owned if place in kept | self.assigned.keys()}
            self.changed.wait_for(
                lambda: (
                    self.revision != request.known_revision
                    or request.member_id in self.fenced
                    or self.is_away
                    or not context.is_active()
                ),
                request.max_wait_ms / 1000,
            )
            self._check_etcd(context)
            if request.member_id in self.fenced:
                self._fail(context, self.fenced[request.member_id])
            response = groups_pb2.HeartbeatResponse(
                member_epoch=self.epoch, revision=self.revision, heartbeat_interval_ms=3_000, assignor="uniform"
            )
            by_topic: dict[str, groups_pb2.GroupTopicPartitions] = {}
            for (name, number), epoch in sorted(self.assigned.items()):
                if name not in by_topic:
                    by_topic[name] = response.assigned.add(topic_id=self.topic_ids[name], name=name)
                by_topic[name].partitions.append(number)
                by_topic[name].assignment_epochs.append(epoch)
            return response

    def LeaveGroup(self, request: Any, context: Any) -> Any:
        """Note who leaves."""
        with self.changed:
            self.left.append(request.member_id)
            self.changed.notify_all()
        return groups_pb2.LeaveGroupResponse()

    def CommitOffsets(self, request: Any, context: Any) -> Any:
        """Store offsets, or fail as the test asks."""
        with self.changed:
            self.commits.append(request)
            self.commit_seconds.append(context.time_remaining())
            self.changed.notify_all()
            self._check_etcd(context)
            if self.commit_faults:
                self._fail(context, self.commit_faults.popleft())
            if request.member_id:
                self._check_member(context, request)
            elif set(self.members) - set(self.left):
                self._fail(context, GroupNotEmptyError("the group has members"))
            response = groups_pb2.CommitOffsetsResponse(revision=1_000 + len(self.commits))
            for topic in request.topics:
                entry = response.topics.add(topic_id=topic.topic_id, name=topic.name)
                for given in topic.partitions:
                    answer = entry.partitions.add(partition=given.partition, offset=given.offset)
                    place = (topic.name, given.partition)
                    error = self.partition_faults.pop(place, None)
                    if request.member_id and request.member_epoch < self.owned.get(place, request.member_epoch + 1):
                        error = NotOwnerError(f"the member does not own partition {given.partition}")
                    member_id, number = self.committed.get(place, (b"", 0))
                    if error is not None:
                        answer.error.CopyFrom(to_detail(error))
                    elif request.member_id != member_id or request.commit_number > number or not number:
                        self.offsets[place] = given
                        self.committed[place] = (request.member_id, request.commit_number)
            self.changed.notify_all()
            if self.lost_commits:
                self.lost_commits -= 1
                context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
            return response

    def FetchOffsets(self, request: Any, context: Any) -> Any:
        """Return the stored offsets."""
        with self.changed:
            self.looked_up.append(request)
            newest = max(self.revision, 1_000 + len(self.commits), request.min_revision)
            response = groups_pb2.FetchOffsetsResponse(revision=newest)
            asked = [(topic.name, topic.topic_id, list(topic.partitions)) for topic in request.topics]
            if not asked:
                asked = [(name, self.topic_ids[name], [number]) for name, number in self.offsets]
            for name, topic_id, numbers in asked:
                entry = response.topics.add(topic_id=topic_id, name=name)
                for number in numbers:
                    stored = self.offsets.get((name, number))
                    if stored is not None:
                        entry.partitions.add().CopyFrom(stored)
                    else:
                        is_added = (name, number) in self.added
                        entry.partitions.add(partition=number, offset=-1, leader_epoch=-1, is_added=is_added)
            return response


@contextmanager
def fake_groups(cluster: FakeCluster, identity: FakeIdentity | None = None) -> Iterator[FakeGroups]:
    """The coordinator of a `FakeCluster`, whose topics are there already."""
    groups = FakeGroups(cluster, {name: topic.topic_id for name, topic in cluster.topics.items()}, identity)
    cluster.coordinators = [groups.address]
    try:
        yield groups
    finally:
        groups.stop()
