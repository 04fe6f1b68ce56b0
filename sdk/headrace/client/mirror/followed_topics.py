"""Topics of a mirror, kept as at the source: created, widened, with its settings. One event loop."""

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any

from headrace.client.admin.admin_async import AsyncAdmin
from headrace.client.mirror.mirrors_async import AsyncMirrors
from headrace.client.mirror.rows import MirrorDescription, MirroredTopic
from headrace.wire.errors import HeadraceError

LOCAL_SETTINGS = frozenset({"placement", "min_insync_replicas", "audit", "mirror"})
"""Settings of a topic that are of one cluster, and not copied."""
GONE = "the topic is not at the source any more"
LEFT_OUT = "the topics of the mirror leave it out; add it to them, or promote it"


class FollowedTopics:
    """Topics of one mirror."""

    def __init__(self, name: str, source: AsyncAdmin, mirrors: AsyncMirrors) -> None:
        self._name = name
        self._source = source
        self._mirrors = mirrors
        self._target = mirrors.admin

    async def follow(self, described: MirrorDescription) -> None:
        """Create and change topics once. A problem of one topic is noted, in `described` too, and affects no other.

        Raises:
            HeadraceError: If one of the clusters cannot be asked.
        """
        known = {topic.name: topic for topic in described.topics}
        at_source = set(await self._source.list_topics())
        copied = {name for name in at_source if described.settings.has_topic(name)}
        here = set(await self._target.list_topics())
        for name in sorted({*copied, *known}):
            topic = known.get(name, MirroredTopic(name))
            if topic.is_promoted:
                continue
            source_id, problem = topic.source_id, LEFT_OUT if name in at_source else GONE
            if name in copied:
                try:
                    source_id, problem = await self._follow_one(topic, described, exists=name in here)
                except HeadraceError as error:
                    problem = str(error)
            if (source_id, problem) != (topic.source_id, topic.problem):
                await self._mirrors.note_topic(self._name, name, source_id, problem)
                topic.source_id, topic.problem = source_id, problem

    async def _follow_one(self, topic: MirroredTopic, described: MirrorDescription, *, exists: bool) -> tuple[str, str]:
        """Create or change one topic; return its id at the source, and why it is not copied."""
        original = await self._source.describe_topic(topic.name)
        source_id = original.topic_id.hex()
        if exists and topic.source_id and topic.source_id != source_id:
            problem = "the topic was deleted and created again at the source; delete it here to mirror the new one"
            return topic.source_id, problem
        wanted = await own_settings(self._source, topic.name, LOCAL_SETTINGS)
        if not exists:
            if topic.source_id != source_id:
                await self._mirrors.note_topic(self._name, topic.name, source_id, topic.problem)
                topic.source_id = source_id
            partitions, replicas = len(original.partitions), described.settings.replication_factor
            await whole(self._create(topic.name, partitions, replicas, {**wanted, "mirror": self._name}))
            return source_id, ""
        current = await own_settings(self._target, topic.name, LOCAL_SETTINGS - {"mirror"})
        if current.pop("mirror", "") != self._name:
            return source_id, "another topic has the name here; delete it, or leave it out of the mirror's topics"
        missing = [name for name in current if name not in wanted]
        changed = {name: value for name, value in wanted.items() if current.get(name) != value}
        if missing or changed:
            await self._target.alter_config(topic.name, changed, unset=missing)
        if len((await self._target.describe_topic(topic.name)).partitions) < len(original.partitions):
            await self._target.create_partitions(topic.name, len(original.partitions))
        return source_id, ""

    async def _create(self, name: str, partitions: int, replicas: int, config: dict[str, str]) -> None:
        """Create a topic, and promote it if the mirror was promoted meanwhile, also where the answer is lost."""
        try:
            await self._target.create_topic(name, partitions, replicas, config)
        finally:
            await self._mirrors.promote_created(self._name, name)


async def whole(work: Coroutine[Any, Any, None]) -> None:
    """Run something to its end, which a cancellation waits for."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def own_settings(admin: AsyncAdmin, topic: str, without: Collection[str]) -> dict[str, str]:
    """Return the settings of a topic that are not defaults, `without` some."""
    found = await admin.describe_config(topic)
    return {name: each.value for name, each in found.items() if not each.is_default and name not in without}
