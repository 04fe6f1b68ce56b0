"""Settings of a broker, read once by `__main__` through `headrace_server.settings.load_settings`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from headrace_server.descriptors import MaxConnections
from headrace_server.service_settings import ServiceSettings
from headrace_server.settings import CommaList
from pydantic import Field

ENVIRON_PREFIX = "HEADRACE_BROKER_"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings(ServiceSettings):
    """Settings of one broker process; `docs/reference/settings.md` is generated from the descriptions."""

    broker_id: Annotated[int, Field(ge=0, le=2**31 - 1, description="This broker's number, unique in the cluster.")]
    data_dir: Annotated[
        str, Field(min_length=1, description="Directory of this broker's logs; one broker a directory.")
    ]
    listen: Annotated[str, Field(description="Address for clients, host:port; port 0: the kernel chooses.")] = (
        "127.0.0.1:7181"
    )
    internal_listen: Annotated[
        str,
        Field(
            description="Address for brokers and coordinators, host:port; port 0: the kernel chooses; empty: the host "
            "of `listen`, port 0."
        ),
    ] = ""
    advertised_address: Annotated[
        str, Field(description="The address that clients are told, host:port; empty: the address bound.")
    ] = ""
    internal_advertised_address: Annotated[
        str,
        Field(
            description="The address that brokers and coordinators are told, host:port; empty: the host that clients "
            "are told, and the port of `internal_listen`."
        ),
    ] = ""
    native_listen: Annotated[
        str,
        Field(
            description="Address of the native protocol, host:port; port 0: the kernel chooses; empty: the host of "
            "`listen`, port 0; `off`: clients use gRPC."
        ),
    ] = ""
    native_advertised_address: Annotated[
        str,
        Field(
            description="The address of the native protocol that clients are told, host:port; empty: the host that "
            "clients are told, and the port of `native_listen`."
        ),
    ] = ""
    max_native_connections: Annotated[
        int,
        Field(
            ge=1,
            le=100_000,
            description="Connections of the native protocol at once, at most a quarter of the limit of open files; "
            "others are closed, and their clients use gRPC.",
        ),
    ] = 4_096
    internal_tls_allowed_names: Annotated[
        CommaList,
        Field(
            description="With TLS: a certificate of a broker or coordinator must have one of these names exactly "
            "to be served on `internal_listen`; empty: all that `internal_tls_ca_file` has signed."
        ),
    ] = ()
    rack: Annotated[str, Field(description="The failure domain that replicas are spread over; empty: none.")] = ""
    host: Annotated[str, Field(description="The machine, a failure domain below the rack; empty: none.")] = ""
    instance: Annotated[
        str,
        Field(
            description="What its supervisor calls this instance of the broker, as a pod's uid: `drain` with another "
            "one leaves it alone; empty: none.",
        ),
    ] = ""
    lease_ttl_ms: Annotated[
        int, Field(ge=1_000, le=600_000, description="Milliseconds after which etcd forgets a silent broker.")
    ] = 10_000
    fence_on_lease_loss: Annotated[
        bool,
        Field(
            description="Serve nothing once etcd was silent for the lease's time: no stale reads, less availability."
        ),
    ] = False
    stop_timeout_ms: Annotated[
        int, Field(ge=1_000, description="Milliseconds that an orderly stop may take before the process ends.")
    ] = 60_000
    max_inflight_bytes: Annotated[
        int,
        Field(
            ge=32 << 20,
            description="Bytes of requests being handled and of answers being sent; beyond, calls are throttled.",
        ),
    ] = 96 << 20
    max_waiting_fetches: Annotated[
        int, Field(ge=1, le=100_000, description="Fetches that wait for data at once; beyond, their callers wait.")
    ] = 2_048
    max_connections: MaxConnections = 0
    max_concurrent_calls: Annotated[
        int, Field(ge=2, description="Calls at once; more than max_waiting_fetches, so that produce is never shut out.")
    ] = 4_096
    max_calls_per_peer: Annotated[
        int,
        Field(ge=1, description="Calls at once from one client address; raise it where clients share a proxy."),
    ] = 512
    max_request_partitions: Annotated[int, Field(ge=1, description="Partitions that one request may name.")] = 10_000
    max_request_batches: Annotated[int, Field(ge=1, description="Batches that one produce request may carry.")] = 10_000
    max_batch_records: Annotated[int, Field(ge=1, le=2**31 - 1, description="Records that one batch may hold.")] = (
        1_000_000
    )
    max_payload_bytes: Annotated[
        int, Field(ge=1 << 16, le=2**31 - 1, description="Bytes of one batch's payload before compression.")
    ] = 64 << 20
    max_fetch_bytes: Annotated[
        int,
        Field(
            ge=1 << 16,
            le=16 << 20,
            description="Bytes of one fetch answer, whatever it asks for; a first batch may exceed it.",
        ),
    ] = 4 << 20
    max_fetch_wait_ms: Annotated[int, Field(ge=0, description="Milliseconds that a fetch may wait.")] = 60_000
    replica_lag_max_ms: Annotated[
        int,
        Field(ge=500, description="Milliseconds behind the leader after which a follower leaves the in-sync set."),
    ] = 10_000
    phi_threshold: Annotated[
        float,
        Field(
            ge=1,
            le=1_000,
            description="Phi from which a silent peer is suspected: among equals another leads.",
        ),
    ] = 8.0
    max_replica_fetch_bytes: Annotated[
        int,
        Field(
            ge=1 << 16,
            le=16 << 20,
            description="Bytes of one message to a follower, for all partitions together; a first batch may exceed it.",
        ),
    ] = 4 << 20
    drain_timeout_ms: Annotated[
        int,
        Field(
            ge=0,
            description="Milliseconds that an orderly stop waits for its leaderships to move; 0: it does not wait.",
        ),
    ] = 10_000
    max_producers: Annotated[
        int,
        Field(
            ge=1,
            description="Idempotent producers remembered a partition; the one that is silent for longest is forgotten "
            "for a new one.",
        ),
    ] = 10_000
    producer_retry_window_ms: Annotated[
        int,
        Field(
            ge=0,
            description="Milliseconds within which a producer may send a batch again, at least delivery_timeout_ms of "
            "all producers. Until it was silent for so long a producer is not forgotten for a new one, which is "
            "refused with THROTTLED.",
        ),
    ] = 900_000
    producer_expiry_ms: Annotated[
        int, Field(ge=60_000, description="Milliseconds of silence after which a producer is forgotten.")
    ] = 7 * 86_400_000
    disk_reserve_bytes: Annotated[
        int, Field(ge=0, description="Bytes kept back on the volume for checkpoints on a full disk.")
    ] = 16 << 20
    disk_refuse_below_bytes: Annotated[
        int, Field(ge=0, description="Appends are refused with STORAGE_FULL while fewer bytes are free.")
    ] = 128 << 20
    disk_resume_above_bytes: Annotated[
        int, Field(ge=0, description="Refused appends are taken again once as many bytes are free.")
    ] = 256 << 20
    slow_append_ms: Annotated[
        int, Field(ge=1, description="An append that took this long moves the partition's next ones to a thread.")
    ] = 20
    retention_interval_ms: Annotated[int, Field(ge=10, description="Milliseconds between rounds of retention.")] = (
        300_000
    )
    scrub_interval_ms: Annotated[
        int, Field(ge=0, description="Milliseconds between two checks of all that is stored, for rot; 0: none.")
    ] = 7 * 86_400_000
    scrub_bytes_per_second: Annotated[
        int, Field(ge=1 << 16, description="How fast that check reads, in bytes a second.")
    ] = 16 << 20
    maintenance_interval_ms: Annotated[
        int, Field(ge=10, description="Milliseconds between rounds of checkpoints and looks at the free space.")
    ] = 1_000

    @property
    def trusts_internal_authority(self) -> bool:
        """See `ServiceSettings`. With configured names only certificates with these names are accepted."""
        return not self.internal_tls_allowed_names

    def __post_init__(self) -> None:
        """Check the relations between settings."""
        self.check_tls()
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
