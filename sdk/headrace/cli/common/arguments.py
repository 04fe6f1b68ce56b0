"""Parsers of partitions, brokers and rates on the command line. Pure: text in, values or a usage error out."""

import re
from collections.abc import Sequence

from headrace.cli.common.session import UsageProblem
from headrace.wire.ids import TopicPartition

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?(?:/s)?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_partition(text: str) -> TopicPartition:
    """Parse `TOPIC:PARTITION`.

    Raises:
        UsageProblem: If the text has another form.
    """
    topic, colon, number = text.rpartition(":")
    if not colon or not topic or not _is_number(number):
        raise UsageProblem(f"{text!r} is not TOPIC:PARTITION, for example clicks:0")
    return TopicPartition(topic, int(number))


def parse_topic_or_partition(text: str) -> tuple[str, int | None]:
    """Parse `TOPIC:PARTITION`, or `TOPIC` for all its partitions."""
    if ":" not in text:
        return text, None
    where = parse_partition(text)
    return where.topic, where.partition


def parse_broker_ids(text: str, option: str) -> tuple[int, ...]:
    """Parse broker ids separated by commas.

    Raises:
        UsageProblem: If there are none, other text than numbers, or duplicates; names `option`.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(map(_is_number, words)):
        raise UsageProblem(f"{option} {text!r} is not a list of broker ids, for example 1,2,3")
    broker_ids = tuple(map(int, words))
    if len(set(broker_ids)) < len(broker_ids):
        raise UsageProblem(f"{option} {text!r} names a broker twice")
    return broker_ids


def parse_rate(text: str, option: str = "--throttle") -> int:
    """Parse bytes per second: a number with B, KiB, MiB, GiB, TiB (powers of 1,024), KB, MB, ... (1,000) or no unit.

    Raises:
        UsageProblem: If the text has another form, or is less than one byte per second.
    """
    found = _RATE.fullmatch(text.strip())
    unit = (found[2] or "").upper() if found else ""
    rate = int(float(found[1]) * (1024 if unit.endswith("I") else 1000) ** _POWERS[unit[:1]]) if found else 0
    if rate < 1:
        raise UsageProblem(f"{option} {text!r} is not a number of bytes a second, for example 50MiB")
    return rate


def parse_configs(entries: Sequence[str] | None) -> dict[str, str]:
    """Parse entries of the form `NAME=VALUE`.

    Raises:
        UsageProblem: If an entry has no equals sign or name, or a name occurs twice.
    """
    configs: dict[str, str] = {}
    for entry in entries or ():
        name, equals, value = entry.partition("=")
        if not equals or not name.strip():
            raise UsageProblem(f"--config {entry!r} is not NAME=VALUE, for example retention_ms=3600000")
        if name.strip() in configs:
            raise UsageProblem(f"--config {name.strip()} is given twice; give it once")
        configs[name.strip()] = value.strip()
    return configs


def where_text(where: TopicPartition) -> str:
    """Return a partition in the form of the command line."""
    return f"{where.topic}:{where.partition}"


def broker_list(broker_ids: Sequence[int]) -> str:
    """Return `broker 1`, or `brokers 1, 2`."""
    return f"{'broker' if len(broker_ids) == 1 else 'brokers'} {', '.join(map(str, broker_ids))}"


def counted(number: int, noun: str) -> str:
    """Return `1 partition`, or `2 partitions`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
