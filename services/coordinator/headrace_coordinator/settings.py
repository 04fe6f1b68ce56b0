"""Settings of a coordinator process, read once by `__main__` through `headrace_server.settings`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from headrace_server.descriptors import MaxConnections
from headrace_server.service_settings import ServiceSettings
from pydantic import Field

ENVIRON_PREFIX = "HEADRACE_COORDINATOR_"
_COORDINATOR_ID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings(ServiceSettings):
    """Settings of one coordinator process; `docs/reference/settings.md` is generated from the descriptions."""

    coordinator_id: Annotated[
        str,
        Field(description="This coordinator's name, unique in the cluster: 1 to 63 letters, digits, `.`, `_`, `-`."),
    ]
    listen: Annotated[str, Field(description="Address for clients, host:port; port 0: the kernel chooses.")] = (
        "127.0.0.1:7170"
    )
    advertised_address: Annotated[
        str, Field(description="The address that clients are told, host:port; empty: the address bound.")
    ] = ""
    lease_ttl_ms: Annotated[
        int,
        Field(
            ge=1_000,
            le=600_000,
            description="Milliseconds after which etcd forgets a silent coordinator and another becomes controller.",
        ),
    ] = 10_000
    stop_timeout_ms: Annotated[
        int, Field(ge=1_000, description="Milliseconds that an orderly stop may take before the process ends.")
    ] = 15_000
    default_partitions: Annotated[
        int, Field(ge=1, description="Partitions of a topic that is created without a number.")
    ] = 1
    default_replication_factor: Annotated[
        int,
        Field(
            ge=1,
            le=9,
            description="Replicas of a topic that is created without a number, where that many brokers take replicas; "
            "else as many as there are.",
        ),
    ] = 3
    max_partitions_per_topic: Annotated[
        int, Field(ge=1, le=100_000, description="Partitions that one topic may have.")
    ] = 10_000
    max_request_topics: Annotated[int, Field(ge=1, le=10_000, description="Topics that one request may name.")] = 1_000
    max_request_partitions: Annotated[
        int, Field(ge=1, le=1_000_000, description="Partitions that one request may create, all its topics together.")
    ] = 10_000
    max_partitions: Annotated[
        int, Field(ge=1, description="Partitions of the whole cluster beyond which no more are created.")
    ] = 100_000
    default_timeout_ms: Annotated[
        int,
        Field(
            ge=100, le=600_000, description="Milliseconds that creating topics may take where the request says nothing."
        ),
    ] = 30_000
    max_inflight_writes: Annotated[
        int,
        Field(
            ge=1,
            le=1_024,
            description="Transactions that this coordinator has under way at once, each for the "
            "controller and for requests.",
        ),
    ] = 32
    orphan_grace_ms: Annotated[
        int,
        Field(ge=100, description="Milliseconds after which the controller clears away a topic that was half created."),
    ] = 60_000
    deleted_topics_retention_ms: Annotated[
        int,
        Field(
            ge=1_000,
            description="Milliseconds for which etcd keeps that a topic was deleted. A broker that was away for longer "
            "keeps its logs of the topic as unclaimed.",
        ),
    ] = 604_800_000
    leader_rebalance_interval_ms: Annotated[
        int,
        Field(
            ge=0,
            le=86_400_000,
            description="Milliseconds between two rounds in which the first replica of each partition leads again, if "
            "it is in sync and neither draining nor suspected; 0: never by itself.",
        ),
    ] = 300_000
    lag_interval_ms: Annotated[
        int,
        Field(
            ge=100,
            le=3_600_000,
            description="Milliseconds between two rounds in which the controller measures how far groups are behind.",
        ),
    ] = 15_000
    offsets_retention_ms: Annotated[
        int,
        Field(
            ge=60_000,
            description="Milliseconds that a group without members is kept, with its offsets.",
        ),
    ] = 30 * 86_400_000
    max_connections: MaxConnections = 0
    max_concurrent_calls: Annotated[
        int, Field(ge=2, description="Calls at once; more are refused. Each member of a group holds one.")
    ] = 16_384
    max_calls_per_peer: Annotated[
        int,
        Field(ge=1, description="Calls at once from one client address; raise it where clients share a proxy."),
    ] = 2_048
    max_groups: Annotated[
        int,
        Field(ge=1, le=1_000_000, description="Groups of the cluster."),
    ] = 10_000
    max_group_members: Annotated[int, Field(ge=1, le=1_000_000, description="Members of all groups together.")] = 50_000
    max_group_bytes: Annotated[
        int,
        Field(
            ge=1 << 20,
            le=1 << 30,
            description="Bytes of all groups' keys in etcd, offsets included; each coordinator keeps them in memory.",
        ),
    ] = 64 << 20

    def __post_init__(self) -> None:
        """Check constraints that the types do not express."""
        self.check_tls()
        if not _COORDINATOR_ID.match(self.coordinator_id):
            raise ValueError(
                f"coordinator_id {self.coordinator_id!r} is not 1 to 63 letters, digits, dots, underscores and dashes"
            )
        if self.default_partitions > self.max_partitions_per_topic:
            raise ValueError("default_partitions must not be more than max_partitions_per_topic")
