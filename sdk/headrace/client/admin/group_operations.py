"""Group operations of `Admin`, shared by the blocking and the asyncio class. No I/O.

Coordinators serve groups and offsets (`GroupService`). The client computes the lag of a group itself: it reads
committed offsets from a coordinator, and log ends and the first unread records from the partitions' leaders.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.client.admin import groups
from headrace.client.admin.groups import (
    CommittedOffset,
    GroupDescription,
    GroupListing,
    GroupResult,
    OffsetResult,
    PartitionLag,
)
from headrace.client.admin.operations import AdminOperations
from headrace.client.admin.record_times import record_times
from headrace.client.base.arguments import listed
from headrace.client.base.config import ClientConfig
from headrace.client.base.operations import Operation
from headrace.client.net.bootstrap_client import BootstrapClient
from headrace.client.net.cluster_metadata import ClusterMetadata
from headrace.v1 import cluster_pb2, groups_pb2, topics_pb2
from headrace.wire.errors import HeadraceError
from headrace.wire.ids import TopicPartition

MAX_RESET_NUMBER = 2**63 - 1


class AdminGroupOperations:
    """Group operations of one client; any thread. `timeout` in seconds is for all tries (default: request_timeout_ms).

    Arguments, results and errors are documented in the methods of `headrace.client.admin.admin.Admin`.
    """

    def __init__(self, config: ClientConfig, calls: BootstrapClient, admin: AdminOperations) -> None:
        self._config = config
        self._calls = calls
        self._admin = admin
        self._revision = 0
        """Etcd revision of the last change: reads are at least as new, whichever coordinator responds."""

    def list_groups(self, timeout: float | None) -> Operation[list[GroupListing]]:
        """List the groups."""
        request = groups_pb2.ListGroupsRequest(min_revision=self._revision)
        return groups.listings((yield from self._ask("ListGroups", "", request, timeout)))

    def describe_group(self, group: str, timeout: float | None) -> Operation[GroupDescription]:
        """Describe one group."""
        request = groups_pb2.DescribeGroupRequest(group_id=group, min_revision=self._revision)
        return groups.description((yield from self._ask("DescribeGroup", group, request, timeout)))

    def delete_groups(
        self, ids: Sequence[str], timeout: float | None, expected_group_epochs: Mapping[str, int] | None = None
    ) -> Operation[list[GroupResult]]:
        """Delete groups, each at its preferred coordinator."""
        results: list[GroupResult] = []
        for group in listed("groups", ids):
            request = groups_pb2.DeleteGroupsRequest(group_ids=[group])
            if expected_group_epochs is not None and group in expected_group_epochs:
                request.expected_group_epochs[group] = expected_group_epochs[group]
            try:
                response = yield from self._ask("DeleteGroups", group, request, timeout, repeatable=False)
            except HeadraceError as error:
                if not results:
                    raise
                results.append(GroupResult(group, error))  # Results of earlier groups must be returned.
                continue
            self._saw(response.revision)
            results += groups.group_results(response)
        return results

    def group_offsets(self, group: str, timeout: float | None) -> Operation[dict[TopicPartition, CommittedOffset]]:
        """Read a group's offsets."""
        request = groups_pb2.FetchOffsetsRequest(group_id=group, min_revision=self._revision)
        response = yield from self._ask("FetchOffsets", group, request, timeout)
        return groups.committed_offsets(response)

    def reset_group_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        timeout: float | None,
        expected_group_epoch: int | None = None,
    ) -> Operation[list[OffsetResult]]:
        """Store offsets of a group without members. Idempotent, so it is repeated after a lost response."""
        number = 0 if expected_group_epoch is None else secrets.randbelow(MAX_RESET_NUMBER) + 1
        results: list[OffsetResult] = []
        for request, some in list(groups.commit_requests(group, offsets, expected_group_epoch, reset_number=number)):
            response = yield from self._ask("CommitOffsets", group, request, timeout)
            self._saw(response.revision)
            results += groups.commit_results(response, {where: offsets[where] for where in some})
        return results

    def group_lag(
        self, group: str | GroupDescription, *, times: bool, timeout: float | None
    ) -> Operation[list[PartitionLag]]:
        """Return the lag of a group in each partition."""
        known = group if isinstance(group, GroupDescription) else (yield from self.describe_group(group, timeout))
        of_topic: dict[str, list[int]] = {}
        for where in known.partitions:
            of_topic.setdefault(where.topic, []).append(where.partition)
        request = cluster_pb2.GetMetadataRequest(topics=[topics_pb2.TopicRef(name=name) for name in of_topic])
        cluster_metadata = ClusterMetadata()
        if of_topic:
            cluster_metadata.update((yield from self._calls.metadata(request, self._admin.brokers.seconds(timeout))))
        found: list[PartitionLag] = []
        for topic, partitions in of_topic.items():
            committed = {
                number: known.offsets[where].offset
                for number in partitions
                if (where := TopicPartition(topic, number)) in known.offsets
            }
            problem = _topic_problem(cluster_metadata, topic, known.topic_ids.get(topic, b""))
            if problem:
                found += [_unknown(topic, number, committed.get(number, -1), problem) for number in partitions]
            else:
                found += yield from self._topic_lag(cluster_metadata, topic, partitions, committed, times, timeout)
        return found

    def _topic_lag(
        self,
        cluster_metadata: ClusterMetadata,
        topic: str,
        partitions: Sequence[int],
        committed: Mapping[int, int],
        times: bool,
        timeout: float | None,
    ) -> Operation[list[PartitionLag]]:
        """Return the lag in one topic. Errors of it affect no other topic."""
        led = [number for number in partitions if cluster_metadata.leader(TopicPartition(topic, number)) is not None]
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        problems = {number: "the partition has no leader now" for number in partitions if number not in led}
        first: dict[int, int] = {}
        try:
            for at, into in (("earliest", starts), ("latest", ends)):
                if led:
                    _, found = yield from self._admin.find_offsets(topic, at, partitions=led, timeout=timeout)
                    into.update({where.partition: answer.offset for where, answer in found.items()})
            unread = {
                number: max(offset, starts[number])
                for number, offset in committed.items()
                if number in ends and max(offset, starts[number]) < ends[number]
            }
            if times and unread:
                first = yield from record_times(self._admin, self._config.client_id, topic, unread, timeout)
        except HeadraceError as error:
            problems.update({number: str(error) for number in led if number not in ends or number in committed})
        now_ms = time.time_ns() // 1_000_000
        return [
            _lag(
                topic,
                number,
                committed.get(number, -1),
                (starts.get(number, -1), ends.get(number, -1)),
                None if number not in first else max(0, now_ms - first[number]),
                problems.get(number, ""),
            )
            for number in partitions
        ]

    def _saw(self, revision: int) -> None:
        self._revision = max(self._revision, revision)

    def _ask(
        self, method: str, group: str, request: Any, timeout: float | None, *, repeatable: bool = True
    ) -> Operation[Any]:
        seconds = self._admin.brokers.seconds(timeout)
        return self._calls.coordinator(method, request, seconds, repeatable=repeatable, group_id=group)


def _topic_problem(cluster_metadata: ClusterMetadata, topic: str, topic_id: bytes) -> str:
    """Return why the offsets of a topic are not valid now, or an empty string."""
    topic_leaders = cluster_metadata.topic(topic)
    if topic_leaders is None:
        return "there is no such topic now"
    if topic_id and topic_id != topic_leaders.topic_id:
        return "the topic was deleted and created again"
    return ""


def _unknown(topic: str, partition: int, committed: int, problem: str) -> PartitionLag:
    return PartitionLag(topic, partition, committed, -1, -1, None, None, problem)


def _lag(
    topic: str, partition: int, committed: int, bounds: tuple[int, int], age_ms: int | None, problem: str
) -> PartitionLag:
    """Return the lag of one partition; records deleted before they were read do not count."""
    start, end = bounds
    records = max(0, end - max(committed, start)) if committed >= 0 and end >= 0 else None
    return PartitionLag(topic, partition, committed, start, end, records, 0 if records == 0 else age_ms, problem)
