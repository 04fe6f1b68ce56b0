"""The asyncio `Admin`: every call of the blocking one, in a thread. Administration is rare, and one implementation is enough."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from headrace.client.admin import Admin as BlockingAdmin
from headrace.client.admin_rpc import (
    ClusterDescription,
    ConfigValue,
    DeletedRecords,
    LogInfo,
    MetadataEntry,
    OffsetAt,
    TopicDescription,
)
from headrace.wire.ids import TopicPartition

Result = TypeVar("Result")


class Admin:
    """Looks at and changes a cluster; see `headrace.Admin` for arguments and errors."""

    def __init__(self, **settings: Any) -> None:
        """See `AdminConfig` for the settings. Connects when first used."""
        self._admin = BlockingAdmin(**settings)

    async def __aenter__(self) -> "Admin":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Calling it again does nothing."""
        await asyncio.to_thread(self._admin.close)

    async def create_topic(
        self,
        name: str,
        partitions: int = 0,
        replication_factor: int = 0,
        config: Mapping[str, Any] | None = None,
        **rest: Any,
    ) -> TopicDescription:
        """Create a topic and give what was created."""
        return await self._run(self._admin.create_topic, name, partitions, replication_factor, config, **rest)

    async def delete_topic(self, name: str, **rest: Any) -> None:
        """Delete a topic and all its records."""
        await self._run(self._admin.delete_topic, name, **rest)

    async def list_topics(self, **rest: Any) -> list[str]:
        """Give the names of all topics, ascending."""
        return await self._run(self._admin.list_topics, **rest)

    async def describe_topic(self, name: str, **rest: Any) -> TopicDescription:
        """Give a topic's id, partitions, leaders, replicas."""
        return await self._run(self._admin.describe_topic, name, **rest)

    async def describe_topics(self, names: Sequence[str] | None = None, **rest: Any) -> list[TopicDescription]:
        """Describe some topics in the order given, or all by name."""
        return await self._run(self._admin.describe_topics, names, **rest)

    async def create_partitions(self, name: str, total_partitions: int, **rest: Any) -> list[str]:
        """Raise the number of a topic's partitions; gives warnings."""
        return await self._run(self._admin.create_partitions, name, total_partitions, **rest)

    async def alter_config(self, name: str, **changes: Any) -> None:
        """Change a topic's settings: `set`, a mapping, and `unset`, names."""
        await self._run(self._admin.alter_config, name, **changes)

    async def describe_config(self, name: str, **rest: Any) -> dict[str, ConfigValue]:
        """Give every setting of a topic."""
        return await self._run(self._admin.describe_config, name, **rest)

    async def describe_cluster(self, **rest: Any) -> ClusterDescription:
        """Give the cluster's id, controller, brokers, coordinators and counts."""
        return await self._run(self._admin.describe_cluster, **rest)

    async def list_offsets(
        self, topic: str, at: str | float | datetime = "latest", **rest: Any
    ) -> dict[TopicPartition, OffsetAt]:
        """Find offsets of a topic's partitions."""
        return await self._run(self._admin.list_offsets, topic, at, **rest)

    async def delete_records(self, topic: str, before: Mapping[int, int], **rest: Any) -> list[DeletedRecords]:
        """Delete the records of partitions below offsets."""
        return await self._run(self._admin.delete_records, topic, before, **rest)

    async def describe_logs(self, topic: str | None = None, **rest: Any) -> list[LogInfo]:
        """Give size and offsets of every replica on every broker, or of one topic's."""
        return await self._run(self._admin.describe_logs, topic, **rest)

    async def dump(self, prefix: str = "", **rest: Any) -> AsyncIterator[MetadataEntry]:
        """Give every key of the cluster in etcd with its decoded value."""
        for entry in await self._run(lambda: list(self._admin.dump(prefix, **rest))):
            yield entry

    @staticmethod
    async def _run(method: Callable[..., Result], *args: Any, **named: Any) -> Result:
        return await asyncio.to_thread(partial(method, *args, **named))
