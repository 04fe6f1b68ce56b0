"""When a broker deletes a log: the shipped `ReplicaManager` over an etcd in memory and a real data directory (H25,
H26).

The cluster's metadata is written as coordinators write it; what a restored etcd or a stray write leaves is written by
hand. `see` brings the view up to date as a relist does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from headrace.log.directory import DataDirectory, LogId
from headrace.partition.log_settings import log_settings
from headrace.partition.topic_configs import TopicConfig
from headrace.wire.batch import read_header
from headrace.wire.encoding import encode_batch
from headrace.wire.errors import ConflictError, InvalidConfigError
from headrace.wire.ids import BrokerId
from headrace_broker.core.phi_accrual import PhiAccrualFailureDetector
from headrace_broker.metrics import BrokerMetrics
from headrace_broker.runtime.failure_detector import PeerFailureDetector
from headrace_broker.runtime.flusher import Flusher
from headrace_broker.runtime.partition_context import PartitionContext
from headrace_broker.runtime.replica_manager import ReplicaManager
from headrace_broker.runtime.replication import Replication
from headrace_broker.settings import BrokerSettings
from headrace_coordinator.core import topic_writes
from headrace_server.cluster_identity import ClusterIdentity
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import Delete, DeletePrefix, Operation, Put
from headrace_server.metastore.view import PrefixView
from headrace_server.partition_state import PartitionState, Replica, encode
from prometheus_client import CollectorRegistry

from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_metastore import MemoryMetastore

IDENTITY = ClusterIdentity("c", "cluster-id", 1, b"s" * 32)
KEYS = IDENTITY.keyspace
OLD, NEW = bytes([1]) * 16, bytes([2]) * 16
WEEK_MS = 7 * 86_400_000


def is_there(path: Path, topic_id: bytes, number: int = 0) -> bool:
    return (path / LogId(topic_id, number).directory_name).is_dir()


def directories(path: Path, topic_id: bytes) -> list[str]:
    """Directories of a topic's logs, those that are set aside included."""
    return [found.name for found in path.iterdir() if topic_id.hex() in found.name]


class Quiet:
    """The publisher of suspected failures."""

    async def announce_suspected(self, broker_ids: object) -> bool:
        return True


class Etcd:
    """The metadata, written as coordinators do."""

    def __init__(self) -> None:
        self.metastore = MemoryMetastore(clock=ManualClock())

    async def write(self, *operations: Operation) -> int:
        return (await self.metastore.txn([], operations)).revision

    async def create(
        self,
        topic_id: bytes,
        name: str,
        *,
        partitions: int = 1,
        replicas: tuple[int, ...] = (1,),
        state: PartitionState | None = None,
    ) -> int:
        topic = metadata_pb2.Topic(name=name, topic_id=topic_id, partitions=partitions, replication_factor=1)
        state = state or PartitionState(replicas, None, 0, (Replica(replicas[0], 1),))
        puts = [Put(KEYS.partition(topic_id, number), encode(state)) for number in range(partitions)]
        value = topic.SerializeToString()
        return await self.write(Put(KEYS.topic(name), value), Put(KEYS.topic_by_id(topic_id), value), *puts)

    async def delete(self, topic_id: bytes, name: str) -> None:
        found = (await self.metastore.get(KEYS.topic(name))).key_value
        assert found is not None
        topic = metadata_pb2.Topic.FromString(found.value)
        write = topic_writes.delete(KEYS, topic, found.mod_revision, 1)
        assert (await self.metastore.txn(write.compares, write.success)).succeeded

    async def lose(self, topic_id: bytes, name: str) -> None:
        """What a backup of before the topic was made leaves, as a relist shows it."""
        await self.write(
            Delete(KEYS.topic(name)), Delete(KEYS.topic_by_id(topic_id)), DeletePrefix(KEYS.partition_prefix(topic_id))
        )


@pytest.fixture
def etcd() -> Etcd:
    return Etcd()


class Broker:
    """Broker 1 from start to stop, without a session: what it holds does not depend on one."""

    def __init__(self, etcd: Etcd, directory: DataDirectory, executor: ThreadPoolExecutor) -> None:
        self.etcd = etcd
        self.directory = directory
        self.clock = ManualClock()
        self.metrics = BrokerMetrics(CollectorRegistry())
        self.source = PrefixView(etcd.metastore, KEYS.prefix, self.clock)
        settings = BrokerSettings(broker_id=1, data_dir=directory.path)
        self.context = PartitionContext(
            BrokerId(1), settings, self.clock, self.metrics, Flusher(self.metrics), executor
        )
        self.replica_manager: ReplicaManager

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        await self.source.load()
        view = ClusterView(IDENTITY, self.source)
        failure_detector = PeerFailureDetector(
            PhiAccrualFailureDetector(threshold=8, promised_ms=100, tick_ms=100), Quiet(), self.metrics
        )
        replication = Replication(view, self.etcd.metastore, self.context, failure_detector, tasks, None, tuple)
        self.replica_manager = ReplicaManager(view, self.etcd.metastore, self.directory, self.context, replication)
        await self.replica_manager.open_existing()

    async def see(self) -> None:
        """Relist, and do what follows."""
        await self.source.load()
        await self.replica_manager.reconcile()

    async def wait(self, ms: int) -> None:
        """Let time go by, and do the rounds of maintenance."""
        self.clock.advance(ms)
        await self.replica_manager.note_metadata()
        await self.replica_manager.deletion.delete_due()

    def write_records(self, topic_id: bytes) -> None:
        partition = self.replica_manager.get((topic_id, 0))
        assert partition is not None
        assert partition.log is not None
        batch = encode_batch([b"one", b"two"], base_timestamp_ms=1)
        partition.log.append([(batch, read_header(batch))], leader_epoch=0, append_timestamp_ms=1)
        partition.log.flush()

    def holds(self, topic_id: bytes, number: int = 0) -> bool:
        """Whether the log's directory is there."""
        return is_there(Path(self.directory.path), topic_id, number)

    def records(self, topic_id: bytes) -> int:
        partition = self.replica_manager.get((topic_id, 0))
        assert partition is not None
        assert partition.log is not None
        return partition.log.log_end_offset

    @property
    def unclaimed(self) -> list[bytes]:
        found = [topic_id for topic_id, _ in self.replica_manager.deletion.unclaimed]
        assert self.metrics.unclaimed_logs._value.get() == len(found)
        return found


@asynccontextmanager
async def started(etcd: Etcd, path: Path) -> AsyncIterator[Broker]:
    """A broker that runs, and stops in order."""
    directory = DataDirectory.open(
        str(path), cluster_id="cluster-id", generation=1, broker_id=1, new_storage_id=bytes(16)
    )
    with ThreadPoolExecutor(2) as executor:
        broker = Broker(etcd, directory, executor)
        try:
            async with asyncio.TaskGroup() as tasks:
                await broker.start(tasks)
                await broker.replica_manager.reconcile()
                yield broker
                await broker.replica_manager.close()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            broker.context.flusher.close()
            directory.close(clean=True, broker_epoch=1)


async def test_a_deleted_topic_is_deleted_after_its_delay(tmp_path: Path, etcd: Etcd) -> None:
    """The key of its deletion is the evidence, seen while the broker runs and when it starts."""
    await etcd.create(OLD, "old")
    await etcd.create(NEW, "new")
    async with started(etcd, tmp_path) as broker:
        await etcd.delete(OLD, "old")
        await broker.see()
        assert broker.replica_manager.get((OLD, 0)) is None
        await broker.wait(59_999)
        assert broker.holds(OLD)
        await broker.wait(1)
        assert not broker.holds(OLD)
        assert broker.unclaimed == []
    await etcd.delete(NEW, "new")
    async with started(etcd, tmp_path) as broker:
        assert broker.holds(NEW)
        await broker.wait(60_000)
        assert not broker.holds(NEW)


async def test_a_topic_that_etcd_lacks_at_the_start_is_kept(tmp_path: Path, etcd: Etcd) -> None:
    """H26: an etcd restored from a backup of before the topic lacks it, too; what comes back is served again."""
    await etcd.create(OLD, "old")
    async with started(etcd, tmp_path) as broker:
        broker.write_records(OLD)
    await etcd.lose(OLD, "old")
    async with started(etcd, tmp_path) as broker:
        assert broker.unclaimed == [OLD]
        await broker.wait(WEEK_MS)
        assert broker.holds(OLD)
        await etcd.create(OLD, "recovered")
        await broker.see()
        assert broker.unclaimed == []
        assert broker.records(OLD) == 2


async def test_a_topic_that_a_running_broker_misses_is_kept(tmp_path: Path, etcd: Etcd) -> None:
    """H26, H81: a relist of a restored etcd, whose revision was raised, has no topic: nothing says it was deleted."""
    await etcd.create(OLD, "old")
    async with started(etcd, tmp_path) as broker:
        broker.write_records(OLD)
        await etcd.lose(OLD, "old")
        await broker.see()
        assert broker.unclaimed == [OLD]
        assert broker.replica_manager.get((OLD, 0)) is None
        await broker.wait(WEEK_MS)
        assert broker.holds(OLD)
        await etcd.create(OLD, "old")
        await broker.see()
        assert broker.records(OLD) == 2


async def test_an_operator_deletes_what_is_unclaimed(tmp_path: Path, etcd: Etcd) -> None:
    """What `headrace topic delete --unclaimed` writes is evidence like any other."""
    await etcd.create(OLD, "old")
    async with started(etcd, tmp_path) as broker:
        await etcd.lose(OLD, "old")
        await broker.see()
        assert broker.unclaimed == [OLD]
        write = topic_writes.delete_unclaimed(KEYS, OLD, 1)
        assert (await etcd.metastore.txn(write.compares, write.success)).succeeded
        await broker.see()
        assert broker.unclaimed == []
        await broker.wait(0)
        assert not broker.holds(OLD)


@pytest.mark.parametrize("restarted", [False, True])
async def test_an_undecodable_topic_keeps_its_logs(tmp_path: Path, restarted: bool, etcd: Etcd) -> None:
    """1b: a value of a later release is left out of the view; its topic is not gone, nor is anything else deleted."""
    await etcd.create(OLD, "old")
    await etcd.create(NEW, "new")
    good = (await etcd.metastore.get(KEYS.topic("old"))).key_value
    assert good is not None

    async def meet(broker: Broker) -> None:
        await etcd.delete(NEW, "new")
        await broker.see()
        assert not broker.replica_manager.deletion._pending
        await broker.wait(WEEK_MS)
        assert broker.holds(OLD)
        assert broker.holds(NEW)
        await etcd.write(Put(KEYS.topic("old"), good.value))
        await broker.see()
        assert broker.records(OLD) == 2
        await broker.wait(WEEK_MS)
        assert not broker.holds(NEW)
        assert broker.holds(OLD)

    async with started(etcd, tmp_path) as broker:
        broker.write_records(OLD)
        await etcd.write(Put(KEYS.topic("old"), b"\xff of a later release"))
        await broker.see()
        assert broker.replica_manager.get((OLD, 0)) is not None  # It serves on with what it has seen.
        if not restarted:
            await meet(broker)
    if restarted:
        async with started(etcd, tmp_path) as broker:
            assert broker.unclaimed == [OLD]
            await meet(broker)


async def test_evidence_is_looked_at_again_when_the_delay_is_over(tmp_path: Path, etcd: Etcd) -> None:
    """Where it is gone by then, as after a restore, or where a value became undecodable, the log stays."""
    await etcd.create(OLD, "old")
    await etcd.create(NEW, "new")
    async with started(etcd, tmp_path) as broker:
        await etcd.delete(OLD, "old")
        await etcd.delete(NEW, "new")
        await broker.see()
        await etcd.write(Delete(KEYS.deleted_topic(OLD)), Put(KEYS.topic("odd"), b"\xff"))
        await broker.see()
        await broker.wait(60_000)
        assert broker.holds(OLD)
        assert broker.holds(NEW)
        await etcd.write(Delete(KEYS.topic("odd")))
        await broker.see()
        await broker.wait(60_000)
        assert broker.holds(OLD)
        assert not broker.holds(NEW)
        assert broker.unclaimed == [OLD]


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_replica_that_was_moved_away_is_deleted(tmp_path: Path, restarted: bool, etcd: Etcd) -> None:
    """H25: the partition's key says so, at a revision after the last one that named this broker."""
    await etcd.create(OLD, "old", replicas=(1, 2))
    moved = Put(KEYS.partition(OLD, 0), encode(PartitionState((2,), None, 0, (Replica(2, 1),), partition_epoch=1)))

    async with started(etcd, tmp_path) as broker:
        if not restarted:
            await etcd.write(moved)
            await broker.see()
            await broker.wait(60_000)
            assert not broker.holds(OLD)
    if restarted:
        await etcd.write(moved)
        async with started(etcd, tmp_path) as broker:
            await broker.wait(60_000)
            assert not broker.holds(OLD)


async def test_a_key_of_before_a_replica_came_does_not_delete_it(tmp_path: Path) -> None:
    """H25, H81: a backup of before a move names the brokers of before; the copy that came since may be the only one."""
    before, after = Etcd(), Etcd()
    for etcd in (before, after):
        await etcd.create(OLD, "old", replicas=(2,))
    state = PartitionState((1,), None, 0, (Replica(1, 1),), partition_epoch=1)
    await after.write(Put(KEYS.partition(OLD, 0), encode(state)))
    async with started(after, tmp_path) as broker:
        broker.write_records(OLD)
    for _ in range(10):  # A restore with --bump-revision.
        await before.write(Put(KEYS.topic_by_id(NEW), b""))
    with pytest.raises(InvalidConfigError, match="seen it at"):
        async with started(before, tmp_path):
            pass
    assert is_there(tmp_path, OLD)


async def test_an_old_key_is_no_evidence(tmp_path: Path, etcd: Etcd) -> None:
    """H25: a key that names others, at a revision at which this broker was still to come, lets nothing be deleted."""
    await etcd.create(OLD, "old", replicas=(2,))
    async with started(etcd, tmp_path) as broker:
        path = LogId(OLD, 0)
        broker.directory.close_log(broker.directory.open_log(OLD, 0, log_settings(TopicConfig())))
        assert not broker.replica_manager.deletion.has_evidence(path)  # Nothing says that it was ever claimed.
        broker.directory.seen.note(9, {path.directory_name: 2})
        assert not broker.replica_manager.deletion.has_evidence(path)
        await etcd.create(OLD, "old", replicas=(2,))
        await broker.see()
        assert broker.replica_manager.deletion.has_evidence(path)


def leave_log(path: Path, *, epoch: int = 0) -> None:
    """Leave what a volume has that was put back: a log that no note says was ever claimed."""
    directory = DataDirectory.open(
        str(path), cluster_id="cluster-id", generation=1, broker_id=1, new_storage_id=bytes(16)
    )
    log = directory.open_log(OLD, 0, log_settings(TopicConfig()))
    if epoch:
        log.start_epoch(epoch)
    batch = encode_batch([b"one", b"two"], base_timestamp_ms=1)
    log.append([(batch, read_header(batch))], leader_epoch=epoch, append_timestamp_ms=1)
    directory.close(clean=True, broker_epoch=1)


def led_by_2(**fields: Any) -> PartitionState:
    return replace(PartitionState((2,), Replica(2, 1), 3, (Replica(2, 1),)), **fields)


async def test_an_operator_deletes_an_unclaimed_log_of_a_topic_that_exists(tmp_path: Path, etcd: Etcd) -> None:
    """The key names another broker, and nothing says that it did so after it named this one: the log stays until an
    operator asks; a validation deletes nothing, and a second call finds nothing and makes nothing."""
    await etcd.create(OLD, "old", state=led_by_2())
    leave_log(tmp_path)
    async with started(etcd, tmp_path) as broker:
        manager, log_id = broker.replica_manager, LogId(OLD, 0)
        await broker.wait(WEEK_MS)
        assert broker.unclaimed == [OLD]
        for _ in range(2):
            found = await manager.deletion.delete_unclaimed(log_id, validate_only=True)
            assert (found.size_bytes > 0, found.refusal, broker.unclaimed) == (True, None, [OLD])
        assert await manager.deletion.delete_unclaimed(log_id, validate_only=False) == found
        assert broker.unclaimed == []
        with pytest.raises(ConflictError, match="is not unclaimed"):
            await manager.deletion.delete_unclaimed(log_id, validate_only=False)
        assert not broker.holds(OLD)
        await broker.wait(0)
        assert directories(tmp_path, OLD) == []
        await etcd.create(OLD, "old")
        await broker.see()
        assert broker.records(OLD) == 0


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (led_by_2(replicas=(2, 1)), "assigned to this broker"),
        (led_by_2(adding=(1,)), "assigned to this broker"),
        (led_by_2(in_sync=(Replica(1, 1), Replica(2, 1))), "assigned to this broker"),
        (led_by_2(eligible_leaders=(Replica(1, 1),)), "assigned to this broker"),
        (led_by_2(replicas=(2, 3), adding=(3,)), "being reassigned"),
        (led_by_2(removing=(3,)), "being reassigned"),
        (led_by_2(leader=None), "no leader"),
        (led_by_2(leader_epoch=1), "leader epoch 2, etcd only 1"),
    ],
)
async def test_an_unclaimed_log_that_may_be_needed_stays(tmp_path: Path, state: PartitionState, reason: str) -> None:
    """The key counts as etcd has it, although this broker's view still shows one that lets the log go."""
    etcd = Etcd()
    await etcd.create(OLD, "old", state=led_by_2())
    leave_log(tmp_path, epoch=2)
    async with started(etcd, tmp_path) as broker:
        await etcd.write(Put(KEYS.partition(OLD, 0), encode(state)))
        found = await broker.replica_manager.deletion.delete_unclaimed(LogId(OLD, 0), validate_only=False)
        assert found.refusal is not None
        assert reason in found.refusal.message
        assert found.size_bytes > 0
        assert broker.unclaimed == [OLD]
        assert broker.holds(OLD)


async def test_an_unclaimed_log_whose_metadata_is_not_known_stays(tmp_path: Path, etcd: Etcd) -> None:
    """Without its topic a tombstone is the way; while a value cannot be decoded nothing goes; a log in use never."""
    await etcd.create(NEW, "new")
    leave_log(tmp_path)
    async with started(etcd, tmp_path) as broker:
        manager = broker.replica_manager

        async def refusal() -> str:
            found = (await manager.deletion.delete_unclaimed(LogId(OLD, 0), validate_only=False)).refusal
            assert found is not None
            assert broker.holds(OLD)
            return found.message

        assert "topic delete --unclaimed" in await refusal()
        await etcd.create(OLD, "old", state=led_by_2())
        await etcd.write(Delete(KEYS.partition(OLD, 0)))
        await broker.see()
        assert "no key of the partition" in await refusal()
        await etcd.write(Put(KEYS.partition(OLD, 0), b"\xff"))
        assert "cannot be decoded" in await refusal()
        await etcd.write(Put(KEYS.topic("odd"), b"\xff"))
        await broker.see()
        assert "values of the metadata cannot be decoded" in await refusal()
        with pytest.raises(ConflictError, match="is not unclaimed"):
            await manager.deletion.delete_unclaimed(LogId(NEW, 0), validate_only=False)
        assert broker.holds(NEW)


async def test_an_etcd_of_the_past_is_refused(tmp_path: Path) -> None:
    """H81: the highest revision seen is in the data directory, so that a broker that starts sees the fall, too."""
    etcd, past = Etcd(), Etcd()
    await past.create(OLD, "old")
    await etcd.create(OLD, "old")
    await etcd.create(NEW, "new")
    async with started(etcd, tmp_path):
        pass
    with pytest.raises(InvalidConfigError, match="revision 2, this data directory has seen 3") as refused:
        async with started(past, tmp_path):
            pass
    assert "headrace-coordinator recover-metadata" in refused.value.action
    assert is_there(tmp_path, NEW)


async def test_an_etcd_that_lacks_the_last_session_is_refused(tmp_path: Path, etcd: Etcd) -> None:
    """H81: a restore with a raised revision brings back an older session of the broker, or none."""
    session = await etcd.write(Put(KEYS.broker_session(1), b""))
    async with started(etcd, tmp_path) as broker:
        broker.directory.session.write(7, session, session)
    async with started(etcd, tmp_path) as broker:
        assert (broker.directory.session.version, broker.directory.session.broker_epoch) == (7, session)
        broker.directory.session.write(8, session + 1, session + 1)
    with pytest.raises(InvalidConfigError, match=f"broker epoch {session} as this broker's last"):
        async with started(etcd, tmp_path):
            pass


async def test_many_new_replicas_are_noted_in_one_write(tmp_path: Path, etcd: Etcd) -> None:
    """The note is a rewrite of one file: a large topic must not write it once for each partition."""
    async with started(etcd, tmp_path) as broker:
        notes = []
        note = broker.directory.seen.note
        broker.directory.seen.note = lambda *given, **named: notes.append(given) or note(*given, **named)  # type: ignore[method-assign,func-returns-value]
        await etcd.create(OLD, "old", partitions=20)
        await broker.see()
        assert len(broker.replica_manager.partitions) == 20
        assert len(notes) == 1
