"""A rolling restart of ten consumers that have all the work they can take: a backlog, and handlers of a fixed cost."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict

import headrace
from headrace import TopicPartition
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from tests.integration.replicated import until

TOPIC = "work"
MEMBERS = 10
PARTITIONS = 20
BACKLOG = 1_000
"""Records of each partition: more than are handled, so that no handler ever waits for one."""
HANDLER_SECONDS = 0.05
CALM_SECONDS = 4.0


class Finished:
    """When each partition's records were finished, and by whom."""

    def __init__(self) -> None:
        self.times: dict[TopicPartition, list[tuple[float, str]]] = defaultdict(list)
        self.offsets: dict[TopicPartition, set[int]] = defaultdict(set)
        self._lock = threading.Lock()

    def note(self, record: headrace.Record, member: str) -> None:
        where = TopicPartition(record.topic, record.partition)
        with self._lock:
            self.times[where].append((time.monotonic(), member))
            self.offsets[where].add(record.offset)

    def count(self, since: float, until_: float) -> int:
        """How many were finished in a time."""
        return sum(since <= at < until_ for times in self.times.values() for at, _ in times)

    def moved(self, since: float, until_: float) -> int:
        """How many partitions more than one member worked on in a time."""
        return sum(len({member for at, member in times if since <= at < until_}) > 1 for times in self.times.values())

    def gaps(self, since: float, until_: float) -> dict[TopicPartition, float]:
        """The longest time in which nothing was finished, of each partition that one member had all the time."""
        found = {}
        for where, times in self.times.items():
            within = [(at, member) for at, member in times if since <= at < until_]
            if len({member for _, member in within}) == 1:
                points = [since, *(at for at, _ in within), until_]
                found[where] = max(after - before for before, after in itertools.pairwise(points))
        return found


class Worker:
    """A consumer that handles two records at a time, each of which takes a fixed time."""

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
        self._ready.wait(30)
        self._consumer.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()
        assert self.failure is None, self.failure


def test_a_rolling_restart_of_busy_consumers_costs_little_and_stops_nobody_else() -> None:
    finished = Finished()
    with LocalCluster(LocalClusterSpec(brokers=1)) as cluster:
        servers = cluster.bootstrap_servers
        with headrace.Admin(bootstrap_servers=servers) as admin:
            admin.create_topic(TOPIC, PARTITIONS, replication_factor=1)
        with headrace.Producer(bootstrap_servers=servers) as producer:
            for number in range(PARTITIONS):
                producer.send_many(TOPIC, [b"%d" % offset for offset in range(BACKLOG)], partition=number)
        workers = [Worker(servers, f"{number}", finished) for number in range(MEMBERS)]
        try:
            until(lambda: is_shared(workers), "a share for each")
            calm = time.monotonic()
            until(lambda: time.monotonic() >= calm + CALM_SECONDS, "a calm time")
            gaps: dict[TopicPartition, float] = {}
            began = time.monotonic()
            for index in range(MEMBERS):
                started = time.monotonic()
                workers[index].stop()
                workers[index] = Worker(servers, f"{index}-again", finished)
                until(lambda: is_shared(workers), "a share for each")
                # Its own go to others, and as many come from others.
                assert finished.moved(started, time.monotonic()) <= 2 * PARTITIONS // MEMBERS
                for where, gap in finished.gaps(started, time.monotonic()).items():
                    gaps[where] = max(gaps.get(where, 0.0), gap)
            ended = time.monotonic()
        finally:
            for worker in workers:
                worker.stop()
    calm_rate = finished.count(calm, began) / (began - calm)
    restart_rate = finished.count(began, ended) / (ended - began)
    calm_gap = max(finished.gaps(calm, began).values())
    print(
        f"{calm_rate:.0f} records/s, {restart_rate:.0f} ({restart_rate / calm_rate:.0%}) while ten consumers were "
        f"restarted in {ended - began:.1f} s; a partition that stayed stood still for {max(gaps.values()):.3f} s at "
        f"most, before for {calm_gap:.3f} s"
    )
    assert restart_rate > 0.7 * calm_rate
    assert max(gaps.values()) < calm_gap + 1.0
    for where, offsets in finished.offsets.items():
        assert offsets == set(range(len(offsets))), f"{where}: a record was skipped"
        assert len(offsets) < BACKLOG, f"{where}: the backlog was too short"


def is_shared(workers: list[Worker]) -> bool:
    """Whether the workers have all partitions, evenly."""
    shares = [worker.assignment for worker in workers]
    return sum(map(len, shares)) == len({where for share in shares for where in share}) == PARTITIONS and all(
        len(share) == PARTITIONS // MEMBERS for share in shares
    )
