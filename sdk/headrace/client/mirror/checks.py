"""What calls about mirrors check before they change anything, and the errors of what they refuse. Pure."""

import dataclasses
from collections.abc import Mapping, Sequence

from headrace.client.base.errors import ConfigError
from headrace.client.mirror.rows import CommonEnd, MirrorDescription, MirroredTopic, MirrorSettings
from headrace.partition.topic_configs import CONFIGS
from headrace.wire.errors import HeadraceError, InvalidConfigError, InvalidRequestError, UnknownTopicError


def check_name(name: str) -> None:
    """Raise ConfigError if no topic could have it as `mirror`. With a `/` its rows would be those of other mirrors."""
    try:
        is_name = bool(CONFIGS["mirror"].parse(name))
    except InvalidConfigError:
        is_name = False
    if not is_name:
        raise ConfigError(f"{name!r} cannot name a mirror", action="Use 1 to 100 letters, digits, `.`, `_` and `-`.")


def check_not_promoted(known: MirrorDescription | None) -> None:
    """Raise InvalidRequestError if a mirror was promoted."""
    if known is not None and known.promoted_ms:
        raise InvalidRequestError(
            f"mirror {known.name} was promoted",
            action=f"Use another name, or headrace mirror delete {known.name} first.",
        )


def settings_to_fail_back(
    known: MirrorDescription | None, given: MirrorSettings, topics: Sequence[str]
) -> MirrorSettings:
    """Return the settings of a mirror that also copies topics that are failed back.

    One that exists keeps its settings, except for those that are given and not defaults.

    Raises:
        InvalidRequestError: If it was promoted, or copies from elsewhere.
        ConfigError: If the settings are wrong together.
    """
    check_not_promoted(known)
    if known is None:
        return dataclasses.replace(given, topics=tuple(topics))
    given = MirrorSettings.from_text(given.to_text())  # As it would be stored.
    if given.source != known.settings.source:
        raise InvalidRequestError(
            f"mirror {known.name} has another source, {known.settings.source.get('bootstrap_servers', '')}, or other "
            "settings of it",
            action="Give the same ones, or use another name.",
        )
    changed = {
        each.name: value
        for each in dataclasses.fields(given)
        if each.name not in ("source", "topics") and (value := getattr(given, each.name)) != each.default
    }
    more = [topic for topic in topics if not known.settings.has_topic(topic)]
    settings = dataclasses.replace(known.settings, topics=(*known.settings.topics, *more), **changed)
    settings.check()
    return settings


def is_copied(known: MirrorDescription | None, topic: str) -> bool:
    """Return whether a mirror copies a topic, or will once its problem is over."""
    return known is not None and any(each.name == topic and not each.is_promoted for each in known.topics)


def lost_records(ends: Mapping[int, CommonEnd]) -> int:
    """Return the number of records of a topic that the source lacks."""
    return sum(max(0, each.here - each.common) for each in ends.values())


def not_ours(topic: str, mirror: str | None) -> HeadraceError:
    """Return the error of a topic that does not exist, or that another mirror copies; not raised."""
    if mirror is None:
        return UnknownTopicError(f"there is no topic {topic} in this cluster", action="headrace topic list shows them.")
    return InvalidRequestError(
        f"topic {topic} is a copy of mirror {mirror}",
        action=f"Use that name, or headrace mirror promote {mirror} --topic {topic} first.",
    )


def not_copied(topic: str, reason: str, action: str) -> HeadraceError:
    """Return the error of a topic that no waiting will copy; not raised."""
    return InvalidRequestError(f"topic {topic} of the source is not copied: {reason}", action=action)


def chosen_topics(described: MirrorDescription, topics: Sequence[str] | None) -> list[MirroredTopic]:
    """Return the topics that a caller names; `None` means all. Raises UnknownTopicError."""
    known = {topic.name: topic for topic in described.topics}
    for name in topics or ():
        if name not in known:
            raise UnknownTopicError(
                f"mirror {described.name} has no topic {name!r}", action="headrace mirror status shows its topics."
            )
    return [known[name] for name in (known if topics is None else topics)]
