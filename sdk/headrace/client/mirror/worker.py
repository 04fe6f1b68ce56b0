"""Worker of a mirror: copies its share of the partitions, and reports them. One event loop.

Several workers share the partitions by their names in the table of mirrors: each copies those for which it has the
highest hash. While they do not agree yet on who lives, two may copy a partition at once, which costs traffic only: a
copy is appended where the log ends, or not at all. The worker with the highest hash of the mirror itself also creates
topics and copies the groups' offsets. A worker lives from when it has reached the source: until then the others copy.
"""

import asyncio
import contextlib
import hashlib
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Unpack

from headrace.client.base.config import AdminConfig, build
from headrace.client.base.settings_types import AdminSettings
from headrace.client.mirror.copying import CopyLimits, CopyState, PartitionCopy, Side, end_tasks
from headrace.client.mirror.followed_groups import FollowedGroups
from headrace.client.mirror.followed_schemas import FollowedSchemas
from headrace.client.mirror.followed_topics import FollowedTopics
from headrace.client.mirror.mirrors_async import AsyncMirrors
from headrace.client.mirror.rows import MirrorDescription, MirrorSettings, PartitionReport, describe
from headrace.client.schemas.registry import SchemaRegistry
from headrace.wire.errors import HeadraceError
from headrace.wire.ids import TopicPartition

LOOK_SECONDS = 1.0
"""Interval at which the table is read."""
ALIVE_SECONDS = 15.0
"""Time after its last report after which a worker counts as gone, and the others copy its partitions."""
REPORT_SECONDS = 3.0
STALE_MS = 20_000
"""Interval at which an unchanged report is written again, with the time of the source's last answer."""
FOLLOW_SECONDS = 10.0
"""Interval at which topics, settings and groups are compared with the source."""
RETRY_SECONDS = 5.0
"""Time after which a copy that failed is tried again."""
_log = logging.getLogger("headrace.mirror")


class MirrorWorker:
    """One worker of one mirror."""

    def __init__(
        self,
        name: str,
        *,
        worker_id: str = "",
        on_report: Callable[[str, MirrorDescription | None], object] = lambda name, described: None,
        **settings: Unpack[AdminSettings],
    ) -> None:
        """`settings` are of the cluster that has the mirror.

        `on_report` is called with the mirror's name and what this worker reports; `None` means that it copies nothing
        any more, because the mirror was promoted or deleted.

        Raises:
            ConfigError: For an unknown setting or a value out of range.
        """
        self._name = name
        self.worker_id = worker_id or uuid.uuid4().hex[:12]
        self._on_report = on_report
        build(AdminConfig, settings)  # Now, and not when it runs.
        self._settings: dict[str, Any] = dict(settings)

    async def run(self) -> None:
        """Copy until cancelled. Errors are reported and logged, and copying is tried again."""
        async with AsyncMirrors(**self._settings) as mirrors:
            told, pause = "", LOOK_SECONDS
            while True:
                try:
                    described = await mirrors.describe(self._name)
                    if not described.promoted_ms:
                        await self._serve(mirrors, described)
                    else:
                        self._on_report(self._name, None)
                    told, pause = "", LOOK_SECONDS
                except Exception as error:
                    problem = error.text if isinstance(error, HeadraceError) else repr(error)
                    self._on_report(self._name, MirrorDescription(self._name, MirrorSettings({}), problem=problem))
                    if problem != told:
                        trace = None if isinstance(error, HeadraceError) else error
                        _log.warning("mirror %s is not copied: %s", self._name, error, exc_info=trace)
                    told, pause = problem, RETRY_SECONDS
                    with contextlib.suppress(HeadraceError):
                        await mirrors.note_problem(self._name, told)
                await asyncio.sleep(pause)

    async def _serve(self, mirrors: AsyncMirrors, described: MirrorDescription) -> None:
        """Copy until the mirror's settings change, it is promoted or deleted."""
        async with Side(described.settings.source) as source, Side(self._settings) as target:
            cluster_id = (await source.admin.describe_cluster()).cluster_id
            await mirrors.note_source(self._name, described, cluster_id)
            async with self._alive(mirrors):
                serving = _Serving(self.worker_id, described, mirrors, source, target)
                try:
                    while await serving.look():
                        self._on_report(self._name, serving.reported())
                        await asyncio.sleep(LOOK_SECONDS)
                finally:
                    await serving.stop()

    @contextlib.asynccontextmanager
    async def _alive(self, mirrors: AsyncMirrors) -> AsyncIterator[None]:
        """Report that this worker lives while the block runs, however long it compares topics."""

        async def live() -> None:
            while True:
                with contextlib.suppress(HeadraceError):  # The block fails, too, and its error is reported.
                    await mirrors.note_worker(self._name, self.worker_id, timedelta(seconds=ALIVE_SECONDS))
                await asyncio.sleep(ALIVE_SECONDS / 3)

        heartbeat = asyncio.create_task(live())
        try:
            yield
        finally:
            await end_tasks([heartbeat])
            with contextlib.suppress(HeadraceError):
                await mirrors.note_worker_gone(self._name, self.worker_id)


class _Serving:
    """Copies of one worker under the same settings of its mirror."""

    def __init__(
        self, worker_id: str, described: MirrorDescription, mirrors: AsyncMirrors, source: Side, target: Side
    ) -> None:
        name = described.name
        self._name, self._worker_id = name, worker_id
        self._described = described
        self._mirrors, self._source, self._target = mirrors, source, target
        self._limits = CopyLimits(described.settings.bytes_per_second)
        self._topics = FollowedTopics(name, source.admin, mirrors)
        self._groups = FollowedGroups(source.admin, target.admin)
        self._schemas: FollowedSchemas | None = None
        self._following: asyncio.Task[None] | None = None
        self._copies: dict[TopicPartition, _RunningCopy] = {}
        self._partitions: dict[str, int] = {}
        """Number of partitions by topic."""
        self._reported_at = self._followed_at = self._counted_at = -1e9

    async def look(self) -> bool:
        """Read the table, and do what is due; return whether to continue.

        Raises:
            HeadraceError: If one of the clusters cannot be asked.
        """
        now = asyncio.get_running_loop().time()
        described = describe(await self._mirrors.rows(reports=False), self._name)
        if described is None or described.promoted_ms or described.settings != self._described.settings:
            return False
        self._described = described
        workers = {*described.workers, self._worker_id}
        is_following = self._following is not None and not self._following.done()
        is_due = not is_following and now - self._followed_at >= FOLLOW_SECONDS
        if is_due and _owner(self._name, workers) == self._worker_id:
            self._following = asyncio.create_task(self._follow())
            self._followed_at = now
        await self._share(described, workers)
        if now - self._reported_at >= REPORT_SECONDS:
            await self._report()
            self._reported_at = now
        return True

    async def _follow(self) -> None:
        """Compare topics, groups and schemas with the source; a failure stops no copy, and none of the others."""
        problems: dict[str, None] = {}
        for follow in (self._topics.follow, self._groups.follow, self._follow_schemas):
            try:
                await follow(await self._mirrors.describe(self._name))
            except HeadraceError as error:
                problems[error.text] = None
                if error.text not in self._described.problem:
                    _log.warning("mirror %s cannot be compared with its source: %s", self._name, error)
            except Exception as error:
                _log.exception("mirror %s cannot be compared with its source", self._name)
                problems[repr(error)] = None
        with contextlib.suppress(HeadraceError):
            await self._mirrors.note_problem(self._name, "; ".join(problems))

    async def _follow_schemas(self, described: MirrorDescription) -> None:
        settings = described.settings
        if not settings.registry:
            return
        if self._schemas is None:
            source = SchemaRegistry(settings.source_registry, **settings.source)
            self._schemas = FollowedSchemas(
                self._mirrors, source, SchemaRegistry(settings.registry, **self._target.settings)
            )
        await self._schemas.follow(described)

    async def _share(self, described: MirrorDescription, workers: Iterable[str]) -> None:
        """Begin and end copies, so that this worker copies its share."""
        copied = {
            topic.name: topic
            for topic in described.topics
            if topic.source_id and not topic.problem and not topic.is_promoted
        }
        now = asyncio.get_running_loop().time()
        if now - self._counted_at >= FOLLOW_SECONDS or not set(copied) <= set(self._partitions):
            found = await self._target.admin.describe_topics()
            self._partitions = {topic.name: len(topic.partitions) for topic in found}
            self._counted_at = now
        mine: dict[TopicPartition, str] = {}
        for name, topic in copied.items():
            for number in range(self._partitions.get(name, 0)):
                if _owner(f"{name}/{number}", workers) == self._worker_id:
                    mine[TopicPartition(name, number)] = topic.source_id
        self._limits.copies = max(1, len(mine))
        others = [tp for tp, copy in self._copies.items() if mine.get(tp) != copy.source_id]
        await end_tasks([self._copies.pop(tp).task for tp in others])
        for tp, source_id in mine.items():
            if tp not in self._copies:
                self._copies[tp] = _RunningCopy(tp, source_id, self._source, self._target, self._limits)

    async def _report(self) -> None:
        """Write the reports that have changed."""
        changed: dict[str, dict[str, str]] = {}
        for tp, copy in self._copies.items():
            text = copy.take_report(self._worker_id)
            if text:
                changed.setdefault(tp.topic, {})[str(tp.partition)] = text
        for topic, columns in changed.items():
            await self._mirrors.note_copies(self._name, topic, columns)

    def reported(self) -> MirrorDescription:
        """Return the mirror with this worker's own reports only."""
        own: dict[str, dict[int, PartitionReport]] = {}
        for tp, copy in self._copies.items():
            own.setdefault(tp.topic, {})[tp.partition] = copy.report(self._worker_id)
        topics = [replace(topic, partitions=own.get(topic.name, {})) for topic in self._described.topics]
        return replace(self._described, topics=topics)

    async def stop(self) -> None:
        """End all copies, and report them a last time."""
        with contextlib.suppress(HeadraceError):
            await self._report()
        await end_tasks(copy.task for copy in self._copies.values())
        if self._following is not None:
            await end_tasks([self._following])
        self._copies.clear()


class _RunningCopy:
    """Copy of one partition that is tried again after errors."""

    def __init__(self, tp: TopicPartition, source_id: str, source: Side, target: Side, limits: CopyLimits) -> None:
        self.source_id = source_id
        self._tp = tp
        self._source, self._target, self._limits = source, target, limits
        self._state = CopyState(tp.topic, tp.partition)
        self._problem = ""
        self._told: tuple[int, int, str, int] = (-2, -2, "", 0)
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            try:
                topic_id = (await self._target.admin.describe_topic(self._tp.topic)).topic_id
                one = PartitionCopy(
                    self._tp.partition,
                    (self._source, self._source.topic(self._tp.topic, bytes.fromhex(self.source_id))),
                    (self._target, self._target.topic(self._tp.topic, topic_id)),
                    self._limits,
                    self._went_on,
                )
                self._state = one.state
                await one.run()
            except HeadraceError as error:
                if error.text != self._problem:
                    _log.warning("%s is not copied: %s", self._tp, error)
                self._problem = error.text
            except Exception as error:
                _log.exception("%s is not copied", self._tp)
                self._problem = repr(error)
            await asyncio.sleep(RETRY_SECONDS)

    def _went_on(self, state: CopyState) -> None:
        self._problem = ""

    def report(self, worker_id: str) -> PartitionReport:
        """Return how far it is."""
        state = self._state
        return PartitionReport(
            state.end_offset, state.source_end_offset, state.copied_ms, state.answered_ms, worker_id, self._problem
        )

    def take_report(self, worker_id: str) -> str:
        """Return the report if it says more than the last one that was taken, else an empty text."""
        state = self._state
        told = state.end_offset, state.source_end_offset, self._problem, state.answered_ms // STALE_MS
        if told == self._told:
            return ""
        self._told = told
        return self.report(worker_id).to_text()


def _owner(item: str, workers: Iterable[str]) -> str:
    """Return the worker that has an item: few items move when a worker comes or goes (rendezvous hashing)."""
    return max(workers, key=lambda worker: hashlib.blake2b(f"{worker}/{item}".encode(), digest_size=8).digest())
