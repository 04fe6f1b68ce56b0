"""Background work on a real log: the scrubber, and work that a cancelled caller must not break off."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from headrace.client.mirror.copying import end_tasks
from headrace.log import CorruptLogError
from headrace.log.checkpoint import CheckpointFile
from headrace.log.errors import StorageBusyError
from headrace.log.os_filesystem import OsFileSystem
from headrace.partition.producer_recovery import SNAPSHOT_BYTES, SNAPSHOT_MS, SnapshotClock, rebuild_producers
from headrace.partition.producers import Duplicate, ProducerWindows
from headrace.wire.errors import (
    HeadraceError,
    NotEnoughReplicasError,
    Outcome,
    OutOfOrderSequenceError,
    StorageFullError,
    StorageOfflineError,
    TimedOutError,
)
from headrace.wire.ids import Offset
from headrace_broker.core.messages import FollowerFetched, StateSeen
from headrace_broker.core.replica_fetch import FetchAnswer
from headrace_broker.core.roles import Role
from headrace_broker.runtime import log_start, maintenance, producer_state
from headrace_broker.runtime.maintenance import (
    CHECKPOINTS_A_ROUND,
    _believed_ms,
    _maintain_partition,
    _retain_partition,
    _scrub_partition,
    check_space,
    checkpoint_in_turn,
    note_idle,
    scrub,
)
from headrace_broker.runtime.partition import Partition
from headrace_broker.runtime.partition_context import Checkpointed
from headrace_server.clock_watch import OPERATOR, ClockWatch
from headrace_server.partition_state import PartitionState, Replica

from tests.fakes.manual_clock import ManualClock
from tests.unit.broker.test_broker_runtime import TOPIC_ID, Gate, batch, committed, rot, show_two_in_sync


@pytest.mark.parametrize(("others", "role"), [(True, Role.OFFLINE), (False, Role.LEADING)])
async def test_the_scrubber_finds_rot(partition: Partition, tmp_path: Path, others: bool, role: Role) -> None:
    """H33: a flipped bit in what was flushed; the replica gives way where another one has the records."""
    assert partition.appender.append_now([batch(b"a"), batch(b"b")], -1, committed=True) is not None
    await committed(partition, 2)
    if others:
        show_two_in_sync(partition)
    rot(tmp_path)
    settings = dataclasses.replace(partition.context.settings, scrub_interval_ms=1)
    context = dataclasses.replace(partition.context, settings=settings)
    task = asyncio.create_task(scrub(SimpleNamespace(partitions=[partition]), context))  # type: ignore[arg-type]
    found = context.metrics.corruptions_detected
    async with asyncio.timeout(20):
        while partition.replica.role is Role.LEADING and not found._value.get():  # noqa: ASYNC110 - a counter
            await asyncio.sleep(0)
    task.cancel()
    assert partition.replica.role is role


async def test_a_partition_that_falls_idle_has_its_high_watermark_on_the_disk(
    partition: Partition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I18: what a crash leaves is what was committed, not what was committed at the last interval's end."""

    def stored() -> int:
        found = CheckpointFile(OsFileSystem(), str(tmp_path / f"{TOPIC_ID.hex()}-0")).read()
        assert found is not None
        return found.high_watermark

    context = partition.context
    assert partition.appender.append_now([batch(b"a")], -1, committed=True) is not None
    await committed(partition, 1)
    await partition.checkpoint()
    assert stored() == 1
    busy = await note_idle({}, context)
    assert list(busy) == [partition]
    assert partition.appender.append_now([batch(b"b")], -1, committed=True) is not None
    await committed(partition, 2)
    busy = await note_idle(busy, context)
    assert stored() == 1, "records come: the interval's checkpoint is enough"
    with monkeypatch.context() as patched:
        patched.setattr(OsFileSystem, "fsync", lambda *_: pytest.fail("a thousand partitions may fall idle at once"))
        assert await note_idle(busy, context) == {}
    assert stored() == 2


class Counted:
    """A partition whose checkpoint is always due, and whose high watermark can be refused by the disk."""

    def __init__(self, error: HeadraceError | None = None) -> None:
        self.checkpoints = self.notes = 0
        self.error = error
        self.failures: list[Exception] = []
        self.has_stale_checkpoint = True

    async def checkpoint(self) -> bool:
        """Count it."""
        self.checkpoints += 1
        return True

    def note_high_watermark(self) -> None:
        """Count it."""
        self.notes += 1
        if self.error is not None:
            raise self.error

    def fail_unless_refused(self, error: Exception) -> bool:
        """Keep it."""
        self.failures.append(error)
        return False


async def test_a_partition_whose_note_is_refused_does_not_end_those_of_others(partition: Partition) -> None:
    """Its error is its own."""
    refused = StorageFullError("no room")
    idle = [Counted(), Counted(refused), Counted()]
    assert await note_idle(dict.fromkeys(idle), partition.context) == {}
    assert [each.notes for each in idle] == [1, 1, 1]
    assert [each.failures for each in idle] == [[], [refused], []]


async def test_an_unexpected_error_of_a_note_takes_only_its_partition_offline(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are noted, and the broker keeps running."""
    others = [Counted(), Counted()]
    monkeypatch.setattr(partition, "note_high_watermark", lambda: 1 // 0)
    idle: dict[Checkpointed, None] = {others[0]: None, partition: None, others[1]: None}
    assert await note_idle(idle, partition.context) == {}
    assert [each.notes for each in others] == [1, 1]
    assert partition.replica.role is Role.OFFLINE


async def test_a_partition_that_is_written_again_is_not_noted(partition: Partition) -> None:
    """It is not idle: its checkpoint is that of the interval."""
    context, written = partition.context, Counted()
    context.advanced[written] = None
    assert list(await note_idle({written: None}, context)) == [written]
    assert written.notes == 0


async def test_a_volume_that_does_not_answer_ends_no_maintenance(partition: Partition) -> None:
    """Neither a refusal nor a failure of statvfs says anything about the free space: what was known stays."""
    usage = SimpleNamespace(free_bytes=1, total_bytes=10, refusing=True)
    answers = [StorageBusyError("EMFILE"), usage, StorageOfflineError("EIO")]

    def look() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, HeadraceError):
            raise answer
        return answer

    directory: Any = SimpleNamespace(check_space=look)
    seen = []
    for _ in range(3):
        await check_space(directory, partition.context)
        seen.append(partition.context.metrics.disk_space.usage)
    assert seen == [None, usage, usage]


async def test_checkpoints_of_many_partitions_take_turns() -> None:
    """No round writes more than its share, and none is left out."""
    partitions = [Counted() for _ in range(CHECKPOINTS_A_ROUND + 2)]
    following = await checkpoint_in_turn(partitions, 0)
    assert [each.checkpoints for each in partitions] == [1] * CHECKPOINTS_A_ROUND + [0, 0]
    await checkpoint_in_turn(partitions, following)
    assert [each.checkpoints for each in partitions[:-2]] == [2] * (CHECKPOINTS_A_ROUND - 2) + [1, 1]
    assert [each.checkpoints for each in partitions[-2:]] == [1, 1]
    assert await checkpoint_in_turn(partitions[:3], 2) == 0
    partitions[0].has_stale_checkpoint = False
    await checkpoint_in_turn(partitions[:2], 0)
    assert [each.checkpoints for each in partitions[:2]] == [3, 4]


async def test_a_cancelled_append_ends_before_the_next_begins(partition: Partition) -> None:
    """The client goes away while its batch is being written in a thread: core and log agree afterwards."""
    gate = Gate(partition.open_log, "append")
    first = asyncio.create_task(partition.appender.append([batch(b"a")], -1, committed=True))
    await gate.reached()
    first.cancel()
    second = asyncio.create_task(partition.appender.append([batch(b"b")], -1, committed=True))
    await asyncio.sleep(0)
    assert partition.log_lock.locked()
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    result = await second
    assert result.base_offsets == [1]
    assert partition.replica.log_end_offset == partition.open_log.log_end_offset == 2


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


async def test_producers_are_not_taken_from_a_rotten_header(partition: Partition, tmp_path: Path) -> None:
    """H33, H48, seed 422081: a flipped bit in a producer's id would have one refused, or a record taken twice."""
    assert partition.appender.append_now([batch(b"a", producer=(7, 0, 0))], -1, committed=True) is not None
    with pytest.raises(OutOfOrderSequenceError):
        _rebuilt(partition).check(7, 0, 5, 1)
    _rot_first_producer(tmp_path)
    with pytest.raises(CorruptLogError):
        _rebuilt(partition)


async def test_producers_are_taken_from_the_batch_that_holds_the_log_start(partition: Partition) -> None:
    """H48, H49: records of it are still there, so that the batch is a duplicate if its producer sends it again."""
    values = [b"%d" % number for number in range(10)]
    assert partition.appender.append_now([batch(*values, producer=(7, 0, 0))], -1, committed=True) is not None
    await committed(partition, 10)
    assert partition.open_log.retention.delete_records(5, 10) == 5
    assert _rebuilt(partition).check(7, 0, 0, 10) == Duplicate(Offset(0), Offset(10))


async def test_producers_are_kept_when_a_start_would_have_much_to_read(partition: Partition, tmp_path: Path) -> None:
    """Once a minute where something was appended; a start then reads only what is behind it."""
    clock = partition.context.clock
    assert isinstance(clock, ManualClock)
    assert partition.appender.append_now([batch(b"a", producer=(7, 0, 0))], -1, committed=True) is not None
    assert not await partition.producers.snapshot_if_due()
    clock.advance(SNAPSHOT_MS)
    assert await partition.producers.snapshot_if_due()
    assert partition.open_log.snapshots.load() == (1, partition.replica.producers.snapshot())
    clock.advance(SNAPSHOT_MS)
    assert not await partition.producers.snapshot_if_due()
    assert partition.appender.append_now([batch(b"b", producer=(8, 0, 0))], -1, committed=True) is not None
    _rot_first_producer(tmp_path)
    assert len(_rebuilt(partition)) == 2
    await committed(partition, 2)


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
    written = SimpleNamespace(log_end_offset=end_offset, size_bytes=size_bytes)
    assert SnapshotClock(0, 0, 0).is_due(written, now_ms) is due  # type: ignore[arg-type]


async def test_what_the_disk_has_is_not_kept_again(partition: Partition) -> None:
    """After a start in order no partition writes a snapshot until something is appended."""
    clock = partition.context.clock
    assert isinstance(clock, ManualClock)
    assert partition.appender.append_now([batch(b"a", producer=(7, 0, 0))], -1, committed=True) is not None
    partition.open_log.snapshots.store(1, partition.replica.producers.snapshot())
    partition.producers.note_snapshot(rebuild_producers(_rebuilt(partition), partition.open_log))
    clock.advance(SNAPSHOT_MS)
    assert not await partition.producers.snapshot_if_due()
    assert partition.appender.append_now([batch(b"b", producer=(8, 0, 0))], -1, committed=True) is not None
    assert await partition.producers.snapshot_if_due()
    await committed(partition, 2)


async def test_corruption_in_the_batch_that_holds_the_log_start_is_found(partition: Partition, tmp_path: Path) -> None:
    """H33, seed 441568: a new replica copies that batch whole, from before the log start, and says what is wrong."""
    assert partition.appender.append_now([batch(b"a", b"b"), batch(b"c")], -1, committed=True) is not None
    await committed(partition, 3)
    assert await partition.log_start.delete_records(1, 20) == 1
    me, other = Replica(1, 5), Replica(2, 6)
    partition.handle(StateSeen(PartitionState((1, 2), me, 0, (me, other), partition_epoch=1), 10))
    _rot_first_producer(tmp_path)
    partition.corruption.verify(0)
    assert partition.corruption.task is not None
    await partition.corruption.task
    assert partition.replica.role is Role.OFFLINE


async def test_records_that_a_follower_may_still_have_are_not_said_to_be_deleted(partition: Partition) -> None:
    """I18, H52: an in-sync replica that does not fetch: nothing is deleted here, and when the time is up, unknown."""
    assert partition.appender.append_now([batch(b"a", b"b"), batch(b"c")], -1, committed=True) is not None
    await committed(partition, 3)
    me, other = Replica(1, 5), Replica(2, 6)
    partition.handle(StateSeen(PartitionState((1, 2), me, 0, (me, other), partition_epoch=1), 10))
    with pytest.raises(TimedOutError) as caught:
        await partition.log_start.delete_records(2, 0)
    assert caught.value.outcome is Outcome.UNKNOWN
    assert partition.open_log.log_start_offset == 0
    partition.handle(FollowerFetched(other, Offset(3), Offset(3), 0, True, 2))
    assert await partition.log_start.delete_records(2, 20) == 2
    few = PartitionState((1, 2), me, 0, (me,), min_insync_replicas=2, partition_epoch=2)
    partition.handle(StateSeen(few, 11))
    with pytest.raises(NotEnoughReplicasError):
        await partition.log_start.delete_records(3, 20)


async def test_only_a_leader_decides_what_retention_takes(partition: Partition) -> None:
    """I18: a follower whose clock is ahead would begin behind its leader, and lead with a log start of its own."""
    for value in (b"a", b"b"):
        assert partition.appender.append_now([batch(value)], -1, committed=True) is not None
        await committed(partition, partition.replica.log_end_offset)
        partition.open_log._writer.roll()
    partition.config = dataclasses.replace(partition.config, retention_ms=1)
    await partition.update_log_settings()
    clock = partition.context.clock
    assert isinstance(clock, ManualClock)
    clock.advance(1_000)
    _follow(partition)
    assert await _retain_partition(partition, clock.now_ms()) is None
    assert partition.open_log.log_start_offset == 0


async def test_a_refused_flush_is_tried_again_until_there_is_room(partition: Partition) -> None:
    """H35: an fsync that finds no room keeps its waiters waiting; with room back they are answered, and it leads on."""
    disk = partition.open_log._files.filesystem
    real_fsync, refusals = disk.fsync, [errno.ENOSPC, errno.ENOMEM]

    def fsync(descriptor: int) -> None:
        if refusals:
            raise OSError(refusals.pop(0), "refused")
        real_fsync(descriptor)

    disk.fsync = fsync  # type: ignore[method-assign]
    assert partition.appender.append_now([batch(b"a")], -1, committed=True) is not None
    await committed(partition, 1)
    assert not refusals
    assert partition.context.metrics.storage_refusals._value.get() == 2
    assert partition.replica.role is Role.LEADING


async def test_a_refused_start_of_an_epoch_is_tried_again(partition: Partition) -> None:
    """H35: a leader that cannot write its epoch leads as soon as it can, and not only in the next epoch."""
    partition.context.metrics.leaderships_started._value.set(0)
    disk = partition.open_log._files.filesystem
    real_open, refusals = disk.open, [errno.EMFILE, errno.ENOSPC]

    def open_(path: str, *, create: bool = False) -> int:
        if refusals and path.endswith(".tmp"):
            raise OSError(refusals.pop(0), "refused", path)
        return real_open(path, create=create)

    disk.open = open_  # type: ignore[method-assign]
    me = Replica(1, 5)
    partition.handle(StateSeen(PartitionState((1,), me, 1, (me,), partition_epoch=1), 10))
    async with asyncio.timeout(20):
        while partition.replica.role is not Role.LEADING:
            await asyncio.gather(*partition._host.tasks)  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
    assert len(refusals) <= 1
    assert partition.replica.leader_epoch == 1


@pytest.mark.parametrize(("takes_ms", "order"), [(0, "abaaa"), (1_000, "abab")])
async def test_a_log_that_is_due_again_is_compacted_at_once(
    monkeypatch: pytest.MonkeyPatch, takes_ms: int, order: str
) -> None:
    """Not an interval later; and others are not kept waiting for longer than that."""
    found, done, clock = list[str](), asyncio.Event(), ManualClock()
    logs: dict[str, Any] = {name: SimpleNamespace(config=SimpleNamespace(compacts=True), name=name) for name in "ab"}

    async def compact_one(each: Any, _: int | None) -> bool:
        found.append(each.name)
        clock.advance(takes_ms)
        if len(found) == len(order):
            done.set()
        return each.name == "a" and len(found) < 5

    monkeypatch.setattr(maintenance, "compact_partition", compact_one)
    context: Any = SimpleNamespace(
        clock=clock,
        settings=SimpleNamespace(compaction_interval_ms=10),
        clock_doubt=lambda: "",
        now_ms=lambda: 0,
    )
    manager: Any = SimpleNamespace(partitions=list(logs.values()))
    task = asyncio.create_task(maintenance.compact(manager, context))
    await done.wait()
    await end_tasks([task])
    assert "".join(found[: len(order)]) == order


async def test_a_clock_in_doubt_deletes_and_forgets_nothing(partition: Partition) -> None:
    """H43: the jump is doubted in every round, by retention, by the roll by age and by the expiry of producers."""
    clock = partition.context.clock
    assert isinstance(clock, ManualClock)
    watch = ClockWatch(clock)
    context = dataclasses.replace(partition.context, clock_doubt=watch.doubt)
    for number in range(3):
        partition.appender.append_now([batch(b"a", producer=(7, 0, number))], -1, committed=True)
        await committed(partition, partition.replica.log_end_offset)
        partition.open_log._writer.roll()
    partition.appender.append_now([batch(b"a", producer=(7, 0, 3))], -1, committed=True)
    await committed(partition, 4)
    segments = partition.open_log.segment_count
    clock.set_wall(30 * 86_400_000)
    for _ in range(3):
        now_ms = _believed_ms(context)
        assert now_ms is None
        assert await _retain_partition(partition, now_ms) == 0
        _maintain_partition(partition, now_ms)
        clock.advance(300_000)
    assert partition.open_log.segment_count == segments
    again = partition.appender.append_now([batch(b"a", producer=(7, 0, 3))], -1, committed=True)
    assert again is not None
    assert again.base_offsets == [3]
    watch.note(OPERATOR, clock.now_ms(), doubtful=False)
    now_ms = _believed_ms(context)
    assert now_ms == clock.now_ms()
    assert await _retain_partition(partition, now_ms) > 0


async def test_a_full_follower_takes_up_the_log_start(partition: Partition) -> None:
    """H35, I18: it has no room for what the leader sends, and deletes all the same: nothing else would make room."""
    assert partition.appender.append_now([batch(b"a", b"b"), batch(b"c")], -1, committed=True) is not None
    await committed(partition, 3)
    _follow(partition)

    def refuse(_: object) -> None:
        raise StorageFullError("no room", outcome=Outcome.NOT_APPLIED)

    partition.open_log.append_replicated = refuse  # type: ignore[assignment,method-assign]
    begun = partition.follower.begin_fetch(3)
    assert begun is not None
    answer = FetchAnswer(begun[0], 1, batches=b"#", high_watermark=9, log_start_offset=2)
    with pytest.raises(StorageFullError):
        await partition.follower.take_answer(answer)
    assert partition.open_log.log_start_offset == 2


async def test_a_log_start_that_is_refused_is_tried_again(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H35: the checkpoint found no room; the log stays in service, and begins there once there is some."""
    monkeypatch.setattr(log_start, "RETRY_AFTER_MS", 0)
    assert partition.appender.append_now([batch(b"a", b"b"), batch(b"c")], -1, committed=True) is not None
    await committed(partition, 3)
    real_delete, refusals = partition.open_log.retention.delete_records, iter([1, 2])

    def delete(before: int, high_watermark: int) -> Offset:
        if next(refusals, None) is not None:
            raise StorageFullError("no room", outcome=Outcome.NOT_APPLIED)
        return real_delete(before, high_watermark)

    partition.open_log.retention.delete_records = delete  # type: ignore[method-assign]
    assert await partition.log_start.delete_records(2, 20) == 2
    assert partition.replica.role is Role.LEADING


@pytest.mark.parametrize("writes", ["stops", "is due"])
async def test_producers_that_a_refused_cut_left_are_not_kept(
    partition: Partition, monkeypatch: pytest.MonkeyPatch, writes: str
) -> None:
    """H35: a snapshot that knows a batch which was cut would have its retry answered as stored, after a start."""
    for sequence in (0, 1):
        assert partition.appender.append_now([batch(b"a", producer=(7, 0, sequence))], -1, committed=True) is not None
    await committed(partition, 2)
    _follow(partition)

    def refuse(*_: object) -> int:
        raise StorageBusyError("no descriptor", outcome=Outcome.NOT_APPLIED)

    monkeypatch.setattr(producer_state, "rebuild_producers", refuse)
    with pytest.raises(StorageBusyError):
        await partition.follower._truncate_log(1)
    assert partition.replica.log_end_offset == partition.open_log.log_end_offset == 1
    partition.producers._last_snapshot = SnapshotClock(0, 10 * SNAPSHOT_BYTES, 0)
    await (partition.prepare_close() if writes == "stops" else partition.producers.snapshot_if_due())
    assert partition.open_log.snapshots.load() is None

    monkeypatch.setattr(producer_state, "rebuild_producers", rebuild_producers)
    await partition.producers.rebuild()
    await partition.prepare_close()
    assert partition.open_log.snapshots.load() is not None


def _follow(partition: Partition) -> None:
    """Let another broker lead, which is fetched from by the test."""
    partition._host.follow = lambda *_: None  # type: ignore[method-assign]
    me, other = Replica(1, 5), Replica(2, 6)
    partition.handle(StateSeen(PartitionState((1, 2), other, 1, (me, other), partition_epoch=1), 10))


@pytest.mark.parametrize("disturb_at", [1, 3, 6])
@pytest.mark.parametrize("what", ["retention", "truncation", "no descriptor"])
async def test_the_scrubber_finds_no_corruption_during_faults(
    partition: Partition, monkeypatch: pytest.MonkeyPatch, what: str, disturb_at: int
) -> None:
    """H33, I18: what is removed, cut or refused between two of its reads, or within one, is neither rot nor the end."""
    partition_log = partition.open_log
    for value in range(8):
        for _ in range(3):
            partition.appender.append_now([batch(b"%d" % value * 100)], -1, committed=True)
            await committed(partition, partition.replica.log_end_offset)
        partition_log._writer.roll()
    monkeypatch.setattr("headrace_broker.runtime.maintenance.SCRUB_BYTES", 300)
    reads = 0
    disk = partition_log._files.filesystem
    real_pread = disk.pread

    def pread(descriptor: int, size_bytes: int, position: int) -> bytes:
        nonlocal reads
        reads += 1
        if reads == 3 * disturb_at:
            match what:
                case "retention":
                    partition_log.retention.delete_records(3 * disturb_at, 24)
                case "truncation":
                    partition_log.truncate_to(2 * disturb_at)
                case "no descriptor":
                    raise OSError(errno.EMFILE, "refused")
        return real_pread(descriptor, size_bytes, position)

    disk.pread = pread  # type: ignore[method-assign]
    await _scrub_partition(partition)
    assert reads > 3 * disturb_at
    assert partition.replica.role is Role.LEADING
    assert not partition_log.offline
    assert partition.context.metrics.corruptions_detected._value.get() == 0
    assert partition_log.reader.verify() == partition_log.log_end_offset
