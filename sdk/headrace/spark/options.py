"""Parsed options of the data source for a reader or writer. Pure.

Spark passes options as strings with lower-case names. A name that starts with `headrace.` is a setting of the SDK's
`Reader` or `Producer`, with dots or underscores (`headrace.bootstrap.servers`); all others are in `OPTIONS`. Every
error about them is one sentence that names the option, without a cause, because Spark shows users the whole chain of
causes.
"""

import dataclasses
import json
import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.client.base.config import ClientConfig, ProducerConfig, ReaderConfig, build
from headrace.client.base.config_text import nearest
from headrace.client.base.errors import ConfigError
from headrace.spark.option_table import BATCH, OPTIONS, STREAM, WRITE
from headrace.spark.starting_offsets import (
    EARLIEST,
    LATEST,
    OffsetBound,
    offsets_bound,
    time_bound,
    times_bound,
    word_bound,
)
from headrace.wire.errors import InvalidTopicNameError
from headrace.wire.topic_names import check_topic_name

PREFIX = "headrace."
SERVERS = "headrace.bootstrap.servers"
_NOT_FOR_SPARK = frozenset(
    {"key_deserializer", "value_deserializer", "commit_group", "key_serializer", "value_serializer"}
    | {"partitioner", "interceptors", "return_futures", "producer_id", "producer_epoch"}
    | {"api_key", "token_provider"}
)
_SHOWN_BY_SPARK = {"api_key": "api_key_file", "token": "token_file"}
"""Secrets that are not taken as options, and the options that name a file with them."""
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})
"""Spark's own options, which it passes to sources and sinks as well."""
_NOT_FOR_NEWEST = (
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "minPartitions",
    "maxRecordsPerPartition",
    "pushFilters",
)
_BY_KEY = {option.name.lower(): option for option in OPTIONS}


@dataclass(frozen=True, slots=True)
class Subscription:
    """Topics or partitions to read: one of the three fields is set."""

    names: tuple[str, ...] = ()
    pattern: str = ""
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    option: str = "subscribe"
    """Name of the option that set it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of a reader. Sent to executors."""

    settings: Mapping[str, Any]
    """Checked settings of `headrace.Reader`."""
    subscription: Subscription
    start: OffsetBound
    end: OffsetBound
    min_partitions: int
    """0 means the number of partitions."""
    max_records_per_partition: int
    """0 means no limit."""
    max_offsets_per_trigger: int
    """0 means no limit."""
    fail_on_data_loss: bool
    push_filters: bool
    newest_per_key: bool
    typed: bool
    include_headers: bool
    commit_group: str

    @property
    def typed_topic(self) -> str:
        """The one topic of the option `typed`.

        Raises:
            ConfigError: If there are several, or a pattern.
        """
        names = (*self.subscription.names, *self.subscription.assigned)
        if len(names) != 1:
            raise ConfigError(
                f"option typed: {self.subscription.option} has {len(names) or 'a pattern of'} topics",
                action="Subscribe one: its columns are the frame's.",
            )
        return names[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options of a writer. Sent to executors."""

    settings: Mapping[str, Any]
    """Checked settings of `headrace.Producer`."""
    topic: str
    """Empty means that the column has it."""
    idempotent_retries: bool
    typed: bool = False
    columns: str = ""
    """Text of the columns of the typed topic, which the driver looks up; empty for rows of bytes."""


def read_options(given: Mapping[str, str], use: str) -> ReadOptions:
    """Parse the options of a batch (`BATCH`) or a stream (`STREAM`).

    Raises:
        ConfigError: If one is unknown, missing, malformed, or contradicts another.
    """
    options = _Options(given, use)
    group = options.text("commitGroup")
    settings = options.settings(ReaderConfig)
    if group:
        options.checked("commitGroup", ReaderConfig, {"commit_group": group, **settings})
    start = options.bound("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
    end = options.bound("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
    if use == BATCH:
        start = start or word_bound(EARLIEST, "startingOffsets")
        if start.word == LATEST:
            raise ConfigError("startingOffsets=latest reads nothing in a batch", action="Use a stream, or earliest.")
        if end is not None and end.word == EARLIEST:
            raise ConfigError("endingOffsets=earliest reads nothing", action="Use latest, or offsets.")
    newest_per_key = options.flag("newestPerKey", False)
    if newest_per_key:
        options.check_newest_per_key()
    typed = options.flag("typed", False)
    for name, is_set in (("newestPerKey", newest_per_key), ("includeHeaders", options.flag("includeHeaders", False))):
        if typed and is_set:
            raise ConfigError(f"options typed and {name} exclude each other", action="Leave one of them out.")
    return ReadOptions(
        settings=settings,
        subscription=options.subscription(),
        start=start or word_bound(LATEST, "startingOffsets"),
        end=end or word_bound(LATEST, "endingOffsets"),
        min_partitions=options.number("minPartitions"),
        max_records_per_partition=options.number("maxRecordsPerPartition"),
        max_offsets_per_trigger=options.number("maxOffsetsPerTrigger"),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        push_filters=options.flag("pushFilters", False),
        newest_per_key=newest_per_key,
        typed=typed,
        include_headers=options.flag("includeHeaders", False),
        commit_group=group,
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a writer.

    Raises:
        ConfigError: If one is unknown, missing or malformed.
    """
    options = _Options(given, WRITE)
    topic = options.text("topic")
    if topic:
        _check_topic("topic", topic)
    settings = options.settings(ProducerConfig)
    if settings.get("enable_idempotence") is False or settings.get("acks") in {0, "0"}:
        raise ConfigError(
            "headrace.acks=0 and headrace.enable.idempotence=false would let Spark's retries write records twice",
            action="Leave them out.",
        )
    idempotent_retries = options.flag("idempotentRetries", True)
    typed = options.flag("typed", False)
    if typed and not topic:
        raise ConfigError("option typed needs the option topic", action="Rows of one write go to one typed topic.")
    return WriteOptions(settings=settings, topic=topic, idempotent_retries=idempotent_retries, typed=typed)


def describe_schema_options(given: Mapping[str, str]) -> bool:
    """Return `includeHeaders` only, for any use of the options; the reader checks the others."""
    return _Options(given, "").flag("includeHeaders", False)


def is_typed(given: Mapping[str, str]) -> bool:
    """Return `typed` only, for any use of the options; the reader checks the others."""
    return _Options(given, "").flag("typed", False)


class _Options:
    """Unparsed options, with a method for each type of value."""

    def __init__(self, given: Mapping[str, str], use: str) -> None:
        self._given = {name.lower(): value for name, value in given.items() if name.lower() not in _SPARKS_OWN}
        if use:
            for name in self._given:
                self._check_name(name, use)

    def _check_name(self, name: str, use: str) -> None:
        if name.startswith(PREFIX):
            return
        option = _BY_KEY.get(name)
        if option is None:
            if name.startswith("kafka."):
                hint = f"; settings of the client are named {PREFIX}..., as {SERVERS}"
            else:
                hint = nearest(name, [*(entry.name for entry in OPTIONS), SERVERS])
            if name == "path":
                hint = "; name the topic by the option subscribe or topic"
            raise ConfigError(f"unknown option {name!r}{hint}")
        if use not in option.uses:
            kinds = {BATCH: "reading a batch", STREAM: "reading a stream", WRITE: "writing"}
            meant = " or ".join(kinds[entry] for entry in option.uses)
            raise ConfigError(f"option {option.name} is for {meant}, not for {kinds[use]}")

    def text(self, name: str) -> str:
        return self._given.get(name.lower(), "").strip()

    def number(self, name: str) -> int:
        text = self.text(name)
        if not text:
            return 0
        if not re.fullmatch(r"\d{1,18}", text) or int(text) < 1:
            raise ConfigError(f"{name}={text!r} is not a number of at least 1")
        return int(text)

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name).lower()
        if text not in {"", "true", "false"}:
            raise ConfigError(f"{name}={text!r} is not true or false")
        return default if not text else text == "true"

    def check_newest_per_key(self) -> None:
        """Check that a task reads a partition from its beginning."""
        for name in _NOT_FOR_NEWEST:
            if self.text(name):
                raise ConfigError(
                    f"options newestPerKey and {name} exclude each other", action="A task reads a whole partition."
                )

    def settings(self, config: type[ClientConfig]) -> dict[str, Any]:
        """Return the settings with the prefix `headrace.`, validated as in the SDK."""
        known = {entry.name: entry for entry in dataclasses.fields(config) if entry.name not in _NOT_FOR_SPARK}
        hints = typing.get_type_hints(config)
        settings: dict[str, Any] = {}
        for name, text in self._given.items():
            if not name.startswith(PREFIX):
                continue
            setting = name.removeprefix(PREFIX).replace(".", "_")
            if setting in _SHOWN_BY_SPARK:
                raise ConfigError(
                    f"option {name} is not taken: Spark shows options in plans, event logs and its web pages",
                    action=f"Use {PREFIX}{_SHOWN_BY_SPARK[setting].replace('_', '.')}, with a path on every executor.",
                )
            if setting not in known:
                dotted = [PREFIX + entry.replace("_", ".") for entry in known]
                raise ConfigError(f"unknown option {name!r}{nearest(name, dotted)}")
            settings[setting] = _value(name, text.strip(), typing.get_args(hints[setting]) or (hints[setting],))
        if "bootstrap_servers" not in settings:
            raise ConfigError(f"option {SERVERS} is missing", action="Use host:port of brokers or coordinators.")
        try:
            build(config, settings)
        except ConfigError:
            for name, value in settings.items():  # The error names the option if only one is wrong.
                self.checked(PREFIX + name.replace("_", "."), config, {name: value})
            raise
        return settings

    def checked(self, option: str, config: type[ClientConfig], settings: Mapping[str, Any]) -> None:
        """Check a setting as the SDK does; the error names the option."""
        try:
            build(config, settings)
        except ConfigError as error:
            raise ConfigError(f"option {option}: {error.message}", action=error.action) from None

    def subscription(self) -> Subscription:
        given = [name for name in ("subscribe", "subscribePattern", "assign") if self.text(name)]
        if len(given) > 1:
            raise ConfigError(f"options {' and '.join(given)} are given; set exactly one")
        if not given:
            raise ConfigError("option subscribe, subscribePattern or assign is missing; set exactly one")
        match given[0]:
            case "subscribe":
                return Subscription(names=self._names())
            case "subscribePattern":
                return Subscription(pattern=self._pattern(), option=given[0])
            case _:
                return Subscription(assigned=self._assigned(), option=given[0])

    def _names(self) -> tuple[str, ...]:
        names = [name.strip() for name in self.text("subscribe").split(",")]
        for name in names:
            _check_topic("subscribe", name)
        return tuple(sorted(set(names)))

    def _pattern(self) -> str:
        pattern = self.text("subscribePattern")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"subscribePattern={pattern!r} is not a regular expression: {error}") from None
        return pattern

    def _assigned(self) -> dict[str, tuple[int, ...]]:
        assigned = json_object("assign", self.text("assign"))
        for topic, numbers in assigned.items():
            _check_topic("assign", topic)
            good = isinstance(numbers, list) and all(type(number) is int and number >= 0 for number in numbers)
            if not good or not numbers:
                raise ConfigError(f'assign: the partitions of {topic} are not a list as in {{"{topic}": [0, 1]}}')
        return {topic: tuple(sorted(set(numbers))) for topic, numbers in sorted(assigned.items())}

    def bound(self, one_time: str, times: str, offsets: str) -> OffsetBound | None:
        """Return the start or end bound that one of three options sets."""
        given = [name for name in (one_time, times, offsets) if self.text(name)]
        if len(given) > 1:
            raise ConfigError(f"options {' and '.join(given)} are given; one of them is enough")
        if not given:
            return None
        name, text = given[0], self.text(given[0])
        if name == one_time:
            if not re.fullmatch(r"\d{1,18}", text):
                raise ConfigError(f"{name}={text!r} is not a time in ms since 1970")
            return time_bound(int(text), name)
        if name == times:
            return times_bound(json_object(name, text), name)
        if text.lower() in {EARLIEST, LATEST}:
            return word_bound(text.lower(), name)
        return offsets_bound(json_object(name, text, f" nor {EARLIEST} or {LATEST}"), name)


def json_object(name: str, text: str, otherwise: str = "") -> dict[str, Any]:
    """Parse an option that is a JSON object.

    Raises:
        ConfigError: If it is not one.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{name}={text!r} is not JSON{otherwise}: {error}") from None
    if not isinstance(found, dict) or not found:
        raise ConfigError(f'{name}={text!r} is not a JSON object as in {{"topic": ...}}')
    return found


def _check_topic(option: str, name: str) -> None:
    try:
        check_topic_name(name)
    except InvalidTopicNameError as error:
        raise ConfigError(f"option {option}: {error.message}") from None


def _value(option: str, text: str, kinds: Iterable[Any]) -> Any:
    """Convert a string into a value of the setting's type."""
    kinds = tuple(kinds)
    if bool in kinds:
        if text.lower() not in {"true", "false"}:
            raise ConfigError(f"option {option}={text!r} is not true or false")
        return text.lower() == "true"
    if int in kinds and re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    if str in kinds:
        return text
    raise ConfigError(f"option {option}={text!r} is not a number")
