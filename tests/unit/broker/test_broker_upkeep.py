"""Background work on a real log: the scrubber, and work that a cancelled caller must not break off."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from headrace.wire.errors import OutOfOrderSequenceError
from headrace.wire.ids import Offset
from headrace_broker.core.messages import StateSeen
from headrace_broker.core.producers import ProducerWindows
from headrace_broker.core.replica import Role
from headrace_broker.runtime.partition import Partition
from headrace_broker.runtime.producer_state import SNAPSHOT_BYTES, SNAPSHOT_MS, SnapshotClock, rebuild_producers
from headrace_broker.runtime.upkeep import scrub
from headrace_broker.storage import LogDamagedError
from headrace_server.clock import ManualClock
from headrace_server.partition_state import PartitionState, Replica

from tests.unit.broker.test_broker_runtime import TOPIC_ID, batch, committed, leading_partition


@pytest.mark.parametrize(("others", "role"), [(True, Role.OFFLINE), (False, Role.LEADING)])
def test_the_scrubber_finds_rot(tmp_path: Path, others: bool, role: Role) -> None:
    """H33: a flipped bit in what was flushed; the replica gives way where another one has the records."""

    async def scenario() -> None:
        async with leading_partition(tmp_path) as partition:
            assert partition.append_now([batch(b"a"), batch(b"b")], -1, committed=True) is not None
            await committed(partition, 2)
            if others:
                me, other = Replica(1, 5), Replica(2, 6)
                partition.handle(StateSeen(PartitionState((1, 2), me, 0, (me, other), partition_epoch=1), 10))
            file = tmp_path / f"{TOPIC_ID.hex()}-0" / f"{0:020d}.log"
            content = bytearray(file.read_bytes())
            content[-1] ^= 1
            file.write_bytes(content)
            settings = dataclasses.replace(partition.services.settings, scrub_interval_ms=1)
            services = dataclasses.replace(partition.services, settings=settings)
            task = asyncio.create_task(scrub(SimpleNamespace(partitions=[partition]), services))  # type: ignore[arg-type]
            found = services.metrics.damage_found
            async with asyncio.timeout(20):
                while partition.replica.role is Role.LEADING and not found._value.get():  # noqa: ASYNC110 - a counter
                    await asyncio.sleep(0)
            task.cancel()
            assert partition.replica.role is role

    asyncio.run(scenario())


def test_a_cancelled_append_ends_before_the_next_begins(tmp_path: Path) -> None:
    """The client goes away while its batch is being written in a thread: core and log agree afterwards."""

    async def scenario() -> None:
        async with leading_partition(tmp_path) as partition:
            real_append, writing, go_on = partition.open_log.append, threading.Event(), threading.Event()

            def append(*arguments: object, **fields: object) -> Offset:
                writing.set()
                assert go_on.wait(20)
                return real_append(*arguments, **fields)  # type: ignore[arg-type]

            partition.open_log.append = append  # type: ignore[assignment,method-assign]
            first = asyncio.create_task(partition.append([batch(b"a")], -1, committed=True))
            await asyncio.to_thread(writing.wait, 20)
            first.cancel()
            second = asyncio.create_task(partition.append([batch(b"b")], -1, committed=True))
            await asyncio.sleep(0)
            assert partition.log_lock.locked()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await first
            result = await second
            assert result.base_offsets == [1]
            assert partition.replica.log_end_offset == partition.open_log.log_end_offset == 2

    asyncio.run(scenario())


PRODUCER_ID_POSITION = 64
"""In the header of a batch."""


def _rebuilt(partition: Partition) -> ProducerWindows:
    producers = ProducerWindows(max_producers=10, expiry_ms=1_000_000)
    rebuild_producers(producers, partition.open_log)
    return producers


def _rot_first_producer(path: Path) -> None:
    with (path / f"{TOPIC_ID.hex()}-0" / f"{0:020d}.log").open("r+b") as file:
        file.seek(PRODUCER_ID_POSITION)
        file.write(bytes([6]))


def test_producers_are_not_taken_from_a_rotten_header(tmp_path: Path) -> None:
    """H33, H48, seed 422081: a flipped bit in a producer's id would have one refused, or a record taken twice."""

    async def scenario() -> None:
        async with leading_partition(tmp_path) as partition:
            assert partition.append_now([batch(b"a", producer=(7, 0, 0))], -1, committed=True) is not None
            with pytest.raises(OutOfOrderSequenceError):
                _rebuilt(partition).check(7, 0, 5, 1)
            _rot_first_producer(tmp_path)
            with pytest.raises(LogDamagedError):
                _rebuilt(partition)

    asyncio.run(scenario())


def test_producers_are_kept_when_a_start_would_have_much_to_read(tmp_path: Path) -> None:
    """Once a minute where something was appended; a start then reads only what is behind it."""

    async def scenario() -> None:
        async with leading_partition(tmp_path) as partition:
            clock = partition.services.clock
            assert isinstance(clock, ManualClock)
            assert partition.append_now([batch(b"a", producer=(7, 0, 0))], -1, committed=True) is not None
            assert not await partition.keep_producers_if_due()
            clock.advance(SNAPSHOT_MS)
            assert await partition.keep_producers_if_due()
            assert partition.open_log.load_producer_snapshot() == (1, partition.replica.producers.snapshot())
            clock.advance(SNAPSHOT_MS)
            assert not await partition.keep_producers_if_due()
            assert partition.append_now([batch(b"b", producer=(8, 0, 0))], -1, committed=True) is not None
            _rot_first_producer(tmp_path)
            assert len(_rebuilt(partition)) == 2
            await committed(partition, 2)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("end_offset", "size_bytes", "now_ms", "due"),
    [
        (0, 0, SNAPSHOT_MS, False),
        (1, SNAPSHOT_BYTES - 1, SNAPSHOT_MS - 1, False),
        (1, SNAPSHOT_BYTES, 0, True),
        (1, 1, SNAPSHOT_MS, True),
    ],
)
def test_a_snapshot_is_due(end_offset: int, size_bytes: int, now_ms: int, *, due: bool) -> None:
    """By bytes or by time, and never where nothing was appended."""
    assert SnapshotClock(0, 0, 0).is_due(end_offset, size_bytes, now_ms) is due


def test_what_the_disk_has_is_not_kept_again(tmp_path: Path) -> None:
    """After a start in order no partition writes a snapshot until something is appended."""

    async def scenario() -> None:
        async with leading_partition(tmp_path) as partition:
            clock = partition.services.clock
            assert isinstance(clock, ManualClock)
            assert partition.append_now([batch(b"a", producer=(7, 0, 0))], -1, committed=True) is not None
            partition.open_log.store_producer_snapshot(1, partition.replica.producers.snapshot())
            partition.note_kept(rebuild_producers(_rebuilt(partition), partition.open_log))
            clock.advance(SNAPSHOT_MS)
            assert not await partition.keep_producers_if_due()
            assert partition.append_now([batch(b"b", producer=(8, 0, 0))], -1, committed=True) is not None
            assert await partition.keep_producers_if_due()
            await committed(partition, 2)

    asyncio.run(scenario())


def test_damage_in_the_batch_that_holds_the_log_start_is_found(tmp_path: Path) -> None:
    """H33, seed 441568: a new replica copies that batch whole, from before the log start, and says what is wrong."""

    async def scenario() -> None:
        async with leading_partition(tmp_path) as partition:
            assert partition.append_now([batch(b"a", b"b"), batch(b"c")], -1, committed=True) is not None
            await committed(partition, 3)
            assert await partition.delete_records(1) == 1
            me, other = Replica(1, 5), Replica(2, 6)
            partition.handle(StateSeen(PartitionState((1, 2), me, 0, (me, other), partition_epoch=1), 10))
            _rot_first_producer(tmp_path)
            partition.look_for_damage(0)
            assert partition._looking is not None
            await partition._looking
            assert partition.replica.role is Role.OFFLINE

    asyncio.run(scenario())
