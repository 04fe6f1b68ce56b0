"""`python -m bench.group_restart`: cost of a rolling restart of a group's consumers, as JSON.

The consumers are saturated: they have a backlog, and handlers of a fixed duration. One after the other is stopped and
replaced by a new one; the next follows when every consumer has its share again.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Annotated

import headrace
import typer
from headrace import TopicPartition
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from bench.stage import wait_until

TOPIC = "work"
HANDLER_SECONDS = 0.05
JOIN_SECONDS = 30

app = typer.Typer(add_completion=False, help=__doc__)


class Finished:
    """Times at which records were finished, and their members, by partition."""

    def __init__(self) -> None:
        self.times: dict[TopicPartition, list[tuple[float, str]]] = defaultdict(list)
        self.offsets: dict[TopicPartition, set[int]] = defaultdict(set)
        self._lock = threading.Lock()

    def note(self, record: headrace.Record, member: str) -> None:
        """Add a handled record."""
        where = TopicPartition(record.topic, record.partition)
        with self._lock:
            self.times[where].append((time.monotonic(), member))
            self.offsets[where].add(record.offset)

    def count(self, since: float, until_: float) -> int:
        """Return the number of records finished in a period."""
        return sum(since <= at < until_ for times in self.times.values() for at, _ in times)

    def moved(self, since: float, until_: float) -> int:
        """Return the number of partitions processed by more than one member in a period."""
        return sum(len({member for at, member in times if since <= at < until_}) > 1 for times in self.times.values())

    def gaps(self, since: float, until_: float) -> dict[TopicPartition, float]:
        """Return the longest gap without a finished record, by partition that one member owned for the whole period."""
        found = {}
        for where, times in self.times.items():
            within = [(at, member) for at, member in times if since <= at < until_]
            if len({member for _, member in within}) == 1:
                points = [since, *(at for at, _ in within), until_]
                found[where] = max(after - before for before, after in itertools.pairwise(points))
        return found


class Worker:
    """Consumer that handles two records concurrently, each for a fixed time."""

    def __init__(self, servers: str, name: str, finished: Finished) -> None:
        self.name = name
        self.assignment: set[TopicPartition] = set()
        self.failure: BaseException | None = None
        self._servers, self._finished = servers, finished
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def _run(self) -> None:
        try:
            with headrace.Consumer(
                TOPIC,
                bootstrap_servers=self._servers,
                group_id=TOPIC,
                auto_offset_reset="earliest",
                auto_commit_interval_ms=200,
                on_assigned=lambda partitions: self._note(self.assignment | {*partitions}),
                on_revoked=lambda partitions: self._note(self.assignment - {*partitions}),
                on_lost=lambda partitions: self._note(self.assignment - {*partitions}),
            ) as self._consumer:
                self._ready.set()
                self._consumer.run(self._handle, concurrency=2, ordering="partition", handle_signals=False)
        except BaseException as error:
            self.failure = error
        finally:
            self._ready.set()
            self.assignment = set()

    def _note(self, assignment: set[TopicPartition]) -> None:
        self.assignment = assignment

    def _handle(self, record: headrace.Record) -> None:
        time.sleep(HANDLER_SECONDS)  # The work.
        self._finished.note(record, self.name)

    def stop(self) -> None:
        """Leave the group. Raise `AssertionError` if the consumer failed."""
        self._ready.wait(JOIN_SECONDS)
        self._consumer.stop()
        self._thread.join(JOIN_SECONDS)
        assert not self._thread.is_alive()
        assert self.failure is None, self.failure


@dataclass(frozen=True, slots=True)
class RollingRestart:
    """Measurements during the replacement of every consumer."""

    partitions_moved: list[int]
    """Partitions processed by more than one consumer, by restart."""
    restart_s: float
    calm_records_per_s: float
    restart_records_per_s: float
    calm_gap_s: float
    """Longest gap of a partition without a handled record, before the restarts."""
    restart_gap_s: float
    """The same during a replacement, for partitions that stayed with their consumer."""
    offsets: dict[TopicPartition, set[int]]
    """Offsets of the handled records."""


def restart_consumers(servers: str, *, consumers: int, partitions: int, backlog: int, calm: float) -> RollingRestart:
    """Replace every consumer of a group, one after the other, and measure the others.

    `backlog` is the number of records per partition, more than are handled, so that no handler waits; `calm` is the
    seconds before the first restart. Raise `AssertionError` if a consumer fails.
    """
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(TOPIC, partitions, replication_factor=1)
    with headrace.Producer(bootstrap_servers=servers) as producer:
        for number in range(partitions):
            producer.send_many(TOPIC, [b"%d" % offset for offset in range(backlog)], partition=number)
    finished = Finished()
    moved: list[int] = []
    gaps: dict[TopicPartition, float] = {}
    workers = [Worker(servers, f"{number}", finished) for number in range(consumers)]
    try:
        wait_until(lambda: is_shared(workers, partitions), "an even assignment")
        calm_since = time.monotonic()
        time.sleep(calm)
        began = time.monotonic()
        for index in range(consumers):
            started = time.monotonic()
            workers[index].stop()
            workers[index] = Worker(servers, f"{index}-again", finished)
            wait_until(lambda: is_shared(workers, partitions), "an even assignment")
            moved.append(finished.moved(started, time.monotonic()))
            for where, gap in finished.gaps(started, time.monotonic()).items():
                gaps[where] = max(gaps.get(where, 0.0), gap)
        ended = time.monotonic()
    finally:
        for worker in workers:
            worker.stop()
    return RollingRestart(
        partitions_moved=moved,
        restart_s=ended - began,
        calm_records_per_s=finished.count(calm_since, began) / (began - calm_since),
        restart_records_per_s=finished.count(began, ended) / (ended - began),
        calm_gap_s=max(finished.gaps(calm_since, began).values(), default=0.0),
        restart_gap_s=max(gaps.values(), default=0.0),
        offsets=finished.offsets,
    )


def is_shared(workers: list[Worker], partitions: int) -> bool:
    """Return whether the workers own all partitions evenly."""
    shares = [worker.assignment for worker in workers]
    return sum(map(len, shares)) == len({where for share in shares for where in share}) == partitions and all(
        len(share) == partitions // len(workers) for share in shares
    )


@app.command()
def main(
    consumers: Annotated[int, typer.Option(min=2, help="Number of consumers; each is replaced once.")] = 10,
    partitions: Annotated[
        int, typer.Option(min=2, help="Number of partitions; a multiple of the number of consumers.")
    ] = 20,
    backlog: Annotated[int, typer.Option(min=1, help="Records per partition.")] = 1_000,
    calm: Annotated[float, typer.Option(min=0.1, help="Seconds before the first restart.")] = 4.0,
) -> None:
    """Replace consumers one after the other; print records per second before and meanwhile, and the longest gaps."""
    if partitions % consumers:
        raise typer.BadParameter("partitions must be a multiple of consumers")
    with LocalCluster(LocalClusterSpec(brokers=1)) as running:
        found = restart_consumers(
            running.bootstrap_servers, consumers=consumers, partitions=partitions, backlog=backlog, calm=calm
        )
    handled = sum(map(len, found.offsets.values()))
    print(
        json.dumps(
            {
                "records": handled,
                "skipped": sum(max(offsets) + 1 - len(offsets) for offsets in found.offsets.values()),
                "partitions_moved": found.partitions_moved,
                "restart_s": round(found.restart_s, 2),
                "calm_records_per_s": round(found.calm_records_per_s),
                "restart_records_per_s": round(found.restart_records_per_s),
                "share": round(found.restart_records_per_s / found.calm_records_per_s, 3),
                "calm_gap_s": round(found.calm_gap_s, 3),
                "restart_gap_s": round(found.restart_gap_s, 3),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    app()
