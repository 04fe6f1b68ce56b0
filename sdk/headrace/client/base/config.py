"""Settings of the SDK: one frozen class per client, validated as a whole. Errors for unknown names suggest the nearest.

`describe(cls)` returns the table for the reference page. Times end in `_ms`, sizes in `_bytes` or `_memory`. The module
is a table and therefore longer than others.
"""

import dataclasses
import os
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeGuard, TypeVar

from headrace.client.base.config_text import nearest
from headrace.client.base.credentials import CREDENTIALS, TokenProvider, check_credentials
from headrace.client.base.errors import ConfigError
from headrace.client.base.partitioner import Partitioner
from headrace.client.base.serializers import (
    Deserializer,
    Serializer,
    SerializerCodec,
    resolve_deserializer,
    resolve_serializer,
)
from headrace.wire.errors import HeadraceError
from headrace.wire.ids import OWN_PRODUCER_IDS, TopicPartition
from headrace.wire.topic_names import check_topic_name

KiB, MiB = 1024, 1024 * 1024

CODECS = ("none", "gzip", "lz4", "zstd")
OFFSET_RESETS = ("earliest", "latest", "error")
CORRUPT_BATCHES = ("fail", "skip", "dead_letter")
ASSIGNORS = ("uniform", "range", "rack-aware")
RebalanceCallback: TypeAlias = Callable[[list[TopicPartition]], object]
"""Called on the thread that reads. Asyncio consumers await the result if it is awaitable."""
_GROUP_ID = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)
DIRECTORY_PREFIX = "dir:"
"""What bootstrap_servers begins with if it names a directory."""
DIRECTORY_READ_ONLY = "?mode=ro"
"""What such an address ends with if nothing is changed in the directory."""
DIRECTORY_ADDRESS = "directory:1"
"""Address of the only server of a directory in metadata; no connection is made to it."""
MAX_MESSAGE_BYTES = 32 * MiB
"""Maximum size of one message that the SDK sends or receives."""


def _setting(
    default: Any,
    text: str,
    *,
    low: int | None = None,
    high: int | None = None,
    one_of: tuple[Any, ...] = (),
    in_environment: bool = False,
    secret: bool = False,
) -> Any:
    rule = {
        "text": text,
        "low": low,
        "high": high,
        "one_of": one_of,
        "in_environment": in_environment,
        "secret": secret,
    }
    return dataclasses.field(default=default, repr=not secret, metadata=rule)


def is_directory(bootstrap_servers: str | tuple[str, ...]) -> TypeGuard[str]:
    """Return whether bootstrap servers are a directory in place of a cluster."""
    return isinstance(bootstrap_servers, str) and bootstrap_servers.startswith(DIRECTORY_PREFIX)


_CODECS_OF = "`bytes`, `str`, `json`, a callable, or a codec of `headrace.schemas` for "


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings that all clients share."""

    bootstrap_servers: str | tuple[str, ...] = _setting(
        "localhost:7170",
        "Addresses of brokers or coordinators, `host:port`: a list, or a string separated by commas. `dir:PATH` is a "
        "directory that this process opens itself, in place of a cluster; `dir:PATH?mode=ro` is one in which it "
        "changes nothing; see `headrace.open`.",
        in_environment=True,
    )
    client_id: str = _setting("headrace-python", "Name of this client in the servers' logs.")
    security_protocol: str = _setting(
        "PLAINTEXT", "`SSL` requires TLS on every connection.", one_of=("PLAINTEXT", "SSL"), in_environment=True
    )
    ssl_cafile: str = _setting(
        "",
        "CA certificates, PEM, that servers are verified with. The default is gRPC's public CAs.",
        in_environment=True,
    )
    ssl_certfile: str = _setting(
        "", "Client certificate with its chain, PEM, for mutual TLS; reloaded when it changes.", in_environment=True
    )
    ssl_keyfile: str = _setting("", "Private key of `ssl_certfile`, PEM, without a passphrase.", in_environment=True)
    ssl_server_name: str = _setting(
        "",
        "Host name expected in the servers' certificates. The default is the host of each address.",
        in_environment=True,
    )
    api_key: str = _setting(
        "",
        "API key that identifies this client. At most one of `api_key`, `api_key_file`, `token_file` and "
        "`token_provider` is set; without any of them, a client with `ssl_certfile` is identified by its certificate.",
        in_environment=True,
        secret=True,
    )
    api_key_file: str = _setting(
        "", "File with an API key; read again for each session, so that the key can be rotated.", in_environment=True
    )
    token_file: str = _setting(
        "",
        "File with a JSON Web Token of an issuer that the cluster accepts, such as a projected service account token "
        "of Kubernetes; read again for each session.",
        in_environment=True,
    )
    token_provider: TokenProvider | None = _setting(
        None,
        "Called without arguments for each session; returns a JSON Web Token. The function of an asyncio client may be "
        "a coroutine function; that of a blocking client is called on a thread of the client.",
    )
    allow_plaintext_credentials: bool = _setting(
        False,
        "Send credentials without TLS to other machines, too. Set it only where the network itself encrypts.",
        in_environment=True,
    )
    transport: str = _setting(
        "auto",
        "Protocol for producing and fetching: `native`, `grpc`, or `auto`, which uses the native protocol if the "
        "broker can be reached by it and gRPC otherwise. On Windows it is always gRPC.",
        one_of=("auto", "native", "grpc"),
        in_environment=True,
    )
    request_timeout_ms: int = _setting(30_000, "Timeout of one request.", low=1)
    retry_backoff_ms: int = _setting(50, "Initial delay before a retry.", low=1)
    retry_backoff_max_ms: int = _setting(1_000, "Maximum delay before a retry.", low=1)
    metadata_max_age_ms: int = _setting(
        60_000, "Maximum age of metadata; new partitions are found within this time.", low=100
    )

    tracing: str = _setting(
        "auto",
        "Spans and trace context by OpenTelemetry: `auto` if the application has set a tracer provider, or `off`.",
        one_of=("auto", "off"),
        in_environment=True,
    )

    @property
    def directory(self) -> str:
        """Path of a directory in place of a cluster; empty for a cluster."""
        given = self.bootstrap_servers
        return given.removeprefix(DIRECTORY_PREFIX).removesuffix(DIRECTORY_READ_ONLY) if is_directory(given) else ""

    @property
    def is_directory_read_only(self) -> bool:
        """Whether `bootstrap_servers` is a directory in which nothing is changed."""
        given = self.bootstrap_servers
        return is_directory(given) and given.endswith(DIRECTORY_READ_ONLY)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Distinct bootstrap addresses, in the order given."""
        given = self.bootstrap_servers
        if self.directory:
            return (DIRECTORY_ADDRESS,)
        parts = given.split(",") if isinstance(given, str) else given
        return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))

    def check(self) -> None:
        """Check relations between settings.

        Raises:
            ConfigError: If one is violated.
        """
        if is_directory(self.bootstrap_servers) and not self.directory:
            raise ConfigError("bootstrap_servers names no directory", action="Use dir:PATH.")
        if not self.addresses:
            raise ConfigError("bootstrap_servers names no address", action="Use host:port.")
        for address in self.addresses:
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ConfigError(f"bootstrap_servers: {address!r} is not host:port", action="Use host:port.")
        if self.security_protocol == "PLAINTEXT":
            for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_server_name"):
                if getattr(self, name):
                    raise ConfigError(f"{name} is set and TLS is not", action="Set security_protocol='SSL'.")
        if bool(self.ssl_certfile) != bool(self.ssl_keyfile):
            raise ConfigError("ssl_certfile and ssl_keyfile belong together", action="Set both, or neither.")
        if self.retry_backoff_max_ms < self.retry_backoff_ms:
            raise ConfigError("retry_backoff_max_ms is less than retry_backoff_ms")
        check_credentials(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig(ClientConfig):
    """Settings of `Admin`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConfig(ClientConfig):
    """Settings of `Table`."""

    client_data_center: str = _setting(
        "",
        'Data center of this client, as in the brokers\' settings. Reads with `consistency="replica"` prefer replicas '
        "there, and ask others if those do not answer.",
    )
    client_rack: str = _setting(
        "", "Rack of this client, as in the brokers' settings; replicas in the same rack are preferred."
    )
    value_serializer: str | Serializer | None = _setting("str", "`bytes`, `str`, `json` or a callable for values.")
    value_deserializer: str | Deserializer | None = _setting("str", "`bytes`, `str`, `json` or a callable for values.")

    def check(self) -> None:
        """Raise ConfigError for unknown serializers, and as `ClientConfig.check`."""
        ClientConfig.check(self)
        resolve_serializer(self.value_serializer, "value_serializer")
        resolve_deserializer(self.value_deserializer, "value_deserializer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Settings of `Producer`."""

    acks: str | int = _setting(
        "all",
        "Acknowledgements required: `all` in-sync replicas, `1` (the leader), `0` (none).",
        one_of=("all", 0, 1, "0", "1"),
    )
    enable_idempotence: bool | None = _setting(
        None, "Whether retries neither duplicate nor reorder records. `None` means yes unless acks is 0."
    )
    producer_id: int = _setting(
        -1,
        "Send under this producer id instead of one from the coordinator. A producer that repeats the same records "
        "after a crash, with the same id, epoch, order and batches, stores none twice. At least 2^62; -1 requests "
        "an id.",
        low=-1,
        high=2**63 - 1,
    )
    producer_epoch: int = _setting(0, "Epoch of producer_id; a higher epoch fences lower ones.", low=0, high=2**31 - 1)
    linger_ms: int = _setting(5, "Time that a batch waits for more records before it is sent.", low=0, high=60_000)
    batch_bytes: int = _setting(MiB, "Size at which a batch is sent; at most the topic's max_batch_bytes.", low=1)
    batch_records: int = _setting(
        10_000, "Maximum number of records of a batch; a full batch does not linger.", low=1, high=1_000_000
    )
    max_request_bytes: int = _setting(
        2 * MiB, "Maximum size of a request, over all its partitions.", low=KiB, high=24 * MiB
    )
    max_in_flight_requests: int = _setting(5, "Maximum number of requests in flight to one broker.", low=1, high=5)
    buffer_memory: int = _setting(32 * MiB, "Memory for records that are not acknowledged yet, in bytes.", low=64 * KiB)
    max_block_ms: int = _setting(60_000, "Maximum time that `send` waits for buffer memory or metadata.", low=0)
    delivery_timeout_ms: int = _setting(
        120_000,
        "Maximum time from `send` to the acknowledgement, retries included. At most the brokers' "
        "producer_retry_window_ms, within which they recognise a retry.",
        low=1,
        high=900_000,
    )
    compression_type: str = _setting("none", "Compression of batches.", one_of=CODECS)
    compression_level: int | None = _setting(None, "Level of the codec; `None` means its default.")
    return_futures: bool = _setting(
        True, "Whether `send` returns a RecordFuture; otherwise it returns None and is faster."
    )
    key_serializer: str | Serializer | SerializerCodec | None = _setting(None, _CODECS_OF + "keys.")
    value_serializer: str | Serializer | SerializerCodec | None = _setting(None, _CODECS_OF + "values.")
    interceptors: tuple[Any, ...] = _setting(
        (), "Objects that are called for each batch when it is queued and when it ends; see `ProducerInterceptor`."
    )
    audit_topic: str = _setting(
        "",
        "Topic for the counts of sent records by topic and time window, which the audit job compares with those that "
        "arrived. If empty, none are sent.",
    )
    audit_application: str = _setting("", "Application name in the audit topic. The default is client_id.")
    audit_window_ms: int = _setting(
        600_000,
        "Length of the time windows that are counted; the same for all producers of a topic.",
        low=1_000,
        high=86_400_000,
    )
    audit_interval_ms: int = _setting(10_000, "Interval at which counts are sent.", low=100, high=3_600_000)
    partitioner: Partitioner | None = _setting(
        None,
        "A callable (topic, key, partitions) -> partition. The default is the CRC-32 of the key, or sticky without "
        "a key.",
    )

    @property
    def identity(self) -> tuple[int, int] | None:
        """Producer id and epoch to send with; `None` means that the coordinator assigns them."""
        return None if self.producer_id < 0 else (self.producer_id, self.producer_epoch)

    @property
    def acks_level(self) -> str:
        """Value of `acks`: `all`, `1` or `0`."""
        return str(self.acks)

    @property
    def idempotent(self) -> bool:
        """Whether batches carry a producer id and sequences."""
        return self.acks_level != "0" if self.enable_idempotence is None else self.enable_idempotence

    def check(self) -> None:
        """Check relations between settings.

        Raises:
            ConfigError: If one is violated.
        """
        ClientConfig.check(self)
        if self.enable_idempotence and self.acks_level == "0":
            raise ConfigError("enable_idempotence=True needs acks 1 or all, not 0")
        if 0 <= self.producer_id < OWN_PRODUCER_IDS:
            raise ConfigError(f"producer_id={self.producer_id} may be another's", action="Use one of at least 2^62.")
        if self.producer_id >= 0 and not self.idempotent:
            raise ConfigError("producer_id needs enable_idempotence")
        if self.delivery_timeout_ms < self.linger_ms:
            raise ConfigError("delivery_timeout_ms is less than linger_ms")
        if self.batch_bytes > self.buffer_memory:
            raise ConfigError("batch_bytes is more than buffer_memory")
        if self.audit_topic:
            try:
                check_topic_name(self.audit_topic)
            except HeadraceError as error:
                raise ConfigError(f"audit_topic: {error.message}", action=error.action) from None
        if self.partitioner is not None and not callable(self.partitioner):
            raise ConfigError("partitioner is not a callable (topic, key, partitions) -> partition")
        resolve_serializer(self.key_serializer, "key_serializer")
        resolve_serializer(self.value_serializer, "value_serializer")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchConfig(ClientConfig):
    """Settings that `Consumer` and `Reader` share."""

    fetch_min_bytes: int = _setting(
        1, "Minimum size of a fetch response; the broker waits for it up to fetch_max_wait_ms.", low=0
    )
    fetch_max_wait_ms: int = _setting(500, "Maximum time that a fetch waits for fetch_min_bytes.", low=0, high=60_000)
    fetch_max_bytes: int = _setting(8 * MiB, "Maximum size of a fetch response.", low=1, high=24 * MiB)
    max_partition_fetch_bytes: int = _setting(
        4 * MiB, "Maximum size of a fetch response for one partition.", low=1, high=24 * MiB
    )
    prefetch_bytes: int = _setting(32 * MiB, "Bytes fetched ahead of the application, over all partitions.", low=1)
    max_payload_bytes: int = _setting(
        64 * MiB, "Maximum size of a batch after decompression; a larger one is corrupt.", low=KiB, high=2**31 - 1
    )
    max_poll_bytes: int = _setting(
        64 * MiB,
        "Maximum size that one `poll`, or one batch of a `Reader`, returns, after decompression. A single batch of a "
        "producer may exceed it.",
        low=1,
    )
    on_corrupt_batch: str = _setting(
        "fail",
        "Action for a batch that cannot be decoded: `fail` raises CorruptBatchError, `skip` continues after it, "
        "`dead_letter` first writes its bytes to dead_letter_topic. The latter two log an error.",
        one_of=CORRUPT_BATCHES,
    )
    dead_letter_topic: str = _setting("", "Topic that on_corrupt_batch=dead_letter writes batches to.")
    client_data_center: str = _setting(
        "",
        "Data center of this client, as in the brokers' settings. A replica there is read instead of a leader "
        "elsewhere.",
    )
    client_rack: str = _setting(
        "",
        "Rack of this client, as in the brokers' settings. A replica in the same rack is read instead of the leader.",
    )
    commit_group: str = _setting(
        "",
        "Group id under which the positions are committed every few seconds, without membership, so that "
        "`headrace group list --lag` shows the lag of this reader, which never starts from them. If empty, no "
        "positions are committed.",
    )
    key_deserializer: str | Deserializer | SerializerCodec | None = _setting(None, _CODECS_OF + "keys.")
    value_deserializer: str | Deserializer | SerializerCodec | None = _setting(None, _CODECS_OF + "values.")

    def check(self) -> None:
        """Check relations between settings.

        Raises:
            ConfigError: If one is violated.
        """
        ClientConfig.check(self)
        if bool(self.dead_letter_topic) != (self.on_corrupt_batch == "dead_letter"):
            raise ConfigError("on_corrupt_batch='dead_letter' and dead_letter_topic belong together")
        if self.dead_letter_topic:
            try:
                check_topic_name(self.dead_letter_topic)
            except HeadraceError as error:
                raise ConfigError(f"dead_letter_topic: {error.message}", action=error.action) from None
        _check_group_name("commit_group", self.commit_group)
        resolve_deserializer(self.key_deserializer, "key_deserializer")
        resolve_deserializer(self.value_deserializer, "value_deserializer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(FetchConfig):
    """Settings of `Consumer`."""

    auto_offset_reset: str = _setting(
        "latest",
        "Start offset without a committed offset, or if it is out of range: `earliest`, `latest`, or `error`.",
        one_of=OFFSET_RESETS,
    )
    group_id: str = _setting(
        "",
        "Group that shares the partitions: 1 to 249 of a-z A-Z 0-9 . _ -. If empty, records are read without a group.",
    )
    group_instance_id: str = _setting(
        "",
        "Id of a static member, which keeps its partitions over a restart within session_timeout_ms. If empty, the "
        "member is dynamic.",
    )
    # Coordinators match the pattern against all topics. A regular expression can take exponential time in Python.
    topic_pattern: str = _setting(
        "",
        "Topics to read in addition to those named, shell style: `*`, `?` and `[...]`; topics created later included.",
    )
    assignor: str = _setting(
        "",
        "Assignment strategy. The default is the group's strategy, and `uniform` for a new group.",
        one_of=("", *ASSIGNORS),
    )
    enable_auto_commit: bool = _setting(True, "Commit the offsets of processed records in the background.")
    auto_commit_interval_ms: int = _setting(5_000, "Interval of automatic commits.", low=10)
    session_timeout_ms: int = _setting(
        30_000, "A member without a heartbeat for this time loses its partitions.", low=1_000, high=600_000
    )
    heartbeat_interval_ms: int = _setting(
        3_000, "Interval of heartbeats; at most a quarter of session_timeout_ms.", low=10
    )
    rebalance_timeout_ms: int = _setting(
        300_000,
        "A member that does not release a revoked partition within this time loses all its partitions.",
        low=1_000,
        high=86_400_000,
    )
    processing_timeout_ms: int = _setting(
        300_000, "If the application does not poll for this time, `health` and the log report it.", low=1
    )
    leave_on_processing_timeout: bool = _setting(
        False, "After processing_timeout_ms, leave the group until the application polls again."
    )
    stop_on_session_loss: bool = _setting(
        False,
        "Return no records while other members may own the partitions, for example after a long pause of the process.",
    )
    on_assigned: RebalanceCallback | None = _setting(None, "Called with the partitions that were assigned.")
    on_revoked: RebalanceCallback | None = _setting(
        None, "Called with the partitions that are being revoked; they are still owned, and can be committed."
    )
    on_lost: RebalanceCallback | None = _setting(
        None, "Called with the partitions that were lost; others may own them already."
    )

    def check(self) -> None:
        """Check relations between settings.

        Raises:
            ConfigError: If one is violated.
        """
        FetchConfig.check(self)
        if self.group_id:
            for name in ("group_id", "group_instance_id"):
                _check_group_name(name, getattr(self, name))
            if self.commit_group:
                raise ConfigError("commit_group is for reading without a group, which commits its own offsets")
            return
        for name in ("group_instance_id", "topic_pattern", "assignor", "on_assigned", "on_revoked", "on_lost"):
            if getattr(self, name):
                raise ConfigError(f"{name} is for consumers of a group", action="Set group_id.")


def _check_group_name(name: str, value: str) -> None:
    if value and (len(value) > 249 or value in {".", ".."} or not _GROUP_ID.fullmatch(value)):
        raise ConfigError(f"{name}={value[:50]!r} is not 1 to 249 of the characters a-z A-Z 0-9 . _ -")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderConfig(FetchConfig):
    """Settings of `Reader`."""


Config = TypeVar("Config", bound=ClientConfig)


def shared_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those settings of a client that every client has, and `Admin` no others."""
    return {name: value for name, value in settings.items() if name in AdminConfig.__dataclass_fields__}


def build(cls: type[Config], settings: Mapping[str, Any]) -> Config:
    """Build and check the settings of a class.

    Without `bootstrap_servers`, the environment (`HEADRACE_BOOTSTRAP_SERVERS`, `HEADRACE_SSL_CAFILE` and so on) defines
    the cluster, the connection and the credential. With it the environment is not read, as it may describe another
    cluster. A credential in `settings` replaces the one in the environment.

    Raises:
        ConfigError: For an unknown setting, a wrong type, a value out of range, or contradictory settings.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    if "bootstrap_servers" not in settings:
        names = [name for name, field in fields.items() if field.metadata["in_environment"]]
        if any(settings.get(name) for name in CREDENTIALS):
            names = [name for name in names if name not in CREDENTIALS]
        settings = {**_environment(names, hints), **settings}
    values: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in fields:
            raise ConfigError(
                f"unknown setting {name!r}{nearest(name, fields)}",
                action=f"{cls.__name__.removesuffix('Config')} takes: {', '.join(sorted(fields))}.",
            )
        values[name] = _checked(name, value, hints[name], fields[name].metadata)
    config = cls(**values)
    config.check()
    return config


def _environment(names: list[str], hints: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the environment has."""
    found: dict[str, Any] = {}
    for name in names:
        variable = f"HEADRACE_{name.upper()}"
        text = os.environ.get(variable)
        if text:
            found[name] = _from_text(variable, text, hints[name])
    return found


def settings_from_text(cls: type[ClientConfig], texts: Mapping[str, str]) -> dict[str, Any]:
    """Return settings of a class that are given as text, such as on a command line, with their types.

    Raises:
        ConfigError: If a text is no truth value or number, and the setting is one. Unknown settings stay as they are.
    """
    hints = typing.get_type_hints(cls)
    return {name: _from_text(name, text, hints.get(name, str)) for name, text in texts.items()}


def _from_text(name: str, text: str, hint: Any) -> Any:
    kinds = typing.get_args(hint) or (hint,)
    if bool in kinds:
        if text.lower() not in ("true", "false", "1", "0"):
            raise ConfigError(f"{name}={text!r} is not true or false")
        return text.lower() in ("true", "1")
    if int in kinds and str not in kinds:
        try:
            return int(text)
        except ValueError:
            raise ConfigError(f"{name}={text!r} is not a whole number") from None
    return text


def _checked(name: str, value: Any, hint: Any, rule: Mapping[str, Any]) -> Any:
    if name == "bootstrap_servers" and isinstance(value, list | tuple):
        if not all(isinstance(address, str) for address in value):
            raise ConfigError("bootstrap_servers is not a list of strings")
        return tuple(value)
    if name == "interceptors" and isinstance(value, list | tuple):
        return tuple(value)
    allowed = typing.get_args(hint) or (hint,)
    plain = tuple(kind for kind in allowed if isinstance(kind, type))
    open_ended = len(plain) != len(allowed)
    wrong = not isinstance(value, plain) or (isinstance(value, bool) and bool not in plain)
    if wrong and not (open_ended and callable(value)):
        kinds = " or ".join("None" if kind is type(None) else getattr(kind, "__name__", "callable") for kind in allowed)
        raise ConfigError(f"{name} is not {kinds}" if rule["secret"] else f"{name}={value!r} is not {kinds}")
    if rule["one_of"] and value not in rule["one_of"]:
        raise ConfigError(f"{name}={value!r} is not one of {', '.join(map(repr, rule['one_of']))}")
    if isinstance(value, int) and not isinstance(value, bool):
        low, high = rule["low"], rule["high"]
        if (low is not None and value < low) or (high is not None and value > high):
            raise ConfigError(f"{name}={value} is not within {low} to {high if high is not None else 'any'}")
    return value


def client_repr(name: str, config: ClientConfig, *details: str) -> str:
    """Return the `repr` of a client: its class, its subject and its cluster. Takes no lock."""
    parts = [name, *details, "bootstrap_servers=" + ",".join(config.addresses)]
    return f"<{' '.join(parts)}>"


class SettingDescription(NamedTuple):
    """Row of the reference page."""

    name: str
    default: str
    range: str
    text: str


def describe(cls: type[ClientConfig]) -> list[SettingDescription]:
    """Return the settings of a class in order, each with its default, range and description."""
    rows = []
    for field in dataclasses.fields(cls):
        rule = field.metadata
        if rule["one_of"]:
            span = ", ".join(str(value) for value in dict.fromkeys(map(str, rule["one_of"])))
        elif rule["low"] is None:
            span = ""
        else:
            span = f"{rule['low']} to {rule['high']}" if rule["high"] is not None else f"at least {rule['low']}"
        rows.append(SettingDescription(field.name, str(field.default), span, rule["text"]))
    return rows
