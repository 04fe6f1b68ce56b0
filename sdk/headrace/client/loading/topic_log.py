"""Topic of a load, with or without Spark: its identity, its offsets, and which of them are loaded next."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headrace.client.admin.epoch_ends import record_epochs, truncation_points
from headrace.client.loading.load_plan import Plan, TruncatedError, plan_load
from headrace.client.loading.progress import PartitionProgress
from headrace.client.loading.tables.errors import LoadError
from headrace.client.loading.tables.state import Source
from headrace.wire.ids import TopicPartition

if TYPE_CHECKING:
    from headrace.client.admin.admin import Admin
    from headrace.client.admin.operations import AdminOperations
    from headrace.client.base.operations import Operation


class TopicLog:
    """Log of one topic, which may be deleted and created again. For one thread."""

    def __init__(self, admin: Admin, topic: str) -> None:
        """Raise `UnknownTopicError` if the topic does not exist."""
        self._admin = admin
        self.topic = topic
        self.source = self._source_now()
        """The topic as the source of a table."""

    def _source_now(self) -> Source:
        return Source("topic", self.topic, self._admin.describe_topic(self.topic).topic_id.hex())

    def check_source(self) -> None:
        """Check that the topic is still `source`: offsets of another one would be mistaken for those of this one.

        Raises:
            LoadError: If it is not.
        """
        if self._source_now() != self.source:
            raise LoadError(
                f"the topic {self.topic} was deleted and created again meanwhile; nothing was committed. "
                "Load it into another table"
            )

    def columns(self) -> str:
        """Return the text of the columns; empty if the topic is not typed."""
        return self._admin.describe_config(self.topic)["columns"].value or ""

    def is_compacted(self) -> bool:
        """Return whether offsets may have gaps where compaction removed records."""
        return "compact" in str(self._admin.describe_config(self.topic)["cleanup_policy"].value)

    def offsets(self, at: str | datetime) -> dict[int, int]:
        """Return the `earliest` or `latest` offset, or that of a time, by partition."""
        return {where.partition: found.offset for where, found in self._admin.list_offsets(self.topic, at).items()}

    def epochs(self, positions: Mapping[int, int]) -> dict[int, int]:
        """Return the leader epochs of the records before `positions`, as far as known."""
        return self._look_up(record_epochs, {number: at - 1 for number, at in positions.items() if at})

    def _look_up(
        self,
        operation: Callable[[AdminOperations, str, str, Any, bytes], Operation[dict[int, int]]],
        asked: Mapping[int, Any],
    ) -> dict[int, int]:
        run = operation(self._admin._operations, "load", self.topic, asked, bytes.fromhex(self.source.id))
        return self._admin._run(run) if asked else {}

    def plan(self, positions: Mapping[int, int], epochs: Mapping[int, int], *, accept_data_loss: bool) -> Plan:
        """Return the offsets to load after `positions`, those of a table; `epochs` are those of the records before.

        Raises:
            LoadError: If records were removed before they were loaded, the log has lost some that were, or a server
                responded that does not know all partitions.
        """
        known = {number: (positions[number], epoch) for number, epoch in epochs.items()}
        for number, point in self._look_up(truncation_points, known).items():
            raise LoadError(
                f"partition {number} of {self.topic} was truncated by an unclean election: of the records below offset "
                f"{positions[number]}, which the table has, those from {point} on were lost or replaced. "
                "Load into another table"
            )
        earliest, latest = self.offsets("earliest"), self.offsets("latest")
        if omitted := sorted(positions.keys() - (earliest.keys() & latest.keys())):
            raise LoadError(
                f"the metadata of {self.topic} omits partition {omitted[0]}, which the table has, and is therefore out "
                "of date; run the load again, which continues"
            )
        try:
            plan = plan_load(positions, earliest, latest)
        except TruncatedError as error:
            raise LoadError(str(error)) from None
        if plan.losses and not accept_data_loss:
            raise LoadError(
                f"records of {self.topic} were removed before they were loaded: {'; '.join(map(str, plan.losses))}. "
                "Run it with --accept-data-loss to continue from where the log begins"
            )
        return plan

    def progress(self, positions: Mapping[int, int]) -> tuple[PartitionProgress, ...]:
        """Return how far each partition is behind its log if it is loaded up to `positions`."""
        starts, ends = self.offsets("earliest"), self.offsets("latest")
        behind = {number: at for number, at in positions.items() if at < ends.get(number, 0)}
        oldest = {number: max(at, starts.get(number, 0)) for number, at in behind.items()}
        times = self._admin.record_times(self.topic, oldest) if oldest else {}
        now_ms = time.time_ns() // 1_000_000
        found = []
        for number, position in sorted(positions.items()):
            at_ms = times.get(TopicPartition(self.topic, number))
            lag_ms = 0 if number not in behind else None if at_ms is None else max(0, now_ms - at_ms)
            lag = max(0, ends[number] - position) if number in ends else None
            found.append(PartitionProgress(number, position, lag, lag_ms))
        return tuple(found)
