"""Conversion of the coordinator's group values to `groups.proto`; see `headrace.groups.messages` for the others."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.groups.state import Group
from headrace.v1 import groups_pb2
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.api import KeyValue


def write_heartbeat(group: Group, stored: KeyValue, interval_ms: int) -> groups_pb2.HeartbeatResponse:
    """Return the response to a member: the partitions in `stored`, its assignment, except those being revoked."""
    assignment = metadata_pb2.MemberAssignment.FromString(stored.value)
    response = groups_pb2.HeartbeatResponse(
        revision=stored.mod_revision,
        member_epoch=assignment.member_epoch,
        heartbeat_interval_ms=interval_ms,
        assignor=group.assignor,
        group_epoch=group.group_epoch,
    )
    for topic in assignment.topics:
        partitions: Sequence[int] = topic.partitions
        epochs: Sequence[int] = topic.assignment_epochs
        if topic.revoking:
            revoking = frozenset(topic.revoking)
            kept = [pair for pair in zip(partitions, epochs, strict=True) if pair[0] not in revoking]
            partitions, epochs = [number for number, _ in kept], [epoch for _, epoch in kept]
        if partitions:
            response.assigned.add(
                topic_id=topic.topic_id, name=topic.name, partitions=partitions, assignment_epochs=epochs
            )
    return response
