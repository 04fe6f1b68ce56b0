"""Settings of a topic: table, parser, and the typed value that a broker applies.

The coordinator validates and describes them, the broker applies them (`TopicConfig`). In etcd and in RPCs they are
strings by name, and only values that differ from the defaults are stored. `python -m headrace.partition.topic_configs`
prints the reference page.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headrace.placement.policy import PLACEMENT_VALUES, RACK, PlacementPolicy, parse_placement
from headrace.v1 import cluster_pb2
from headrace.wire.compression import Codec
from headrace.wire.errors import InvalidConfigError
from headrace.wire.suggestions import nearest_name
from headrace.wire.typed.topic_columns import COMPATIBILITY_MODES, evolved, parse_columns

INT64_MAX = 2**63 - 1
DAY_MS = 86_400_000
CENTURY_MS = 36_525 * DAY_MS
CODECS = tuple(codec.name.lower() for codec in Codec)
POLICIES = ("compact", "delete")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


class Durability(StrEnum):
    """When a record counts as stored."""

    FSYNC = "fsync"
    ASYNC = "async"


class Validation(StrEnum):
    """What a leader checks of a batch before it appends it."""

    COLUMNS = "columns"
    HEADER = "header"


class AuditedCalls(StrEnum):
    """Calls on a topic's records that the audit log has."""

    NONE = "none"
    READ = "read"
    WRITE = "write"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class ConfigDefinition:
    """Row of the table."""

    name: str
    kind: str
    """`integer`, `fraction`, `choice`, `choices` (several, separated by commas), `name`, `placement` or `columns`."""
    default: int | str
    minimum: int = 0
    maximum: int = INT64_MAX
    choices: tuple[str, ...] = ()
    documentation: str = ""

    def parse(self, text: str) -> float | str:
        """Parse a value.

        Raises:
            InvalidConfigError: If it is not of the kind or out of range; the message has the allowed values.
        """
        if self.kind == "choice":
            if text not in self.choices:
                raise self._error(text, f"is not one of {', '.join(self.choices)}")
            return text
        if self.kind == "choices":
            given = {part.strip() for part in text.split(",")}
            if not given <= set(self.choices):
                raise self._error(text, f"is not a list of some of {', '.join(self.choices)}")
            return ",".join(each for each in self.choices if each in given)
        if self.kind == "placement":
            return parse_placement(text).text
        if self.kind == "columns":
            return str(parse_columns(text)) if text else ""
        if self.kind == "fraction":
            return self._parse_fraction(text)
        if self.kind == "name":
            if text and not _NAME.fullmatch(text):
                raise self._error(text, "is not a name")
            return text
        try:
            value = int(text)
        except ValueError:
            raise self._error(text, "is not a whole number") from None
        if not self.minimum <= value <= self.maximum:
            raise self._error(text, f"is outside {self.minimum} .. {self.maximum}")
        return value

    def _parse_fraction(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise self._error(text, "is not a number") from None
        if not 0 <= value <= 1:
            raise self._error(text, "is outside 0 .. 1")
        return int(value) if value.is_integer() else value

    def range_text(self) -> str:
        """Return the allowed values as text."""
        if self.kind == "choice":
            return ", ".join(self.choices)
        if self.kind == "choices":
            return f"some of {', '.join(self.choices)}"
        if self.kind == "placement":
            return PLACEMENT_VALUES
        if self.kind == "columns":
            return "columns like `page string required, user int64`"
        if self.kind == "fraction":
            return "0 .. 1"
        if self.kind == "name":
            return "1 to 100 letters, digits, `.`, `_` and `-`, or nothing"
        return f"{self.minimum} .. {'2^63 - 1' if self.maximum == INT64_MAX else self.maximum}"

    def _error(self, text: str, problem: str) -> InvalidConfigError:
        return InvalidConfigError(
            f"{self.name} = {text!r} {problem}", action=f"Give {self.name} a value in {self.range_text()}."
        )


CONFIG_TABLE: tuple[ConfigDefinition, ...] = (
    ConfigDefinition(
        "cleanup_policy", "choices", "delete", choices=POLICIES,
        documentation="How old records are removed. delete: whole segments, by retention_ms and retention_bytes. "
"compact: records that have a newer one of their key; every record then needs a key, and a null value deletes its "
"key. compact,delete: both.",
    ),
    ConfigDefinition(
        "retention_ms", "integer", 7 * DAY_MS, -1,
        documentation="Minimum milliseconds for which a record is kept, by the time of its append; whole "
"segments are deleted once their newest record is older. -1 disables the limit.",
    ),
    ConfigDefinition(
        "retention_bytes", "integer", -1, -1,
        documentation="Bytes of a partition above which its oldest segments are deleted. -1 disables the limit.",
    ),
    ConfigDefinition(
        "segment_bytes", "integer", 1 << 30, 1 << 16, (1 << 31) - 1,
        documentation="Bytes at which a new segment file is started. At least max_batch_bytes.",
    ),
    ConfigDefinition(
        "segment_ms", "integer", 7 * DAY_MS, 1_000,
        documentation="Milliseconds after which a new segment file is started even if the current one is not full.",
    ),
    ConfigDefinition(
        "index_interval_bytes", "integer", 4096, 64, 1 << 24,
        documentation="Bytes of log between two entries of the sparse index.",
    ),
    ConfigDefinition(
        "durability", "choice", Durability.FSYNC.value, choices=tuple(Durability),
        documentation="fsync: a record is acknowledged, visible and counted as replicated once it is on stable "
        "storage. async: once it is in the page cache; flush_messages and flush_ms bound what a crash of the "
        "machine can lose.",
    ),
    ConfigDefinition(
        "flush_messages", "integer", INT64_MAX, 1,
        documentation="With durability=async: records appended after which the log is flushed; if set, consumers "
"see flushed records only. Rejected with durability=fsync, which always flushes. 2^63 - 1 "
"leaves it to the operating system.",
    ),
    ConfigDefinition(
        "flush_ms", "integer", INT64_MAX, 1,
        documentation="With durability=async: maximum milliseconds that a record waits for a flush; if set, "
"consumers see flushed records only. Rejected with durability=fsync, which always flushes. "
"2^63 - 1 leaves it to the operating system.",
    ),
    ConfigDefinition(
        "min_insync_replicas", "integer", 0, 0, 32_767,
        documentation="In-sync replicas below which acks=all is rejected. At most the topic's replication "
"factor. 0 means 2 if the topic has at least 3 replicas, else 1.",
    ),
    ConfigDefinition(
        "placement", "placement", RACK.text,
        documentation="Failure domains over which the replicas of a partition are spread. unaware: hosts. rack: racks, "
"then hosts. A number for each data center, such as east:2,west:1: that many replicas there, spread over its racks, "
"then hosts; the numbers are the replication factor. A change counts for further partitions; headrace cluster balance "
"moves the others.",
    ),
    ConfigDefinition(
        "max_batch_bytes", "integer", (1 << 20) + (1 << 16), 1_024, 16 << 20,
        documentation="Bytes of the largest batch that is accepted, header included. The default is 1 MiB of "
"values and 64 KiB of room for header and columns.",
    ),
    ConfigDefinition(
        "timestamp_before_max_ms", "integer", CENTURY_MS, 0,
        documentation="Milliseconds by which a record's timestamp may lie before the broker's clock; older ones are "
        "rejected, never changed. The default is 100 years. Times before the year 1 or after 9999 are always rejected.",
    ),
    ConfigDefinition(
        "timestamp_after_max_ms", "integer", 3_600_000, 0,
        documentation="Milliseconds by which a record's timestamp may lie after the broker's clock; later ones are "
        "rejected, never changed.",
    ),
    ConfigDefinition(
        "delete_retention_ms", "integer", DAY_MS, 0,
        documentation="With cleanup_policy=compact: milliseconds for which a null value, which deletes its key, is "
"kept, and with table=yes a column that has expired. Within an hour after them neither the key nor any of its values "
"is in a file of the topic.",
    ),
    ConfigDefinition(
        "min_compaction_lag_ms", "integer", 0, 0,
        documentation="With cleanup_policy=compact: milliseconds after its last append during which a segment is not "
        "compacted.",
    ),
    ConfigDefinition(
        "max_compaction_lag_ms", "integer", DAY_MS, 1_000,
        documentation="With cleanup_policy=compact: milliseconds after its last append at which a closed segment is "
        "compacted at the latest.",
    ),
    ConfigDefinition(
        "min_dirty_percent", "integer", 33, 0, 100,
        documentation="With cleanup_policy=compact: percentage of the closed segments' bytes that must be new since "
"the last compaction for the next one. A lower one needs less disk and more work.",
    ),
    ConfigDefinition(
        "table", "choice", "no", choices=("no", "yes"),
        documentation="With cleanup_policy=compact: yes lets the brokers answer reads of rows by their keys, which "
        "they keep in memory, and compare a row's version before a write. Every record is then a column of a row. The "
        "number of partitions stays: do not set it for a topic that got partitions after its first records.",
    ),
    ConfigDefinition(
        "table_ttl_ms", "integer", 0, 0,
        documentation="With table=yes: milliseconds after which a column that is written without a time to live of its "
        "own is not read any more; delete_retention_ms later it is removed as after a deletion. 0 means never.",
    ),
    ConfigDefinition(
        "columns", "columns", "",
        documentation="Columns of a typed topic, whose records are rows: name and type of each, then required (never "
"null) or key (a part of the record's key), then default and a JSON value. Set when the topic is created. A change "
"must keep to compatibility; a column that the new text lacks is dropped.",
    ),
    ConfigDefinition(
        "compatibility", "choice", "backward", choices=COMPATIBILITY_MODES,
        documentation="How columns may change. backward: readers of the new columns can read old records. "
"forward: readers of the old columns can read new records. full: both. none: neither; a column whose type "
"changes becomes another column.",
    ),
    ConfigDefinition(
        "trace_sample", "fraction", 0, 0, 1,
        documentation="With table=yes: share of the keys whose requests the brokers record in the topic "
        "__table_trace, without keys and values, for spark_jobs.workload. 0 means none, 0.01 one key of a hundred.",
    ),
    ConfigDefinition(
        "file_delete_delay_ms", "integer", 60_000, 0,
        documentation="Milliseconds between a segment's removal from the log and the deletion of its files.",
    ),
    ConfigDefinition(
        "validate", "choice", Validation.COLUMNS.value, choices=tuple(Validation),
        documentation="Checks that the leader makes of a batch. columns: everything that a reader needs to "
"decode it; a thread decompresses a compressed batch for this. header: checksums and "
"header only; a batch that no reader can decode is then stored, and readers handle it by "
"their `on_corrupt_batch`; not for a table.",
    ),
    ConfigDefinition(
        "allowed_codecs", "choices", ",".join(CODECS), choices=CODECS,
        documentation="Codecs that producers may use, separated by commas; batches with others are rejected with "
        "UNSUPPORTED_CODEC. Readers without extras can decode none and gzip. none is always among them: a payload that "
        "does not shrink is stored uncompressed.",
    ),
    ConfigDefinition(
        "audit", "choice", AuditedCalls.NONE.value, choices=tuple(AuditedCalls),
        documentation="Calls on the topic's records that the audit log has: read, write, all or none. Those of one "
        "user in a second are one event with their number. The posture must be observe or required.",
    ),
    ConfigDefinition(
        "mirror", "name", "",
        documentation="Name of the mirror that copies the topic from another cluster or a directory. While it is set, "
        "producers and tables are refused, and only copies are appended; headrace mirror promote removes it.",
    ),
)  # fmt: skip

CONFIGS: dict[str, ConfigDefinition] = {definition.name: definition for definition in CONFIG_TABLE}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """Typed settings of a topic; `CONFIG_TABLE` describes each."""

    cleanup_policy: str = "delete"
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = -1
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    index_interval_bytes: int = 4096
    durability: Durability = Durability.FSYNC
    flush_messages: int = INT64_MAX
    flush_ms: int = INT64_MAX
    min_insync_replicas: int = 0
    placement: str = RACK.text
    max_batch_bytes: int = (1 << 20) + (1 << 16)
    timestamp_before_max_ms: int = CENTURY_MS
    timestamp_after_max_ms: int = 3_600_000
    delete_retention_ms: int = DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = DAY_MS
    min_dirty_percent: int = 33
    table: str = "no"
    table_ttl_ms: int = 0
    columns: str = ""
    compatibility: str = "backward"
    trace_sample: float = 0
    file_delete_delay_ms: int = 60_000
    validate: Validation = Validation.COLUMNS
    allowed_codecs: str = ",".join(CODECS)
    audit: AuditedCalls = AuditedCalls.NONE
    mirror: str = ""

    @property
    def placement_policy(self) -> PlacementPolicy:
        """`placement`, parsed."""
        return parse_placement(self.placement)

    @property
    def compacts(self) -> bool:
        """Whether only the newest record of each key is kept."""
        return "compact" in self.cleanup_policy

    @property
    def is_table(self) -> bool:
        """Whether the topic's records are columns of rows that are read by their keys."""
        return self.table == "yes"

    @property
    def counts_flushed(self) -> bool:
        """Whether only flushed records are acknowledged and visible."""
        return self.durability is Durability.FSYNC or self.flushes_by_policy

    @property
    def flushes_by_policy(self) -> bool:
        """Whether `flush_messages` or `flush_ms` bounds the loss window, so that consumers see only flushed records."""
        return self.durability is Durability.ASYNC and min(self.flush_messages, self.flush_ms) < INT64_MAX


def parse_topic_config(configs: Mapping[str, str]) -> TopicConfig:
    """Validate a topic's settings and their relations and return them typed, with defaults for the others.

    Raises:
        InvalidConfigError: If a name is unknown (the message has the nearest known one), a value is invalid, or two
            settings exclude each other.
    """
    values: dict[str, Any] = {}
    for name in sorted(configs):
        values[name] = config_definition(name).parse(configs[name])
    if "durability" in values:
        values["durability"] = Durability(values["durability"])
    if "validate" in values:
        values["validate"] = Validation(values["validate"])
    if "audit" in values:
        values["audit"] = AuditedCalls(values["audit"])
    config = TopicConfig(**values)
    _check_relations(config)
    return config


RETENTION = ("retention_ms", "retention_bytes")
"""Settings that delete records; `-1` disables them."""


def read_stored_topic_config(configs: Mapping[str, str]) -> tuple[TopicConfig, tuple[str, ...]]:
    """Return the settings that a broker applies, and the names that this release cannot read.

    For values from etcd, which a newer release may have written: one unreadable setting must not stop a partition. An
    unreadable setting has its default, except retention settings, which are disabled, also for an unreadable policy.
    """
    usable: dict[str, str] = {}
    skipped: list[str] = []
    for name in sorted(configs):
        try:
            config_definition(name).parse(configs[name])
        except InvalidConfigError:
            skipped.append(name)
        else:
            usable[name] = configs[name]
    usable |= {name: "-1" for name in (RETENTION if "cleanup_policy" in skipped else skipped) if name in RETENTION}
    try:
        return parse_topic_config(usable), tuple(skipped)
    except InvalidConfigError:
        return parse_topic_config(dict.fromkeys(RETENTION, "-1")), tuple(sorted(configs))


def normalise_topic_configs(configs: Mapping[str, str], columns: str = "") -> dict[str, str]:
    """Validate `configs` as `parse_topic_config` and return the value to store: canonical text, no defaults.

    `columns` are those that the topic has. The columns of `configs` may lack ids, and are checked against them.

    A topic that is only compacted has no retention, also for a broker of a release that does not know compaction.
    """
    config = parse_topic_config(configs)
    if config.is_table and config.validate is Validation.HEADER:  # A topic of an earlier release may have both.
        raise InvalidConfigError(
            "table = yes with validate = header: a table does not have the rows of a batch that no reader can decode",
            action="Leave validate out, or set validate=columns.",
        )
    parsed = {name: str(config_definition(name).parse(configs[name])) for name in sorted(configs)}
    if config.columns:
        parsed["columns"] = evolved(columns, config.columns, config.compatibility)
    if config.cleanup_policy == "compact":
        for name in RETENTION:
            if parsed.setdefault(name, "-1") != "-1":
                raise InvalidConfigError(
                    f"{name} has no meaning with cleanup_policy=compact, which keeps the newest record of every key",
                    action=f"Leave {name} out, or set cleanup_policy=compact,delete.",
                )
    return {name: text for name, text in parsed.items() if text != str(CONFIGS[name].default)}


def alter_topic_configs(current: Mapping[str, str], changes: Mapping[str, str], unset: Iterable[str]) -> dict[str, str]:
    """Return the value to store after `AlterConfigs`: `changes` set, `unset` reset to defaults, the rest unchanged.

    Raises:
        InvalidConfigError: As `parse_topic_config`, or if a name is both set and unset.
    """
    removed = list(unset)
    for name in removed:
        config_definition(name)
        if name in changes:
            raise InvalidConfigError(f"{name} is both set and unset", action=f"Name {name} in one of the two only.")
    columns = current.get("columns", "")
    if bool(columns) != bool(changes.get("columns", columns)) or "columns" in removed:
        raise InvalidConfigError(
            "columns: a topic is typed, or not, from its creation on",
            action="Create another topic, and copy the records.",
        )
    merged = {name: text for name, text in current.items() if name not in removed} | dict(changes)
    return normalise_topic_configs(merged, columns)


def describe_topic_config(configs: Mapping[str, str], replication_factor: int) -> list[cluster_pb2.ConfigEntry]:
    """Return every setting with its value in a topic with the stored settings `configs`, in the order of the table.

    A default that depends on the number of replicas is shown as its value for `replication_factor` >= 1.
    """
    defaults = {row.name: str(row.default) for row in CONFIG_TABLE}
    defaults["min_insync_replicas"] = str(effective_min_insync_replicas(0, replication_factor))
    return [
        cluster_pb2.ConfigEntry(
            name=row.name,
            value=configs.get(row.name, defaults[row.name]),
            default_value=defaults[row.name],
            source=cluster_pb2.CONFIG_SOURCE_TOPIC if row.name in configs else cluster_pb2.CONFIG_SOURCE_DEFAULT,
            documentation=f"{row.documentation} Range: {row.range_text()}.",
        )
        for row in CONFIG_TABLE
    ]


def effective_min_insync_replicas(setting: int, replicas: int) -> int:
    """Return the minimum in-sync replicas of a partition with `replicas` >= 1 replicas; never more than `replicas`.

    `setting` is the topic's. `0`, the default, means 2 of at least 3 replicas, otherwise 1: of two replicas, a minimum
    of 2 would make each restart an outage of writes. The default is not the number 1, because values equal to the
    default are not stored: no topic could then have 1 of 3.
    """
    return min(setting or (2 if replicas >= 3 else 1), replicas)


def config_definition(name: str) -> ConfigDefinition:
    """Return the row of a setting.

    Raises:
        InvalidConfigError: If the name is unknown; the message has the nearest known one.
    """
    definition = CONFIGS.get(name)
    if definition is None:
        nearest = nearest_name(name, list(CONFIGS))
        raise InvalidConfigError(
            f"unknown topic setting {name!r}" + (f"; did you mean {nearest}?" if nearest else ""),
            action=f"Use one of: {', '.join(CONFIGS)}.",
        )
    return definition


def describe_topic_configs() -> str:
    """Return docs/reference/topic-configs.md as markdown."""
    lines = [
        "# Settings of a topic",
        "",
        "Generated by `python -m headrace.partition.topic_configs`. Set with `headrace topic create --config`,",
        "changed at run time with `headrace topic alter`.",
        "",
        "| setting | default | range | what it does |",
        "| --- | --- | --- | --- |",
    ]
    for row in CONFIG_TABLE:
        default = "2^63 - 1" if row.default == INT64_MAX else row.default
        lines.append(f"| `{row.name}` | {default} | {row.range_text()} | {row.documentation} |")
    return "\n".join(lines) + "\n"


def _check_relations(config: TopicConfig) -> None:
    if config.is_table and not config.compacts:
        raise InvalidConfigError(
            f"table = yes with cleanup_policy = {config.cleanup_policy}: a table keeps the newest value of each column",
            action="Set cleanup_policy=compact.",
        )
    if config.table_ttl_ms and not config.is_table:
        raise InvalidConfigError(
            "table_ttl_ms has no meaning for a topic that is no table", action="Set table=yes, or leave it out."
        )
    if config.columns and config.compacts:
        raise InvalidConfigError(
            "columns with cleanup_policy=compact: rows are not compacted",
            action="Leave columns out, or set cleanup_policy=delete.",
        )
    if config.trace_sample and not config.is_table:
        raise InvalidConfigError(
            "trace_sample has no meaning for a topic that is no table", action="Set table=yes, or leave it out."
        )
    if config.segment_bytes < config.max_batch_bytes:
        raise InvalidConfigError(
            f"segment_bytes = {config.segment_bytes} is less than max_batch_bytes = {config.max_batch_bytes}",
            action="Raise segment_bytes or lower max_batch_bytes: a batch must fit into a segment.",
        )
    if "none" not in config.allowed_codecs.split(","):
        raise InvalidConfigError(
            f"allowed_codecs = {config.allowed_codecs} has no none, as which a payload that does not shrink is stored",
            action=f"Set allowed_codecs=none,{config.allowed_codecs}.",
        )
    if config.durability is Durability.FSYNC:
        for name in ("flush_messages", "flush_ms"):
            if getattr(config, name) != INT64_MAX:
                raise InvalidConfigError(
                    f"{name} has no meaning with durability=fsync, which flushes before every acknowledgement",
                    action=f"Set durability=async too, or leave {name} out.",
                )
    if config.compacts and config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise InvalidConfigError(
            f"min_compaction_lag_ms = {config.min_compaction_lag_ms} exceeds max_compaction_lag_ms = "
            f"{config.max_compaction_lag_ms}",
            action="Raise max_compaction_lag_ms or lower min_compaction_lag_ms.",
        )
    if config.retention_ms != -1 and config.retention_ms < 1:
        raise InvalidConfigError("retention_ms = 0 would keep no record", action="Use -1 for no limit, or 1 or more.")
    if config.retention_bytes == 0:
        raise InvalidConfigError(
            "retention_bytes = 0 would keep no record", action="Use -1 for no limit, or 1 or more."
        )


_DEFAULTS = TopicConfig()
assert {field.name: getattr(_DEFAULTS, field.name) for field in dataclasses.fields(TopicConfig)} == {
    row.name: row.default for row in CONFIG_TABLE
}, "TopicConfig and CONFIG_TABLE differ"

if __name__ == "__main__":
    print(describe_topic_configs(), end="")
