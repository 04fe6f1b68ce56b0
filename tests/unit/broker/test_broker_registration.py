"""A broker's session on the in-memory metastore: lost answers, what was there before, new sessions (H76)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from unittest.mock import Mock

import pytest
from headrace.wire.errors import InvalidConfigError
from headrace_broker.runtime import registration as module
from headrace_broker.runtime.registration import Registration
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace
from headrace_server.metastore.api import MetastoreRolledBackError, MetastoreUnknownOutcomeError, Put
from structlog.testing import capture_logs

from tests.fakes.lossy_metastore import LOST, NEVER, LossyMetastore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_metastore import MemoryLeaseRenewer, MemoryMetastore

KEYS = Keyspace("c", 1)
TTL_MS = 10_000


class FakeStorage:
    """A data directory; `copy` is what a snapshot of its volume holds."""

    def __init__(
        self, storage_id: bytes, incarnation: bytes = b"", clean_broker_epoch: int | None = None, version: int = 0
    ) -> None:
        self.storage_id, self.incarnation, self.clean_broker_epoch = storage_id, incarnation, clean_broker_epoch
        self.version = version
        self.broker_epoch = self.announced = 0
        self.notes: list[int] = []
        self.before_note: Callable[[], Awaitable[None]] | None = None

    def copy(self) -> FakeStorage:
        return FakeStorage(self.storage_id, self.incarnation, self.clean_broker_epoch, self.version)

    async def note_session(self, version: int, broker_epoch: int | None = None, announced: int | None = None) -> None:
        if self.before_note is not None:
            await self.before_note()
        assert version >= self.version
        self.version = version
        self.broker_epoch = self.broker_epoch if broker_epoch is None else broker_epoch
        self.announced = self.announced if announced is None else announced
        self.notes.append(version)

    async def become_another(self) -> None:
        self.storage_id, self.clean_broker_epoch = b"another" + self.storage_id[7:], None


class Bench:
    """One etcd, and processes that register there."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = MemoryMetastore(clock=self.clock)
        self.made: list[Registration] = []
        self.directories: dict[int, FakeStorage] = {}

    def registration(
        self,
        boot: int,
        storage: int = 1,
        faults: Sequence[str] = (),
        *,
        incarnation: bytes = b"",
        clean_broker_epoch: int | None = None,
        directory: FakeStorage | None = None,
    ) -> Registration:
        held = directory or self.directories.setdefault(storage, FakeStorage(bytes([storage]) * 16))
        held.incarnation, held.clean_broker_epoch = incarnation, clean_broker_epoch
        made = Registration(
            LossyMetastore(self.memory, faults),
            KEYS,
            metadata_pb2.BrokerLive(broker_id=1, boot_id=bytes([boot]) * 16, address=f"boot-{boot}"),
            held,
            lease_ttl_ms=TTL_MS,
            clock=self.clock,
            make_renewer=lambda: MemoryLeaseRenewer(self.memory, asyncio.get_running_loop()),
            on_lease_change=lambda _: None,
        )
        self.made.append(made)
        return made

    async def live(self) -> tuple[metadata_pb2.BrokerLive, int, int]:
        """What is published: (value, epoch, lease)."""
        found = (await self.memory.get(KEYS.broker(1))).key_value
        assert found is not None
        return metadata_pb2.BrokerLive.FromString(found.value), found.create_revision, found.lease_id


@asynccontextmanager
async def made_bench() -> AsyncIterator[Bench]:
    bench = Bench()
    try:
        yield bench
    finally:
        for each in bench.made:
            await each.end(revoke=False)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> AbstractAsyncContextManager[Bench]:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
    return made_bench()


async def test_a_running_broker_takes_no_lower_epoch_from_a_restored_etcd(bench: Bench) -> None:
    """I13, H81: an etcd that lacks the last session was put back; the directory keeps what it knows of that session."""
    made = bench.registration(1)
    for number in range(5):
        await bench.memory.txn([], success=[Put(f"other/{number}", b"")])
    epoch = await made.register()
    await made.end(revoke=True)
    bench.memory = MemoryMetastore(clock=bench.clock)  # As it was before the broker was there.
    again = bench.registration(1)
    with pytest.raises(MetastoreRolledBackError, match=f"has {epoch}"):
        await again.register()
    assert bench.directories[1].broker_epoch == epoch
    assert (await bench.memory.get(KEYS.broker(1))).key_value is None


@pytest.mark.parametrize("runs", [False, True])
async def test_a_restored_etcd_is_detected_by_keys_that_only_this_broker_writes(bench: Bench, runs: bool) -> None:
    """H81: the session is in the backup, and others have raised etcd's revision above all that was seen since."""
    made = bench.registration(1)
    await made.register()
    before = bench.memory.state.snapshot()
    assert await made.announce_version()
    announced = bench.directories[1].announced
    bench.memory.state.restore(before, bench.clock.boottime_ms())
    for number in range(10):
        await bench.memory.txn([], success=[Put(f"other/{number}", b"")])
    if runs:
        with pytest.raises(MetastoreRolledBackError, match=f"the directory has {announced}"):
            await made.announce_version()
    else:
        await made.end(revoke=True)
        with pytest.raises(MetastoreRolledBackError, match=f"the directory has {announced}"):
            await bench.registration(2).register()
    assert bench.directories[1].announced == announced


@pytest.mark.parametrize("faults", [[], [LOST], [NEVER], [LOST, LOST]])
async def test_a_lost_answer_leaves_one_session(bench: Bench, faults: list[str]) -> None:
    """UNKNOWN is resolved: whatever became of the transaction, the epoch returned is the one that is published."""
    made = bench.registration(1, faults=faults)
    epoch = await made.register()
    live, published, lease_id = await bench.live()
    assert (live.boot_id, published) == (bytes([1]) * 16, epoch)
    assert made.session is not None
    assert (made.session.broker_epoch, made.session.keeper.lease_id) == (epoch, lease_id)


async def test_the_own_registration_on_the_same_lease_is_adopted(bench: Bench) -> None:
    """The own boot id on the own lease is our transaction that etcd applied though the client sent it again."""
    made = bench.registration(1)
    lease = await bench.memory.grant_lease(TTL_MS)
    value = made._live.SerializeToString()
    put = await bench.memory.txn([], [Put(KEYS.broker(1), value, lease.lease_id)])
    assert await made._put(lease.lease_id) == put.revision
    assert (await bench.live())[1:] == (put.revision, lease.lease_id)


async def test_second_broker_with_an_id_in_use_ends_with_a_sentence(bench: Bench) -> None:
    """It waits as long as a dead process could keep the id, three times over, and leaves the first one registered."""
    first = await bench.registration(1, storage=1).register()
    lease_id = (await bench.live())[2]
    second = asyncio.create_task(bench.registration(2, storage=2).register())
    with capture_logs() as lines:
        for _ in range(4 * TTL_MS // 500):
            for _ in range(20):
                await asyncio.sleep(0)
            bench.clock.advance(500)
            await bench.memory.renew_lease(lease_id)
    with pytest.raises(InvalidConfigError, match="broker id 1 is registered by the broker at boot-1"):
        await second
    assert (await bench.live())[1] == first
    waits = [line["for_seconds"] for line in lines if line["event"] == "registration_waits"]
    assert waits[:3] == [0, 1, 3]
    assert len(waits) < 8


async def test_another_process_with_a_live_session_is_waited_for(bench: Bench) -> None:
    """Another data directory under the same broker id is not pushed out: its lease decides."""
    other = bench.registration(1, storage=1)
    before = await other.register()
    second = bench.registration(2, storage=2)
    waiting = asyncio.create_task(second.register())
    for _ in range(200):
        await asyncio.sleep(0)
    assert not waiting.done()
    assert (await bench.live())[1] == before
    await other.end(revoke=True)
    after = await waiting
    live, published, _ = await bench.live()
    assert after == published > before
    assert live.address == "boot-2"
    assert live.resumes == 0  # another storage holds nothing of what the session before held


@pytest.mark.parametrize(
    ("incarnation", "clean_broker_epoch", "clean"),
    [
        (b"", None, False),
        (b"one", None, True),
        (b"two", None, False),
        (b"two", 0, True),
        (b"one", -1, True),
        (b"", -1, False),
    ],
    ids=[
        "unknown",
        "same incarnation",
        "other incarnation",
        "stopped in order",
        "same incarnation, other stop",
        "other stop",
    ],
)
async def test_what_the_process_before_had_written_is_there_or_not(
    bench: Bench, incarnation: bytes, clean_broker_epoch: int | None, clean: bool
) -> None:
    """We hold the directory's lock, so its session is a dead process's: no wait for its lease, and it is resumed.

    Lives without a session may have come between: a boot or a stop in order says nothing of a session before the last
    loss of power. `clean_broker_epoch` is here the distance from the session before.
    """
    before = await bench.registration(1, incarnation=b"one" if incarnation else b"").register()
    stopped = None if clean_broker_epoch is None else before + clean_broker_epoch
    after = await bench.registration(2, incarnation=incarnation, clean_broker_epoch=stopped).register()
    live, published, _ = await bench.live()
    assert after == published > before
    assert (live.address, live.resumes, live.clean) == ("boot-2", before, clean)


async def test_a_registration_whose_answer_was_lost_keeps_what_it_continues(bench: Bench) -> None:
    """The process registers once more on another lease; the session between is its own."""
    before = await bench.registration(1, incarnation=b"one").register()
    made = bench.registration(2, incarnation=b"one")
    lease = await bench.memory.grant_lease(TTL_MS)
    await bench.memory.revoke_lease((await bench.live())[2])
    await made._put(lease.lease_id)
    await made.register()
    live, _, _ = await bench.live()
    assert (live.resumes, live.clean) == (before, True)


@pytest.mark.parametrize("taken", ["before the session", "in the session"])
async def test_an_older_copy_of_the_directory_is_another_storage(bench: Bench, taken: str) -> None:
    """H16: a volume that was put back lacks what the session had written; it continues nothing, now and later."""
    first = bench.registration(1)
    oldest = await first.register()
    directory = bench.directories[1]
    if taken == "before the session":
        copy = directory.copy()
        await first.end(revoke=True)
        served = bench.registration(2, directory=directory)
        await served.register()
    else:
        served, copy = first, directory.copy()
        assert await served.announce_version()
    await served.end(revoke=True)
    again = bench.registration(3, directory=copy)
    restored = await again.register()
    assert (again._live.storage_since, again._live.resumes, again._live.clean) == (0, 0, False)
    await again.end(revoke=True)
    later = bench.registration(4, directory=copy)
    await later.register()
    assert (later._live.storage_since, later._live.resumes) == (restored, restored)
    assert restored > oldest
    assert copy.storage_id != bytes([1]) * 16


class Killed(Exception):
    """The process ends here."""


@pytest.mark.parametrize("went_back", [False, True])
@pytest.mark.parametrize("dies_at", ["first note", "transaction", "second note"])
async def test_a_start_that_ends_half_way_changes_nothing(bench: Bench, dies_at: str, went_back: bool) -> None:
    """Between directory and etcd a process may die at any point: a directory that is current stays so, one that went
    back never becomes what it was.
    """
    first = bench.registration(1)
    oldest = await first.register()
    directory = bench.directories[1]
    copy = directory.copy()
    assert await first.announce_version()
    await first.end(revoke=True)
    used = copy if went_back else directory

    async def die() -> None:
        notes.append(1)
        if len(notes) == {"first note": 1, "second note": 2}.get(dies_at):
            raise Killed

    notes: list[int] = []
    used.before_note = die
    half = bench.registration(2, directory=used)
    if dies_at == "transaction":
        half._metastore.txn = Mock(side_effect=Killed)  # type: ignore[method-assign]
    with pytest.raises(Killed):
        await half.register()
    used.before_note = None
    for key_value in (await bench.memory.range(KEYS.broker_prefix())).key_values:
        await bench.memory.revoke_lease(key_value.lease_id)
    after = bench.registration(3, directory=used)
    await after.register()
    assert (after._live.storage_since == oldest) is not went_back
    assert (after._live.resumes > 0) == (not went_back or dies_at == "second note")


async def test_a_clone_does_not_end_the_session_of_its_original(bench: Bench) -> None:
    """H42: both have one storage id and a lock of their own; the one that etcd has seen to be newer serves on."""
    original = bench.registration(1)
    epoch = await original.register()
    clone = bench.directories[1].copy()
    assert await original.announce_version()
    waiting = asyncio.create_task(bench.registration(2, directory=clone).register())
    for _ in range(200):
        await asyncio.sleep(0)
    assert (await bench.live())[1] == epoch
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize("faults", [[], [LOST], [NEVER]])
async def test_the_version_in_etcd_is_never_above_the_directory(bench: Bench, faults: list[str]) -> None:
    """The disk has it first: whatever becomes of the write, the directory is not taken for an older copy of itself."""
    made = bench.registration(1)
    await made.register()
    metastore = made._metastore
    assert isinstance(metastore, LossyMetastore)
    metastore.faults = list(faults)
    for _ in range(4):
        await made.announce_version()
        found = (await bench.memory.get(KEYS.directory(1))).key_value
        assert found is not None
        version = metadata_pb2.DirectoryVersion.FromString(found.value).version
        assert version <= bench.directories[1].version
    assert version == bench.directories[1].version
    assert bench.directories[1].broker_epoch == (await bench.live())[1]


async def test_after_a_lost_lease_a_later_session_resumes_continuously(bench: Bench) -> None:
    """H76: each session is later than the one before, and clean ones name the first session of a continuous storage."""
    made = bench.registration(1)
    epochs = [await made.register()]
    for _ in range(2):
        await bench.memory.revoke_lease((await bench.live())[2])
        await made.end(revoke=False)
        epochs.append(await made.register())
        live, published, _ = await bench.live()
        assert published == epochs[-1]
        assert (live.resumes, live.clean) == (epochs[0], True)
    assert epochs == sorted(set(epochs))


async def test_an_end_deletes_the_own_session_only(bench: Bench) -> None:
    """`end` of a session that a later one has replaced leaves that one alone."""
    first = bench.registration(1)
    await first.register()
    second = bench.registration(2)
    after = await second.register()
    await first.end(revoke=True)
    assert (await bench.live())[1] == after
    await second.end(revoke=True)
    assert (await bench.memory.get(KEYS.broker(1))).key_value is None


@pytest.mark.parametrize("faults", [[], [LOST], [NEVER]])
async def test_what_is_announced_stays_announced(bench: Bench, faults: list[str]) -> None:
    """Draining and failure reports are written in turn to one key: neither undoes the other, whatever is lost."""
    made = bench.registration(1)
    epoch = await made.register()
    metastore = made._metastore
    assert isinstance(metastore, LossyMetastore)
    metastore.faults = list(faults)
    assert await made.announce_suspected([3]) is not bool(faults)
    answers = await asyncio.gather(made.announce_draining(), made.announce_suspected([3, 4]))
    assert answers == [True, True]
    live, published, _ = await bench.live()
    assert published == epoch
    assert (live.draining, list(live.suspected_brokers)) == (True, [3, 4])


async def test_a_late_write_undoes_nothing(bench: Bench) -> None:
    """H78: a write without an answer, made before the next one, fails when it comes after it."""
    made = bench.registration(1)
    await made.register()
    metastore = made._metastore
    assert isinstance(metastore, LossyMetastore)
    late: list[tuple[Any, ...]] = []
    through = metastore.txn

    async def hold_back(*operations: Any, **more: Any) -> Any:
        late.append((operations, more))
        raise MetastoreUnknownOutcomeError("held back")

    metastore.txn = hold_back  # type: ignore[method-assign]
    assert not await made.announce_suspected([3])
    metastore.txn = through  # type: ignore[method-assign]
    assert await made.announce_draining()
    ((operations, more),) = late
    assert not (await bench.memory.txn(*operations, **more)).succeeded
    assert (await bench.live())[0].draining


async def test_nothing_is_announced_in_another_session(bench: Bench) -> None:
    """A session that a later one has replaced changes nothing there; the next one of ours says it from its start."""
    first = bench.registration(1)
    assert not await first.announce_suspected([3])
    await first.register()
    second = bench.registration(2)
    await second.register()
    assert not await first.announce_suspected([3])
    assert list((await bench.live())[0].suspected_brokers) == []
    await second.end(revoke=True)
    await first.end(revoke=False)
    await first.register()
    assert list((await bench.live())[0].suspected_brokers) == [3]
