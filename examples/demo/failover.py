"""Failover part of the demo: `kill -9` of a leader while records are produced, and the recovery times.

`Failover` runs in a separate thread. It measures when the partitions that the broker led are acknowledged again,
restarts the broker, and waits until every replica is in sync. The times are those of a user: the time without a leader
is from the kill to the first acknowledgement by the new leader.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import headrace
from headrace.client.admin.rpc import PartitionDescription
from headrace_devcluster.cluster import LocalCluster
from rich.console import Console

from examples.demo.waiting import StoppedError, wait_until

COPIED_BYTES_METRIC = "headrace_broker_replicated_in_bytes_total"


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """Partition that the killed broker led."""

    topic: str
    partition: int
    leader_id: int
    """Current leader."""
    leader_epoch: int
    seconds_without_leader: float | None
    """Time from the kill to the next acknowledged write; `None` means that no write followed."""


@dataclass(frozen=True, slots=True)
class FailoverReport:
    """Effects of a `kill -9`."""

    broker_id: int
    lease_ttl_seconds: float
    """Lease TTL, after which an unresponsive broker is considered dead."""
    partitions: tuple[LeaderChange, ...]
    seconds_until_elected: float
    """Time from the kill until the metadata has a new leader for each partition."""
    seconds_until_in_sync: float
    """Time from the restart of the broker until all replicas of all partitions are in sync."""
    copied_bytes: int
    """Bytes that the broker copied from the new leaders in this time."""

    def longest_seconds_without_leader(self, topic: str | None = None) -> float | None:
        """Return the maximum of one topic or of all; `None` means that no write to those partitions followed."""
        spans = [
            change.seconds_without_leader
            for change in self.partitions
            if topic in (None, change.topic) and change.seconds_without_leader is not None
        ]
        return max(spans, default=None)


class AcknowledgementTimes:
    """Acknowledgement times by partition. Written by the producer's threads, read by any."""

    def __init__(self, topics: Mapping[str, int]) -> None:
        """`topics`: name -> partitions."""
        self._times_ns: dict[tuple[str, int], list[int]] = {
            (topic, number): [] for topic, count in topics.items() for number in range(count)
        }

    def note(self, future: headrace.RecordFuture) -> None:
        """Record one completed batch; for `add_done_callback`."""
        if future.exception(0) is None:
            where = future.result(0)
            self._times_ns[where.topic, where.partition].append(time.monotonic_ns())

    def times_ns(self, topic: str, partition: int) -> list[int]:
        """Return all times so far, on the monotonic clock."""
        return list(self._times_ns[topic, partition])


def silence_end_ns(acknowledged_ns: Iterable[int], killed_ns: int, now_ns: int) -> int | None:
    """Return the end of the longest gap since the kill, or `None` if it has not ended.

    Acknowledgements sent before the kill may arrive shortly after it; a new leader is elected after the lease has
    expired. So the gap between the two is the longest, once a new leader is elected.
    """
    times = [killed_ns, *sorted(at for at in acknowledged_ns if at > killed_ns), now_ns]
    silence, end_ns = max(((after - before), after) for before, after in itertools.pairwise(times))
    return end_ns if silence and end_ns != now_ns else None


class Failover(threading.Thread):
    """Thread that kills a broker at `strike`. `report` and `error` are set at its end, by `end` at the latest."""

    def __init__(
        self,
        cluster: LocalCluster,
        topics: Sequence[str],
        acknowledgements: AcknowledgementTimes,
        console: Console,
        *,
        lease_ttl_ms: int,
        stop: threading.Event,
    ) -> None:
        super().__init__(name="failover", daemon=True)
        self.report: FailoverReport | None = None
        self.error: BaseException | None = None
        self._cluster = cluster
        self._topics = topics
        self._acknowledgements = acknowledgements
        self._console = console
        self._lease_ttl_seconds = lease_ttl_ms / 1000
        self._stop_now = stop
        self._strike = threading.Event()
        self._killed = threading.Event()
        self._all_sent = threading.Event()

    def strike(self) -> None:
        """Kill the broker and return when it is dead."""
        self._strike.set()
        self._killed.wait()

    def all_sent(self) -> None:
        """Record that all records are acknowledged, so that no partition has outstanding writes."""
        self._all_sent.set()

    def end(self) -> None:
        """Wait for the end of the thread, which is soon after the demo's `stop` is set."""
        if self._stop_now.is_set():
            self._strike.set()
        self.join()

    def run(self) -> None:
        """Measure from the kill until all replicas are in sync."""
        try:
            self._strike.wait()
            if not self._stop_now.is_set():
                with headrace.Admin(bootstrap_servers=self._cluster.bootstrap_servers) as admin:
                    self.report = self._fail_over(admin)
        except StoppedError:
            pass  # The caller that stopped it handles the reason.
        except BaseException as error:
            self.error = error
        finally:
            self._killed.set()

    def _fail_over(self, admin: headrace.Admin) -> FailoverReport:
        victim = _partitions(admin, self._topics[:1])[self._topics[0], 0].leader_id
        led = [where for where, part in _partitions(admin, self._topics).items() if part.leader_id == victim]
        broker = self._cluster.broker(victim)
        self._say(f"kill -9 of broker {victim} (process {broker.pid}), the leader of {_names(led)}")
        killed_ns = time.monotonic_ns()
        broker.kill()
        self._killed.set()
        elected = self._wait_for_leaders(admin, led, victim)
        elected_ns = time.monotonic_ns()
        new = "; ".join(f"{topic}-{n}: broker {p.leader_id}, epoch {p.leader_epoch}" for (topic, n), p in elected)
        self._say(f"  after {_seconds(killed_ns, elected_ns):.2f} s its lease is over; new leaders:\n    {new}")
        ends = self._wait_for_acknowledgements(led, killed_ns)
        if served := [end_ns for end_ns in ends if end_ns is not None]:
            self._say(f"  after {_seconds(killed_ns, max(served)):.2f} s all of them have acknowledged writes again")
        restarted_ns = time.monotonic_ns()
        self._cluster.restart(broker)
        wait_until(lambda: all_in_sync(admin, self._topics), "all replicas in sync", self._stop_now)
        in_sync_ns = time.monotonic_ns()
        copied_bytes = int(broker.metrics()[COPIED_BYTES_METRIC])
        seconds = _seconds(restarted_ns, in_sync_ns)
        self._say(
            f"  broker {victim} starts again: after {seconds:.2f} s all replicas are in sync, "
            f"{copied_bytes / 1e6:,.1f} MB copied"
        )
        return FailoverReport(
            broker_id=victim,
            lease_ttl_seconds=self._lease_ttl_seconds,
            partitions=tuple(
                LeaderChange(
                    topic=topic,
                    partition=number,
                    leader_id=part.leader_id,
                    leader_epoch=part.leader_epoch,
                    seconds_without_leader=None if end_ns is None else _seconds(killed_ns, end_ns),
                )
                for ((topic, number), part), end_ns in zip(elected, ends, strict=True)
            ),
            seconds_until_elected=_seconds(killed_ns, elected_ns),
            seconds_until_in_sync=_seconds(restarted_ns, in_sync_ns),
            copied_bytes=copied_bytes,
        )

    def _wait_for_leaders(
        self, admin: headrace.Admin, led: Sequence[tuple[str, int]], victim: int
    ) -> list[tuple[tuple[str, int], PartitionDescription]]:
        found: list[tuple[tuple[str, int], PartitionDescription]] = []

        def look() -> bool:
            now = _partitions(admin, self._topics)
            found[:] = [(where, now[where]) for where in led]
            return all(part.leader_id not in (-1, victim) for _, part in found)

        wait_until(look, "another leader", self._stop_now)
        return found

    def _wait_for_acknowledgements(self, led: Sequence[tuple[str, int]], killed_ns: int) -> list[int | None]:
        """Return the time of the next acknowledgement of each partition; `None` if no write is outstanding."""
        ends: list[int | None] = [None] * len(led)

        def look() -> bool:
            over = self._all_sent.is_set()
            now_ns = time.monotonic_ns()
            for index, where in enumerate(led):
                if ends[index] is None:
                    ends[index] = silence_end_ns(self._acknowledgements.times_ns(*where), killed_ns, now_ns)
            return over or None not in ends

        wait_until(look, "an acknowledgement by each new leader", self._stop_now)
        return ends

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)


def all_in_sync(admin: headrace.Admin, topics: Sequence[str]) -> bool:
    """Return whether every replica of the topics is in sync."""
    return all(set(part.in_sync_replicas) == set(part.replicas) for part in _partitions(admin, topics).values())


def _partitions(admin: headrace.Admin, topics: Sequence[str]) -> dict[tuple[str, int], PartitionDescription]:
    return {(topic.name, part.partition): part for topic in admin.describe_topics(topics) for part in topic.partitions}


def _names(partitions: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in partitions)


def _seconds(before_ns: int, after_ns: int) -> float:
    return round((after_ns - before_ns) / 1e9, 2)
