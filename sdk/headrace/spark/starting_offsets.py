"""Start or end of a read as an option, and its resolution to offsets. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.client.base.errors import ConfigError
from headrace.wire.ids import TopicPartition

EARLIEST, LATEST = "earliest", "latest"
LATEST_OFFSET = -1
"""The latest offset, in a map of offsets."""
_WORDS = {-2: EARLIEST, LATEST_OFFSET: LATEST}
MAX_TIME_MS = 253_402_300_799_999
"""End of the year 9999: a larger number is no time in ms."""


@dataclass(frozen=True, slots=True)
class OffsetBound:
    """Bound of a read: a word for all partitions, a time for all, or a number for each."""

    option: str
    """Name of the option that set it."""
    word: str = ""
    time_ms: int = -1
    """-1 means none."""
    offsets: Mapping[TopicPartition, int] | None = None
    """-2 means the earliest, -1 the latest."""
    times_ms: Mapping[TopicPartition, int] | None = None

    def check_covers(self, partitions: Iterable[TopicPartition]) -> None:
        """Check that a map names every partition that is read, and no other.

        Raises:
            ConfigError: If it does not.
        """
        named = self.offsets if self.offsets is not None else self.times_ms
        if named is None:
            return
        wanted = set(partitions)
        missing, others = sorted(wanted - set(named)), sorted(set(named) - wanted)
        if missing:
            raise ConfigError(
                f"{self.option} does not name partition {missing[0]}" + _and_more(missing),
                action="Name every partition that is read; -2 is the earliest offset, -1 the latest.",
            )
        if others:
            raise ConfigError(f"{self.option} names {others[0]}{_and_more(others)}, which is not read or not there")

    def times(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """Return the times to look up, each with its partitions."""
        found: dict[int, list[TopicPartition]] = {}
        for where in partitions:
            time_ms = self.times_ms[where] if self.times_ms is not None else self.time_ms
            if time_ms >= 0:
                found.setdefault(time_ms, []).append(where)
        return found

    def offset(
        self,
        where: TopicPartition,
        earliest: Mapping[TopicPartition, int],
        latest: Mapping[TopicPartition, int],
        at_times: Mapping[TopicPartition, int],
    ) -> int:
        """Return the offset in one partition; `at_times` has the results for `times`."""
        if where in at_times:
            return at_times[where]
        word = self.word
        if self.offsets is not None:
            given = self.offsets[where]
            if given >= 0:
                return given
            word = _WORDS[given]
        return earliest[where] if word == EARLIEST else latest[where]


def word_bound(word: str, option: str) -> OffsetBound:
    """Return the bound for `earliest` or `latest`."""
    return OffsetBound(option, word=word)


def time_bound(time_ms: int, option: str) -> OffsetBound:
    """Return the bound for a time in ms since 1970.

    Raises:
        ConfigError: If it is no time.
    """
    _check_time(time_ms, option)
    return OffsetBound(option, time_ms=time_ms)


def offsets_bound(given: Mapping[str, Any], option: str) -> OffsetBound:
    """Return the bound for `{topic: {partition: offset}}`.

    Raises:
        ConfigError: If it has another form.
    """
    offsets = _numbers(given, option, "an offset")
    for where, offset in offsets.items():
        if offset < -2:
            raise ConfigError(f"{option}: {offset} for {where} is no offset; -2 is the earliest, -1 the latest")
    return OffsetBound(option, offsets=offsets)


def times_bound(given: Mapping[str, Any], option: str) -> OffsetBound:
    """Return the bound for `{topic: {partition: ms since 1970}}`.

    Raises:
        ConfigError: If it has another form.
    """
    times = _numbers(given, option, "a time in ms since 1970")
    for time_ms in times.values():
        _check_time(time_ms, option)
    return OffsetBound(option, times_ms=times)


def _check_time(time_ms: int, option: str) -> None:
    if not 0 <= time_ms <= MAX_TIME_MS:
        raise ConfigError(f"{option}: {time_ms} is not a time in ms since 1970")


def _numbers(given: Mapping[str, Any], option: str, what: str) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for topic, numbers in given.items():
        if not isinstance(numbers, dict) or not numbers:
            raise ConfigError(f'{option}: {topic} has no object of partitions as in {{"{topic}": {{"0": 23}}}}')
        for partition, number in numbers.items():
            if not partition.isdecimal():
                raise ConfigError(f"{option}: {partition!r} of {topic} is not a partition")
            if type(number) is not int or abs(number) >= 2**63:
                raise ConfigError(f"{option}: {number!r} for {topic}-{partition} is not {what}")
            found[TopicPartition(topic, int(partition))] = number
    return found


def _and_more(partitions: list[TopicPartition]) -> str:
    return f" and {len(partitions) - 1} more" if len(partitions) > 1 else ""
