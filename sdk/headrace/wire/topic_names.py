"""Which strings name a topic. The rule of Apache Kafka: 1 to 249 of `a-z A-Z 0-9 . _ -`, and neither `.` nor `..`."""

import re

from headrace.wire.errors import InvalidTopicNameError

MAX_TOPIC_NAME_CHARACTERS = 249
_ALLOWED = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def check_topic_name(name: str) -> None:
    """Return if `name` may name a topic.

    Raises:
        InvalidTopicNameError: it may not; the message says what is wrong with it.
    """
    if not name:
        raise InvalidTopicNameError("a topic name is empty")
    if len(name) > MAX_TOPIC_NAME_CHARACTERS:
        raise InvalidTopicNameError(
            f"the topic name {name[:20]!r}... has {len(name)} characters, more than {MAX_TOPIC_NAME_CHARACTERS}"
        )
    if name in {".", ".."}:
        raise InvalidTopicNameError(f"{name!r} cannot name a topic")
    if not _ALLOWED.fullmatch(name):
        bad = next(character for character in name if not _ALLOWED.fullmatch(character))
        raise InvalidTopicNameError(f"the topic name {name!r} contains {bad!r}")
