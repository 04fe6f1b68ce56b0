"""Consumers of groups on a cluster: shared, joined, left, killed, restarted, while coordinators and etcd come and go.

Every record is delivered at least once, in order within a term; what was acknowledged as committed is never
delivered to a later owner (PROTOCOL I27, I29).
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections import defaultdict

import headrace
import pytest
from headrace import TopicPartition
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from tests.children import running
from tests.integration.on_directory import IS_ON, join_and_fall_silent, used_elsewhere
from tests.integration.replicated import until

SESSION_MS = 1_500


@pytest.fixture(scope="module")
def whole_cluster():
    spec = LocalClusterSpec(brokers=1, coordinators=2, coordinator_settings={"lease_ttl_ms": 3_000})
    with LocalCluster(spec) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole_cluster):
    yield whole_cluster
    whole_cluster.etcd.resume()
    for part in whole_cluster.parts:
        if part.state != "running":
            whole_cluster.restart(part)


class Ledger:
    """What a group was given and has committed."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.lock = threading.Lock()
        self.delivered: dict[TopicPartition, set[int]] = defaultdict(set)
        self.deliveries = 0
        self.committed: dict[TopicPartition, int] = defaultdict(int)
        self.errors: list[BaseException] = []

    def assigned(self, member: Member, partitions: list[TopicPartition]) -> None:
        with self.lock:
            for where in partitions:
                member.next[where] = start = member.consumer.position(where)
                if start < self.committed[where]:
                    self.errors.append(AssertionError(f"{where}: {start} is below {self.committed[where]}"))

    def got(self, member: Member, batch: headrace.RecordBatch) -> None:
        with self.lock:
            self.deliveries += len(batch)
            for record in batch:
                where = TopicPartition(record.topic, record.partition)
                if record.offset != member.next[where]:
                    self.errors.append(AssertionError(f"{where}: {record.offset}, not {member.next[where]}"))
                member.next[where] = record.offset + 1
                self.delivered[where].add(record.offset)

    def stored(self, offsets: dict[TopicPartition, int]) -> None:
        with self.lock:
            for where, offset in offsets.items():
                self.committed[where] = max(self.committed[where], offset)


class Member:
    """A consumer on a thread of its own, which commits what it was given after every poll."""

    def __init__(self, ledger: Ledger, *topics: str, group: str, **settings: object) -> None:
        self.ledger = ledger
        self.next: dict[TopicPartition, int] = {}
        self.calls: list[tuple[str, list[TopicPartition]]] = []
        self._topics = topics
        self._settings = {
            "bootstrap_servers": ledger.servers,
            "group_id": group,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "session_timeout_ms": SESSION_MS,
            "fetch_max_wait_ms": 50,
            **settings,
        }
        self._stopped = threading.Event()
        self.assignment: list[TopicPartition] = []
        self.consumer: headrace.Consumer
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _note(self, what: str):
        def callback(partitions: list[TopicPartition]) -> None:
            self.calls.append((what, partitions))
            if what == "assigned":
                self.ledger.assigned(self, partitions)

        return callback

    def _run(self) -> None:
        callbacks = {f"on_{what}": self._note(what) for what in ("assigned", "revoked", "lost")}
        try:
            with headrace.Consumer(*self._topics, **callbacks, **self._settings) as self.consumer:
                while not self._stopped.is_set():
                    batch = self.consumer.poll(0.05)
                    self.assignment = self.consumer.assignment()
                    if batch:
                        self.ledger.got(self, batch)
                        self._commit({where: part[-1].offset + 1 for where, part in batch.by_partition().items()})
        except BaseException as error:
            self.ledger.errors.append(error)
        finally:
            self.assignment = []

    def _commit(self, offsets: dict[TopicPartition, int]) -> None:
        if self._settings["enable_auto_commit"]:
            return
        self._commit_and_wait(offsets)

    def _commit_and_wait(self, offsets: dict[TopicPartition, int]) -> None:
        """A partition that was lost meanwhile is its next owner's; what is not known yet is still being tried."""
        with contextlib.suppress(
            headrace.wire.errors.NotOwnerError,
            headrace.wire.errors.UnknownMemberError,
            headrace.wire.errors.TimedOutError,
        ):
            self.consumer.commit(offsets, timeout=5)
            self.ledger.stored(offsets)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


class Group:
    """Members, a topic, and a producer that never stops."""

    def __init__(self, cluster: LocalCluster, name: str, partitions: int) -> None:
        self.cluster, self.name = cluster, name
        self.servers = cluster.bootstrap_servers
        self.ledger = Ledger(self.servers)
        self.members: list[Member] = []
        self.sent: dict[TopicPartition, int] = defaultdict(int)
        self.partitions = [TopicPartition(name, number) for number in range(partitions)]
        self.admin = headrace.Admin(bootstrap_servers=self.servers)
        self.admin.create_topic(name, partitions, replication_factor=1)
        self._producer = headrace.Producer(bootstrap_servers=self.servers, linger_ms=0)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        while not self._stopped.wait(0.1):
            for where in self.partitions:
                self._producer.send(where.topic, b"%d" % self.sent[where], partition=where.partition)
                self.sent[where] += 1

    def join(self, **settings: object) -> Member:
        member = Member(self.ledger, self.name, group=self.name, **settings)
        self.members.append(member)
        return member

    def leave(self, member: Member) -> None:
        self.members.remove(member)
        member.stop()

    def is_shared(self) -> bool:
        """Whether the members have all partitions, evenly."""
        shares = [len(member.assignment) for member in self.members]
        owned = sorted(where for member in self.members for where in member.assignment)
        return owned == self.partitions and max(shares) - min(shares) <= 1

    def wait_shared(self) -> float:
        started = time.monotonic()
        until(self.is_shared, f"a share for each of {len(self.members)}")
        return time.monotonic() - started

    def wait_news(self) -> None:
        """Wait until something that was written from now on was delivered of every partition."""
        wanted = {where: self.sent[where] for where in self.partitions}
        until(
            lambda: all(wanted[where] in self.ledger.delivered[where] for where in self.partitions),
            "records of every partition",
        )

    def finish(self) -> None:
        """Stop writing, wait for the last record, and see that none is missing."""
        self._stopped.set()
        self._thread.join()
        self._producer.flush(30)
        until(
            lambda: all(len(self.ledger.delivered[where]) == self.sent[where] for where in self.partitions),
            "every record",
        )
        self.stop()
        assert self.ledger.errors == []

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        for member in self.members:
            member._stopped.set()
        for member in self.members:
            member.stop()
        with contextlib.suppress(headrace.HeadraceError):
            self._producer.close(5)
        self.admin.close()


@pytest.fixture
def group(cluster, request):
    made = Group(cluster, request.node.name.replace("test_", "")[:60], 6)
    yield made
    made.stop()


def test_members_share_join_and_leave(group):
    first = group.join()
    group.wait_shared()
    second = group.join()
    group.wait_shared()
    group.wait_news()
    third = group.join()
    group.wait_shared()
    group.leave(second)
    print(f"a member that left was replaced within {group.wait_shared():.2f} s")
    group.wait_news()
    for member in (first, third):
        assert not [call for call in member.calls if call[0] == "lost"]
    group.finish()


KILLED = """
import sys, headrace
consumer = headrace.Consumer(sys.argv[2], bootstrap_servers=sys.argv[1], group_id=sys.argv[2],
    session_timeout_ms=int(sys.argv[3]), auto_offset_reset="earliest", auto_commit_interval_ms=100)
for record in consumer:
    print(record.partition, record.offset, flush=True)
"""


def test_a_member_that_is_killed_is_replaced(group):
    first = group.join()
    group.wait_shared()
    if IS_ON:  # Its members are of this process.
        join_and_fall_silent(group.servers, group.name, SESSION_MS)
        until(lambda: any(what == "revoked" for what, _ in first.calls), "the silent member has a share")
    else:
        command = [sys.executable, "-c", KILLED, group.servers, group.name, str(SESSION_MS)]
        with running(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            process.kill()
    print(f"a member that was killed was replaced within {group.wait_shared():.2f} s")
    group.wait_news()
    # What the killed one committed by itself is not in the ledger, nor is what it was given.
    committed = group.ledger.committed
    until(lambda: all(committed[where] > 0 for where in group.partitions), "a commit of each partition")
    group.stop()
    assert group.ledger.errors == []


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(group):
    first = group.join(group_instance_id="one", session_timeout_ms=20_000)
    second = group.join(group_instance_id="two", session_timeout_ms=20_000)
    group.wait_shared()
    before = list(second.assignment)
    calls = list(first.calls)
    group.leave(second)
    third = group.join(group_instance_id="two", session_timeout_ms=20_000)
    group.wait_shared()
    assert third.assignment == before
    assert first.calls == calls
    group.wait_news()
    group.finish()


def test_the_former_process_of_a_static_member_is_fenced(group):
    first = group.join(group_instance_id="one")
    group.wait_shared()
    group.join(group_instance_id="one")
    until(lambda: group.ledger.errors, "the error of the former life")
    (error,) = group.ledger.errors
    assert isinstance(error, headrace.wire.errors.FencedInstanceError)
    group.ledger.errors.clear()
    group.leave(first)
    group.wait_shared()
    group.finish()


def test_a_pattern_takes_in_new_topics_and_deleted_ones_go(group):
    settings = {"topic_pattern": f"{group.name}*"}
    member = group.join(**settings)
    group.wait_shared()
    other = f"{group.name}-more"
    group.admin.create_topic(other, 2, replication_factor=1)
    extra = [TopicPartition(other, 0), TopicPartition(other, 1)]
    until(lambda: member.assignment == group.partitions + extra, "the new topic")
    with headrace.Producer(bootstrap_servers=group.servers) as producer:
        producer.send(other, b"0", partition=0)
    until(lambda: group.ledger.committed[extra[0]] == 1, "its record, and a commit that a deletion would refuse")
    group.admin.delete_topic(other)
    until(lambda: member.assignment == group.partitions, "the end of the deleted topic")
    group.wait_news()
    group.finish()


def test_while_etcd_is_paused_members_keep_reading(group):
    for _ in range(2):
        group.join(enable_auto_commit=True, auto_commit_interval_ms=100)
    group.wait_shared()
    group.cluster.etcd.pause()
    try:
        until(lambda: all(member.consumer.health().notices for member in group.members), "that health says so")
        group.wait_news()
    finally:
        group.cluster.etcd.resume()
    group.wait_shared()
    group.wait_news()
    group.finish()


def test_a_coordinator_is_killed_and_members_go_on(group):
    group.join(session_timeout_ms=6_000)
    group.join(session_timeout_ms=6_000)
    group.wait_shared()
    coordinators = [part for part in group.cluster.parts if "coordinator" in part.name]
    for part in coordinators:
        part.kill()
        group.wait_news()
        third = group.join(session_timeout_ms=6_000)
        group.wait_shared()
        group.leave(third)
        group.wait_shared()
        group.cluster.restart(part)
    assert not [call for member in group.members for call in member.calls if call[0] == "lost"]
    group.finish()


def test_a_rolling_restart_of_ten_members_stops_no_other_member(cluster, request):
    group = Group(cluster, "rolling", 20)
    try:
        for _ in range(10):
            group.join()
        group.wait_shared()

        group.wait_news()
        delivered, sent = group.ledger.deliveries, sum(group.sent.values())
        for member in list(group.members):
            group.leave(member)
            group.join()
            group.wait_shared()
        delivered, sent = group.ledger.deliveries - delivered, sum(group.sent.values()) - sent
        print(f"while ten members were restarted {delivered / sent:.0%} of {sent} records were delivered at once")
        group.finish()
    finally:
        group.stop()


POISONED = """
import asyncio, os, sys, headrace, headrace.aio
last = set()
def loud(*words):  # One write a line: threads share the output.
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
servers, topic, kind = sys.argv[1:]
def look(record):
    if record.value == b"poison":
        os._exit(9)
    loud(record.partition, record.offset)
    if record.value == b"last":
        last.add(record.partition)
        if len(last) == 2:
            consumer.stop()
settings = dict(bootstrap_servers=servers, group_id=topic, group_instance_id="one", session_timeout_ms=60_000,
    auto_offset_reset="earliest")
run = dict(concurrency=4, retry=headrace.RetryPolicy(attempts=3), dead_letter=topic + "-dead")
async def main():
    global consumer
    async def handle(record):
        look(record)
    async with headrace.aio.Consumer(topic, **settings) as consumer:
        return await consumer.run(handle, **run)
if kind == "asyncio":
    loud("summary", asyncio.run(main()).dead_letters)
else:
    with headrace.Consumer(topic, **settings) as consumer:
        loud("summary", consumer.run(look, **run).dead_letters)
"""


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_record_that_ends_every_process_goes_to_the_dead_letters(cluster, kind):
    """A supervisor starts the process again and again; the fifth gives the record up, and all others are handled."""
    topic, servers = f"poisoned-{kind}", cluster.bootstrap_servers
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(topic, 2, replication_factor=1)
        admin.create_topic(f"{topic}-dead", 1, replication_factor=1)
    values = [b"poison" if number == 7 else b"%d" % number for number in range(30)]
    with headrace.Producer(bootstrap_servers=servers) as producer:
        for partition in range(2):
            for value in values if partition == 0 else values[:5]:
                producer.send(topic, value, partition=partition)
    command = [sys.executable, "-c", POISONED, servers, topic, kind]
    handled: set[tuple[int, int]] = set()

    def live() -> int:
        with used_elsewhere(cluster):
            ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
        handled.update((int(p), int(o)) for p, o in map(str.split, ended.stdout.splitlines()) if p != "summary")
        return ended.returncode

    assert [live() for _ in range(4)] == [9, 9, 9, 9]
    with headrace.Producer(bootstrap_servers=servers) as producer:
        for partition in range(2):
            producer.send(topic, b"last", partition=partition).result()
    assert live() == 0
    assert handled == {(0, o) for o in range(31) if o != 7} | {(1, o) for o in range(6)}
    with headrace.Reader(f"{topic}-dead", bootstrap_servers=servers) as reader:
        (letter,) = reader
    headers = dict(letter.headers)
    assert headers["headrace.dead_letter.error"] == b"ProcessEndedError"
    assert (headers["headrace.dead_letter.offset"], headers["headrace.dead_letter.attempts"]) == (b"7", b"4")
    with headrace.Consumer(topic, bootstrap_servers=servers, group_id=topic) as consumer:
        stored = consumer.committed(*(TopicPartition(topic, number) for number in range(2)))
    assert [each.metadata for each in stored.values()] == ["", ""]


EXITS = """
import os, sys, headrace
def handle(record):
    if record.offset == 10:
        os._exit(9)
    print(record.offset, flush=True)
with headrace.Consumer(sys.argv[2], bootstrap_servers=sys.argv[1], group_id=sys.argv[2],
        session_timeout_ms=int(sys.argv[3]), auto_offset_reset="earliest", auto_commit_interval_ms=10) as consumer:
    consumer.run(handle, concurrency=2, ordering="partition")
"""


def test_a_handler_that_ends_its_process_leaves_its_record_to_the_next_owner(cluster):
    topic, servers = "exits", cluster.bootstrap_servers
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(topic, 1, replication_factor=1)
    with headrace.Producer(bootstrap_servers=servers) as producer:
        producer.send_many(topic, [b"%d" % number for number in range(20)])
    command = [sys.executable, "-c", EXITS, servers, topic, str(SESSION_MS)]
    with used_elsewhere(cluster):
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert ended.returncode == 9
    first = [int(line) for line in ended.stdout.split()]
    assert first == list(range(10))
    second: list[int] = []
    settings = {"bootstrap_servers": servers, "group_id": topic, "auto_offset_reset": "earliest"}
    with headrace.Consumer(topic, **settings) as consumer:

        def handle(record: headrace.Record) -> None:
            second.append(record.offset)
            if record.offset == 19:
                consumer.stop()

        consumer.run(handle, concurrency=1)
        assert consumer.committed() == {TopicPartition(topic, 0): headrace.OffsetAndMetadata(20, 0)}
    assert second == list(range(second[0], 20))
    assert second[0] <= 10
