"""Asyncio `Admin`: topics, settings, offsets, replicas, logs, groups, users and rights. Used on one event loop.

The module is a list of methods and therefore longer than others.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from headrace.client.admin import rpc
from headrace.client.admin.balance import BalanceBy, BalancePlan
from headrace.client.admin.group_operations import AdminGroupOperations
from headrace.client.admin.groups import (
    CommittedOffset,
    GroupDescription,
    GroupListing,
    GroupResult,
    OffsetResult,
    PartitionLag,
)
from headrace.client.admin.identity import (
    AccessDecision,
    CallerDescription,
    CreatedApiKey,
    GrantDescription,
    IssuerDescription,
    QuotaDescription,
    RoleDescription,
    UserDescription,
    quota_of,
)
from headrace.client.admin.identity_operations import AdminIdentityOperations
from headrace.client.admin.operations import AdminOperations
from headrace.client.admin.processes import LogLevelResult, ProcessDescription, ProcessSteps
from headrace.client.admin.record_times import record_times
from headrace.client.admin.replication import (
    DiskInfo,
    DrainResult,
    ElectionKind,
    LogInfo,
    PartitionChange,
    Reassignment,
    UnclaimedLogInfo,
)
from headrace.client.admin.rpc import (
    ClusterDescription,
    ConfigValue,
    DeletedRecords,
    MetadataEntry,
    OffsetAt,
    TopicDescription,
)
from headrace.client.base.column_sources import columns_text
from headrace.client.base.config import AdminConfig, build, client_repr
from headrace.client.base.errors import ClosedError, ForkedError
from headrace.client.base.forking import ForkGuard
from headrace.client.base.operations import Operation, aexecute
from headrace.client.base.settings_types import AdminSettings
from headrace.client.base.unclosed import warn_unclosed
from headrace.client.net.bootstrap_client import BootstrapClient
from headrace.client.net.transport import open_connections_async
from headrace.placement.load import MAX_RATIO
from headrace.v1 import auth_pb2
from headrace.wire.errors import from_rpc_error, rpc_failures
from headrace.wire.ids import TopicPartition

if TYPE_CHECKING:
    from headrace.client.mirror.mirrors_async import AsyncMirrors

Result = TypeVar("Result")


class AsyncAdmin:
    """Inspects and changes a cluster. There is one method per operation, so that all are documented in one place.

    Every method accepts `timeout` in seconds for all tries together (default: request_timeout_ms) and raises the typed
    errors of `headrace`. A change that is not idempotent is not repeated after a lost response: the error's outcome is
    then UNKNOWN. A change that was sent is not undone when its caller stops waiting for it.
    """

    def __init__(self, **settings: Unpack[AdminSettings]) -> None:
        """Create a client with the settings of `AdminConfig`. Connects on first use.

        Raises:
            ConfigError: For an unknown setting or a value out of range.
        """
        self._config = config = build(AdminConfig, settings)
        self._settings = settings
        self._mirrors: AsyncMirrors | None = None
        self._is_closed = False
        self._connections = open_connections_async("Admin", config)
        calls = BootstrapClient(config)
        self._operations = AdminOperations(config, calls)
        self._groups = AdminGroupOperations(config, calls, self._operations)
        self._processes = ProcessSteps(config, calls)
        self._identity = AdminIdentityOperations(config, calls)
        self._fork = ForkGuard(self._after_fork)
        self._is_forked = False

    async def __aenter__(self) -> "AsyncAdmin":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return client_repr("Admin", self._config)

    def __del__(self) -> None:
        connections = getattr(self, "_connections", None)  # Not set after wrong settings.
        if connections is not None and connections.is_open and not self._is_forked:
            warn_unclosed(self)  # gRPC closes the channels, as nothing else references them.

    async def close(self) -> None:
        """Close the connections; calls in flight fail. Calling it again does nothing."""
        if self._is_forked:
            return
        self._is_closed = True
        await self._connections.close()
        if self._mirrors is not None:
            await self._mirrors.close()

    @property
    def mirrors(self) -> "AsyncMirrors":
        """Mirrors of the cluster: `admin.mirrors.create`, `describe`, `promote` and others; closed with this client.

        Raises:
            ConfigError: If the cluster is a directory.
        """
        if self._is_forked:
            raise ForkedError("Admin")
        if self._is_closed:
            raise ClosedError("Admin")
        if self._mirrors is None:
            from headrace.client.mirror.mirrors_async import AsyncMirrors

            self._mirrors = AsyncMirrors(**self._settings)
        return self._mirrors

    async def create_topic(
        self,
        name: str,
        partitions: int = 0,
        replication_factor: int = 0,
        config: Mapping[str, Any] | None = None,
        *,
        columns: Any = None,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
        exist_ok: bool = False,
        timeout: float | None = None,
    ) -> TopicDescription:
        """Create a topic; return its description.

        Args:
            name: 1 to 249 of `a-z A-Z 0-9 . _ -`.
            partitions: number of partitions; 0 means the cluster's default.
            replication_factor: number of replicas of each; 0 means the cluster's default.
            config: topic settings by name.
            columns: makes a typed topic, whose records are rows: text like `page string required, user int64`, a
                pyarrow schema or table, a data frame, a dataclass, a pydantic model or `headrace.schemas.Avro`; see
                the guide on typed topics.
            assignments: brokers of each partition, instead of the two numbers.
            validate_only: check everything, create nothing.
            exist_ok: describe an existing topic instead of raising an error.
            timeout: in seconds.

        Raises:
            TopicAlreadyExistsError: If the topic exists, without `exist_ok`.
            InvalidTopicNameError, InvalidPartitionsError: If the argument is invalid.
            InvalidReplicationFactorError, InvalidConfigError: If the argument is invalid.
        """
        if columns is not None:
            config = {**(config or {}), "columns": columns_text(columns)}
        return await self._run(
            self._operations.create_topic(
                name,
                partitions,
                replication_factor,
                config,
                assignments,
                validate_only=validate_only,
                exist_ok=exist_ok,
                timeout=timeout,
            )
        )

    async def delete_topic(self, name: str, *, validate_only: bool = False, timeout: float | None = None) -> None:
        """Delete a topic and all its records.

        Raises:
            UnknownTopicError: If it does not exist.
        """
        await self._run(self._operations.delete_topic(name, validate_only=validate_only, timeout=timeout))

    async def delete_unclaimed_logs(
        self, topic_id: bytes, *, validate_only: bool = False, timeout: float | None = None
    ) -> None:
        """Allow brokers to delete the logs that they keep of an id (16 bytes) that no topic has.

        Brokers keep such logs if etcd has neither the topic nor a record of its deletion, as after a restore.

        Raises:
            ConflictError: If a topic has this id.
            InvalidRequestError: If it is not 16 bytes.
        """
        await self._run(self._operations.delete_unclaimed_logs(topic_id, validate_only=validate_only, timeout=timeout))

    async def list_topics(self, *, timeout: float | None = None) -> list[str]:
        """Return the names of all topics, ascending."""
        return sorted(topic.name for topic in await self.describe_topics(timeout=timeout))

    async def describe_topic(self, name: str, *, timeout: float | None = None) -> TopicDescription:
        """Return a topic's id, partitions, leaders and replicas.

        Raises:
            UnknownTopicError: If it does not exist.
        """
        return (await self.describe_topics([name], timeout=timeout))[0]

    async def describe_topics(
        self, names: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> list[TopicDescription]:
        """Describe some topics in the order given, or all by name.

        Raises:
            UnknownTopicError: If one of them does not exist.
        """
        return await self._run(self._operations.describe_topics(names, timeout))

    async def create_partitions(
        self,
        name: str,
        total_partitions: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> list[str]:
        """Increase a topic's partitions to `total_partitions`; return warnings. Keys map to other partitions.

        Raises:
            InvalidPartitionsError: If it has as many, or is a table, whose rows would be in other partitions.
        """
        return await self._run(
            self._operations.create_partitions(
                name, total_partitions, assignments, validate_only=validate_only, timeout=timeout
            )
        )

    async def alter_config(
        self,
        name: str,
        set: Mapping[str, Any] | None = None,
        unset: Sequence[str] = (),
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Change a topic's settings; `unset` names return to their defaults.

        Raises:
            InvalidConfigError: For an unknown setting or a value out of range.
        """
        await self._run(self._operations.alter_config(name, set, unset, validate_only=validate_only, timeout=timeout))

    async def describe_config(self, name: str, *, timeout: float | None = None) -> dict[str, ConfigValue]:
        """Return every setting of a topic: value, whether it is set or the default, and a description."""
        return await self._run(self._operations.describe_config(name, timeout))

    async def describe_cluster(self, *, timeout: float | None = None) -> ClusterDescription:
        """Return the cluster's id, controller, brokers, coordinators and counts."""
        return await self._run(self._operations.describe_cluster(timeout))

    async def list_offsets(
        self,
        topic: str,
        at: str | int | float | datetime = "latest",
        *,
        by: str = "record",
        partitions: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAt]:
        """Return offsets of a topic's partitions.

        Args:
            topic: name of the topic.
            at: `earliest`, `latest` (the offset of the next visible record), a datetime, or ms since 1970.
            by: for times: `record` timestamps or `append` time.
            partitions: partition numbers; `None` means all.
            timeout: in seconds.
        """
        found = self._operations.find_offsets(topic, at, by=by, partitions=partitions, timeout=timeout)
        return (await self._run(found))[1]

    async def record_times(
        self, topic: str, offsets: Mapping[int, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the timestamps of records, or of the first ones after them, in ms since 1970.

        One batch of each partition is fetched. A partition is omitted if there is no such record, or its batch cannot
        be decoded.

        Args:
            topic: name of the topic.
            offsets: offset of the record by partition.
            timeout: in seconds, for each request.

        Raises:
            OffsetOutOfRangeError: If an offset is outside its partition's log.
        """
        times = await self._run(record_times(self._operations, self._config.client_id, topic, offsets, timeout))
        return {TopicPartition(topic, number): at_ms for number, at_ms in times.items()}

    async def delete_records(
        self, topic: str, before: Mapping[int, int], *, timeout: float | None = None
    ) -> list[DeletedRecords]:
        """Delete the records of partitions below offsets; -1 means the high watermark at the start of the call.

        Returns once every in-sync replica has deleted them, so no later leader has them.

        Raises:
            OffsetOutOfRangeError: If an offset is above the high watermark.
            NotEnoughReplicasError: If fewer than `min_insync_replicas` are in sync.
            TimedOutError: If a replica has not deleted them in time; call again.
        """
        return await self._run(self._operations.delete_records(topic, before, timeout))

    async def describe_logs(
        self, topic: str | None = None, *, brokers: Sequence[int] | None = None, timeout: float | None = None
    ) -> list[LogInfo]:
        """Return size and offsets of every replica, or of one topic's, and the leaders' state of their followers.

        Args:
            topic: name of the topic; `None` means all.
            brokers: only replicas on these brokers; `None` means all registered ones.
            timeout: in seconds, for each broker.

        Raises:
            UnknownBrokerError: If one of `brokers` is not registered.
        """
        return await self._run(self._operations.describe_logs(topic, brokers, timeout))

    async def describe_unclaimed_logs(self, broker_id: int, *, timeout: float | None = None) -> list[UnclaimedLogInfo]:
        """Return the logs on a broker's disk that no key in etcd assigns to it, and why each may not be deleted.

        Raises:
            UnknownBrokerError: If the broker is not registered.
        """
        return await self._run(self._operations.delete_broker_logs(broker_id, (), validate_only=True, timeout=timeout))

    async def delete_broker_logs(
        self, broker_id: int, logs: Sequence[tuple[bytes, int]], *, timeout: float | None = None
    ) -> list[UnclaimedLogInfo]:
        """Delete unclaimed logs of existing topics, (topic id, partition) each, from one broker's disk.

        The broker keeps a log whose partition is assigned to it, is being reassigned or has no leader; the result has
        the reason in `kept_because`.

        Raises:
            UnknownBrokerError: If the broker is not registered.
            InvalidRequestError: If no log is named.
        """
        return await self._run(
            self._operations.delete_broker_logs(broker_id, logs, validate_only=False, timeout=timeout)
        )

    async def describe_disks(
        self, *, brokers: Sequence[int] | None = None, timeout: float | None = None
    ) -> list[DiskInfo]:
        """Return size and free space of the volumes that hold the brokers' data, of all brokers or of some."""
        return await self._run(self._operations.describe_disks(brokers, timeout))

    async def reassign_partitions(
        self,
        moves: Mapping[TopicPartition, Sequence[int]],
        *,
        copy_bytes_per_second: int = 0,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> list[PartitionChange]:
        """Move partitions to other brokers and return one result per partition, in order. Copying continues afterwards.

        A refused partition has its `error` in the result and does not affect others. Naming other replicas for a
        partition that is being moved changes its target; `list_reassignments` shows the progress.

        Args:
            moves: target broker ids of each partition, in order of preference: the first is the preferred leader.
            copy_bytes_per_second: copy rate of each new replica; 0 means unlimited. A later call replaces the present
                rate.
            validate_only: check everything, change nothing.
            timeout: in seconds.

        Raises:
            ConfigError: For a partition without a replica, or a negative rate.
        """
        return await self._run(
            self._operations.reassign_partitions(
                moves, copy_bytes_per_second, validate_only=validate_only, timeout=timeout
            )
        )

    async def plan_balance(
        self, by: BalanceBy = "replicas", *, max_ratio: float = MAX_RATIO, timeout: float | None = None
    ) -> BalancePlan:
        """Return moves after which brokers are balanced; pass their `targets` to `reassign_partitions`.

        The plan keeps the placement of every topic, and moves partitions that differ from it. Drained brokers keep
        what they have.

        Args:
            by: `replicas` for even numbers of replicas; `load` for the fewest moves after which no broker has more than
                `max_ratio` times the mean measured load (`LogInfo.load`), or as near as moves come.
            max_ratio: above 1; only for `load`.
            timeout: in seconds, for each server.

        Raises:
            ConfigError: If `by` is unknown, or `max_ratio` is not above 1.
            NotEnoughBrokersError: If a partition needs a broker that does not exist.
        """
        return await self._run(self._operations.plan_balance(by, max_ratio, timeout))

    async def cancel_reassignment(
        self, partitions: Sequence[TopicPartition], *, validate_only: bool = False, timeout: float | None = None
    ) -> list[PartitionChange]:
        """Cancel reassignments and restore the earlier replicas. Return one result per partition, in order."""
        return await self._run(
            self._operations.cancel_reassignment(partitions, validate_only=validate_only, timeout=timeout)
        )

    async def list_reassignments(
        self, topics: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> list[Reassignment]:
        """Return the partitions that are being moved, of all topics or of some."""
        return await self._run(self._operations.list_reassignments(topics, timeout))

    async def elect_leaders(
        self,
        kind: ElectionKind = "preferred",
        partitions: Sequence[TopicPartition] | None = None,
        *,
        broker_id: int | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> list[PartitionChange]:
        """Elect leaders; return one result per partition, with its `error` if it was refused.

        Args:
            kind: `preferred`: the first replica in order that is in sync and alive. `unclean`: a live replica that may
                lack records, for a partition without an eligible leader; the records it lacks are lost.
            partitions: partitions to elect; `None` means all, which `unclean` does not allow.
            broker_id: with `unclean`, the broker to elect; `None` means the first live replica.
            validate_only: check everything, change nothing.
            timeout: in seconds.

        Raises:
            ConfigError: If the arguments contradict each other.
        """
        return await self._run(
            self._operations.elect_leaders(kind, partitions, broker_id, validate_only=validate_only, timeout=timeout)
        )

    async def drain_broker(self, broker_id: int, *, timeout: float | None = None) -> DrainResult:
        """Move leadership off a broker and assign it no new replicas until `undrain_broker`.

        Its replicas continue to copy.
        """
        return await self._run(self._operations.drain_broker(broker_id, drain=True, timeout=timeout))

    async def undrain_broker(self, broker_id: int, *, timeout: float | None = None) -> DrainResult:
        """Allow a broker to lead and receive new replicas again. It leads after the next election that prefers it."""
        return await self._run(self._operations.drain_broker(broker_id, drain=False, timeout=timeout))

    async def drained_brokers(self, *, timeout: float | None = None) -> list[int]:
        """Return the brokers that an administrator drained, registered or not, ascending; read from etcd itself.

        Raises:
            UnsupportedVersionError: If the coordinator is of an older release, which does not return them.
            MetastoreUnavailableError: If the coordinator does not reach etcd.
        """
        return await self._run(self._operations.drained_brokers(timeout))

    async def list_groups(self, *, timeout: float | None = None) -> list[GroupListing]:
        """List the consumer groups, by id."""
        return await self._run(self._groups.list_groups(timeout))

    async def describe_group(self, group: str, *, timeout: float | None = None) -> GroupDescription:
        """Return a group's members, assignments and offsets.

        Raises:
            UnknownGroupError: If the group has neither members nor offsets.
        """
        return await self._run(self._groups.describe_group(group, timeout))

    async def delete_groups(
        self,
        groups: Sequence[str],
        *,
        expected_group_epochs: Mapping[str, int] | None = None,
        timeout: float | None = None,
    ) -> list[GroupResult]:
        """Delete groups that have no members, with their offsets; return one result per group, in order.

        A refused group has its `error` in the result and does not affect others: GroupNotEmptyError if it has members,
        UnknownGroupError if it does not exist.
        """
        return await self._run(self._groups.delete_groups(groups, timeout, expected_group_epochs))

    async def group_offsets(self, group: str, *, timeout: float | None = None) -> dict[TopicPartition, CommittedOffset]:
        """Return the offsets that a group has committed, the next record to read of each partition. May be empty."""
        return await self._run(self._groups.group_offsets(group, timeout))

    async def group_lag(
        self, group: str | GroupDescription, *, times: bool = True, timeout: float | None = None
    ) -> list[PartitionLag]:
        """Return the lag of a group in each of its partitions.

        `records` is exact: the high watermark less the committed offset. `behind_ms` is the age of the first unread
        record; to compute it, the client fetches one batch of each partition that is behind. Its accuracy depends on
        the clocks of this machine and of the machine that set the record's timestamp. A partition whose end offset
        cannot be determined has a `problem` and does not affect others.

        Args:
            group: its id, or a result of `describe_group`.
            times: whether to compute `behind_ms`.
            timeout: in seconds, for each request.

        Raises:
            UnknownGroupError: If the group does not exist.
        """
        return await self._run(self._groups.group_lag(group, times=times, timeout=timeout))

    async def reset_group_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        *,
        expected_group_epoch: int | None = None,
        timeout: float | None = None,
    ) -> list[OffsetResult]:
        """Store offsets for a group without members, which need not exist yet; return one result per partition.

        A refused partition has its `error` in the result. Offsets are not checked: `auto_offset_reset` applies when a
        member reads from one outside the log.

        Args:
            group: its id.
            offsets: next record to read of each partition; -1 removes the stored offset.
            expected_group_epoch: `group_epoch` of the description from which the offsets were computed, 0 if there was
                no such group. Every member that joins or leaves raises it, and so does this call, once. `None`
                disables the check.
            timeout: in seconds, for each thousand partitions.

        Raises:
            GroupNotEmptyError: If it has members; stop them first.
            ConflictError: If the members changed since that epoch, or offsets were stored without a member: of two
                calls with the same epoch one succeeds. Of thousands of partitions, the first may be stored.
            ConfigError: If an offset is below -1.
        """
        return await self._run(self._groups.reset_group_offsets(group, offsets, timeout, expected_group_epoch))

    async def describe_processes(
        self, *, measure_disk: bool = False, timeout: float | None = None
    ) -> list[ProcessDescription]:
        """Describe each coordinator and broker: clock, open files, disk, connection to etcd, or its failure to respond.

        Args:
            measure_disk: measure the duration of a small write and fsync in the brokers' data directories.
            timeout: for each process, in seconds.
        """
        return await self._run(self._processes.describe(measure_disk=measure_disk, timeout=timeout))

    async def set_log_level(
        self,
        level: str,
        *,
        servers: Sequence[str] | None = None,
        duration_ms: int = 0,
        timeout: float | None = None,
    ) -> list[LogLevelResult]:
        """Change the log level of servers.

        Args:
            level: debug, info, warning or error.
            servers: names such as `broker-1` or `coordinator-a`; `None` means all.
            duration_ms: time for which it applies; 0 means until the server's end.
            timeout: for each server, in seconds.

        Raises:
            InvalidRequestError: If the level or a server does not exist; nothing was changed.
        """
        chosen = None if servers is None else tuple(servers)
        return await self._run(self._processes.set_log_level(level, chosen, duration_ms, timeout))

    async def create_user(
        self,
        name: str,
        *,
        groups: Sequence[str] = (),
        description: str = "",
        certificate_names: Sequence[str] = (),
        disabled: bool = False,
        timeout: float | None = None,
    ) -> UserDescription:
        """Create a user. It has no rights until it is granted some, itself or by its groups.

        Args:
            name: name of the user.
            groups: groups whose grants it has, too.
            description: free text.
            certificate_names: names that identify it in a client certificate: common name, DNS name or SPIFFE id.
            disabled: whether no session of it begins.
            timeout: in seconds.

        Raises:
            ConflictError: If the user exists, or another one has a certificate name.
            InvalidRequestError: If the name is invalid.
        """
        return await self._run(
            self._identity.create_user(name, groups, description, certificate_names, disabled=disabled, timeout=timeout)
        )

    async def alter_user(
        self,
        name: str,
        *,
        groups: Sequence[str] | None = None,
        description: str | None = None,
        certificate_names: Sequence[str] | None = None,
        disabled: bool | None = None,
        timeout: float | None = None,
    ) -> UserDescription:
        """Change what is given of a user. The sessions of a user that is disabled end at once.

        Raises:
            InvalidRequestError: If there is no such user.
            ConflictError: If it is the last administrator, or another user has a certificate name.
        """
        return await self._run(
            self._identity.alter_user(name, groups, description, certificate_names, disabled=disabled, timeout=timeout)
        )

    async def delete_user(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a user, its API keys and its grants; its sessions end at once.

        Raises:
            InvalidRequestError: If there is no such user.
            ConflictError: If it is the last administrator.
        """
        await self._run(self._identity.delete_user(name, timeout))

    async def list_users(self, *, timeout: float | None = None) -> list[UserDescription]:
        """Return all users by name."""
        return await self._run(self._identity.list_users(timeout))

    async def describe_user(self, name: str, *, timeout: float | None = None) -> UserDescription:
        """Return a user with its API keys.

        Raises:
            InvalidRequestError: If there is no such user.
        """
        return await self._run(self._identity.describe_user(name, timeout))

    async def create_api_key(
        self, user: str, *, description: str = "", lifetime_ms: int = 0, timeout: float | None = None
    ) -> CreatedApiKey:
        """Create an API key of a user, which has at most two: to rotate, create the second and delete the first.

        Args:
            user: name of the user.
            description: free text.
            lifetime_ms: time until it expires; 0 means never.
            timeout: in seconds.

        Raises:
            InvalidRequestError: If there is no such user.
            ConflictError: If the user has two.
        """
        return await self._run(self._identity.create_api_key(user, description, lifetime_ms, timeout))

    async def delete_api_key(self, key_id: str, *, timeout: float | None = None) -> None:
        """Delete an API key; its sessions end at once. `key_id` are the 12 characters after `hrk_`.

        Raises:
            InvalidRequestError: If there is no such key.
        """
        await self._run(self._identity.delete_api_key(key_id, timeout))

    async def grant(
        self, principal: str, role: str, resource: str, *, expires_ms: int = 0, timeout: float | None = None
    ) -> GrantDescription:
        """Grant a role on a resource. Granting it again changes when it expires.

        Args:
            principal: a user, or `group:NAME`.
            role: a role, or an operation such as `read`.
            resource: `cluster`, `topic:NAME`, `group:NAME`, or a prefix such as `topic:team.*` or `team.*`.
            expires_ms: milliseconds since 1970; 0 means never.
            timeout: in seconds.

        Raises:
            InvalidRequestError: If there is no such user or role, or the resource is none.
        """
        return await self._run(self._identity.grant(principal, role, resource, expires_ms, timeout))

    async def revoke(self, principal: str, role: str, resource: str, *, timeout: float | None = None) -> bool:
        """Delete a grant; return whether there was one. The arguments are those of `grant`.

        After a lost response the call is repeated, and finds none; so do the other methods that return this.

        Raises:
            ConflictError: If it is that of the last administrator.
        """
        return await self._run(self._identity.revoke(principal, role, resource, timeout))

    async def list_grants(
        self, principal: str = "", resource: str = "", *, timeout: float | None = None
    ) -> list[GrantDescription]:
        """Return grants by principal: all, those to one principal, or those that cover a resource.

        Raises:
            InvalidRequestError: If the resource is none.
        """
        return await self._run(self._identity.list_grants(principal, resource, timeout))

    async def create_role(self, name: str, operations: Sequence[str], *, timeout: float | None = None) -> None:
        """Create a role, or replace the operations of one that is not built in; its grants change at once.

        Raises:
            InvalidRequestError: If the role is built in, or there is no such operation.
        """
        await self._run(self._identity.create_role(name, operations, timeout))

    async def delete_role(self, name: str, *, timeout: float | None = None) -> bool:
        """Delete a role; return whether there was one.

        Raises:
            ConflictError: If a grant names it.
            InvalidRequestError: If it is built in.
        """
        return await self._run(self._identity.delete_role(name, timeout))

    async def list_roles(self, *, timeout: float | None = None) -> list[RoleDescription]:
        """Return all roles by name, including those that are built in."""
        return await self._run(self._identity.list_roles(timeout))

    async def create_issuer(
        self,
        name: str,
        *,
        issuer: str,
        audience: str,
        keys_url: str,
        keys_ca_pem: str = "",
        algorithms: Sequence[str] = (),
        user_claim: str = "",
        groups_claim: str = "",
        timeout: float | None = None,
    ) -> None:
        """Accept the JSON Web Tokens of an issuer, or change how. Coordinators read its keys.

        Args:
            name: its users are named `NAME:CLAIM`.
            issuer: exact value of the claim `iss`.
            audience: value that the claim `aud` must contain.
            keys_url: where its keys are: an https URL, or the path of a file at each coordinator.
            keys_ca_pem: CA certificates for `keys_url`, PEM; empty means the public authorities.
            algorithms: a subset of RS256, ES256 and EdDSA; empty means all three.
            user_claim: the claim with the user's name; empty means `sub`.
            groups_claim: the claim with the user's groups; empty means none.
            timeout: in seconds.

        Raises:
            InvalidRequestError: If an argument is invalid.
            ConflictError: If another issuer is the same, or a user has a name that it could give.
        """
        wanted = auth_pb2.Issuer(
            name=name,
            issuer=issuer,
            audience=audience,
            keys_url=keys_url,
            keys_ca_pem=keys_ca_pem,
            algorithms=algorithms,
            user_claim=user_claim,
            groups_claim=groups_claim,
        )
        await self._run(self._identity.create_issuer(wanted, timeout))

    async def delete_issuer(self, name: str, *, timeout: float | None = None) -> bool:
        """Accept the tokens of an issuer no more, and end its sessions; return whether there was one."""
        return await self._run(self._identity.delete_issuer(name, timeout))

    async def list_issuers(self, *, timeout: float | None = None) -> list[IssuerDescription]:
        """Return all issuers by name."""
        return await self._run(self._identity.list_issuers(timeout))

    async def put_quota(
        self,
        user: str,
        *,
        produce_bytes_per_second: int | None = None,
        fetch_bytes_per_second: int | None = None,
        requests_per_second: int | None = None,
        connections: int | None = None,
        changes_per_minute: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Bound what each broker, and each coordinator, serves one user. Replaces the user's quota.

        A bound of `None` is that of `*`, and the default where `*` has none; 0 means no bound.

        Args:
            user: name of a user, or `*`: every user without a quota of its own, and callers without an identity, by
                address.
            produce_bytes_per_second: bytes of batches that a broker appends; it holds the answers beyond them.
            fetch_bytes_per_second: bytes of batches that a broker sends.
            requests_per_second: requests of any method but health checks and those that begin a session.
            connections: connections of the native protocol to a broker; clients use gRPC beyond them.
            changes_per_minute: administrative requests, but those about identity, and what they create, move or delete.
            timeout: in seconds.

        Raises:
            ConfigError: If a bound is out of range.
            InvalidRequestError: If no user can have the name.
            MetadataLimitError: If there are too many quotas.
        """
        bounds = {
            "produce_bytes_per_second": produce_bytes_per_second,
            "fetch_bytes_per_second": fetch_bytes_per_second,
            "requests_per_second": requests_per_second,
            "connections": connections,
            "changes_per_minute": changes_per_minute,
        }
        quota = quota_of(user, bounds)
        await self._run(self._identity.put_quota(quota, timeout))

    async def delete_quota(self, user: str, *, timeout: float | None = None) -> bool:
        """Delete the quota of a user; return whether it had one. That of `*` applies to it from then on."""
        return await self._run(self._identity.delete_quota(user, timeout))

    async def list_quotas(self, *, timeout: float | None = None) -> list[QuotaDescription]:
        """Return all quotas by user, that of `*` first; before them the default, if the servers have one."""
        return await self._run(self._identity.list_quotas(timeout))

    async def check_access(
        self,
        operation: str,
        resource: str,
        *,
        user: str = "",
        groups: Sequence[str] = (),
        timeout: float | None = None,
    ) -> AccessDecision:
        """Return whether a user may do something, and why.

        Args:
            operation: such as `read`.
            resource: as in `grant`.
            user: name of the user; empty means this client.
            groups: groups that an issuer names, in addition to the user's own.
            timeout: in seconds.

        Raises:
            InvalidRequestError: If there is no such operation, or the resource is none.
        """
        return await self._run(self._identity.check_access(operation, resource, user, groups, timeout))

    async def who_am_i(self, *, timeout: float | None = None) -> CallerDescription:
        """Return who this client is to the cluster, how it was identified, and its grants."""
        return await self._run(self._identity.who_am_i(timeout))

    async def set_posture(self, posture: str, *, timeout: float | None = None) -> str:
        """Change what happens to calls that lack an identity or a right; return the posture in force.

        Args:
            posture: `open` serves them, `observe` serves and counts them, `required` refuses them. The servers'
                settings may demand more.
            timeout: in seconds.

        Raises:
            ConflictError: If it is `required` and the cluster has no administrator.
        """
        return await self._run(self._identity.set_posture(posture, timeout))

    async def dump(self, prefix: str = "", *, timeout: float | None = None) -> AsyncGenerator[MetadataEntry, None]:
        """Yield every key of the cluster in etcd with its decoded value, for administrators."""
        stream = await self._run(self._operations.dump(prefix, timeout))
        try:
            async for entry in stream:
                yield rpc.metadata_entry(entry)
        except rpc_failures() as error:
            raise from_rpc_error(error) from error

    async def _run(self, operation: Operation[Result]) -> Result:
        if self._is_forked:
            raise ForkedError("Admin")
        return await aexecute(operation, self._connections.run_step)

    def _after_fork(self) -> None:
        self._is_forked = True
