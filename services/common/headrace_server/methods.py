"""Table of all served methods with their request limits and required rights.

It has one row for each method of each service, for gRPC and the native protocol. `RpcServer` does not start with a
method that has no row, so that every new method needs a size limit and a statement of the right that it requires; a
test calls every method with every role. Pure.

The limits follow from two goals: no single call costs more than 100 ms of an event loop, nor more than 64 MiB of
memory. Parsing 1 MiB of empty sub-messages, the worst case of protobuf, took 20 ms and 28 MiB.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import NamedTuple

from headrace_server.identity.rights import Operation, ResourceKind

KIB = 1 << 10
MIB = 1 << 20


class Pool(Enum):
    """Concurrency pool of a call. Pools are separate, so that none can exhaust the slots of another."""

    CLIENTS = auto()
    ADMINISTRATORS = auto()
    HEALTH = auto()


class Right(NamedTuple):
    """What a method requires: an operation on the cluster, or on every topic or group that its request names.

    The server checks it before the handler runs if the resource is the cluster, or the request has a field `group_id`;
    otherwise the handler does, for each topic and group by itself.
    """

    operation: Operation
    kind: ResourceKind


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
    right: Right | None = None
    """Required right; `None`: any caller with an identity."""
    needs_identity: bool = True
    """Whether callers without an identity are refused."""
    is_about_identity: bool = False
    """Whether the right is required whatever the posture, so that no stranger becomes an administrator before the
    cluster is closed.
    """
    is_act: bool = False
    """Whether it is an administrative act, each of which the audit log has."""

    @property
    def uses_quota(self) -> bool:
        """Whether its calls count as requests of the caller's quota. Those that anybody may make do not: strangers
        would use the quota of all callers without an identity, and no session could be opened.
        """
        return self.needs_identity

    @property
    def is_change(self) -> bool:
        """Whether its calls count as changes of the caller's quota. Those about identity do not: an administrator must
        be able to raise the quota.
        """
        return self.is_act and not self.is_about_identity

    @property
    def late_bytes(self) -> int:
        """Memory counted for a late request; `0` means that it must not be late."""
        return self.max_bytes if self.is_large else 0


_DATA = Method(1 * MIB, 20_000)
_SMALL = Method(64 * KIB, 1_000)
_LISTING = Method(64 * KIB, 1_000, answer_bytes_per_second=1 * MIB)
_ADMIN = Method(64 * KIB, 1_000, Pool.ADMINISTRATORS)
_ADMIN_WIDE = Method(2 * MIB, 40_000, Pool.ADMINISTRATORS)
_LISTING_OF_ADMIN = replace(_ADMIN, answer_bytes_per_second=1 * MIB)
_HEALTH = Method(4 * KIB, 10, Pool.HEALTH, needs_identity=False)


def _act(row: Method) -> Method:
    return replace(row, is_act=True)


def _identity(row: Method) -> Method:
    return replace(row, is_about_identity=True)


def _topics(operation: Operation, row: Method) -> Method:
    return replace(row, right=Right(operation, ResourceKind.TOPIC))


def _group(operation: Operation, row: Method) -> Method:
    return replace(row, right=Right(operation, ResourceKind.GROUP))


def _cluster(operation: Operation, row: Method) -> Method:
    return replace(row, right=Right(operation, ResourceKind.CLUSTER))


_DESCRIBE, _READ, _WRITE = Operation.DESCRIBE, Operation.READ, Operation.WRITE
_CREATE, _DELETE, _ALTER = Operation.CREATE, Operation.DELETE, Operation.ALTER
_OPERATE, _ADMINISTER = Operation.OPERATE, Operation.ADMIN
_IDENTITY_ACT = _identity(_act(_cluster(_ADMINISTER, _ADMIN)))

METHODS: dict[str, Method] = {
    "/headrace.v1.BrokerService/Produce": _topics(_WRITE, Method(32 * MIB, 30_000, is_large=True)),
    "/headrace.v1.BrokerService/Fetch": _topics(_READ, _DATA),
    "/headrace.v1.BrokerService/ListOffsets": _topics(_DESCRIBE, _DATA),
    "/headrace.v1.BrokerService/DeleteRecords": _act(_topics(_DELETE, _DATA)),
    "/headrace.v1.BrokerService/DescribeLogs": _topics(
        _DESCRIBE, Method(1 * MIB, 20_000, answer_bytes_per_second=256 * KIB)
    ),
    "/headrace.v1.BrokerService/DeleteUnclaimedLogs": _act(
        _cluster(_ADMINISTER, Method(1 * MIB, 20_000, Pool.ADMINISTRATORS, answer_bytes_per_second=256 * KIB))
    ),
    "/headrace.v1.BrokerService/GetMetadata": _topics(_DESCRIBE, _DATA),
    "/headrace.v1.TableService/GetRows": _topics(_READ, _DATA),
    "/headrace.v1.TableService/ScanRows": _topics(_READ, _SMALL),
    "/headrace.v1.TableService/CountRows": _topics(_READ, _SMALL),
    "/headrace.v1.TableService/WriteRow": _topics(_WRITE, Method(2 * MIB, 10_000)),
    "/headrace.v1.TableService/PurgeRows": _act(_topics(_DELETE, _DATA)),
    "/headrace.v1.ClusterService/GetMetadata": _topics(_DESCRIBE, _DATA),
    "/headrace.v1.ClusterService/CreateTopics": _act(_topics(_CREATE, Method(2 * MIB, 64_000))),
    "/headrace.v1.ClusterService/DeleteTopics": _act(_topics(_DELETE, _DATA)),
    "/headrace.v1.ClusterService/CreatePartitions": _act(_topics(_ALTER, Method(2 * MIB, 64_000))),
    "/headrace.v1.ClusterService/DescribeConfigs": _topics(
        _DESCRIBE, Method(1 * MIB, 20_000, answer_bytes_per_second=1 * MIB)
    ),
    "/headrace.v1.ClusterService/AlterConfigs": _act(_topics(_ALTER, _SMALL)),
    "/headrace.v1.ClusterService/DescribeCluster": _cluster(_DESCRIBE, _ADMIN),
    "/headrace.v1.ClusterService/InitProducerId": _SMALL,
    "/headrace.v1.ClusterService/ReassignPartitions": _act(_cluster(_OPERATE, _ADMIN_WIDE)),
    "/headrace.v1.ClusterService/ListReassignments": _cluster(_DESCRIBE, Method(1 * MIB, 20_000, Pool.ADMINISTRATORS)),
    "/headrace.v1.ClusterService/ElectLeaders": _act(_cluster(_OPERATE, _ADMIN_WIDE)),
    "/headrace.v1.ClusterService/DrainBroker": _act(_cluster(_OPERATE, _ADMIN)),
    "/headrace.v1.ClusterService/DumpMetadata": _act(
        _cluster(_ADMINISTER, Method(64 * KIB, 1_000, Pool.ADMINISTRATORS, answer_bytes_per_second=256 * KIB))
    ),
    "/headrace.v1.GroupService/Heartbeat": _group(_READ, Method(1 * MIB, 20_000)),
    "/headrace.v1.GroupService/LeaveGroup": _group(_READ, _SMALL),
    "/headrace.v1.GroupService/CommitOffsets": _group(_READ, Method(2 * MIB, 20_000)),
    "/headrace.v1.GroupService/FetchOffsets": _group(_DESCRIBE, _DATA),
    "/headrace.v1.GroupService/ListGroups": _group(_DESCRIBE, _LISTING),
    "/headrace.v1.GroupService/DescribeGroup": _group(_DESCRIBE, _LISTING),
    "/headrace.v1.GroupService/DeleteGroups": _act(_group(_DELETE, Method(1 * MIB, 2_000))),
    "/headrace.v1.SessionService/OpenSession": Method(64 * KIB, 100, calls_per_minute=6_000, needs_identity=False),
    "/headrace.v1.SessionService/WhoAmI": replace(_SMALL, needs_identity=False),
    "/headrace.v1.AuthService/PutUser": _IDENTITY_ACT,
    "/headrace.v1.AuthService/DeleteUser": _IDENTITY_ACT,
    "/headrace.v1.AuthService/ListUsers": _identity(_cluster(_ADMINISTER, _LISTING_OF_ADMIN)),
    # Users may replace their own keys, and ask about themselves.
    "/headrace.v1.AuthService/CreateApiKey": _identity(_act(_ADMIN)),
    "/headrace.v1.AuthService/DeleteApiKey": _identity(_act(_ADMIN)),
    "/headrace.v1.AuthService/CheckAccess": _identity(_ADMIN),
    "/headrace.v1.AuthService/PutGrant": _IDENTITY_ACT,
    "/headrace.v1.AuthService/DeleteGrant": _IDENTITY_ACT,
    "/headrace.v1.AuthService/ListGrants": _identity(_cluster(_ADMINISTER, _LISTING_OF_ADMIN)),
    "/headrace.v1.AuthService/PutRole": _IDENTITY_ACT,
    "/headrace.v1.AuthService/DeleteRole": _IDENTITY_ACT,
    "/headrace.v1.AuthService/ListRoles": _identity(_ADMIN),
    "/headrace.v1.AuthService/PutIssuer": _IDENTITY_ACT,
    "/headrace.v1.AuthService/DeleteIssuer": _IDENTITY_ACT,
    "/headrace.v1.AuthService/ListIssuers": _identity(_cluster(_ADMINISTER, _ADMIN)),
    "/headrace.v1.AuthService/PutQuota": _IDENTITY_ACT,
    "/headrace.v1.AuthService/DeleteQuota": _IDENTITY_ACT,
    "/headrace.v1.AuthService/ListQuotas": _identity(_cluster(_ADMINISTER, _LISTING_OF_ADMIN)),
    "/headrace.v1.AuthService/SetPosture": _IDENTITY_ACT,
    "/headrace.v1.ProcessService/DescribeProcess": _cluster(_DESCRIBE, _ADMIN),
    "/headrace.v1.ProcessService/SetLogLevel": _act(
        _cluster(_OPERATE, Method(64 * KIB, 1_000, Pool.ADMINISTRATORS, calls_per_minute=60))
    ),
    "/grpc.health.v1.Health/Check": _HEALTH,
    "/grpc.health.v1.Health/Watch": _HEALTH,
    "/grpc.health.v1.Health/List": _HEALTH,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Method(4 * KIB, 10, Pool.ADMINISTRATORS),
}
