"""What a directory stores of topics and groups, under the keys that a cluster has for it in etcd: `DumpMetadata`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from headrace.embedded.catalogue import topic_fields
from headrace.embedded.cluster import DirectoryCluster
from headrace.embedded.groups import DirectoryGroups
from headrace.v1 import cluster_pb2, groups_pb2
from headrace.wire.errors import UnknownGroupError


class Entries(list[cluster_pb2.DumpMetadataResponse]):
    """Entries of a stream, for blocking and for asyncio clients."""

    async def __aiter__(self) -> AsyncIterator[cluster_pb2.DumpMetadataResponse]:
        for entry in self:
            yield entry


def dump_metadata(
    cluster: DirectoryCluster, groups: DirectoryGroups, request: cluster_pb2.DumpMetadataRequest
) -> Entries:
    """Answer a DumpMetadata. Members of groups are those of this process."""
    described = cluster.describe_cluster(cluster_pb2.DescribeClusterRequest())
    root, generation = f"/headrace/{described.cluster_id}", described.generation
    if request.prefix.startswith("groups/"):
        wanted = f"{root}/groups/{generation}/{request.prefix.removeprefix('groups/')}"
    else:
        wanted = f"{root}/{generation}/{request.prefix}" if request.prefix else root
    entries: dict[str, object] = {
        **{f"{root}/{generation}/brokers/{each.broker_id}": _as_json(each) for each in described.brokers},
        **{f"{root}/{generation}/topics/{topic.name}": topic_fields(topic) for topic in cluster.sorted_topics()},
    }
    for listing in groups.list(groups_pb2.ListGroupsRequest()).groups:
        here = f"{root}/groups/{generation}/group/{listing.group_id}"
        with suppress(UnknownGroupError):  # It was deleted meanwhile.
            group = groups.describe(groups_pb2.DescribeGroupRequest(group_id=listing.group_id))
            entries.update((f"{here}/{key}", value) for key, value in _group_entries(group))
    return Entries(
        cluster_pb2.DumpMetadataResponse(key=key, value_json=json.dumps(value), mod_revision=described.revision)
        for key, value in entries.items()
        if key.startswith(wanted)
    )


def _group_entries(group: groups_pb2.DescribeGroupResponse) -> Iterator[tuple[str, object]]:
    yield "state", {**_as_json(group.listing), "group_epoch": group.group_epoch}
    for member in group.members:
        found = _as_json(member)
        yield f"assignments/{member.member_id.hex()}", {"owned": found.pop("owned", [])}
        yield f"members/{member.member_id.hex()}", found
    for topic in group.offsets:
        for offset in topic.partitions:
            yield f"offsets/{topic.topic_id.hex()}/{offset.partition}", _as_json(offset)


def _as_json(message: Message) -> dict[str, object]:
    return MessageToDict(message, preserving_proto_field_name=True)
