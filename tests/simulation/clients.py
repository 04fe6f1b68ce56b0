"""Clients: applications over the shipped asyncio `Producer`, `Consumer` and `Reader`. What they saw is their history.

Sequences, retries and when to give up are decided by the shipped `InFlightRequests`; positions, truncations, another
life of the topic and corrupt batches the shipped engine's. An application here sends, reads, and does what an error
asks for. A record's name is the beginning of its value.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace import aio
from headrace.client.base.config import CORRUPT_BATCHES
from headrace.client.base.errors import LogTruncationError, TopicRecreatedError
from headrace.client.base.records import Record
from headrace.client.net.cluster_metadata import ClusterMetadata
from headrace.log.directory import LogId
from headrace.wire.batch_runs import FEW_BATCHES
from headrace.wire.errors import HeadraceError, OffsetOutOfRangeError, Outcome
from headrace.wire.ids import TopicPartition
from headrace.wire.typed.topic_columns import TopicColumns, parse_columns

from tests.simulation.client_calls import ClientLoop
from tests.simulation.client_errors import why_not
from tests.simulation.exercise import CHECKED
from tests.simulation.history import FAIL, OK, UNKNOWN, Poll, Send, is_deletion, key_of, shared_name
from tests.simulation.promises import NAME_HEADER, address_of, name_of
from tests.simulation.time_lookups import TimeLookup
from tests.simulation.typed_rows import COLUMNS, row_of, table_of
from tests.simulation.world import EPOCH_MS

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

TOPIC = "t"
MAX_OPEN = 6
"""Sends whose end is open, by partition."""
READ_BYTES = 900
SIZES = (12, 20, 48)
ACKS: dict[int, Any] = {-1: "all", 0: "0", 1: "1"}
LATE_MS = 2_000
LATE_RATE = 0.04
"""So often a consumer is busy for so long, on average: retention and DeleteRecords get ahead of it."""
DELIVERY_MS = 900_000
GIVING_UP_MS = 1_200
LIFE_MS = 1_500
"""After so long a producer ends and another begins, where partitions forget them."""
CODECS: tuple[Any, ...] = ("none", "none", "gzip", "zstd")
REPLACING = 0.5
"""Share of records that replace each other, in a compacted topic."""
DELETING = 0.3
"""Share of these that delete what they replace."""
KEY_LIFE_MS = 500
"""For so long records have one key: what replaces it for good is compacted while a run lasts."""
BURSTING = 0.3
"""Share of producers that send bursts, and of their sends that are one."""
IMPATIENT = 0.3
"""Share of applications that cancel calls, and of their calls that may be cancelled."""
LOOPING, LEAVING = 0.4, 0.3
"""Share of consumers that loop over records, and of their waits that do; and of such records, those that end a loop."""
PATIENCE_MS = 300
"""A call is cancelled after less than that."""
ROAMING, KEYED = 0.5, 0.5
"""Share of producers that select partitions by themselves, and of their sends whose records have keys."""
BY_TIME = 0.25
"""Of a reader's readings: those that begin at a time, mostly a past one."""
EARLIER_MS, LATER_MS, SOME_TIMES = 8_000, 300, 30
LINGERING = 0.5
"""Share of producers that wait for what they sent after a while only: a wait for a record sends its open batch."""
WIDE_SENDS = 4
"""Times in a row that a producer sends to all of many partitions, so that a request has several."""
TIGHT = 0.3
"""Share of producers whose records wait for buffer memory."""
TIGHT_BATCH_BYTES, TIGHT_MEMORY = 200, 400
"""Of such a producer."""
TRANSPORTS: tuple[Any, ...] = ("grpc", "auto", "auto", "native")
CALLING: dict[str, Any] = {"request_timeout_ms": 700, "retry_backoff_ms": 40, "retry_backoff_max_ms": 160}
"""Of every client. All settings are in proportion to a run."""
SETTINGS: dict[str, Any] = {**CALLING, "metadata_max_age_ms": 4_000}
FETCHING: dict[str, Any] = {
    **SETTINGS,
    "fetch_max_wait_ms": 400,
    "fetch_max_bytes": READ_BYTES,
    "max_partition_fetch_bytes": READ_BYTES,
    "prefetch_bytes": 2 * READ_BYTES,
}


class Client:
    """One process with one application."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.name = name
        self.process = cluster.world.start_process(name)
        self.process.after_event = self._after_event
        self.loop = ClientLoop(cluster.world, self.process, cluster.transport, cluster.promises)
        self._chance = cluster.world.chance(name)
        self._patience = self._apart("patience")
        self._is_impatient = self._patience.random() < IMPATIENT
        cluster.promises.begins(name)
        self._transport: Any = self._apart("transport").choice(TRANSPORTS)
        self._servers = [address_of(number) for number in sorted(cluster.brokers)]

    def _apart(self, what: str) -> random.Random:
        """Return chance of its own for one thing, so that seeds which do not draw it stay as they are."""
        return random.Random(f"{self.cluster.plan.seed}/{self.name}/{what}")

    def start(self) -> None:
        """Begin."""
        self.spawn(self._live())

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it as a task of the process."""
        self.loop.run(lambda: self._own(work))

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        """An error that the application does not foresee breaks the run."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and task.exception() is not None:
                self.loop.fail("the application has failed", task.exception())

        self.loop.create_task(work).add_done_callback(ended)

    async def _live(self) -> None:
        raise NotImplementedError

    def _cluster_metadata(self) -> ClusterMetadata | None:
        """The table of the shipped client."""
        raise NotImplementedError

    def _after_event(self) -> None:
        self.loop.check()
        cluster_metadata = self._cluster_metadata()
        if cluster_metadata is not None:
            self.cluster.promises.looks(self.name, cluster_metadata)

    @asynccontextmanager
    async def _patiently(self) -> AsyncIterator[None]:
        """Cancel some of an impatient application's calls: `TimeoutError`."""
        ends = self._is_impatient and self._patience.random() < IMPATIENT
        async with asyncio.timeout(self._patience.randrange(PATIENCE_MS) / 1000 if ends else None):
            yield

    def _failed(self, what: str, error: HeadraceError) -> None:
        """Count an error that a call ended with; something in the run must be able to cause it."""
        self.world.count(f"{what}: {error.code.name}")
        self.world.count(CHECKED + "client errors")
        why = why_not(error.code, self.cluster.plan)
        if why:
            self.cluster.promises.breaks("client errors", f"{self.name}, {what}: {error.message}: {why}")

    async def _rest(self, period_ms: int) -> None:
        await asyncio.sleep((1 + self._chance.randrange(2 * period_ms)) / 1000)


class Producer(Client):
    """Sends; `acks` as in the protocol: 0, 1, or -1 for all."""

    def __init__(self, cluster: Cluster, number: int, acks: int, period_ms: int) -> None:
        super().__init__(cluster, f"w{number}")
        self.acks = acks
        self.period_ms = period_ms
        self.sending = True
        self._producer: aio.Producer | None = None
        self._sent = self._life = 0
        self._open: Counter[int] = Counter()
        self._bursts = self._apart("bursts")
        self._has_bursts = self._bursts.random() < BURSTING
        self._replacing = self._apart("replacing")
        self._deleting = self._apart("deleting")
        self._waiting = self._apart("waiting")
        self._roaming = self._apart("roaming")
        self._roams = self._roaming.random() < ROAMING
        self._lingers = self._waiting.random() < LINGERING
        self._is_tight = self._apart("memory").random() < TIGHT

    @property
    def waits(self) -> bool:
        """Whether any send's outcome is open."""
        return any(self._open.values())

    def _cluster_metadata(self) -> ClusterMetadata | None:
        return None if self._producer is None else self._producer._core.sender.cluster_metadata

    async def _live(self) -> None:
        while self.sending:
            self._life += 1
            self.cluster.promises.begins(self.name)
            self._producer = self._make()
            until_ms = self.world.now_ms + LIFE_MS if self.cluster.plan.forgets else None
            while self.sending and (until_ms is None or self.world.now_ms < until_ms):
                await self._rest(self.period_ms)
                number = self._chance.randrange(self.cluster.plan.partitions)
                numbers = [*range(self.cluster.plan.partitions)] * WIDE_SENDS if self.cluster.plan.is_wide else [number]
                await asyncio.gather(*(self._send_to(self._producer, each) for each in numbers))
            if until_ms is not None:
                with suppress(HeadraceError):  # What was not delivered its futures say, too.
                    await self._producer.close()
                self.world.count("producers ended")

    def _make(self) -> aio.Producer:
        plan = self.cluster.plan
        codec = self._apart("codec").choice(CODECS)
        settings = SETTINGS
        if self._has_bursts:
            codec, settings = "none", {**SETTINGS, "batch_records": 1}
        if self._is_tight:
            settings = {**settings, "batch_bytes": TIGHT_BATCH_BYTES}
        producer = aio.Producer(
            bootstrap_servers=self._servers,
            acks=ACKS[self.acks],
            compression_type=codec,
            delivery_timeout_ms=GIVING_UP_MS if plan.gives_up or plan.forgets else DELIVERY_MS,
            max_in_flight_requests=self._chance.choice((1, 3, 5)),
            max_block_ms=1_000,
            transport=self._transport,
            **settings,
        )
        if self._is_tight:
            producer._core.buffer_pool.limit = TIGHT_MEMORY
        return producer

    async def _send_to(self, producer: aio.Producer, number: int) -> None:
        if self._open[number] < MAX_OPEN:
            self._open[number] += 1
            try:
                await self._send(producer, number)
            finally:
                self._open[number] -= 1

    async def _send(self, producer: aio.Producer, number: int) -> None:
        """Send a few records, as one batch or one by one; or a burst, whose batches of one record are sent together."""
        count, as_batch = 1 + self._chance.randrange(3), self._chance.random() < 0.5
        if self._has_bursts and not as_batch and self._bursts.random() < BURSTING:
            count += FEW_BATCHES + self._bursts.randrange(FEW_BATCHES)
            self.world.count("bursts of small batches")
        names = [f"{self.name}.{self._sent + index}" for index in range(count)]
        keys: list[bytes] | None = None
        if self.cluster.plan.compacts:
            names = list(map(self._replacing_name, names))
            keys = [key_of(name).encode() for name in names]
        elif self._roams and self._roaming.random() < KEYED:
            keys = [names[0].encode()] * count  # One key: batches have the records in their order.
        self._sent += count
        roams = self._roams and not (as_batch and self.cluster.plan.compacts)
        partition = None if roams else number
        sizes = [self._chance.choice(SIZES) for _ in names]
        values: list[Any] = [name.encode().ljust(size) for name, size in zip(names, sizes, strict=True)]
        columns = self._columns(producer)
        if columns is not None:
            values = [row_of(columns, name, size) for name, size in zip(names, sizes, strict=True)]
        headers: list[Any] = [None] * count
        for index, name in enumerate(names):
            if is_deletion(name):
                values[index], headers[index] = None, [(NAME_HEADER, name.encode())]
        done = 0
        try:
            if as_batch:
                async with self._patiently():
                    if columns is not None:
                        sent_batches = await producer.send_table(
                            TOPIC, table_of(values), keys=keys, partition=partition
                        )
                    else:
                        sent_batches = await producer.send_many(
                            TOPIC, values, keys=keys, partition=partition, headers=headers if any(headers) else None
                        )
                for future, records in sent_batches.parts:
                    self._wait(producer, tuple(names[done : done + records]), future)
                    done += records
            else:
                for name, value, each in zip(names, values, headers, strict=True):
                    record_key = None if keys is None else keys[done]
                    async with self._patiently():
                        sent = await producer.send(TOPIC, value, key=record_key, headers=each, partition=partition)
                    self._wait(producer, (name,), sent)
                    done += 1
        except HeadraceError as error:
            self._failed("sends refused", error)
            self._end_early(number, tuple(names[done:]), FAIL)
        except TimeoutError:
            self.world.count("sends cancelled")
            self._end_early(number, tuple(names[done:]), UNKNOWN if as_batch else FAIL)

    def _replacing_name(self, name: str) -> str:
        """The name of a record of a compacted topic, if it replaces or deletes others."""
        if self._replacing.random() >= REPLACING:
            return name
        key = str(self.world.now_ms // KEY_LIFE_MS)
        return shared_name(key, name, deletes=self._deleting.random() < DELETING)

    def _columns(self, producer: aio.Producer) -> TopicColumns | None:
        """Return the columns of a typed topic as the producer knows them, or as they are."""
        if not self.cluster.plan.typed:
            return None
        known = producer._core.topics.known.get(TOPIC)
        return parse_columns(self.cluster.topic.configs.get("columns", COLUMNS)) if known is None else known.columns

    def _wait(self, producer: aio.Producer, names: tuple[str, ...], future: aio.RecordFuture) -> None:
        topic, number = producer._core.topics.known.get(TOPIC), future.batch.where.partition
        key = LogId(self.cluster.newest_topic_id if topic is None else topic.topic_leaders.topic_id, number)
        self._open[number] += 1
        self._own(self._await(key, names, future, self.cluster.next_order()))

    async def _await(self, key: LogId, names: tuple[str, ...], future: aio.RecordFuture, order: int) -> None:
        outcome, offset = OK, -1
        if self._lingers:
            await asyncio.sleep(self._waiting.randrange(PATIENCE_MS) / 1000)
        try:
            offset = (await future).offset
            self.world.count("acknowledged")
        except HeadraceError as error:
            outcome = FAIL if error.outcome is Outcome.NOT_APPLIED else UNKNOWN
            self.world.count("batches failed for certain", outcome == FAIL)
            self._failed(f"sends failed, {outcome}", error)
        self._open[key.partition] -= 1
        self._end(key, names, outcome, offset, order)

    def _end_early(self, number: int, names: tuple[str, ...], outcome: str) -> None:
        """End what was not accepted, or only as far as `send_many` has come."""
        self._end(LogId(self.cluster.newest_topic_id, number), names, outcome, -1, self.cluster.next_order())

    def _end(self, key: LogId, names: tuple[str, ...], outcome: str, offset: int, order: int) -> None:
        number = self.cluster.number_of(key)
        promised = self._is_promised and outcome == OK
        at_ms, is_numbered = self.world.now_ms, self.acks != 0
        process = f"{self.name} {self._life}"
        self.cluster.sends.append(Send(process, number, names, outcome, offset, promised, order, at_ms, is_numbered))

    @property
    def _is_promised(self) -> bool:
        """Whether what is acknowledged stays: with acks=1 while leaderships move in order only (H24)."""
        return self.acks == -1 or (self.acks == 1 and self.cluster.plan.is_orderly)


class _Reading(Client):
    """Reads one partition, and keeps what it received."""

    def __init__(self, cluster: Cluster, name: str, number: int, period_ms: int) -> None:
        super().__init__(cluster, name)
        self.where = TopicPartition(TOPIC, number)
        self.period_ms = period_ms
        self._core: Any = None
        """The shipped client's."""
        self._key: LogId | None = None
        self._position = 0
        self._moved = True
        self._assigned: int | None = None
        """Where the shipped client began."""
        self._times: list[int] = []
        """Timestamps of what it received."""

    def _cluster_metadata(self) -> ClusterMetadata | None:
        return None if self._core is None else self._core.fetcher.engine.cluster_metadata

    def _watch(self, core: Any) -> None:
        """Note where the shipped engine continues by itself."""
        self.cluster.promises.begins(self.name)
        self._core, positions = core, core.fetcher.positions
        positions.seek = partial(self._seek, positions, positions.seek)
        positions.assign = partial(self._assign, positions.assign)

    def _assign(self, assign: Any, where: TopicPartition, offset: int, *args: Any, **named: Any) -> None:
        assign(where, offset, *args, **named)
        self._position, self._moved, self._assigned = offset, True, offset

    def _seek(self, positions: Any, seek: Any, where: TopicPartition, offset: int, topic_id: bytes = b"") -> None:
        before = LogId(positions.topic_id(where), where.partition)
        seek(where, offset, topic_id)
        if not topic_id or topic_id == before.topic_id:
            self._check_move(before, offset)
        self._position, self._moved = offset, True

    def _check_move(self, key: LogId, offset: int) -> None:
        """A position leaves out only what was removed, and goes back only before what was lost (H143)."""
        partition = self.cluster.checks.partitions.get(key)
        if partition is None or partition.is_deleted or offset == self._position:
            return
        self.world.count(CHECKED + "H143")
        start = max(partition.log_start, self.cluster.log_start(key))
        if not partition.unclean and (offset < self._position or offset > start):
            self.cluster.promises.breaks(
                "H143", f"{self.name} continues at {offset} of {self.cluster.name_of(key)} after {self._position}; "
                f"the log begins at {start}",
            )  # fmt: skip

    def _received(self, records: Sequence[Record]) -> None:
        """Note what came, in the moment in which it came."""
        if not records:
            return
        key = LogId(self._core.fetcher.positions.topic_id(self.where), self.where.partition)
        self.world.count(CHECKED + "H26 in positions", key != self._key)
        if key != self._key and not self._moved:
            self.cluster.promises.breaks(
                "H26", f"{self.name} reads on at {records[0].offset} in another life of the topic"
            )
        self._key = key
        self.world.count("records read", len(records))
        self._times += [record.timestamp_ms for record in records]
        read = tuple((record.offset, name_of(record.value, record.headers)) for record in records)
        number = self.cluster.number_of(key)
        self.cluster.polls.append(Poll(self.name, number, self._position, read, self._moved))
        self._position, self._moved = read[-1][0] + 1, False


class Consumer(_Reading):
    """Reads one partition for ever, from the leader or from a replica in its rack."""

    def __init__(self, cluster: Cluster, name: str, number: int, *, follower: bool, period_ms: int) -> None:
        super().__init__(cluster, name, number, period_ms)
        self._looping = self._apart("looping")
        self._loops = self._looping.random() < LOOPING
        self.follower = follower
        self.hurries = False
        """Nothing more is sent: it reads what there is, all at once."""
        self.truncated = 0

    def is_at(self, offset: int) -> bool:
        """Whether it has received all below `offset` of the topic as it is now."""
        positions = None if self._core is None else self._core.fetcher.positions
        if positions is None or self.where not in positions:
            return False
        same_life: bool = positions.topic_id(self.where) == self.cluster.topic.topic_id
        return same_life and positions.position(self.where) >= offset

    @property
    def position(self) -> int:
        """Behind the last record that it received."""
        return self._position

    async def _live(self) -> None:
        rack = f"rack {1 + self._chance.randrange(len(self._servers))}" if self.follower else ""
        # No batch is rotten everywhere: none may be left out, nor be written by anything but the producers.
        corrupt: Any = self._apart("corrupt").choice(CORRUPT_BATCHES)
        consumer = aio.Consumer(
            bootstrap_servers=self._servers,
            on_corrupt_batch=corrupt,
            dead_letter_topic=TOPIC if corrupt == "dead_letter" else "",
            auto_offset_reset="earliest" if self.follower else "error",
            client_rack=rack,
            transport=self._transport,
            **FETCHING,
        )
        self._watch(consumer._core)
        async with consumer:
            while not consumer.assignment():
                with suppress(HeadraceError):
                    await consumer.assign({self.where: 0})
                await self._rest(self.period_ms)
            while True:
                late = self._chance.random() < LATE_RATE
                await self._rest(1 if self.hurries else LATE_MS if late else self.period_ms)
                await self._poll(consumer)

    async def _poll(self, consumer: aio.Consumer) -> None:
        """Ask for records, and do what an error asks for."""
        try:
            if self._loops and not self.hurries and self._looping.random() < LOOPING:
                await self._loop_over(consumer)
                return
            async with self._patiently():
                batch = await consumer.poll(1.0, None if self.hurries else self._chance.choice((None, None, 1, 3)))
            self.world.count(CHECKED + "I1 as answered", len(batch))
            self._received(batch)
        except LogTruncationError as error:
            self.truncated += 1
            self.world.count("truncations that readers learnt of")
            key = LogId(self._core.fetcher.positions.topic_id(self.where), self.where.partition)
            if not self.cluster.checks.partitions[key].unclean:
                self.cluster.promises.breaks("I1", f"{self.name} {self.cluster.name_of(key)}: {error.message}")
            consumer.seek(self.where, error.diverging_offset)
        except (OffsetOutOfRangeError, TopicRecreatedError) as error:
            self.world.count(f"positions lost: {type(error).__name__}")
            with suppress(HeadraceError):
                await consumer.seek_to_beginning(self.where)
        except HeadraceError as error:
            self._failed("polls failed", error)
        except TimeoutError:
            self.world.count("polls cancelled")

    async def _loop_over(self, consumer: aio.Consumer) -> None:
        """Receive records one by one, for a second at most, and leave the loop at any of them."""
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                async for record in consumer:
                    self._received([record])
                    self.world.count("records of loops")
                    if self._looping.random() < LEAVING:
                        return


class Reader(_Reading):
    """Reads one partition, or its last records, or those from a time on, up to its present end, again and again."""

    async def _live(self) -> None:
        by_time = self._apart("by time")
        while True:
            await self._rest(self.period_ms)
            part: dict[str, Any] = {"last_per_partition": 5} if self._chance.random() < 0.7 else {}
            self._assigned = None
            at_ms: int | None = None
            if by_time.random() < BY_TIME:
                at_ms = EPOCH_MS + max(0, self.world.now_ms + by_time.randrange(-EARLIER_MS, LATER_MS))
                at_ms = by_time.choice([at_ms, *self._times[-SOME_TIMES:]])
                part = {"start": datetime.fromtimestamp(at_ms / 1000, UTC)}
            partitions = [self.where.partition]
            reader = aio.Reader(
                TOPIC,
                partitions=partitions,
                bootstrap_servers=self._servers,
                transport=self._transport,
                **part,
                **FETCHING,
            )
            self._watch(reader._core)
            try:
                async with reader:
                    if at_ms is not None:
                        self._note_lookup(reader, at_ms)
                    while not await self._read_on(reader):
                        self.world.count("reads cancelled")
                    self._check_end(reader)
            except HeadraceError as error:
                self._failed("readers failed", error)
            self._core = None

    def _note_lookup(self, reader: aio.Reader, at_ms: int) -> None:
        """Note where the reader begins that asked for a time."""
        if self._assigned is not None:
            key = LogId(reader.topic_id, self.where.partition)
            found = TimeLookup(self.name, at_ms, self._assigned)
            self.cluster.time_lookups.setdefault(key, []).append(found)

    async def _read_on(self, reader: aio.Reader) -> bool:
        """Read to the end; return whether it was reached."""
        with suppress(TimeoutError):
            async with self._patiently():
                async for batch in reader.batches(timeout=2.0):
                    self._received(batch)
                return True
        return False

    def _check_end(self, reader: aio.Reader) -> None:
        """A reader that ends without an error has everything up to its end."""
        end = reader.end_offsets()[self.where]
        self.world.count(CHECKED + "read to the end", end > 0)
        if self.cluster.plan.compacts:  # The last records may have been replaced since; the history tells.
            number = self.cluster.number_of(LogId(reader.topic_id, self.where.partition))
            self.cluster.polls.append(Poll(self.name, number, self._position, (), self._moved, end))
        elif self._position < end:
            self.cluster.promises.breaks("read to the end", f"{self.name} stops at {self._position}, before {end}")
