"""Rows of the table of mirrors: what operators set, what workers report. Pure.

The table is an ordinary topic of the mirror's cluster, made by `headrace mirror create`.

| key | columns |
| --- | --- |
| `mirror/NAME` | `settings`: `MirrorSettings`; `cluster`: id of the source's cluster; `problem`; when it was promoted |
| `topic/NAME/TOPIC` | `source_id`: id of the topic at its source, hex; `problem`: why it is not copied |
| `copies/NAME/TOPIC` | one for each partition, by number: JSON of `PartitionReport` |
| `subject/NAME/SUBJECT` | `copied`: the mirror has it; `mode` after its promotion; `problem`; when it was promoted |
| `worker/NAME/ID` | `at_ms`; it expires unless the worker writes it again |
| `question/NAME/ID` | `asked`: `SourceQuestion`; `answer/ID`: `SourceAnswer` of a worker, empty at first; it expires |
"""

import dataclasses
import fnmatch
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.client.base.config import AdminConfig, build
from headrace.client.base.errors import ConfigError
from headrace.client.schemas.registry import registry_urls
from headrace.v1 import errors_pb2
from headrace.wire.errors import HeadraceError
from headrace.wire.errors.rpc import from_detail, to_detail
from headrace.wire.topic_names import MIRRORS_TABLE, is_own_topic

AFTER_REPORTS = "copies0"
"""Key behind those of the reports of partitions, and before all others."""
SUBJECT_SUFFIXES = ("-key", "-value")
"""Ends of the names of a topic's subjects."""
SECRET_SETTINGS = {"api_key": "api_key_file", "token_provider": "token_file"}
"""Settings that are not stored, because readers of the table would have them, and what to give instead."""


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """What one mirror copies, and from where."""

    source: Mapping[str, Any]
    """Settings of a client of the source's cluster, as of `AdminConfig`, without secrets: of these, names of files."""
    topics: tuple[str, ...] = ("*",)
    """Patterns of topics, as of the shell: `orders-*`."""
    groups: tuple[str, ...] = ("*",)
    """Patterns of the groups whose offsets are copied."""
    replication_factor: int = 0
    """Of the topics here; 0 means the cluster's default."""
    bytes_per_second: int = 0
    """Limit of each worker; 0 means none."""
    source_registry: str = ""
    """URL of the source's schema registry; empty: schemas are not copied."""
    registry: str = ""
    """URL of the schema registry here."""
    subjects: tuple[str, ...] = ()
    """Patterns of subjects that are copied besides those of the topics, `TOPIC-key` and `TOPIC-value`."""

    def check(self) -> None:
        """Raise ConfigError if a setting is wrong."""
        for name, other in SECRET_SETTINGS.items():
            if name in self.source:
                raise ConfigError(
                    f"{name} of the source would be stored in the table {MIRRORS_TABLE}",
                    action=f"Set {other}: the name of a file that the workers have.",
                )
        config = build(AdminConfig, dict(self.source))
        if config.directory:
            raise ConfigError("a mirror copies from a cluster; headrace promote copies a directory")
        if not self.topics:
            raise ConfigError("the mirror names no topics")
        if self.replication_factor < 0 or self.bytes_per_second < 0:
            raise ConfigError("replication_factor and bytes_per_second must not be negative")
        if bool(self.source_registry) != bool(self.registry) or (self.subjects and not self.registry):
            raise ConfigError("schemas are copied from source_registry to registry: give both URLs")
        for url in filter(None, (self.source_registry, self.registry)):
            registry_urls(url)

    def has_topic(self, name: str) -> bool:
        """Return whether a topic of the source is copied; the cluster's own topics are not."""
        return not is_own_topic(name) and any(fnmatch.fnmatchcase(name, pattern) for pattern in self.topics)

    def has_subject(self, subject: str) -> bool:
        """Return whether a subject of the source is copied, also without another one that refers to it."""
        if not self.registry:
            return False
        of_topic = any(subject.endswith(end) and self.has_topic(subject.removesuffix(end)) for end in SUBJECT_SUFFIXES)
        return of_topic or any(fnmatch.fnmatchcase(subject, pattern) for pattern in self.subjects)

    def has_group(self, group: str) -> bool:
        """Return whether the offsets of a group are copied."""
        return any(fnmatch.fnmatchcase(group, pattern) for pattern in self.groups)

    def to_text(self) -> str:
        """Return it as stored."""
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return json.dumps({**values, "source": dict(self.source)})

    @classmethod
    def from_text(cls, text: str) -> "MirrorSettings":
        """Return it from a row."""
        values: dict[str, Any] = json.loads(text)
        known = {each.name for each in dataclasses.fields(cls)}
        found: dict[str, Any] = {name: value for name, value in values.items() if name in known}
        return cls(**found | {name: tuple(found[name]) for name in ("topics", "groups", "subjects") if name in found})


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """What a worker reports of one partition."""

    end_offset: int
    """End of the mirror's log; -1 means unknown."""
    source_end_offset: int
    """High watermark of the source when it answered last; -1 means unknown."""
    copied_ms: int
    """Time of the append, at the source, of the last batch that was copied; 0 if none was since the worker began."""
    at_ms: int
    """Time at which the source answered last, ms since 1970; 0 if it has not."""
    worker: str
    problem: str = ""
    """Why nothing is copied; empty while the copy works."""

    def to_text(self) -> str:
        """Return it as stored."""
        return json.dumps(dataclasses.astuple(self))

    @classmethod
    def from_text(cls, text: str) -> "PartitionReport":
        """Return it from a row."""
        return cls(*json.loads(text)[: len(dataclasses.fields(cls))])

    @property
    def lag(self) -> int:
        """Records that are not copied; -1 means unknown."""
        return records_behind(self.end_offset, self.source_end_offset)

    @property
    def lag_ms(self) -> int:
        """Age of the last copied batch at that time if records are missing, else 0; -1 means unknown."""
        if self.lag == 0:
            return 0
        return max(0, self.at_ms - self.copied_ms) if self.copied_ms and self.lag > 0 else -1


def records_behind(end_offset: int, source_end_offset: int) -> int:
    """Return the records between the ends of two logs; -1 if one of them is unknown, which is -1 too."""
    if min(end_offset, source_end_offset) < 0:
        return -1
    return max(0, source_end_offset - end_offset)


class CommonEnd(NamedTuple):
    """How far the logs of a partition are equal in two clusters."""

    common: int
    """Offset below which they are equal; the log start here if none of its records is known to be equal."""
    here: int
    """High watermark in this cluster."""
    there: int
    """High watermark in the other one."""


@dataclass(frozen=True, slots=True)
class SourceQuestion:
    """What an operator asks the workers, who alone can connect to the source."""

    mirror: str
    """Name of the mirror; one that is made by the answer does not exist yet."""
    settings: MirrorSettings
    topics: tuple[str, ...]
    is_compared: bool
    """Whether the answer has how far the logs are equal; else it has only their ends at the source."""
    is_all: bool = False
    """Whether the answer also has all other topics of the source that the mirror copies."""

    def to_text(self) -> str:
        """Return it as stored."""
        return json.dumps([self.settings.to_text(), self.topics, self.is_compared, self.is_all])

    @classmethod
    def from_text(cls, mirror: str, text: str) -> "SourceQuestion":
        """Return it from a row, without what only newer releases know. Raises ValueError, TypeError, AttributeError."""
        settings, topics, is_compared, *more = json.loads(text)
        return cls(mirror, MirrorSettings.from_text(settings), tuple(topics), is_compared, bool(more and more[0]))


@dataclass(frozen=True, slots=True)
class SourceAnswer:
    """Answer to a question: the ends, or why there are none."""

    ends: Mapping[str, Mapping[int, CommonEnd]] = field(default_factory=dict)
    """By topic and partition; without a comparison `common` and `here` are -1."""
    error: HeadraceError | None = None

    def to_text(self) -> str:
        """Return it as stored."""
        detail = b"" if self.error is None else to_detail(self.error).SerializeToString()
        return json.dumps([self.ends, detail.hex()])

    @classmethod
    def from_text(cls, text: str) -> "SourceAnswer":
        """Return it from a row."""
        topics, detail = json.loads(text)
        ends = {
            topic: {int(number): CommonEnd(*each) for number, each in partitions.items()}
            for topic, partitions in topics.items()
        }
        return cls(ends, from_detail(errors_pb2.ErrorDetail.FromString(bytes.fromhex(detail))) if detail else None)


@dataclass(slots=True)
class MirroredTopic:
    """Topic of a mirror."""

    name: str
    source_id: str = ""
    """Id at the source, hex; empty if it is not known yet."""
    problem: str = ""
    """Why it is not copied at all; empty if it is."""
    partitions: dict[int, PartitionReport] = field(default_factory=dict)
    """Reports by partition number."""
    is_promoted: bool = False
    """Whether producers write to it, and copies are refused."""


@dataclass(slots=True)
class MirroredSubject:
    """Subject of the schema registry of a mirror."""

    name: str
    is_copied: bool = False
    """Whether its versions are those of the source: until it is promoted, the registry takes no others."""
    mode: str = ""
    """Its mode once it is promoted; empty for that of all subjects."""
    problem: str = ""
    """Why it, or a part of it, is not copied; empty if it is."""
    is_promoted: bool = False
    """Whether it takes new schemas, and is not copied any more."""


@dataclass(slots=True)
class MirrorDescription:
    """Mirror with its state as of the last reports of its workers."""

    name: str
    settings: MirrorSettings
    source_cluster: str = ""
    """Id of the source's cluster; empty until a worker has reached it."""
    promoted_ms: int = 0
    """Time at which all topics were promoted, ms since 1970; 0 means that they were not."""
    topics: list[MirroredTopic] = field(default_factory=list)
    workers: list[str] = field(default_factory=list)
    """Ids of the workers that reported within the last seconds."""
    problem: str = ""
    """Why the workers cannot copy anything; empty if they can."""
    subjects: list[MirroredSubject] = field(default_factory=list)
    """Subjects of the schema registry, by name."""

    @property
    def lag(self) -> int:
        """Records that are not copied, of all partitions whose lag is known."""
        return sum(max(0, report.lag) for topic in self.topics for report in topic.partitions.values())


def mirror_key(name: str) -> str:
    """Return the key of a mirror."""
    return f"mirror/{name}"


def topic_key(name: str, topic: str) -> str:
    """Return the key of a topic of a mirror."""
    return f"topic/{name}/{topic}"


def copies_key(name: str, topic: str) -> str:
    """Return the key of the reports of a topic's partitions."""
    return f"copies/{name}/{topic}"


def subject_key(name: str, subject: str) -> str:
    """Return the key of a subject of a mirror."""
    return f"subject/{name}/{subject}"


def worker_key(name: str, worker: str) -> str:
    """Return the key of a worker."""
    return f"worker/{name}/{worker}"


def question_key(name: str, question: str) -> str:
    """Return the key of a question about a mirror."""
    return f"question/{name}/{question}"


def answer_column(worker: str) -> str:
    """Return the column of a worker's answer to a question."""
    return f"answer/{worker}"


def answers_to(columns: Mapping[str, str]) -> dict[str, SourceAnswer | None]:
    """Return the answers to a question, by worker; `None` while it works."""
    start = answer_column("")
    return {
        name.removeprefix(start): SourceAnswer.from_text(text) if text else None
        for name, text in columns.items()
        if name.startswith(start)
    }


def open_questions(rows: Mapping[str, Mapping[str, str]], worker: str) -> dict[str, SourceQuestion | None]:
    """Return the questions that a worker has not answered yet, by key; `None` for one that cannot be read."""
    found: dict[str, SourceQuestion | None] = {}
    for key, columns in rows.items():
        kind, _, rest = key.partition("/")
        if kind == "question" and "asked" in columns and not columns.get(answer_column(worker)):
            try:
                found[key] = SourceQuestion.from_text(rest.rpartition("/")[0], columns["asked"])
            except (ValueError, TypeError, AttributeError):
                found[key] = None
    return found


def mirror_names(rows: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the names of all mirrors, sorted."""
    return [key.partition("/")[2] for key in sorted(rows) if key.startswith("mirror/") and "settings" in rows[key]]


def is_left_alone(described: MirrorDescription, subject: str) -> bool:
    """Return whether a subject is not copied, since it or its topic was promoted, or its topic is not a copy."""
    if described.promoted_ms or any(each.name == subject and each.is_promoted for each in described.subjects):
        return True
    topics = {topic.name for topic in described.topics if topic.is_promoted or topic.problem}
    return any(subject.endswith(end) and subject.removesuffix(end) in topics for end in SUBJECT_SUFFIXES)


def describe(rows: Mapping[str, Mapping[str, str]], name: str) -> MirrorDescription | None:
    """Return a mirror from the table's rows by key, or `None` if there is none of the name."""
    own = rows.get(mirror_key(name))
    if own is None or "settings" not in own:
        return None
    described = MirrorDescription(
        name,
        MirrorSettings.from_text(own["settings"]),
        own.get("cluster", ""),
        int(own.get("promoted_ms", 0)),
        problem=own.get("problem", ""),
    )
    topics: dict[str, MirroredTopic] = {}
    for key, columns in sorted(rows.items()):
        kind, _, rest = key.partition("/")
        mirror, _, item = rest.partition("/")
        if mirror != name:
            continue
        if kind == "worker":
            described.workers.append(item)
        elif kind == "subject":
            described.subjects.append(
                MirroredSubject(
                    item,
                    "copied" in columns,
                    columns.get("mode", ""),
                    columns.get("problem", ""),
                    "promoted_ms" in columns,
                )
            )
        elif kind in ("topic", "copies"):
            topic = topics.setdefault(item, MirroredTopic(item))
            if kind == "topic":
                topic.source_id, topic.problem = columns.get("source_id", ""), columns.get("problem", "")
                topic.is_promoted = "promoted_ms" in columns
            else:
                topic.partitions = {
                    int(number): PartitionReport.from_text(text) for number, text in columns.items() if number.isdigit()
                }
    described.topics = [topics[topic] for topic in sorted(topics)]
    return described
