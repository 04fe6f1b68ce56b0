"""Settings of a coordinator process, read once by `__main__` through `headrace_server.settings`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from headrace_server.descriptors import MaxConnections
from headrace_server.service_settings import ServiceSettings
from headrace_server.settings import PublishedAddress
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
    listen: Annotated[
        str, Field(description="Listen address for clients, host:port; with port 0 the kernel chooses a port.")
    ] = "127.0.0.1:7170"
    advertised_address: Annotated[
        PublishedAddress, Field(description="Address published to clients, host:port. Default: the bound address.")
    ] = ""
    schema_registry_listen: Annotated[
        str,
        Field(
            description="Listen address of the schema registry over HTTP, host:port. If empty, this coordinator does "
            "not serve it. It uses TLS, and requires certificates, as `listen` does."
        ),
    ] = ""
    lease_ttl_ms: Annotated[
        int,
        Field(
            ge=1_000,
            le=600_000,
            description="Milliseconds after which the registration of an unresponsive coordinator expires and "
            "another becomes controller.",
        ),
    ] = 10_000
    stop_timeout_ms: Annotated[
        int, Field(ge=1_000, description="Maximum milliseconds of a clean shutdown; the process exits after them.")
    ] = 15_000
    default_partitions: Annotated[
        int, Field(ge=1, description="Partitions of a new topic if the request has no number.")
    ] = 1
    default_replication_factor: Annotated[
        int,
        Field(
            ge=1,
            le=9,
            description="Replicas of a new topic if the request has no number; one per broker if fewer brokers "
            "accept replicas.",
        ),
    ] = 3
    max_partitions_per_topic: Annotated[
        int, Field(ge=1, le=100_000, description="Maximum partitions of one topic.")
    ] = 10_000
    max_request_topics: Annotated[int, Field(ge=1, le=10_000, description="Maximum topics in one request.")] = 1_000
    max_request_partitions: Annotated[
        int,
        Field(ge=1, le=1_000_000, description="Maximum partitions that one request may create, over all its topics."),
    ] = 10_000
    max_partitions: Annotated[
        int, Field(ge=1, description="Maximum partitions of the cluster; no more are created.")
    ] = 100_000
    default_timeout_ms: Annotated[
        int,
        Field(
            ge=100, le=600_000, description="Timeout in milliseconds for creating topics if the request has no timeout."
        ),
    ] = 30_000
    max_inflight_writes: Annotated[
        int,
        Field(
            ge=1,
            le=1_024,
            description="Maximum concurrent transactions of this coordinator, counted separately for the "
            "controller and for requests.",
        ),
    ] = 32
    orphan_grace_ms: Annotated[
        int,
        Field(ge=100, description="Milliseconds after which the controller removes a partially created topic."),
    ] = 60_000
    deleted_topics_retention_ms: Annotated[
        int,
        Field(
            ge=1_000,
            description="Milliseconds for which etcd keeps the record of a topic's deletion. A broker that was "
            "down for longer keeps its logs of the topic as unclaimed.",
        ),
    ] = 604_800_000
    leader_rebalance_interval_ms: Annotated[
        int,
        Field(
            ge=0,
            le=86_400_000,
            description="Milliseconds between preferred leader elections, in which the first replica of each "
            "partition becomes leader if it is in sync and neither draining nor suspected; `0` "
            "disables them.",
        ),
    ] = 300_000
    fill_bytes_per_second: Annotated[
        int,
        Field(
            ge=0,
            description="Bytes per second, of all copies together, at which the controller moves replicas to brokers "
            "that have less than 90 % of the mean number, such as a new one; `0` disables these moves.",
        ),
    ] = 0
    lag_interval_ms: Annotated[
        int,
        Field(
            ge=100,
            le=3_600_000,
            description="Milliseconds between two measurements of the groups' lag by the controller.",
        ),
    ] = 15_000
    offsets_retention_ms: Annotated[
        int,
        Field(
            ge=60_000,
            description="Milliseconds for which a group without members is kept, with its offsets.",
        ),
    ] = 30 * 86_400_000
    admin_api_key_file: Annotated[
        str,
        Field(
            description="File with an API key that user `admin` has from the start on, together with `admin` on the "
            "cluster: `hrk_`, 12 letters and digits, `_`, at least 43 random letters and digits. Default: none."
        ),
    ] = ""
    monitor_api_key_file: Annotated[
        str,
        Field(
            description="File with an API key that user `monitor` has from the start on, together with `monitor` on "
            "the cluster: Prometheus reads metrics with it. Default: none."
        ),
    ] = ""
    max_connections: MaxConnections = 0
    max_concurrent_calls: Annotated[
        int,
        Field(
            ge=2, description="Maximum concurrent calls; further ones are rejected. Each member of a group holds one."
        ),
    ] = 16_384
    max_calls_per_peer: Annotated[
        int,
        Field(ge=1, description="Maximum concurrent calls from one client address; raise it if clients share a proxy."),
    ] = 2_048
    max_groups: Annotated[
        int,
        Field(
            ge=1,
            le=1_000_000,
            description="Maximum groups in the cluster, including readers that report their positions. Above three "
            "quarters a user adds none once its share is used; the same holds for the next two settings.",
        ),
    ] = 10_000
    max_group_members: Annotated[
        int, Field(ge=1, le=1_000_000, description="Maximum members of all groups together.")
    ] = 50_000
    max_group_bytes: Annotated[
        int,
        Field(
            ge=1 << 20,
            le=1 << 30,
            description="Maximum bytes of all groups' keys in etcd, offsets included; each coordinator keeps them "
            "in memory.",
        ),
    ] = 64 << 20
    max_schema_bytes: Annotated[
        int,
        Field(
            ge=1 << 20,
            le=1 << 30,
            description="Maximum bytes of all schemas in etcd; each coordinator that serves the schema registry keeps "
            "them in memory.",
        ),
    ] = 64 << 20

    @property
    def client_listens(self) -> tuple[str, ...]:
        """See `ServiceSettings`."""
        return (self.listen, *filter(None, [self.schema_registry_listen]))

    def __post_init__(self) -> None:
        """Check constraints that the types do not express."""
        self.check_common()
        if not _COORDINATOR_ID.match(self.coordinator_id):
            raise ValueError(
                f"coordinator_id {self.coordinator_id!r} is not 1 to 63 letters, digits, dots, underscores and dashes"
            )
        if self.default_partitions > self.max_partitions_per_topic:
            raise ValueError("default_partitions must not be more than max_partitions_per_topic")
