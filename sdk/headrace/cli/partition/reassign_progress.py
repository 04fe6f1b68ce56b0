"""Progress of moves: moves in progress and logs in, bytes, percentages and times out. Pure; has no clock.

A new replica's log has the unchanged batches of its leader, so that the sizes of both logs show how much is copied. A
move that is no longer in progress is done.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.cli.common.rendering import Column, JsonValue, Note, Report, Section, TableSection, bytes_text
from headrace.cli.common.watching import RateWindow, eta_text
from headrace.cli.partition.replica_logs import leader_logs
from headrace.wire.ids import TopicPartition

if TYPE_CHECKING:
    from headrace.client.admin.replication import LogInfo, Reassignment

COLUMNS = (
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition"),
    Column("TO", "broker_id"),
    Column("COPIED", "copied"),
    Column("OF", "total"),
    Column("%", "percent"),
    Column("PER SECOND", "speed"),
    Column("TO GO", "eta"),
    Column("STATE", "state"),
)


@dataclass(slots=True)
class Copy:
    """New replica of a partition."""

    where: TopicPartition
    broker_id: int
    copied_bytes: int = 0
    total_bytes: int = 0
    in_sync: bool = False
    done: bool = False
    rate: RateWindow = field(default_factory=RateWindow)

    @property
    def percent(self) -> int:
        """Percentage from 0 to 100; 100 only if it is in sync or done."""
        if self.done or self.in_sync:
            return 100
        return min(99, self.copied_bytes * 100 // self.total_bytes) if self.total_bytes else 0


class MoveProgress:
    """Observed progress of moves. Owned by one command."""

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        """Follow these partitions."""
        self._partitions = frozenset(partitions)
        self._copies: dict[tuple[TopicPartition, int], Copy] = {}
        self._under_way: set[TopicPartition] = set()
        self._rate = RateWindow()

    @property
    def done(self) -> bool:
        """Whether none of the followed moves is in progress."""
        return not self._under_way

    def observe(self, at: float, moves: "Iterable[Reassignment]", logs: "Iterable[LogInfo]") -> None:
        """Record an observation at a time in seconds."""
        held = list(logs)
        own = {(TopicPartition(log.topic, log.partition), log.broker_id): log for log in held}
        leads = leader_logs(held)
        self._under_way = set()
        for move in moves:
            where = TopicPartition(move.topic, move.partition)
            if where not in self._partitions:
                continue
            self._under_way.add(where)
            # The target of a move may have changed meanwhile.
            for key in [key for key in self._copies if key[0] == where and key[1] not in move.adding]:
                del self._copies[key]
            for broker_id in move.adding:
                copy = self._copies.setdefault((where, broker_id), Copy(where, broker_id))
                copy.done = False
                copy.in_sync = broker_id in move.in_sync_replicas
                if where in leads:
                    copy.total_bytes = leads[where].size_bytes
                if (where, broker_id) in own:
                    copy.copied_bytes = min(own[where, broker_id].size_bytes, copy.total_bytes)
        for copy in self._copies.values():
            if copy.where not in self._under_way:
                copy.done, copy.copied_bytes = True, copy.total_bytes
            copy.rate.add(at, copy.copied_bytes)
        self._rate.add(at, sum(copy.copied_bytes for copy in self._copies.values()))

    def report(self) -> Report:
        """Return the progress as a report."""
        copies = [self._copies[key] for key in sorted(self._copies)]
        copied, total = sum(each.copied_bytes for each in copies), sum(each.total_bytes for each in copies)
        finished = len(self._partitions) - len(self._under_way)
        seconds = self._rate.seconds_for(total - copied)
        document: dict[str, JsonValue] = {
            "done": self.done,
            "partitions": len(self._partitions),
            "partitions_done": finished,
            "copied_bytes": copied,
            "total_bytes": total,
            "bytes_per_second": _rounded(self._rate.per_second),
            "seconds_to_go": None if seconds is None else round(seconds),
            "copies": [_document(each) for each in copies],
        }
        if not self._partitions:
            return Report(document, (Note("nothing is moving"),))
        rows = [_row(each) for each in copies if not each.done]
        percent = f" ({copied * 100 // total} %)" if total else ""
        sections: list[Section] = [TableSection(COLUMNS, rows)] if rows else []
        sections.append(
            Note(
                f"{finished} of {len(self._partitions)} moves done, "
                f"{bytes_text(copied)} of {bytes_text(total)}{percent}, "
                f"{_speed(self._rate.per_second)}, {'0s' if self.done else eta_text(seconds)} to go"
            )
        )
        return Report(document, sections)


def _row(copy: Copy) -> dict[str, JsonValue]:
    return {
        "topic": copy.where.topic,
        "partition": copy.where.partition,
        "broker_id": copy.broker_id,
        "copied": bytes_text(copy.copied_bytes),
        "total": bytes_text(copy.total_bytes),
        "percent": copy.percent,
        "speed": _speed(copy.rate.per_second),
        "eta": eta_text(copy.rate.seconds_for(copy.total_bytes - copy.copied_bytes)),
        "state": "in sync, waits for the others" if copy.in_sync else "copying",
    }


def _document(copy: Copy) -> dict[str, JsonValue]:
    return {
        "topic": copy.where.topic,
        "partition": copy.where.partition,
        "broker_id": copy.broker_id,
        "copied_bytes": copy.copied_bytes,
        "total_bytes": copy.total_bytes,
        "percent": copy.percent,
        "bytes_per_second": _rounded(copy.rate.per_second),
        "in_sync": copy.in_sync,
        "done": copy.done,
    }


def _rounded(per_second: float | None) -> int | None:
    return None if per_second is None else round(per_second)


def _speed(per_second: float | None) -> str:
    return "-" if per_second is None else f"{bytes_text(round(per_second))}/s"
