"""The asyncio `Admin`: topics, settings, offsets, replicas, logs, groups. One event loop."""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, Unpack

import grpc

from headrace.client.admin import rpc
from headrace.client.admin.group_operations import AdminGroupOperations
from headrace.client.admin.groups import (
    CommittedOffset,
    GroupDescription,
    GroupListing,
    GroupResult,
    OffsetResult,
    PartitionLag,
)
from headrace.client.admin.operations import AdminOperations
from headrace.client.admin.processes import LogLevelResult, ProcessDescription, ProcessSteps
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
from headrace.client.base.config import AdminConfig, build, client_repr
from headrace.client.base.errors import ForkedError
from headrace.client.base.forking import ForkGuard
from headrace.client.base.operations import Operation, aexecute
from headrace.client.base.settings_types import AdminSettings
from headrace.client.base.unclosed import warn_unclosed
from headrace.client.net.bootstrap_client import BootstrapClient
from headrace.client.net.connection_async import AsyncConnections
from headrace.wire.errors import from_rpc_error
from headrace.wire.ids import TopicPartition

Result = TypeVar("Result")


class AsyncAdmin:
    """Looks at and changes a cluster. A method an operation: the list is long, and is documented in one place.

    Every method takes `timeout` in seconds for all tries together (default: request_timeout_ms) and raises the typed
    errors of `headrace`. A change that is not the same twice as once is not sent again when its answer was lost: the
    error's outcome is then UNKNOWN. A change that was sent is not undone when its caller stops waiting for it.
    """

    def __init__(self, **settings: Unpack[AdminSettings]) -> None:
        """See `AdminConfig` for the settings. Connects when first used.

        Raises:
            ConfigError: an unknown setting or a value out of range.
        """
        self._config = config = build(AdminConfig, settings)
        self._connections = AsyncConnections("Admin", config)
        calls = BootstrapClient(config)
        self._operations = AdminOperations(config, calls)
        self._groups = AdminGroupOperations(config, calls, self._operations)
        self._processes = ProcessSteps(config, calls)
        self._fork = ForkGuard(self._after_fork)
        self._is_forked = False

    async def __aenter__(self) -> "AsyncAdmin":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return client_repr("Admin", self._config)

    def __del__(self) -> None:
        connections = getattr(self, "_connections", None)  # Wrong settings leave none.
        if connections is not None and connections.is_open and not self._is_forked:
            warn_unclosed(self)  # gRPC closes the channels, which nothing else holds.

    async def close(self) -> None:
        """Close the connections; calls in flight fail. Calling it again does nothing."""
        if not self._is_forked:
            await self._connections.close()

    async def create_topic(
        self,
        name: str,
        partitions: int = 0,
        replication_factor: int = 0,
        config: Mapping[str, Any] | None = None,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
        exist_ok: bool = False,
        timeout: float | None = None,
    ) -> TopicDescription:
        """Create a topic; return its description.

        Args:
            name: 1 to 249 of `a-z A-Z 0-9 . _ -`.
            partitions: how many; 0 takes the cluster's default.
            replication_factor: how many replicas each has; 0 takes the cluster's default.
            config: topic settings by name.
            assignments: brokers of each partition, in place of the two numbers.
            validate_only: check everything, create nothing.
            exist_ok: describe a topic that is there already, in place of raising.
            timeout: in seconds.

        Raises:
            TopicAlreadyExistsError: unless `exist_ok`.
            InvalidTopicNameError, InvalidPartitionsError: correct it.
            InvalidReplicationFactorError, InvalidConfigError: correct it.
        """
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
            UnknownTopicError: there is none of that name.
        """
        await self._run(self._operations.delete_topic(name, validate_only=validate_only, timeout=timeout))

    async def delete_unclaimed_logs(
        self, topic_id: bytes, *, validate_only: bool = False, timeout: float | None = None
    ) -> None:
        """Let brokers delete the logs that they keep of an id (16 bytes) that no topic has.

        Brokers keep such logs where etcd lacks a topic and does not say that it was deleted, as after a restore.

        Raises:
            ConflictError: a topic has this id.
            InvalidRequestError: it is not 16 bytes.
        """
        await self._run(self._operations.delete_unclaimed_logs(topic_id, validate_only=validate_only, timeout=timeout))

    async def list_topics(self, *, timeout: float | None = None) -> list[str]:
        """Return the names of all topics, ascending."""
        return sorted(topic.name for topic in await self.describe_topics(timeout=timeout))

    async def describe_topic(self, name: str, *, timeout: float | None = None) -> TopicDescription:
        """Return a topic's id, partitions, leaders, replicas.

        Raises:
            UnknownTopicError: there is none of that name.
        """
        return (await self.describe_topics([name], timeout=timeout))[0]

    async def describe_topics(
        self, names: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> list[TopicDescription]:
        """Describe some topics in the order given, or all by name.

        Raises:
            UnknownTopicError: one of the names is not there.
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
        """Raise the number of a topic's partitions to `total_partitions`; return warnings. Keys map anew."""
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
        """Change a topic's settings; `unset` names go back to their defaults.

        Raises:
            InvalidConfigError: an unknown setting or a value out of range.
        """
        await self._run(self._operations.alter_config(name, set, unset, validate_only=validate_only, timeout=timeout))

    async def describe_config(self, name: str, *, timeout: float | None = None) -> dict[str, ConfigValue]:
        """Return every setting of a topic: value, whether it is set or the default, and what it does."""
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
        """Find offsets of a topic's partitions.

        Args:
            topic: its name.
            at: `earliest`, `latest` (where the next visible record will be), a datetime, or ms since 1970.
            by: for times: `record` timestamps or `append` time.
            partitions: which; None for all.
            timeout: in seconds.
        """
        found = self._operations.find_offsets(topic, at, by=by, partitions=partitions, timeout=timeout)
        return (await self._run(found))[1]

    async def delete_records(
        self, topic: str, before: Mapping[int, int], *, timeout: float | None = None
    ) -> list[DeletedRecords]:
        """Delete the records of partitions below offsets; -1 means the high watermark when the call begins.

        Returns once every in-sync replica has deleted them: no later leader has them again.

        Raises:
            OffsetOutOfRangeError: an offset above the high watermark.
            NotEnoughReplicasError: fewer than `min_insync_replicas` are in sync.
            TimedOutError: a replica has not deleted them in time; call again.
        """
        return await self._run(self._operations.delete_records(topic, before, timeout))

    async def describe_logs(
        self, topic: str | None = None, *, brokers: Sequence[int] | None = None, timeout: float | None = None
    ) -> list[LogInfo]:
        """Return size and offsets of every replica, or of one topic's, and what leaders know of their followers.

        Args:
            topic: its name; None for all.
            brokers: only the replicas on these; None for all that are registered.
            timeout: in seconds, for each broker.

        Raises:
            UnknownBrokerError: one of `brokers` is not registered.
        """
        return await self._run(self._operations.describe_logs(topic, brokers, timeout))

    async def describe_unclaimed_logs(self, broker_id: int, *, timeout: float | None = None) -> list[UnclaimedLogInfo]:
        """Return the logs on a broker's disk that no key in etcd claims for it, and why each may not be deleted.

        Raises:
            UnknownBrokerError: the broker is not registered.
        """
        return await self._run(self._operations.delete_broker_logs(broker_id, (), validate_only=True, timeout=timeout))

    async def delete_broker_logs(
        self, broker_id: int, logs: Sequence[tuple[bytes, int]], *, timeout: float | None = None
    ) -> list[UnclaimedLogInfo]:
        """Delete unclaimed logs of existing topics, (topic id, partition) each, from one broker's disk.

        The broker keeps a log whose partition is assigned to it, is being reassigned or has no leader; `kept_because`
        of the result says so.

        Raises:
            UnknownBrokerError: the broker is not registered.
            InvalidRequestError: no log is named.
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

        A partition that was refused has its `error` in the result and hinders no other. Naming other replicas for a
        partition that moves changes where it goes; `list_reassignments` shows what is under way.

        Args:
            moves: the broker ids that are to hold each partition, in order of preference: the first is to lead.
            copy_bytes_per_second: how fast each new replica may copy; 0: as fast as it can. Given again it replaces
                the speed in force.
            validate_only: check everything, change nothing.
            timeout: in seconds.

        Raises:
            ConfigError: a partition without a replica, or a negative speed.
        """
        return await self._run(
            self._operations.reassign_partitions(
                moves, copy_bytes_per_second, validate_only=validate_only, timeout=timeout
            )
        )

    async def cancel_reassignment(
        self, partitions: Sequence[TopicPartition], *, validate_only: bool = False, timeout: float | None = None
    ) -> list[PartitionChange]:
        """Cancel reassignments: replicas are again where they were. Return one result per partition, in order."""
        return await self._run(
            self._operations.cancel_reassignment(partitions, validate_only=validate_only, timeout=timeout)
        )

    async def list_reassignments(
        self, topics: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> list[Reassignment]:
        """Return the partitions that move, of all topics or of some."""
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
        """Elect leaders; return one result per partition, with its `error` where it was refused.

        Args:
            kind: `preferred`: the first replica in order that is in sync and alive. `unclean`: a replica that is alive
                and may lack records, for a partition with no other eligible leader; the records it lacks are lost.
            partitions: which; None for all, which `unclean` does not allow.
            broker_id: with `unclean`, who is to lead; None: the first replica that is alive.
            validate_only: check everything, change nothing.
            timeout: in seconds.

        Raises:
            ConfigError: these arguments do not go together.
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
        """Let a broker lead and take new replicas again. It leads after the next election that prefers it."""
        return await self._run(self._operations.drain_broker(broker_id, drain=False, timeout=timeout))

    async def list_groups(self, *, timeout: float | None = None) -> list[GroupListing]:
        """List the consumer groups, by id."""
        return await self._run(self._groups.list_groups(timeout))

    async def describe_group(self, group: str, *, timeout: float | None = None) -> GroupDescription:
        """Return a group's members, who owns what, its offsets.

        Raises:
            UnknownGroupError: there is neither.
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

        A group that was refused has its `error` in the result and hinders no other: GroupNotEmptyError where it has
        members, UnknownGroupError where it is not there.
        """
        return await self._run(self._groups.delete_groups(groups, timeout, expected_group_epochs))

    async def group_offsets(self, group: str, *, timeout: float | None = None) -> dict[TopicPartition, CommittedOffset]:
        """Return the offsets that a group has committed, the next record to read in each partition. Empty: none."""
        return await self._run(self._groups.group_offsets(group, timeout))

    async def group_lag(
        self, group: str | GroupDescription, *, times: bool = True, timeout: float | None = None
    ) -> list[PartitionLag]:
        """Return the lag of a group in each of its partitions.

        `records` is exact: the high watermark less the committed offset. `behind_ms` is the age of the first unread
        record; to compute it, the client fetches one batch of each partition that is behind. Its accuracy depends on
        the clocks of this machine and of the machine that set the record's timestamp. A partition whose end offset
        cannot be determined has a `problem` and hides no other.

        Args:
            group: its id, or what `describe_group` returned.
            times: whether to find out `behind_ms`.
            timeout: in seconds, for each request.

        Raises:
            UnknownGroupError: there is no such group.
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

        What is refused has its `error` in the result. Offsets are stored as they are given: one outside the log is
        `auto_offset_reset`'s when a member comes upon it.

        Args:
            group: its id.
            offsets: the next record to read of each partition; -1 removes what is stored.
            expected_group_epoch: `group_epoch` of the description that the offsets were computed from, 0 where there
                was no such group. Every member that joins or leaves raises it. None: not compared.
            timeout: in seconds, for each thousand partitions.

        Raises:
            GroupNotEmptyError: it has members; stop them first.
            ConflictError: members came or went since that epoch; of many thousand partitions the first may be stored.
            ConfigError: an offset below -1.
        """
        return await self._run(self._groups.reset_group_offsets(group, offsets, timeout, expected_group_epoch))

    async def describe_processes(
        self, *, measure_disk: bool = False, timeout: float | None = None
    ) -> list[ProcessDescription]:
        """Describe each coordinator and broker: clock, open files, disk, its way to etcd, or why it does not answer.

        Args:
            measure_disk: measure how long brokers take to write and fsync a little in their data directories.
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
        """Change what servers write to their logs.

        Args:
            level: debug, info, warning or error.
            servers: as `broker-1` or `coordinator-a`; None: all.
            duration_ms: how long it holds; 0: until the server's end.
            timeout: for each server, in seconds.

        Raises:
            InvalidRequestError: no such level or server; nothing was changed.
        """
        chosen = None if servers is None else tuple(servers)
        return await self._run(self._processes.set_log_level(level, chosen, duration_ms, timeout))

    async def dump(self, prefix: str = "", *, timeout: float | None = None) -> AsyncIterator[MetadataEntry]:
        """Yield every key of the cluster in etcd with its decoded value, for administrators."""
        stream = await self._run(self._operations.dump(prefix, timeout))
        try:
            async for entry in stream:
                yield rpc.metadata_entry(entry)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    async def _run(self, operation: Operation[Result]) -> Result:
        if self._is_forked:
            raise ForkedError("Admin")
        return await aexecute(operation, self._connections.run_step)

    def _after_fork(self) -> None:
        self._is_forked = True
