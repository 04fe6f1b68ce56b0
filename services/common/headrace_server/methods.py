"""Table of all served methods with their request limits.

It has one row for each method of each service, for gRPC and the native protocol. `RpcServer` does not start with a
method that has no row, so that every new method needs a size limit; a test checks every descriptor. Required rights
would be in the same rows. Pure.

The limits follow from two goals: no single call costs more than 100 ms of an event loop, nor more than 64 MiB of
memory. Parsing 1 MiB of empty sub-messages, the worst case of protobuf, took 20 ms and 28 MiB.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

KIB = 1 << 10
MIB = 1 << 20


class Pool(Enum):
    """Concurrency pool of a call. Pools are separate, so that none can exhaust the slots of another."""

    CLIENTS = auto()
    ADMINISTRATORS = auto()
    HEALTH = auto()


@dataclass(frozen=True, slots=True)
class Method:
    """Row of one method."""

    max_bytes: int
    """Maximum size of one request message."""
    max_items: int
    """Maximum number of elements in all its repeated fields together, at every depth."""
    pool: Pool = Pool.CLIENTS
    is_large: bool = False
    """Whether its message may take longer than a second to arrive over a slow network."""
    answer_bytes_per_second: int = 0
    """Rate limit of response bytes per peer, for methods with expensive responses; `0` means no limit."""
    calls_per_minute: int = 0
    """Rate limit of calls per peer; `0` means no limit."""

    @property
    def late_bytes(self) -> int:
        """Memory counted for a late request; `0` means that it must not be late."""
        return self.max_bytes if self.is_large else 0


_DATA = Method(1 * MIB, 20_000)
_SMALL = Method(64 * KIB, 1_000)
_LISTING = Method(64 * KIB, 1_000, answer_bytes_per_second=1 * MIB)
_ADMIN = Method(64 * KIB, 1_000, Pool.ADMINISTRATORS)
_ADMIN_WIDE = Method(2 * MIB, 40_000, Pool.ADMINISTRATORS)
_HEALTH = Method(4 * KIB, 10, Pool.HEALTH)

METHODS: dict[str, Method] = {
    "/headrace.v1.BrokerService/Produce": Method(32 * MIB, 30_000, is_large=True),
    "/headrace.v1.BrokerService/Fetch": _DATA,
    "/headrace.v1.BrokerService/ListOffsets": _DATA,
    "/headrace.v1.BrokerService/DeleteRecords": _DATA,
    "/headrace.v1.BrokerService/DescribeLogs": Method(1 * MIB, 20_000, answer_bytes_per_second=256 * KIB),
    "/headrace.v1.BrokerService/DeleteUnclaimedLogs": Method(
        1 * MIB, 20_000, Pool.ADMINISTRATORS, answer_bytes_per_second=256 * KIB
    ),
    "/headrace.v1.BrokerService/GetMetadata": _DATA,
    "/headrace.v1.ClusterService/GetMetadata": _DATA,
    "/headrace.v1.ClusterService/CreateTopics": Method(2 * MIB, 64_000),
    "/headrace.v1.ClusterService/DeleteTopics": _DATA,
    "/headrace.v1.ClusterService/CreatePartitions": Method(2 * MIB, 64_000),
    "/headrace.v1.ClusterService/DescribeConfigs": Method(1 * MIB, 20_000, answer_bytes_per_second=1 * MIB),
    "/headrace.v1.ClusterService/AlterConfigs": _SMALL,
    "/headrace.v1.ClusterService/DescribeCluster": _ADMIN,
    "/headrace.v1.ClusterService/InitProducerId": _SMALL,
    "/headrace.v1.ClusterService/ReassignPartitions": _ADMIN_WIDE,
    "/headrace.v1.ClusterService/ListReassignments": Method(1 * MIB, 20_000, Pool.ADMINISTRATORS),
    "/headrace.v1.ClusterService/ElectLeaders": _ADMIN_WIDE,
    "/headrace.v1.ClusterService/DrainBroker": _ADMIN,
    "/headrace.v1.ClusterService/DumpMetadata": Method(
        64 * KIB, 1_000, Pool.ADMINISTRATORS, answer_bytes_per_second=256 * KIB
    ),
    "/headrace.v1.GroupService/Heartbeat": Method(1 * MIB, 20_000),
    "/headrace.v1.GroupService/LeaveGroup": _SMALL,
    "/headrace.v1.GroupService/CommitOffsets": Method(2 * MIB, 20_000),
    "/headrace.v1.GroupService/FetchOffsets": _DATA,
    "/headrace.v1.GroupService/ListGroups": _LISTING,
    "/headrace.v1.GroupService/DescribeGroup": _LISTING,
    "/headrace.v1.GroupService/DeleteGroups": Method(1 * MIB, 2_000),
    "/headrace.v1.ProcessService/DescribeProcess": _ADMIN,
    "/headrace.v1.ProcessService/SetLogLevel": Method(64 * KIB, 1_000, Pool.ADMINISTRATORS, calls_per_minute=60),
    "/grpc.health.v1.Health/Check": _HEALTH,
    "/grpc.health.v1.Health/Watch": _HEALTH,
    "/grpc.health.v1.Health/List": _HEALTH,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Method(4 * KIB, 10, Pool.ADMINISTRATORS),
}
