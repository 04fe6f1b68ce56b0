"""Topics of a group: the subscriptions of its members, resolved against the coordinator's view.

A stale view never removes a topic or partition from a group. Used by `transition`.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from headrace.groups.assignors import AssignableTopic
from headrace.groups.state import Group, GroupTopic, Member
from headrace.wire.topic_names import RESERVED_PREFIX, is_own_topic


def with_missing_topics(
    group: Group, topics: Mapping[str, AssignableTopic], deleted: Collection[bytes]
) -> Mapping[str, AssignableTopic]:
    """Return `topics` and the group's topics that the view lacks without evidence that they were deleted.

    The view is then stale, or cannot decode their values (H72).
    """
    missing = {
        topic.name: AssignableTopic(topic_id, topic.name, topic.partitions)
        for topic_id, topic in group.topics.items()
        if not has_topic(topics, topic) and topic_id not in deleted
    }
    return {**topics, **missing} if missing else topics


def has_topic(topics: Mapping[str, AssignableTopic], topic: GroupTopic) -> bool:
    """Return whether a topic of a group is in `topics`, and not another one of its name."""
    found = topics.get(topic.name)
    return found is not None and found.topic_id == topic.topic_id


def matching_names(member: Member, topics: Mapping[str, AssignableTopic]) -> list[str]:
    """Return the names of the existing topics that a member subscribes to.

    A pattern matches the cluster's own topics only if it begins as reserved names do.
    """
    names = [name for name in member.topics if name in topics]
    if member.topic_pattern:
        is_open = not member.topic_pattern.startswith(RESERVED_PREFIX)
        matching = fnmatch.filter(topics, member.topic_pattern)
        names += [name for name in matching if not (is_open and is_own_topic(name))]
    return names


def subscribed_topics(
    members: Iterable[Member], topics: Mapping[str, AssignableTopic], known: Mapping[bytes, GroupTopic]
) -> list[AssignableTopic]:
    """Return the topics of all members by name, with at least as many partitions as the group knows of each."""
    subscribed = []
    for name in sorted({name for member in members for name in matching_names(member, topics)}):
        topic = topics[name]
        before = known.get(topic.topic_id)
        if before is not None and before.partitions > topic.partitions:
            topic = replace(topic, partitions=before.partitions)  # Topics never shrink: this view is stale.
        subscribed.append(topic)
    return subscribed
