"""A topic that is deleted and made anew under every kind of client, again and again, and what its present life holds.

Every record says in which life it was sent, or that it was sent while the topic was between two lives. The new life
holds each record that was acknowledged in it once, at its offset and in its producer's order, and none of an older one.
Consumers get exactly what it holds. Later looks, after faults of all kinds, find the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import headrace
from headrace import aio
from headrace.wire.errors import Outcome, TopicAlreadyExistsError, UnknownTopicError, UnknownTopicIdError

from tests.integration.replicated import SECONDS, Replicated, until

NAME = "anew"
PARTITIONS = 3
STALE = (UnknownTopicError, UnknownTopicIdError, headrace.TopicRecreatedError)
"""What a client may be told of a topic that was away for a moment."""
ENOUGH = 60
"""Records that each producer gets acknowledged in each life."""
PAUSE_SECONDS = 0.01
DELETE_DELAYS_MS = (0, 60_000)
"""Of every second life the logs stay on the disks for longer than most faults last."""
Contents = dict[int, list[bytes]]


class Client(threading.Thread):
    """A thread that works until it is stopped; `check` raises what it died of."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.stopped = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.failure = error

    def work(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        assert self.failure is None, f"{self.name}: {self.failure!r}"

    def end(self) -> None:
        self.stopped.set()
        self.join(2 * SECONDS)
        assert not self.is_alive(), f"{self.name} does not end"
        self.check()


class Stamp:
    """Which life a record is sent in; changing it waits for all threads between reading it and sending."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.word = b""

    def set(self, word: bytes) -> None:
        with self.lock:
            self.word = word


class Sender(Client):
    """An idempotent producer, blocking; `outcomes` of what was sent, by value."""

    def __init__(self, servers: str, stamp: Stamp, serial: int) -> None:
        super().__init__(f"{type(self).__name__}-{serial}")
        self.servers, self.stamp = servers, stamp
        self.sent: set[bytes] = set()
        self.outcomes: dict[bytes, headrace.RecordMetadata | headrace.HeadraceError] = {}

    def next_value(self) -> tuple[int, bytes]:
        """Call it with the stamp's lock."""
        count = len(self.sent)
        value = b"%s %s %d" % (self.stamp.word, self.name.encode(), count)
        self.sent.add(value)
        return count % PARTITIONS, value

    def note(self, value: bytes, future: headrace.RecordFuture) -> None:
        self.outcomes[value] = future.exception(0) or future.result(0)

    def work(self) -> None:
        with contextlib.suppress(headrace.DeliveryError):  # Each future says it, too.
            with headrace.Producer(bootstrap_servers=self.servers, linger_ms=5) as producer:
                while not self.stopped.wait(PAUSE_SECONDS):
                    with self.stamp.lock:
                        partition, value = self.next_value()
                        try:
                            future = producer.send(NAME, value, partition=partition)
                        except headrace.HeadraceError as error:
                            self.outcomes[value] = error
                            continue
                    future.add_done_callback(partial(self.note, value))

    def acknowledged(self, word: bytes) -> dict[bytes, tuple[int, int]]:
        """Partition and offset of what was acknowledged, of records with this stamp."""
        return {
            value: (outcome.partition, outcome.offset)
            for value, outcome in list(self.outcomes.items())
            if value.startswith(word + b" ") and isinstance(outcome, headrace.RecordMetadata)
        }

    def refused(self) -> set[bytes]:
        """What is known not to be stored."""
        return {
            value
            for value, outcome in self.outcomes.items()
            if isinstance(outcome, headrace.HeadraceError) and outcome.outcome == Outcome.NOT_APPLIED
        }


class AsyncioSender(Sender):
    """The same with asyncio."""

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        waiting: list[asyncio.Task[None]] = []
        with contextlib.suppress(headrace.DeliveryError):
            async with aio.Producer(bootstrap_servers=self.servers, linger_ms=5) as producer:
                while not self.stopped.is_set():
                    with self.stamp.lock:
                        partition, value = self.next_value()
                        try:
                            future = await producer.send(NAME, value, partition=partition)
                        except headrace.HeadraceError as error:
                            self.outcomes[value] = error
                            continue
                    waiting.append(asyncio.create_task(self._settle(value, future)))
                    await asyncio.sleep(PAUSE_SECONDS)
        await asyncio.gather(*waiting)

    async def _settle(self, value: bytes, future: aio.RecordFuture) -> None:
        try:
            self.outcomes[value] = await future
        except headrace.HeadraceError as error:
            self.outcomes[value] = error


class Taker(Client):
    """A consumer, blocking, alone or in a group: `seen` by partition."""

    def __init__(self, servers: str, group: str | None = None) -> None:
        super().__init__("a consumer of a group" if group else type(self).__name__)
        self.settings = {"bootstrap_servers": servers, "auto_offset_reset": "earliest"}
        if group is not None:
            self.settings["group_id"] = group
        self.in_group = group is not None
        self.seen: Contents = {number: [] for number in range(PARTITIONS)}

    def work(self) -> None:
        with headrace.Consumer(NAME, **self.settings) as consumer:
            while not self.stopped.is_set():
                with contextlib.suppress(*STALE):
                    for record in consumer.poll(0.2):
                        self.seen[record.partition].append(record.value)

    def of_life(self, wanted: Contents) -> Contents:
        """What it got from the first record of this life on; in a group without repetitions."""
        found = {}
        for number, values in self.seen.items():
            own = set(wanted[number])
            first = next((at for at, value in enumerate(values) if value in own), len(values))
            found[number] = list(dict.fromkeys(values[first:])) if self.in_group else values[first:]
        return found


class AsyncioTaker(Taker):
    """The same with asyncio, without a group."""

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        async with aio.Consumer(NAME, **self.settings) as consumer:
            while not self.stopped.is_set():
                with contextlib.suppress(*STALE):
                    for record in await consumer.poll(0.2):
                        self.seen[record.partition].append(record.value)


class Lives:
    """Owns the topic. Not for several threads."""

    def __init__(self, replicated: Replicated) -> None:
        self._replicated = replicated
        self._serials = itertools.count()
        self.number = 1
        self.expected: Contents = {number: [] for number in range(PARTITIONS)}
        self.known: dict[bytes, set[int]] = {}
        """The numbers of the lives that had this topic id: one, or more where etcd was put back."""
        self.topic_id = self._create()
        self.known[self.topic_id] = {self.number}

    def _create(self) -> bytes:
        admin = self._replicated.admin
        config = {"min_insync_replicas": 2, "file_delete_delay_ms": DELETE_DELAYS_MS[self.number % 2]}

        def attempt() -> bytes:
            with contextlib.suppress(TopicAlreadyExistsError):  # An answer may have been lost.
                admin.create_topic(NAME, PARTITIONS, replication_factor=3, config=config)
            return admin.describe_topic(NAME).topic_id

        return until(attempt, "the topic made")

    def _delete(self, name: str) -> None:
        def attempt() -> bool:
            with contextlib.suppress(UnknownTopicError):
                self._replicated.admin.delete_topic(name)
            return True

        until(attempt, "the topic deleted")

    def make_anew(self, trouble: Callable[[], AbstractContextManager[None]]) -> None:
        """Delete the topic and make it anew with `trouble` about it, under clients of all kinds; then judge."""
        servers = self._replicated.servers
        self.known[self.topic_id].add(self.number)
        stamp = Stamp()
        stamp.set(b"life-%d" % self.number)
        senders = [sender(servers, stamp, next(self._serials)) for sender in (Sender, AsyncioSender)]
        takers = [Taker(servers), Taker(servers, group=f"of-life-{self.number}"), AsyncioTaker(servers)]
        clients: list[Client] = [*senders, *takers]
        for client in clients:
            client.start()
        try:
            self._wait_for_acknowledgements(stamp.word, senders, clients)
            with headrace.Reader(
                NAME, bootstrap_servers=servers, prefetch_bytes=1, max_partition_fetch_bytes=1
            ) as reader:
                records = iter(reader)
                read = [next(records).value]
                stamp.set(b"between-%d" % self.number)
                with trouble():
                    self._delete(NAME)
                    self.topic_id = self._create()
                    self.number += 1
                    self.known[self.topic_id] = {self.number}
                    stamp.set(b"life-%d" % self.number)
                self._wait_for_acknowledgements(stamp.word, senders, clients)
                with contextlib.suppress(*STALE):
                    read += [record.value for record in records]
                newer = [value for value in read if value.startswith(stamp.word)]
                assert not newer, f"a reader of an older life was given {newer[:3]}"
            for sender in senders:
                sender.end()
            self._judge(stamp.word, senders)
            for taker in takers:
                self._judge_taker(taker)
        finally:
            for client in clients:
                client.stopped.set()
        for taker in takers:
            taker.end()

    def _wait_for_acknowledgements(self, word: bytes, senders: list[Sender], clients: list[Client]) -> None:
        def enough() -> bool:
            for client in clients:
                client.check()
            return all(len(sender.acknowledged(word)) >= ENOUGH for sender in senders)

        until(enough, f"records of {word.decode()} acknowledged", 3 * SECONDS)

    def _judge(self, word: bytes, senders: list[Sender]) -> None:
        """Compare the present life with what its producers were told."""
        found = self.read(NAME)
        places = {value: (number, at) for number, values in found.items() for at, value in enumerate(values)}
        assert len(places) == sum(map(len, found.values())), "a record is stored twice"
        resurrected = [value for value in places if value.startswith(b"life-") and not value.startswith(word + b" ")]
        assert not resurrected, f"of an older life: {resurrected[:3]}"
        for sender in senders:
            told = sender.acknowledged(word)
            wrong = {value: (at, places.get(value)) for value, at in told.items() if places.get(value) != at}
            assert not wrong, f"acknowledged to {sender.name}, and not there: {list(wrong.items())[:3]}"
            refused = sender.refused() & places.keys()
            assert not refused, f"refused to {sender.name}, and there: {sorted(refused)[:3]}"
            for number, values in found.items():
                own = [int(value.rpartition(b" ")[2]) for value in values if b" %s " % sender.name.encode() in value]
                assert own == sorted(own), f"partition {number}: out of order of {sender.name}"
        self.expected = found

    def _judge_taker(self, taker: Taker) -> None:
        def has_all() -> bool:
            taker.check()
            return sum(map(len, taker.of_life(self.expected).values())) >= sum(map(len, self.expected.values()))

        until(has_all, f"{taker.name} has all of the new life", 2 * SECONDS)
        for number, values in taker.of_life(self.expected).items():
            assert values == self.expected[number], (
                f"{taker.name}, partition {number}: {len(values)} of {len(self.expected[number])}, or others"
            )

    def read(self, topic: str) -> Contents:
        """All that a topic holds, as a reader sees it from offset 0 on."""

        def attempt() -> Contents:
            found: Contents = {number: [] for number in range(PARTITIONS)}
            with headrace.Reader(topic, bootstrap_servers=self._replicated.servers) as reader:
                for record in reader:
                    assert record.offset == len(found[record.partition]), f"offsets of {topic} have a gap"
                    found[record.partition].append(record.value)
            return found

        return until(attempt, f"{topic} read")

    def check(self) -> None:
        """The present life holds what it held."""
        description = until(lambda: self._replicated.admin.describe_topic(NAME), f"{NAME} described")
        assert description.topic_id == self.topic_id, "another life has come back"
        assert self.read(NAME) == self.expected

    def note_backup(self) -> tuple[bytes, frozenset[bytes]]:
        """What a backup of etcd that is taken now knows: the id of the life, and those of all that are no more."""
        return self.topic_id, frozenset(self.known.keys() - {self.topic_id})

    def judge_recovery(self, backup: tuple[bytes, frozenset[bytes]]) -> None:
        """After a new generation from that backup: its life is the present one again, later ones have other names.

        What was deleted before the backup stays deleted. What was deleted since may still be on the disks.
        """
        topic_id, deleted = backup
        admin = self._replicated.admin
        names = [name for name in until(admin.list_topics, "the topics") if name.startswith("recovered-")]
        recovered = {bytes.fromhex(name.removeprefix("recovered-")) for name in names}
        assert not recovered & deleted, "a topic that was deleted before the backup is there again"
        assert recovered <= self.known.keys(), "a topic that never was"
        if topic_id != self.topic_id:
            assert self.topic_id in recovered, f"the life since the backup is gone: {recovered}"
            assert self.read(f"recovered-{self.topic_id.hex()}") == self.expected
            self.topic_id = topic_id
            self._judge_life_of_backup(self.read(NAME))
        for name in names:
            self._delete(name)
        self.check()

    def _judge_life_of_backup(self, found: Contents) -> None:
        """It holds nothing, or what the disks still have of it, and nothing of any other."""
        own = self.known[self.topic_id]
        words = {b"life-%d" % number for number in own} | {
            b"between-%d" % (number - back) for number in own for back in (0, 1)
        }
        stored = [value for values in found.values() for value in values]
        assert len(set(stored)) == len(stored), "a record is stored twice"
        others = [value for value in stored if value.split(b" ")[0] not in words]
        assert not others, f"of another life: {others[:3]}"
        self.expected = found
