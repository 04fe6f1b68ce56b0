"""Valid names of topics, by the rule of Apache Kafka: 1 to 249 of `a-z A-Z 0-9 . _ -`, and neither `.` nor `..`.

A topic that a client creates begins with a letter, a digit or one `_`: names that begin with `__` are reserved for
headrace's own topics, and a leading `-` or `.` reads as an option or a hidden file on a command line.
"""

import re

from headrace.wire.errors import InvalidTopicNameError

MAX_TOPIC_NAME_CHARACTERS = 249
RESERVED_PREFIX = "__"
MIRRORS_TABLE = "headrace-mirrors"
"""Table with the settings of mirrors, by which their workers connect to other clusters and send them credentials."""
_ALLOWED = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def is_own_topic(name: str) -> bool:
    """Return whether a topic is the cluster's own: a pattern of topics that begins otherwise does not include it."""
    return name.startswith(RESERVED_PREFIX) or name == MIRRORS_TABLE


def check_topic_name(name: str) -> None:
    """Check the name of a topic.

    Raises:
        InvalidTopicNameError: If it is invalid; the message states the reason.
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


def check_new_topic_name(name: str) -> None:
    """Check the name of a topic that a client creates.

    Raises:
        InvalidTopicNameError: If it is invalid; the message states the reason.
    """
    check_topic_name(name)
    if name.startswith(RESERVED_PREFIX):
        raise InvalidTopicNameError(
            f"the topic name {name!r} begins with {RESERVED_PREFIX!r}, which is reserved for internal topics",
            action="Choose a name that begins with a letter, a digit or a single '_'.",
        )
    if name[0] in "-.":
        raise InvalidTopicNameError(
            f"the topic name {name!r} begins with {name[0]!r}",
            action="Choose a name that begins with a letter, a digit or a single '_'.",
        )
