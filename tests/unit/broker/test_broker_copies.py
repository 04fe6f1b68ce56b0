"""Copies of another log at a mirror's leader: who may append what, what the answer says, what producers are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from headrace.partition.batch_checks import AppendResult
from headrace.partition.fitting import LogPoint, gap
from headrace.partition.topic_configs import Durability, TopicConfig
from headrace.v1 import broker_pb2, errors_pb2, topics_pb2
from headrace.wire.batch import CRC_START, MAX_COMPACTED_OFFSETS, STAMP_BYTES, Codec, iter_batches, read_header, stamp
from headrace.wire.crc import crc32c
from headrace.wire.encoding import encode_batch
from headrace.wire.errors import (
    CorruptBatchError,
    DivergedLogError,
    FencedBrokerError,
    HeadraceError,
    InvalidRequestError,
    NotLeaderError,
    OffsetOutOfRangeError,
    Outcome,
    ReadOnlyTopicError,
    StorageFullError,
    from_detail,
)
from headrace.wire.zero_copy import SplicedMessage
from headrace_broker.core.messages import SessionLost
from headrace_broker.rpc.produce import ProduceHandler
from headrace_broker.runtime.budget import MemoryBudget
from headrace_broker.runtime.partition import Partition
from headrace_broker.runtime.table_writes import RowWrite, TableWrites
from headrace_server.identity.gate import set_access

from tests.unit.broker.test_broker_runtime import Gate, batch, committed
from tests.unit.common.identity.test_gate import Known

MIRROR = TopicConfig(mirror="m")
SECONDS = 20
EPOCH = 0
"""The leader's epoch."""
Opened = AbstractAsyncContextManager[Partition]


def chained(*batches: bytes, epoch: int = 9) -> list[bytes]:
    """Return batches as another log has them from its start."""
    found, offset, crc = [], 0, 0
    for each in batches:
        header = read_header(each)
        head = stamp(header, base_offset=offset, append_timestamp_ms=77, leader_epoch=epoch, previous_crc=crc)
        found.append(head + each[STAMP_BYTES:])
        offset, crc = offset + header.record_count, header.crc
    return found


COPIES = chained(*(batch(b"%d" % number, b"x", producer=(7, 0, 2 * number)) for number in range(6)))
CRCS = [read_header(each).crc for each in COPIES]


@pytest.fixture
def mirror(partition: Opened) -> Opened:
    """A partition of a mirror that broker 1 leads."""

    @asynccontextmanager
    async def opened() -> Any:
        async with partition as leading:
            leading.update_config(MIRROR)
            yield leading

    return opened()


def append(
    partition: Partition, batches: Sequence[bytes], deletions_end: int = 0, known_epoch: int = -1
) -> asyncio.Task[AppendResult]:
    return partition.appender.begin_copies(batches, known_epoch, deletions_end=deletions_end, committed=True)


def content(partition: Partition) -> list[bytes]:
    log = partition.open_log
    with log.reader.read(0, 1 << 20, log.log_end_offset) as found:
        return [bytes(view) for _, view in iter_batches(found.read())]


async def test_copies_keep_all_but_the_epoch(mirror: Partition) -> None:
    """The result has the offsets, the source's append time, and where the next copy begins; the core knows of it."""
    result = await append(mirror, COPIES[:4])
    assert (result.error, result.base_offsets, result.append_timestamp_ms) == (None, [0, 2, 4, 6], 77)
    assert (result.log_end_offset, result.log_end_crc, result.leader_epoch) == (8, CRCS[3], EPOCH)
    assert [each[STAMP_BYTES:] for each in content(mirror)] == [each[STAMP_BYTES:] for each in COPIES[:4]]
    assert {read_header(each).leader_epoch for each in content(mirror)} == {EPOCH}
    assert mirror.replica.log_end_offset == 8
    await committed(mirror, 8)
    mirror.replica.validate_state()


async def test_a_topic_that_is_no_mirror_takes_none(partition: Partition) -> None:
    """It says so before anything is checked of the batches."""
    result = await append(partition, [b"nonsense"])
    assert isinstance(result.error, InvalidRequestError)
    assert "is no mirror" in result.error.message
    assert partition.open_log.log_end_offset == 0


async def test_a_mirror_refuses_producers_and_writers_of_rows(mirror: Partition) -> None:
    """On the event loop, in a thread and as a table: nothing but copies is appended, and nothing was."""
    at_once = mirror.appender.append_now([batch(b"mine")], -1, committed=True)
    assert at_once is not None
    packed = encode_batch([b"mine" * 100], base_timestamp_ms=1, codec=Codec.GZIP)
    for result in (at_once, await mirror.appender.append([packed], -1, committed=True)):
        assert isinstance(result.error, ReadOnlyTopicError)
        assert result.error.outcome is Outcome.NOT_APPLIED
    table = replace(MIRROR, cleanup_policy="compact", table="yes", durability=Durability.ASYNC)
    mirror.update_config(table)
    assert mirror.table is not None
    writes = TableWrites(mirror, mirror.table)
    with pytest.raises(ReadOnlyTopicError):
        await writes.write(RowWrite(b"row", {b"c": b"1"}, False, None, 0), SECONDS)
    assert mirror.open_log.log_end_offset == 0


@pytest.mark.parametrize(
    ("batches", "error"),
    [
        (COPIES[1:3], OffsetOutOfRangeError),
        (COPIES[3:5], OffsetOutOfRangeError),
        ([*chained(batch(b"a"), batch(b"b"), batch(b"c"), batch(b"d"), batch(b"e"))[4:]], DivergedLogError),
        ([COPIES[2], COPIES[3][:-1]], CorruptBatchError),
    ],
)
async def test_the_log_end_is_told_with_an_error(mirror: Partition, batches: list[bytes], error: type) -> None:
    """Who copies continues there, without asking."""
    await append(mirror, COPIES[:2])
    result = await append(mirror, batches)
    assert isinstance(result.error, error)
    assert (result.log_end_offset, result.log_end_crc, result.base_offsets) == (4, CRCS[1], [])
    assert mirror.open_log.log_end_offset == 4


async def test_the_log_end_is_that_behind_earlier_copies(mirror: Partition) -> None:
    """Two who copy the same at once: the later one is told where the log ends after the other's copy."""
    first, second = append(mirror, COPIES[:3]), append(mirror, COPIES[:2])
    third = append(mirror, [])
    assert (await first).error is None
    late = await second
    assert isinstance(late.error, OffsetOutOfRangeError)
    assert (late.log_end_offset, late.log_end_crc) == (6, CRCS[2])
    assert ((await third).error, (await third).log_end_offset) == (None, 6)


async def test_another_epoch_is_refused(mirror: Partition) -> None:
    """As for producers: what a copier knows of the leader is checked."""
    result = await append(mirror, COPIES[:1], known_epoch=EPOCH + 1)
    assert result.error is not None
    assert result.error.retriable
    assert mirror.open_log.log_end_offset == 0


async def test_leadership_lost_during_a_copy_is_unknown(mirror: Partition) -> None:
    """H52: the next leader may have it or not; the copier asks where the log ends."""
    gate = Gate(mirror.open_log, "append_copies")
    appending = append(mirror, COPIES[:2])
    await gate.reached()
    mirror.handle(SessionLost())
    gate.opened.set()
    result = await appending
    assert isinstance(result.error, NotLeaderError)
    assert result.error.outcome is Outcome.UNKNOWN
    mirror.replica.validate_state()


@contextmanager
def inflating(partition: Partition, meanwhile: Callable[[], None]) -> Iterator[None]:
    """Let something happen while compressed batches are inflated."""
    inflation = partition.context.inflation
    run = inflation.run

    async def run_and_more(size_bytes: int, call: Callable[[], None]) -> None:
        await run(size_bytes, call)
        meanwhile()

    cast(Any, inflation).run = run_and_more
    try:
        yield
    finally:
        cast(Any, inflation).run = run


PACKED = chained(encode_batch([b"a" * 100], base_timestamp_ms=1, codec=Codec.GZIP))


async def test_a_mirror_that_is_promoted_during_the_checks_takes_no_copy(mirror: Partition) -> None:
    """What is decided before a wait is decided again after it: here the setting, and who leads."""
    with inflating(mirror, lambda: mirror.update_config(TopicConfig())):
        result = await append(mirror, PACKED)
    assert isinstance(result.error, InvalidRequestError)
    mirror.update_config(MIRROR)
    with inflating(mirror, lambda: mirror.handle(SessionLost())):
        result = await append(mirror, PACKED)
    assert isinstance(result.error, FencedBrokerError)
    assert result.error.outcome is Outcome.NOT_APPLIED
    assert mirror.open_log.log_end_offset == 0


async def test_compressed_copies_are_inflated_whatever_the_topic_allows(mirror: Partition) -> None:
    """H145: a batch that no reader can decode is refused, of a codec that producers may not use, too."""
    mirror.update_config(replace(MIRROR, allowed_codecs="none"))
    data = bytearray(PACKED[0])
    data[-20] ^= 255
    data[32:36] = crc32c(data[CRC_START:]).to_bytes(4, "little")
    result = await append(mirror, chained(bytes(data)))
    assert isinstance(result.error, CorruptBatchError)
    assert (await append(mirror, PACKED)).error is None
    assert mirror.open_log.log_end_offset == 1


async def test_producers_wait_for_a_copy_and_not_in_it(mirror: Partition) -> None:
    """A promotion during a copy: the producer's batch, which the setting allows then, comes behind all of the copy."""
    gate = Gate(mirror.open_log, "append_copies")
    copying = append(mirror, COPIES[:3])
    await gate.reached()
    mirror.update_config(TopicConfig())
    assert mirror.appender.append_now([batch(b"mine")], -1, committed=True) is None
    producing = asyncio.ensure_future(mirror.appender.append([batch(b"mine")], -1, committed=True))
    refused = append(mirror, COPIES[3:])
    gate.opened.set()
    assert (await copying).base_offsets == [0, 2, 4]
    assert (await producing).base_offsets == [6]
    assert isinstance((await refused).error, InvalidRequestError)


async def test_a_retry_across_the_promotion_is_a_duplicate(mirror: Partition) -> None:
    """H48: the source's producer does not know whether its batch arrived, and sends it to the promoted mirror."""
    await append(mirror, COPIES[:3])
    mirror.update_config(TopicConfig())
    for number in range(3):
        again = mirror.appender.append_now(
            [batch(b"%d" % number, b"x", producer=(7, 0, 2 * number))], -1, committed=True
        )
        assert again is not None
        assert (again.error, again.repeated, again.base_offsets) == (None, True, [2 * number])
    new = mirror.appender.append_now([batch(b"3", b"x", producer=(7, 0, 6))], -1, committed=True)
    assert new is not None
    assert (new.error, new.repeated, new.base_offsets) == (None, False, [6])
    mirror.replica.validate_state()


async def test_a_gap_that_no_segment_has_is_appended_in_parts(mirror: Partition) -> None:
    """Of the parts that were appended the core knows, also if there is no room for the next one."""
    parts = list(gap(LogPoint(0, 0), LogPoint(3 * MAX_COMPACTED_OFFSETS, 5), 1))
    log, end = mirror.open_log, MAX_COMPACTED_OFFSETS
    real, calls = log.append_copies, []

    def write(*arguments: Any, **fields: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise StorageFullError("full")
        return real(*arguments, **fields)

    log.append_copies = write  # type: ignore[method-assign]
    result = await append(mirror, parts)
    assert isinstance(result.error, StorageFullError)
    assert (result.base_offsets, result.log_end_offset) == ([0], end)
    assert mirror.replica.log_end_offset == log.log_end_offset == end
    result = await append(mirror, parts[1:])
    assert (result.error, result.base_offsets, result.log_end_offset) == (None, [end, 2 * end], 3 * end)
    assert mirror.replica.log_end_offset == 3 * end
    mirror.replica.validate_state()


async def test_removed_deletions_are_noted_before_the_copies(mirror: Partition) -> None:
    """H151: the copy continues after a crash, and followers of the mirror know what it may lack; or it ends."""
    log = mirror.open_log
    gate = Gate(log, "append_copies")
    appending = append(mirror, COPIES[:2], deletions_end=9)
    await gate.reached()
    assert (log.deletions_end, log.log_end_offset) == (9, 0)
    gate.opened.set()
    assert (await appending).error is None
    assert (await append(mirror, COPIES[2:3], deletions_end=9)).error is None
    result = await append(mirror, COPIES[3:4], deletions_end=10)
    assert isinstance(result.error, DivergedLogError)
    assert (result.log_end_offset, log.deletions_end) == (6, 9)


class Broker:
    """A handler of Produce over one partition of topic `t`."""

    def __init__(self, partition: Partition, tasks: asyncio.TaskGroup) -> None:
        self._partition = partition
        self.view = self
        context = partition.context
        self._handler = ProduceHandler(cast(Any, self), MemoryBudget(1 << 30, context.metrics), context, tasks)

    def resolve(self, reference: topics_pb2.TopicRef) -> Any:
        return SimpleNamespace(name="t", topic_id=self._partition.topic_id, config=self._partition.config)

    def find_in(self, topic: Any, number: int) -> Partition:
        return self._partition

    def with_leader_address(self, error: HeadraceError) -> HeadraceError:
        return error

    async def produce(
        self, batches: list[bytes], acks: int = broker_pb2.ACKS_LEADER, *, as_copies: bool = True, **fields: Any
    ) -> broker_pb2.PartitionProduceResult:
        request = broker_pb2.ProduceRequest(acks=cast(Any, acks), timeout_ms=20_000, as_copies=as_copies)
        request.topics.add(topic=topics_pb2.TopicRef(name="t")).partitions.add(partition=0, **fields)
        response = await self._handler.produce(SplicedMessage(request, [cast(Any, batches)]), "c")
        return response.topics[0].partitions[0]


@pytest.fixture
def broker(mirror: Opened) -> AbstractAsyncContextManager[Broker]:
    @asynccontextmanager
    async def opened() -> Any:
        async with mirror as partition, asyncio.TaskGroup() as tasks:
            yield Broker(partition, tasks)

    return opened()


async def test_a_response_has_the_log_end(broker: Broker) -> None:
    """With copies, without any, and with an error."""
    first = await broker.produce(COPIES[:2])
    asked = await broker.produce([])
    again = await broker.produce(COPIES[:2])
    assert [(each.log_end_offset, each.log_end_crc) for each in (first, asked, again)] == [(4, CRCS[1])] * 3
    assert list(first.base_offsets) == [0, 2]
    assert not asked.HasField("error")
    assert again.error.code == errors_pb2.ERROR_CODE_OFFSET_OUT_OF_RANGE


async def test_acks_all_waits_for_the_commit(broker: Broker) -> None:
    """Of the copies; of a copy that was there before, too, whose append may have an unknown outcome."""
    partition = broker._partition
    gate = Gate(partition.open_log, "flush")
    assert list((await broker.produce(COPIES[:1])).base_offsets) == [0]
    waiting = [
        asyncio.ensure_future(broker.produce(batches, broker_pb2.ACKS_ALL)) for batches in (COPIES[1:2], COPIES[:1])
    ]
    await gate.reached()
    await broker.produce([])
    assert not any(each.done() for each in waiting)
    assert partition.replica.high_watermark == 0
    gate.opened.set()
    copied, again = await asyncio.gather(*waiting)
    assert list(copied.base_offsets) == [2]
    assert again.error.code == errors_pb2.ERROR_CODE_OFFSET_OUT_OF_RANGE
    assert partition.replica.high_watermark == 4


async def test_the_simple_form_has_no_copies(broker: Broker) -> None:
    """Records have no offsets."""
    result = await broker.produce([], records=[topics_pb2.Record(value=b"x")])
    assert "copies are batches" in from_detail(result.error).message


async def test_a_copier_may_alter_the_topic(broker: Broker) -> None:
    """The right to write alone would let a producer choose offsets and times; with both a copy is taken."""
    known = Known()
    key = known.user("ada")
    known.grant("ada", "writer", "topic:t")
    set_access(known.access(key))
    refused = await broker.produce(COPIES[:1])
    assert refused.error.code == errors_pb2.ERROR_CODE_NOT_AUTHORIZED
    assert "no grant of alter for topic t" in refused.error.message
    assert not refused.log_end_crc
    known.grant("ada", "owner", "topic:t")
    set_access(known.access(key))
    assert list((await broker.produce(COPIES[:1])).base_offsets) == [0]


async def test_without_the_flag_nothing_of_it_is_answered(broker: Broker) -> None:
    """A producer's response is as before."""
    broker._partition.update_config(TopicConfig())
    result = await broker.produce([batch(b"x")], as_copies=False)
    assert (list(result.base_offsets), result.log_end_offset, result.log_end_crc) == ([0], 0, 0)
