"""Offsets of the source's groups, stored for the groups of the same name at the mirror. One event loop."""

from collections.abc import Mapping

from headrace.client.admin.admin_async import AsyncAdmin
from headrace.client.admin.rpc import TopicDescription
from headrace.client.mirror.rows import MirrorDescription
from headrace.wire.errors import ConflictError, GroupNotEmptyError, HeadraceError, UnknownGroupError
from headrace.wire.ids import TopicPartition


class FollowedGroups:
    """Groups of one mirror."""

    def __init__(self, source: AsyncAdmin, target: AsyncAdmin) -> None:
        self._source = source
        self._target = target
        self._stored: dict[tuple[str, TopicPartition], int] = {}
        self._topic_ids: dict[str, bytes] = {}
        """Ids at the mirror of all topics that were there in a round."""

    async def follow(self, described: MirrorDescription) -> None:
        """Store the offsets that have changed, at most the visible end of the mirror's log: offsets are equal there.

        What only the leader has may be lost with it, and the source may be gone by then. A group that has members here
        keeps its own offsets. Without members, an offset goes back only if it is the one that was stored here last:
        else the group has read here meanwhile. One that gets members between the look and the write, which may be
        repeated for seconds, is compared again in the next round. Offsets in another topic than the one that is copied
        are left out: it may be deleted and created again at the source at any time.

        Raises:
            HeadraceError: If one of the clusters cannot be asked.
        """
        topics = {topic.name: topic for topic in await self._target.describe_topics()}
        self._forget_renewed(topics)
        visible: dict[str, dict[TopicPartition, int]] = {}
        ends = {
            TopicPartition(topic.name, number): report.end_offset
            for topic in described.topics
            if not topic.is_promoted and not topic.problem
            for number, report in topic.partitions.items()
        }
        source_ids = {topic.name: topic.source_id for topic in described.topics}
        for listed in await self._source.list_groups():
            group = listed.group_id
            if not described.settings.has_group(group):
                continue
            there = {
                tp: committed.offset
                for tp, committed in (await self._source.group_offsets(group)).items()
                if committed.topic_id.hex() == source_ids.get(tp.topic)
            }
            changed = self._changed(group, there, ends)
            for topic in {tp.topic for tp in changed} - visible.keys():
                visible[topic] = await self._visible_ends(topics.get(topic))
            changed = self._changed(group, changed, {tp: visible[tp.topic].get(tp, -1) for tp in changed})
            if not changed:
                continue
            here, epoch = await self._positions_here(group)
            self._stored |= {(group, tp): offset for tp, offset in changed.items() if here.get(tp) == offset}
            changed = {
                tp: offset
                for tp, offset in changed.items()
                if offset > here.get(tp, -1) or (offset < here[tp] and self._stored.get((group, tp)) == here[tp])
            }
            try:
                results = await self._target.reset_group_offsets(group, changed, expected_group_epoch=epoch)
            except (GroupNotEmptyError, ConflictError):
                continue
            for result in results:
                if result.error is None:
                    self._stored[group, TopicPartition(result.topic, result.partition)] = result.offset

    def _changed(
        self, group: str, offsets: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return the offsets, each at most its end, that are not those that were stored; without an end none."""
        limited = {tp: min(offset, ends[tp]) for tp, offset in offsets.items() if ends.get(tp, -1) >= 0}
        return {tp: offset for tp, offset in limited.items() if self._stored.get((group, tp)) != offset}

    async def _visible_ends(self, topic: TopicDescription | None) -> dict[TopicPartition, int]:
        """Return where consumers end here; of a partition without a leader in a later round."""
        led = [] if topic is None else [each.partition for each in topic.partitions if each.leader_id >= 0]
        if topic is None or not led:
            return {}
        try:
            found = await self._target.list_offsets(topic.name, "latest", partitions=led)
        except HeadraceError:
            return {}
        return {tp: at.offset for tp, at in found.items()}

    def _forget_renewed(self, topics: Mapping[str, TopicDescription]) -> None:
        """Forget the offsets stored in topics that were deleted and created again here."""
        found = {name: topic.topic_id for name, topic in topics.items()}
        renewed = {name for name, topic_id in found.items() if self._topic_ids.get(name, topic_id) != topic_id}
        self._topic_ids |= found
        self._stored = {key: offset for key, offset in self._stored.items() if key[1].topic not in renewed}

    async def _positions_here(self, group: str) -> tuple[dict[TopicPartition, int], int]:
        """Return the offsets of a group at the mirror, and its epoch; none and 0 if it does not exist."""
        try:
            found = await self._target.describe_group(group)
        except UnknownGroupError:
            return {}, 0
        return {tp: committed.offset for tp, committed in found.offsets.items()}, found.group_epoch
