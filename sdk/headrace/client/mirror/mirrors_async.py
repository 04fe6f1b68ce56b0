"""Mirrors of one cluster, for operators: create, describe, promote, fail back, delete. See `rows` for their state."""

import contextlib
import dataclasses
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Unpack

from headrace.client.admin.admin_async import AsyncAdmin
from headrace.client.admin.partition_calls import PartitionCalls
from headrace.client.base.acompat import acall
from headrace.client.base.config import AdminConfig, build
from headrace.client.base.credentials import credential_of
from headrace.client.base.errors import ConfigError
from headrace.client.base.operations import Pause, aexecute
from headrace.client.base.settings_types import AdminSettings
from headrace.client.mirror.checks import (
    check_name,
    check_not_promoted,
    chosen_topics,
    is_copied,
    lost_records,
    not_copied,
    not_ours,
    settings_to_fail_back,
)
from headrace.client.mirror.rows import (
    AFTER_REPORTS,
    CommonEnd,
    MirrorDescription,
    MirroredTopic,
    MirrorSettings,
    SourceQuestion,
    answer_column,
    copies_key,
    describe,
    is_left_alone,
    mirror_key,
    mirror_names,
    subject_key,
    topic_key,
    worker_key,
)
from headrace.client.mirror.source_questions_async import AsyncSourceQuestions
from headrace.client.net.transport import open_connections_async
from headrace.client.schemas.registry import SchemaRegistry
from headrace.client.schemas.subjects import RegistrySubjects
from headrace.client.table.table_async import AsyncTable
from headrace.wire.errors import (
    DivergedLogError,
    HeadraceError,
    InvalidRequestError,
    Outcome,
    TimedOutError,
    UnknownTopicError,
)
from headrace.wire.ids import TopicPartition
from headrace.wire.topic_names import MIRRORS_TABLE

CATCH_UP_SECONDS = 60.0
COMPARE_SECONDS = 600.0
"""Time for a worker to compare logs with the source."""
_LOOK_SECONDS = 0.2
_KNOWN_SECONDS = 5.0


class AsyncMirrors:
    """Mirrors of the cluster that the settings name: copies of topics of other clusters.

    Workers (`headrace mirror run`) copy, and only they connect to the sources. Every method raises the typed errors of
    `headrace`.
    """

    def __init__(self, **settings: Unpack[AdminSettings]) -> None:
        """Create a client with the settings of `AdminConfig`. Connects on first use.

        Raises:
            ConfigError: For an unknown setting or a value out of range.
        """
        self._config = build(AdminConfig, settings)
        if self._config.directory:
            raise ConfigError("mirrors are of a cluster, and bootstrap_servers is a directory")
        self._settings: dict[str, Any] = dict(settings)
        self.admin = AsyncAdmin(**settings)
        self._table = AsyncTable(MIRRORS_TABLE, **self._settings)
        self._connections = open_connections_async("Mirrors", self._config)
        self._questions = AsyncSourceQuestions(self._table, self._connections)

    async def __aenter__(self) -> "AsyncMirrors":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Calling it again does nothing."""
        await self._connections.close()
        await self._table.close()
        await self.admin.close()

    async def create(self, name: str, settings: MirrorSettings) -> None:
        """Create a mirror, or replace its settings; workers begin to copy within seconds.

        Topics are created as they appear at the source, under the same name. One that exists here already, and was not
        made by this mirror, is left as it is and reported.

        Raises:
            ConfigError: If the name or a setting is wrong.
            InvalidRequestError: If the mirror was promoted: delete it first.
        """
        check_name(name)
        settings.check()
        await self._make_table()
        check_not_promoted(await self._find(name))
        await self._table.put(mirror_key(name), {"settings": settings.to_text()})

    async def _make_table(self) -> None:
        await self.admin.create_topic(MIRRORS_TABLE, 1, 0, {"cleanup_policy": "compact", "table": "yes"}, exist_ok=True)

    async def list_mirrors(self) -> list[MirrorDescription]:
        """Return all mirrors, by name."""
        rows = await self.rows()
        found = [describe(rows, name) for name in mirror_names(rows)]
        return [each for each in found if each is not None]

    async def describe(self, name: str) -> MirrorDescription:
        """Return a mirror, as its workers reported it last.

        Raises:
            UnknownTopicError: If there is no mirror of the name.
        """
        found = await self._find(name)
        if found is None:
            raise UnknownTopicError(
                f"there is no mirror {name!r}",
                action="headrace mirror list shows them. A topic that still names it takes records after headrace "
                "topic alter TOPIC --unset mirror.",
            )
        return found

    async def rows(self, *, reports: bool = True) -> dict[str, Mapping[str, str]]:
        """Return the rows of the table of mirrors by key; none if there is no table yet.

        Without `reports` those of the partitions are left out, which are most of the table.
        """
        found: dict[str, Mapping[str, str]] = {}
        try:
            async for row in self._table.scan(start="" if reports else AFTER_REPORTS):
                found[str(row.key, "utf-8")] = row
        except UnknownTopicError:
            return {}
        return found

    async def promote(
        self,
        name: str,
        topics: Sequence[str] | None = None,
        *,
        wait: bool = False,
        timeout: float = CATCH_UP_SECONDS,
        registry: str = "",
    ) -> list[MirroredTopic]:
        """Make topics of a mirror ordinary ones, to which producers write; return them with their last reports.

        Nothing is copied to them afterwards, whatever the source does. Calling it again does nothing.

        Args:
            name: of the mirror.
            topics: their names; `None` means all, and ends the mirror.
            wait: wait until everything that the source has is copied: for a planned switch, after its producers have
                been stopped. A worker asks the source for its ends. A topic that the source does not have any more is
                promoted as it is, and its `problem` says so. Without `wait` the records that are not copied are lost to
                this cluster; the reports say how many there were.
            timeout: seconds for `wait`.
            registry: URL of the schema registry of this cluster; empty means the one of the mirror's settings. An API
                key is not sent to that one: a client with a key needs a URL to promote a mirror with schemas.

        Raises:
            UnknownTopicError: If there is no such mirror, or it has no such topic.
            TimedOutError: If no worker answers, or a copy does not reach the source's end in time, or a topic has a
                problem for as long; nothing was promoted.
            InvalidRequestError: If `wait` would never end: the mirror does not copy a topic. Nothing was promoted.
            SchemaRegistryError, TransportError, ConfigError: If the registry does not let a subject take new schemas,
                or `registry` is missing; the topics are promoted. Call again.
        """
        described = await self.describe(name)
        chosen = chosen_topics(described, topics)
        if wait:
            await self._wait_copied(described, None if topics is None else chosen, timeout)
            described = await self.describe(name)
            chosen = chosen_topics(described, topics)
        now_ms = str(time.time_ns() // 1_000_000)
        await self._promote_topics(name, chosen, now_ms)
        if topics is None:
            if not described.promoted_ms:
                await self._table.put(mirror_key(name), {"promoted_ms": now_ms})
            chosen = (await self.describe(name)).topics  # Also those that a worker has created meanwhile.
            await self._promote_topics(name, [topic for topic in chosen if not topic.is_promoted], now_ms)
        await self._promote_subjects(name, now_ms, registry)
        return chosen

    async def _promote_topics(self, name: str, topics: Sequence[MirroredTopic], now_ms: str) -> None:
        """Let producers write to the topics that are copies of the mirror, and note it."""
        altered: list[str] = []
        for topic in topics:
            mirror = await self._mirror_of(topic.name)
            if mirror is None or (mirror != name and topic.problem):
                continue  # It was never a copy of this mirror.
            if mirror == name:
                await self.admin.alter_config(topic.name, unset=["mirror"])
                altered.append(topic.name)
            if not topic.is_promoted:
                await self._table.put(topic_key(name, topic.name), {"promoted_ms": now_ms})
                topic.is_promoted = True
        await self._wait_known(altered)

    async def _wait_known(self, topics: Sequence[str]) -> None:
        """Wait until the leaders of topics take what producers send, for a while: etcd tells them of it.

        They refuse an append of copies then, also one without any.
        """
        deadline = time.monotonic() + _KNOWN_SECONDS
        config = dataclasses.replace(self._config, request_timeout_ms=int(_KNOWN_SECONDS * 1000))
        with contextlib.suppress(HeadraceError):  # A leader that cannot be asked takes nothing either.
            for topic in topics:
                described = await self.admin.describe_topic(topic)
                calls = PartitionCalls(topic, described.topic_id, config)
                for partition in described.partitions:
                    while partition.leader_id >= 0 and time.monotonic() < deadline:
                        try:
                            append = calls.append(partition.partition, [], deletions_end=0)
                            await aexecute(append, self._connections.run_step)
                        except InvalidRequestError:
                            break
                        await self._connections.run_step(Pause(_LOOK_SECONDS))

    async def _promote_subjects(self, name: str, now_ms: str, url: str) -> None:
        """Let the registry take new schemas for the subjects that are not copied any more; again, if a call failed."""
        described = await self.describe(name)  # A worker looks at it after it has set a mode, and sets this one then.
        due = [each for each in described.subjects if each.is_copied and is_left_alone(described, each.name)]
        if not due:
            return
        if not url and credential_of(self._config):
            raise ConfigError(
                f"the topics are promoted, and these subjects are not: {', '.join(each.name for each in due)}",
                action="Promote again with --registry URL, the schema registry of this cluster. The API key is not "
                "sent to a URL of the table of mirrors, which workers may write.",
            )
        registry = RegistrySubjects(SchemaRegistry(url or described.settings.registry, **self._settings))
        for subject in due:
            if not subject.is_promoted:
                await self._table.put(subject_key(name, subject.name), {"promoted_ms": now_ms})
            try:
                await acall(registry.set_mode, subject.name, subject.mode)
            except HeadraceError as error:
                error.action = f"The topics are promoted, and subject {subject.name} is not: promote again."
                raise

    async def _mirror_of(self, topic: str) -> str | None:
        """Return the mirror that copies a topic, empty if none does; `None` if there is no such topic."""
        try:
            return (await self.admin.describe_config(topic))["mirror"].value
        except UnknownTopicError:
            return None

    async def _wait_copied(
        self, described: MirrorDescription, chosen: Sequence[MirroredTopic] | None, timeout: float
    ) -> None:
        """Wait until the copies end where the source does now; `None` means all topics, also new ones of the source.

        Topics that the source does not have any more are not waited for, nor those that are no copies of the mirror.
        """
        if described.promoted_ms:
            return
        deadline, name = time.monotonic() + timeout, described.name
        left = {topic.name for topic in described.topics if topic.is_promoted or await self._is_other(name, topic)}
        topics = [topic for topic in (described.topics if chosen is None else chosen) if topic.name not in left]
        if not topics and chosen is not None:
            return
        asked = tuple(topic.name for topic in topics if not topic.problem)
        is_all = chosen is None or len(asked) < len(topics)  # The source may not have a topic with a problem any more.
        question = SourceQuestion(name, described.settings, asked, is_compared=False, is_all=is_all)
        ends = await self._questions.ask(question, timeout)
        for topic in topics:
            if topic.name not in ends and not described.settings.has_topic(topic.name):
                raise not_copied(topic.name, topic.problem, "Add it to the mirror's topics, or do not wait for it.")
        wanted = {topic.name for topic in topics} if chosen is not None else ends.keys() - left
        for topic_name in sorted(wanted & ends.keys()):
            while reason := await self._lack_of(name, topic_name, ends[topic_name]):
                if time.monotonic() >= deadline:
                    raise TimedOutError(
                        f"not everything is copied after {timeout:.0f} s: {reason}",
                        outcome=Outcome.NOT_APPLIED,
                        action=f"See headrace mirror status {name}. Without waiting, what is not copied is lost.",
                    )
                await self._connections.run_step(Pause(_LOOK_SECONDS))

    async def _is_other(self, name: str, topic: MirroredTopic) -> bool:
        """Return whether a topic with a problem is no copy of the mirror: it is of this cluster, or of another one."""
        return bool(topic.problem) and await self._mirror_of(topic.name) not in (None, name)

    async def _lack_of(self, name: str, topic: str, there: Mapping[int, CommonEnd]) -> str:
        """Return why a topic is not copied to the ends of its source; empty if it is.

        Raises:
            InvalidRequestError: If it never will be: another topic has the name here.
        """
        row = await self._table.get(topic_key(name, topic))
        problem = "" if row is None else row.get("problem", "")
        if (row is None or problem) and await self._mirror_of(topic) not in (None, name):
            raise not_copied(
                topic,
                "another one has the name here",
                "Delete it here, leave it out of the mirror's topics, or name the topics to promote.",
            )
        here = await self._ends(topic) if row is not None else {}  # It is promoted by its row.
        behind = [TopicPartition(topic, number) for number, end in there.items() if here.get(number, -1) < end.there]
        if problem:
            return f"topic {topic} is not copied: {problem}"
        return f"the copy of {behind[0]} has not reached the end of its source" if behind else ""

    async def _ends(self, topic: str) -> dict[int, int]:
        """Return where the partitions of a topic end here; none if it does not exist yet."""
        try:
            return {tp.partition: at.offset for tp, at in (await self.admin.list_offsets(topic, "latest")).items()}
        except UnknownTopicError:
            return {}

    async def fail_back(
        self,
        name: str,
        settings: MirrorSettings,
        topics: Sequence[str],
        *,
        discard: bool = False,
        timeout: float = COMPARE_SECONDS,
    ) -> dict[str, dict[int, CommonEnd]]:
        """Make topics of this cluster mirrors of those of the same name in another one, to which they were moved.

        Producers are refused here at once, and accepted again if the call fails. A worker compares the logs. The call
        fails where this cluster has records that the other one lacks, unless `discard`: the topic is then deleted here
        and copied again from its start. Otherwise the copy continues where the logs are equal. If the mirror exists,
        the topics are added to its own, and it keeps its settings, except for those that are given and not defaults.

        Args:
            name: of the mirror.
            settings: its settings, of which `topics` has no effect: the mirror copies those that are named.
            topics: their names, the same in both clusters.
            discard: delete the records that the source lacks.
            timeout: seconds for the comparison.

        Returns:
            For each topic and partition, how far the logs are equal, and where each ends.

        Raises:
            ConfigError: If the name or a setting is wrong.
            InvalidConfigError: If it names a file that the workers do not have.
            TimedOutError: If no worker begins within a minute, or none has compared the logs in time.
            DivergedLogError: If records would be lost; the message has their number.
            UnknownTopicError: If one of the clusters lacks a topic.
            InvalidRequestError: If a topic belongs to another mirror, or the mirror was promoted or has another source.
        """
        check_name(name)
        settings.check()
        await self._make_table()
        known = await self._find(name)
        asked = settings_to_fail_back(known, settings, topics)
        refused: list[str] = []
        try:
            for topic in topics:
                mirror = await self._mirror_of(topic)
                if mirror is None or mirror not in ("", name):
                    raise not_ours(topic, mirror)
                if not mirror or not is_copied(known, topic):  # A call that was killed may have set it.
                    refused.append(topic)
                    await self.admin.alter_config(topic, {"mirror": name})
            found = await self._questions.ask(SourceQuestion(name, asked, tuple(topics), is_compared=True), timeout)
            for topic in topics:
                lost = lost_records(found[topic])
                if lost and not discard:
                    raise DivergedLogError(
                        f"the source lacks {lost} records of topic {topic} that this cluster has",
                        outcome=Outcome.NOT_APPLIED,
                        action="Read and send them to the other cluster if they are needed, then fail back with "
                        "discard.",
                    )
            for topic in refused:  # What the mirror knew of it before was of an earlier copy.
                await self._table.delete(topic_key(name, topic))
                await self._table.delete(copies_key(name, topic))
            settings = settings_to_fail_back(await self._find(name), settings, topics)  # It may have changed meanwhile.
            await self._table.put(mirror_key(name), {"settings": settings.to_text()})
        except BaseException as error:
            await self._accept_producers(refused, error)
            raise
        for topic in topics:  # After all that may fail: the workers create them again.
            if lost_records(found[topic]):
                await self.admin.delete_topic(topic)
        return found

    async def _accept_producers(self, topics: Sequence[str], reason: BaseException) -> None:
        """Let producers write to topics again after a call has failed; the error names those where that fails, too."""
        altered: list[str] = []
        for topic in topics:
            try:
                await self.admin.alter_config(topic, unset=["mirror"])
                altered.append(topic)
            except HeadraceError:
                if isinstance(reason, HeadraceError):
                    reason.action += f" Producers are still refused: headrace topic alter {topic} --unset mirror."
        await self._wait_known(altered)

    async def delete(self, name: str) -> None:
        """Delete a mirror. Topics that were not promoted stay as they are: read only, and not copied any more.

        Raises:
            UnknownTopicError: If there is no mirror of the name.
        """
        described = await self.describe(name)
        for topic in described.topics:
            await self._table.delete(topic_key(name, topic.name))
            await self._table.delete(copies_key(name, topic.name))
        for subject in described.subjects:
            await self._table.delete(subject_key(name, subject.name))
        await self._table.delete(mirror_key(name))

    # --- what workers write ---

    async def note_topic(self, name: str, topic: str, source_id: str, problem: str) -> None:
        """Store the id of a topic at its source, and why it is not copied."""
        await self._table.put(topic_key(name, topic), {"source_id": source_id, "problem": problem})

    async def promote_created(self, name: str, topic: str) -> None:
        """Promote a topic that a worker has created if the mirror, or the topic, was promoted meanwhile.

        A promotion reads the topics after it has noted that the mirror is promoted, and a worker notes a topic, creates
        it and then calls this: one of them sees the other.
        """
        described = await self.describe(name)
        created = [each for each in described.topics if each.name == topic]
        if described.promoted_ms or any(each.is_promoted for each in created):
            await self._promote_topics(name, created, str(described.promoted_ms or time.time_ns() // 1_000_000))

    async def note_copies(self, name: str, topic: str, reports: Mapping[str, str]) -> None:
        """Store reports of partitions, by number."""
        await self._table.put(copies_key(name, topic), reports)

    async def note_subject(self, name: str, subject: str, columns: Mapping[str, str]) -> None:
        """Store what is known of a subject of the schema registry."""
        await self._table.put(subject_key(name, subject), columns)

    async def note_worker(self, name: str, worker: str, lives: timedelta) -> None:
        """Store that a worker is alive, for some time."""
        at_ms = str(time.time_ns() // 1_000_000)
        await self._table.put(worker_key(name, worker), {"at_ms": at_ms}, ttl=lives)

    async def note_worker_gone(self, name: str, worker: str) -> None:
        """Store that a worker has stopped."""
        await self._table.delete(worker_key(name, worker))

    async def note_answer(self, key: str, worker: str, answer: str, lives: timedelta) -> None:
        """Store a worker's answer to a question, for some time; empty if it has begun to work on it."""
        await self._table.put(key, {answer_column(worker): answer}, ttl=lives)

    async def note_problem(self, name: str, problem: str) -> None:
        """Store why nothing is copied; empty if that is over."""
        if (await self.describe(name)).problem != problem:
            await self._table.put(mirror_key(name), {"problem": problem})

    async def note_source(self, name: str, described: MirrorDescription, cluster_id: str) -> None:
        """Store the cluster that a worker has reached.

        Raises:
            InvalidRequestError: If it is another one than before.
        """
        if described.source_cluster and described.source_cluster != cluster_id:
            raise InvalidRequestError(
                f"the source of mirror {name} is cluster {cluster_id}, and was {described.source_cluster}",
                action="Correct the addresses of its source; for another cluster, make another mirror.",
            )
        if described.problem or not described.source_cluster:
            await self._table.put(mirror_key(name), {"cluster": cluster_id, "problem": ""})

    async def _find(self, name: str) -> MirrorDescription | None:
        return describe(await self.rows(), name)
