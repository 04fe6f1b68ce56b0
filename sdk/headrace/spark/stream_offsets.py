"""Offsets of a stream in its checkpoint: plain JSON that people can read and programs can write.

    {"@init": "startingOffsets"}                              before the first micro-batch, always the same
    {"clicks": {"0": 23, "1": 7}, "@ids": {"clicks": "6f.."}, "@start": {"clicks": {"0": 0, "1": 7}}}
                                                              the end of the first, with its start
    {"clicks": {"0": 40, "1": 7}, "@ids": {"clicks": "6f.."}} the end of any other
    "@epochs": {"clicks": {"0": 3, "1": 2}}                   in both: the leader epoch of the record before each end

Spark requests the initial offset again after a failure of the first micro-batch, and has stored only the end of that
batch. A new look-up of the initial offset could return another one, so the first end includes the start. `@ids`
distinguishes a topic from a later one of its name. `@epochs` detects records that an unclean election replaced; a
checkpoint of an earlier release has none. No topic's name contains `@`. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from headrace.client.base.errors import ConfigError
from headrace.spark.ranges import OffsetRange
from headrace.wire.ids import TopicPartition

OffsetJson: TypeAlias = dict[str, Any]
INIT, IDS, START, EPOCHS = "@init", "@ids", "@start", "@epochs"


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """Position of a stream: the next record to read of each partition."""

    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Ids of the topics in `ends`, in hexadecimal."""
    starts: Mapping[TopicPartition, int] | None = None
    """Start of the first micro-batch; `None` in all others."""
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Leader epoch of the record before each end; omitted if unknown."""

    def to_json(self) -> OffsetJson:
        """Return the JSON that the checkpoint stores."""
        written: OffsetJson = _nested(self.ends)
        written[IDS] = dict(sorted(self.topic_ids.items()))
        if self.starts is not None:
            written[START] = _nested(self.starts)
        if self.epochs:
            written[EPOCHS] = _nested(self.epochs)
        return written


def initial_offset() -> OffsetJson:
    """Return the placeholder for the start of a stream that has not read yet."""
    return {INIT: "startingOffsets"}


def parse_offsets(written: Mapping[str, Any]) -> StreamOffsets | None:
    """Parse an offset of the checkpoint; `None` for the initial offset.

    Raises:
        ConfigError: If it is not an offset of this source.
    """
    if INIT in written:
        return None
    try:
        starts = written.get(START)
        return StreamOffsets(
            _flat({topic: ends for topic, ends in written.items() if not topic.startswith("@")}),
            {str(topic): str(topic_id) for topic, topic_id in written.get(IDS, {}).items()},
            None if starts is None else _flat(starts),
            _flat(written.get(EPOCHS, {})),
        )
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(
            f"the checkpoint has offsets that are not this source's: {dict(written)!r:.200}",
            action="Give the query a checkpointLocation of its own.",
        ) from None


def ranges_between(before: StreamOffsets | None, after: StreamOffsets) -> list[OffsetRange]:
    """Return the ranges of a micro-batch. Partitions that `before` lacks are new and begin at offset 0."""
    if before is None:
        starts = after.starts if after.starts is not None else {}
    else:
        starts = known_starts(before, after.topic_ids)
    return [OffsetRange(where, starts.get(where, 0), end) for where, end in sorted(after.ends.items())]


def known_starts(before: StreamOffsets, topic_ids: Mapping[str, str]) -> dict[TopicPartition, int]:
    """Return the next offsets of the topics with these ids; a re-created topic has none."""
    return {
        where: end
        for where, end in before.ends.items()
        if before.topic_ids.get(where.topic) in {None, topic_ids.get(where.topic)}
    }


def _nested(offsets: Mapping[TopicPartition, int]) -> OffsetJson:
    nested: dict[str, dict[str, int]] = {}
    for where, offset in sorted(offsets.items()):
        nested.setdefault(where.topic, {})[str(where.partition)] = offset
    return dict(nested)


def _flat(nested: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, offsets in nested.items()
        for partition, offset in offsets.items()
    }
