"""Settings of a broker, read once by `__main__` through `headrace_server.settings.load_settings`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from headrace_server.descriptors import MaxConnections
from headrace_server.service_settings import ServiceSettings
from headrace_server.settings import CommaList, PublishedAddress
from pydantic import Field

ENVIRON_PREFIX = "HEADRACE_BROKER_"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings(ServiceSettings):
    """Settings of one broker process; `docs/reference/settings.md` is generated from the descriptions."""

    broker_id: Annotated[int, Field(ge=0, le=2**31 - 1, description="This broker's number, unique in the cluster.")]
    data_dir: Annotated[
        str, Field(min_length=1, description="Directory of this broker's logs; each broker needs its own.")
    ]
    listen: Annotated[
        str, Field(description="Listen address for clients, host:port; with port 0 the kernel chooses a port.")
    ] = "127.0.0.1:7181"
    internal_listen: Annotated[
        str,
        Field(
            description="Listen address for brokers and coordinators, host:port; with port 0 the kernel chooses a "
            "port. Default: the host of `listen`, port 0."
        ),
    ] = ""
    advertised_address: Annotated[
        PublishedAddress, Field(description="Address published to clients, host:port. Default: the bound address.")
    ] = ""
    internal_advertised_address: Annotated[
        PublishedAddress,
        Field(
            description="Address published to brokers and coordinators, host:port. Default: the host published to "
            "clients, and the port of `internal_listen`."
        ),
    ] = ""
    native_listen: Annotated[
        str,
        Field(
            description="Listen address of the native protocol, host:port; with port 0 the kernel chooses a port. "
            "Default: the host of `listen`, port 0. `off` disables the protocol; clients then use gRPC."
        ),
    ] = ""
    native_advertised_address: Annotated[
        PublishedAddress,
        Field(
            description="Address of the native protocol published to clients, host:port. Default: the host "
            "published to clients, and the port of `native_listen`."
        ),
    ] = ""
    replication_listen: Annotated[
        str,
        Field(
            description="Listen address for followers, host:port; with port 0 the kernel chooses a port. Default: the "
            "host of `internal_listen`, port 0."
        ),
    ] = ""
    replication_advertised_address: Annotated[
        PublishedAddress,
        Field(
            description="Address for followers published to other brokers, host:port. Default: the host of the "
            "published internal address, and the port of `replication_listen`."
        ),
    ] = ""
    max_native_connections: Annotated[
        int,
        Field(
            ge=1,
            le=100_000,
            description="Maximum connections of the native protocol, at most an eighth of the limit of open files; "
            "further ones are closed, and their clients use gRPC.",
        ),
    ] = 4_096
    internal_tls_allowed_names: Annotated[
        CommaList,
        Field(
            description="With TLS: names, one of which a certificate of a broker or coordinator must match exactly to "
            "be accepted on `internal_listen`. If empty, every certificate signed by `internal_tls_ca_file` is "
            "accepted."
        ),
    ] = ()
    data_center: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9._-]{0,63}$",
            description="Failure domain above the rack, at most 63 letters, digits, '.', '_' or '-'; racks of the same "
            "name in two data centers are two racks. Default: none.",
        ),
    ] = ""
    rack: Annotated[str, Field(description="Failure domain across which replicas are spread. Default: none.")] = ""
    host: Annotated[str, Field(description="Machine, a failure domain below the rack. Default: none.")] = ""
    instance: Annotated[
        str,
        Field(
            description="Id that the supervisor gives this instance of the broker, such as a pod's uid; `drain` "
            "for another instance does nothing. Default: none.",
        ),
    ] = ""
    lease_ttl_ms: Annotated[
        int,
        Field(
            ge=1_000,
            le=600_000,
            description="Milliseconds after which the registration of an unresponsive broker expires.",
        ),
    ] = 10_000
    fence_on_lease_loss: Annotated[
        bool,
        Field(
            description="Stop serving when the lease cannot be confirmed. Prevents stale reads at the cost of "
            "availability."
        ),
    ] = False
    stop_timeout_ms: Annotated[
        int, Field(ge=1_000, description="Maximum milliseconds of a clean shutdown; the process exits after them.")
    ] = 60_000
    max_inflight_bytes: Annotated[
        int,
        Field(
            ge=32 << 20,
            description="Maximum bytes of requests in progress and of responses being sent; further calls are "
            "throttled.",
        ),
    ] = 96 << 20
    max_waiting_fetches: Annotated[
        int,
        Field(
            ge=1,
            le=100_000,
            description="Maximum fetches that wait for data on the broker; for further ones the client waits.",
        ),
    ] = 2_048
    max_connections: MaxConnections = 0
    max_concurrent_calls: Annotated[
        int,
        Field(
            ge=2,
            description="Maximum concurrent calls; must exceed max_waiting_fetches, so that waiting fetches cannot "
            "block produce calls.",
        ),
    ] = 4_096
    max_calls_per_peer: Annotated[
        int,
        Field(ge=1, description="Maximum concurrent calls from one client address; raise it if clients share a proxy."),
    ] = 512
    max_request_partitions: Annotated[int, Field(ge=1, description="Maximum partitions in one request.")] = 10_000
    max_request_batches: Annotated[int, Field(ge=1, description="Maximum batches in one produce request.")] = 10_000
    max_batch_records: Annotated[int, Field(ge=1, le=2**31 - 1, description="Maximum records in one batch.")] = (
        1_000_000
    )
    max_payload_bytes: Annotated[
        int, Field(ge=1 << 16, le=2**31 - 1, description="Maximum bytes of a batch's payload before compression.")
    ] = 64 << 20
    max_fetch_bytes: Annotated[
        int,
        Field(
            ge=1 << 16,
            le=16 << 20,
            description="Maximum bytes of one fetch response, whatever the request allows; a first batch may "
            "exceed it.",
        ),
    ] = 4 << 20
    max_fetch_wait_ms: Annotated[
        int, Field(ge=0, description="Maximum milliseconds that a fetch may wait for data.")
    ] = 60_000
    replica_lag_max_ms: Annotated[
        int,
        Field(ge=500, description="Milliseconds behind the leader after which a follower leaves the in-sync set."),
    ] = 10_000
    phi_threshold: Annotated[
        float,
        Field(
            ge=1,
            le=1_000,
            description="Phi from which an unresponsive peer is suspected; elections then prefer an equal replica "
            "on another broker.",
        ),
    ] = 8.0
    max_replica_fetch_bytes: Annotated[
        int,
        Field(
            ge=1 << 16,
            le=16 << 20,
            description="Maximum bytes of one message to a follower, for all partitions together; a first batch "
            "may exceed it.",
        ),
    ] = 4 << 20
    drain_timeout_ms: Annotated[
        int,
        Field(
            ge=0,
            description="Maximum milliseconds that a clean shutdown waits for its leaderships to move; `0` "
            "disables the wait.",
        ),
    ] = 10_000
    max_producers: Annotated[
        int,
        Field(
            ge=1,
            description="Idempotent producers whose state is kept per partition; a new one evicts the one with the "
            "oldest last write.",
        ),
    ] = 10_000
    producer_retry_window_ms: Annotated[
        int,
        Field(
            ge=0,
            description="Milliseconds within which a producer may resend a batch; at least delivery_timeout_ms of "
            "all producers. A producer that wrote within this time is not evicted for a new one, which "
            "is rejected with THROTTLED.",
        ),
    ] = 900_000
    producer_expiry_ms: Annotated[
        int, Field(ge=60_000, description="Milliseconds without a write after which a producer's state is removed.")
    ] = 7 * 86_400_000
    disk_reserve_bytes: Annotated[
        int, Field(ge=0, description="Bytes reserved on the volume for checkpoints on a full disk.")
    ] = 16 << 20
    disk_refuse_below_bytes: Annotated[
        int, Field(ge=0, description="Appends are rejected with STORAGE_FULL while fewer bytes are free.")
    ] = 128 << 20
    disk_resume_above_bytes: Annotated[
        int, Field(ge=0, description="Appends are accepted again once this many bytes are free.")
    ] = 256 << 20
    slow_append_ms: Annotated[
        int,
        Field(
            ge=1,
            description="Duration of an append in milliseconds after which the partition's next appends run in a "
            "thread.",
        ),
    ] = 20
    retention_interval_ms: Annotated[int, Field(ge=10, description="Milliseconds between two runs of retention.")] = (
        300_000
    )
    compaction_interval_ms: Annotated[
        int,
        Field(
            ge=10,
            description="Milliseconds between two checks of which logs to compact; compacted ones are checked at once.",
        ),
    ] = 15_000
    scrub_interval_ms: Annotated[
        int,
        Field(
            ge=0, description="Milliseconds between two background verifications of all stored data; `0` disables them."
        ),
    ] = 7 * 86_400_000
    table_cache_bytes: Annotated[
        int,
        Field(
            ge=1 << 20,
            description="Maximum memory for decoded batches from which rows of tables are read; a row in it is read "
            "without a read of the log. The keys of all tables are in memory besides.",
        ),
    ] = 64 << 20
    scrub_bytes_per_second: Annotated[
        int, Field(ge=1 << 16, description="Read rate of that verification in bytes per second.")
    ] = 16 << 20
    maintenance_interval_ms: Annotated[
        int,
        Field(
            ge=10,
            description="Milliseconds between two maintenance runs, which write checkpoints and check the free space.",
        ),
    ] = 1_000

    load_window_ms: Annotated[
        int,
        Field(
            ge=100,
            description="Milliseconds over which the measured load of a replica is averaged, by which "
            "`headrace cluster balance --by load` plans.",
        ),
    ] = 300_000

    @property
    def trusts_internal_authority(self) -> bool:
        """See `ServiceSettings`. With configured names only certificates with these names are accepted."""
        return not self.internal_tls_allowed_names

    @property
    def internal_listens(self) -> tuple[str, ...]:
        """See `ServiceSettings`."""
        internal = self.internal_listen or self.listen
        return (internal, self.replication_listen or internal)

    @property
    def client_listens(self) -> tuple[str, ...]:
        """See `ServiceSettings`."""
        native = () if self.native_listen in ("", "off") else (self.native_listen,)
        return (self.listen, *native)

    def __post_init__(self) -> None:
        """Check the relations between settings."""
        self.check_common()
        if self.internal_files is not None and not (self.internal_tls_allowed_names or self.internal_tls_ca_file):
            raise ValueError(
                "TLS is on, and any certificate of tls_ca_file could impersonate a broker: set "
                "internal_tls_allowed_names, or an internal_tls_ca_file that signs for brokers and coordinators alone"
            )
        if self.internal_tls_allowed_names and self.internal_files is None:
            raise ValueError("internal_tls_allowed_names is set without tls_cert_file or internal_tls_cert_file")
        if self.max_concurrent_calls <= self.max_waiting_fetches:
            raise ValueError("max_concurrent_calls must be more than max_waiting_fetches")
        if self.disk_resume_above_bytes < self.disk_refuse_below_bytes:
            raise ValueError("disk_resume_above_bytes must be at least disk_refuse_below_bytes")
