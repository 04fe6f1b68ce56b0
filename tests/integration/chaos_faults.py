"""The faults of the chaos on real processes: each a method of `Nemesis`, which draws them, heals them and counts them.

Those that need more than a signal have a part of their own: `Lives` (a topic made anew under clients), `Machine` (a
clock that is wrong at the start, a full disk) and `etcd_backups` (etcd put back).
"""

from __future__ import annotations

import itertools
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from headrace_broker.runtime.directory_version import VERSION_SECONDS
from headrace_devcluster.errors import PartStartError
from headrace_devcluster.etcd import Etcd
from headrace_devcluster.etcd_program import FIRST_SAFE_VERSION_TO_KILL

from tests.integration.chaos_lives import Lives
from tests.integration.chaos_machine import FILE_OPERATIONS, Machine
from tests.integration.etcd_backups import (
    copy_data,
    export_log_states,
    put_back_data,
    recover_metadata,
    restore_snapshot,
    save_snapshot,
)
from tests.integration.gates import Gate
from tests.integration.replicated import Follower, Replicated, Writer, until

BROKERS = (1, 2, 3)
HOLD_SECONDS = (0.0, 0.1, 0.5, 1.0, 2.5, 4.0)
"""How long a fault lasts: up to twice the time of a lease."""
HOUR_MS = 3_600_000
CLOCKS_MS = (48 * HOUR_MS, 30 * 24 * HOUR_MS, -30 * 24 * HOUR_MS)
"""By how much a clock is wrong at the start."""
OPERATIONS_AT_ONCE = 5
"""Kinds of file operations that find no room in one fault, one after another."""
SELDOM_OPERATIONS = ("allocate", "truncate", "rmdir")
"""A broker may have none of these to do while the disk is full."""
RECOVERY_SECONDS = 60.0

Drawn = TypeVar("Drawn")


class Bag:
    """Draws every item once before it draws any again."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._left: list[object] = []

    def draw(self, items: Sequence[Drawn]) -> Drawn:
        if not self._left:
            self._left = self._chance.sample(items, len(items))
        return self._left.pop()  # type: ignore[return-value]


class Nemesis:
    """Does one fault at a time and heals it, so that two of three brokers can always come together again."""

    def __init__(
        self,
        replicated: Replicated,
        topic: str,
        topic_id: bytes,
        *,
        gates: dict[int, Gate],
        machines: dict[int, Machine],
        lives: Lives,
        directory: Path,
        seed: int,
        only: Sequence[str] = (),
    ) -> None:
        """`gates`: relays between brokers and etcd, if any; backups are kept in `directory`.

        `only`: the names of the faults that are done; none: all.
        """
        self._replicated = replicated
        self._cluster = replicated.cluster
        self._topic, self._topic_id = topic, topic_id
        self._gates, self._machines, self._lives = gates, machines, lives
        self._directory = directory
        self._chance = random.Random(seed)
        self._bag, self._operations = Bag(self._chance), Bag(self._chance)
        self._numbers = itertools.count()
        self.writer: Writer | None = None
        self.follower: Follower | None = None
        self.starts = dict.fromkeys(range(3), 0)
        """Where each partition begins: nothing below comes back."""
        self.done: Counter[str] = Counter()
        """How often each fault was done."""
        self.faults: list[Callable[[int], None]] = [
            self.kill, self.kill_two, self.restart, self.pause, self.pause_etcd, self.drain, self.records_deleted,
            self.etcd_put_back, self.etcd_restored, self.volume_put_back, self.clock_wrong_at_start, self.full_disk,
            self.topic_made_anew, self.data_center,
        ]  # fmt: skip
        if gates:
            self.faults += [self.cut_off, self.cut_off_during_a_pause]
        if len(self._cluster.etcd_members) > 1:
            self.faults += [self.stop_etcd_leader, self.lose_machine]
            if self._cluster.etcd.version() >= FIRST_SAFE_VERSION_TO_KILL:
                self.faults.append(self.kill_etcd_leader)
        if only:
            self.faults = [fault for fault in self.faults if fault.__name__ in only]

    def strike(self, *, only_missing: bool = False) -> str:
        """Draw a fault, do it, and say what it was. `only_missing`: one of which a kind was never done."""
        missing = {name.partition(" ")[0] for name in self.never_done()} if only_missing else set()
        fault = self._bag.draw(self.faults)
        if missing:
            fault = self._chance.choice([each for each in self.faults if each.__name__ in missing])
        broker_id = self._chance.choice(BROKERS)
        fault(broker_id)
        self.done[fault.__name__] += 1
        return f"{fault.__name__} {broker_id}"

    def never_done(self) -> list[str]:
        """The faults, and the file operations that found no room, of which none was done."""
        missing = [fault.__name__ for fault in self.faults if not self.done[fault.__name__]]
        if self.full_disk not in self.faults:
            return missing
        needed = [kind for kind in FILE_OPERATIONS if kind not in SELDOM_OPERATIONS]
        return missing + [f"full_disk at {kind}" for kind in needed if not self.refused()[kind]]

    def refused(self) -> Counter[str]:
        """How many file operations of each kind found no room, at all brokers."""
        return sum((machine.refused() for machine in self._machines.values()), Counter())

    def hold(self) -> None:
        """Let the fault last."""
        over = time.monotonic() + self._chance.choice(HOLD_SECONDS)
        until(lambda: time.monotonic() >= over, "the fault's end")

    # --- processes ---

    def kill(self, broker_id: int) -> None:
        with self._killed(broker_id):
            self.hold()

    @contextmanager
    def _killed(self, broker_id: int) -> Iterator[None]:
        broker = self._replicated.broker(broker_id)
        broker.kill()
        try:
            yield
        finally:
            self._cluster.restart(broker)

    def kill_two(self, broker_id: int) -> None:
        brokers = [self._replicated.broker(broker_id), self._replicated.broker(broker_id % 3 + 1)]
        for broker in brokers:
            broker.kill()
        self.hold()
        for broker in reversed(brokers):
            self._cluster.restart(broker)

    def data_center(self, broker_id: int) -> None:
        """Every process of one of three data centers is killed at once; the other two take writes without it."""
        members, place = self._cluster.etcd_members, slice(broker_id - 1, broker_id)
        lost = [*self._cluster.brokers[place], *self._cluster.coordinators[place]]
        lost_members = members[place] if len(members) > 1 else []
        can_kill = self._cluster.etcd.version() >= FIRST_SAFE_VERSION_TO_KILL
        for part in lost:
            part.kill()
        for member in lost_members:
            (member.kill if can_kill else member.stop)()
        self._wait_for_acknowledged(50)
        self.hold()
        for member in lost_members:
            self._cluster.restart_etcd(member)
        for part in lost:
            self._cluster.restart(part)

    def restart(self, broker_id: int) -> None:
        broker = self._replicated.broker(broker_id)
        broker.stop()
        self.hold()
        self._cluster.restart(broker)

    def pause(self, broker_id: int) -> None:
        with self._paused(broker_id):
            self.hold()

    @contextmanager
    def _paused(self, broker_id: int) -> Iterator[None]:
        broker = self._replicated.broker(broker_id)
        broker.pause()
        try:
            yield
        finally:
            broker.resume()

    # --- the network ---

    def cut_off(self, broker_id: int) -> None:
        self._gates[broker_id].shut()
        self.hold()
        self._gates[broker_id].open()

    def cut_off_during_a_pause(self, broker_id: int) -> None:
        self._gates[broker_id].shut()
        with self._paused(broker_id % 3 + 1):
            self.hold()
            self._gates[broker_id].open()
            self.hold()

    # --- etcd ---

    def pause_etcd(self, _: int) -> None:
        member = self.etcd_leader()
        member.pause()
        self.hold()
        member.resume()

    def stop_etcd_leader(self, _: int) -> None:
        member = self.etcd_leader()
        member.stop()
        self.hold()
        self._cluster.restart_etcd(member)

    def kill_etcd_leader(self, _: int) -> None:
        member = self.etcd_leader()
        member.kill()
        self.hold()
        self._cluster.restart_etcd(member)

    def lose_machine(self, broker_id: int) -> None:
        """A broker shuts down cleanly, and the etcd leader falls silent meanwhile."""
        member, broker = self.etcd_leader(), self._replicated.broker(broker_id)
        member.pause()
        broker.stop()
        self.hold()
        member.resume()
        self._cluster.restart(broker)

    def etcd_leader(self) -> Etcd:
        """The member that leads, once one does."""

        def leader() -> Etcd | None:
            return next((member for member in self._cluster.etcd_members if member.is_leader()), None)

        found = until(leader, "a leader of etcd")
        assert found is not None
        return found

    def etcd_put_back(self, broker_id: int) -> None:
        """The data of all members of etcd is replaced by an older copy of it."""
        self._roll_etcd_back(broker_id, copy_data, put_back_data)

    def etcd_restored(self, broker_id: int) -> None:
        """etcd is restored from a snapshot, by `etcdctl snapshot save` and `etcdutl snapshot restore`."""
        self._roll_etcd_back(broker_id, save_snapshot, restore_snapshot)

    def _roll_etcd_back(self, broker_id: int, save: Callable[..., None], put_back: Callable[..., None]) -> None:
        """Save, continue, put back under brokers that run or that a supervisor restarts; then the guide's way out."""
        backup = self._directory / f"backup-{next(self._numbers)}"
        known = self._lives.note_backup()
        save(self._cluster, backup)
        self._cluster.wait_until_healthy()
        versions = {each: self._replicated.directory_version(each) for each in BROKERS}
        for go_on in (self.drain, self._chance.choice([self.kill, self.records_deleted, self.topic_made_anew])):
            go_on(broker_id)
        self._wait_for_acknowledged(100)
        for each in BROKERS:  # Of the second one it has noted that etcd had the first.
            until(lambda: self._replicated.directory_version(each) > versions[each] + 1, "versions")  # noqa: B023
        before = self._log_directories()
        if self._chance.random() < 0.5:
            put_back(self._cluster, backup)
            for part in self._cluster.parts:
                until(lambda: part.pid is None, f"{part.name} gives up", RECOVERY_SECONDS)  # noqa: B023
        else:
            for part in self._cluster.parts:
                part.kill()
            put_back(self._cluster, backup)
            self._supervise()
        self.hold()
        assert self._log_directories() >= before, "a log was deleted because the older etcd lacks its topic"
        self._begin_generation()
        self._lives.judge_recovery(known)
        shutil.rmtree(backup) if backup.is_dir() else backup.unlink()

    def _supervise(self) -> None:
        """Start everything again as a supervisor would, in any order: brokers refuse.

        What coordinators write raises etcd's revision, and partitions', above what brokers have seen.
        """
        for part in self._chance.sample(self._cluster.parts, len(self._cluster.parts)):
            if part in self._cluster.coordinators:
                self._cluster.restart(part)
                self.hold()
                continue
            with pytest.raises(PartStartError) as refused:
                self._cluster.restart(part)
            assert "etcd was restored from a backup" in " ".join(str(refused.value).split())

    def _begin_generation(self) -> None:
        """As the guide disaster-recovery says."""
        for part in self._cluster.parts:
            part.kill()
        log_states = export_log_states(self._cluster, self._directory, BROKERS)
        done = recover_metadata(self._cluster, log_states, "--apply")
        assert done.returncode == 0, done.stderr
        for part in self._cluster.parts:
            self._cluster.restart(part)
        self._cluster.wait_until_healthy(RECOVERY_SECONDS)
        self._replicated.wait_in_sync(self._topic)

    def _log_directories(self) -> set[Path]:
        """Of logs that are not deleted, and of deleted ones that are still there."""
        topics = (self._topic_id, self._lives.topic_id)
        return {
            path
            for topic_id in topics
            for path in self._cluster.directory.glob(f"broker-*/{topic_id.hex()}-*")
            if path.name.removeprefix(topic_id.hex()).count(".") == 0
        }

    # --- machines ---

    def volume_put_back(self, broker_id: int) -> None:
        """A broker's data directory is replaced by a copy of itself that is older than its session (H16)."""
        broker, copy = self._replicated.broker(broker_id), self._directory / f"volume-{next(self._numbers)}"
        volume = self._cluster.directory / f"broker-{broker_id}"
        if self._chance.random() < 0.5:
            broker.stop()
            shutil.copytree(volume, copy)
            self._cluster.restart(broker)
        else:
            broker.pause()  # A snapshot of a volume is of one moment: no file comes or goes meanwhile.
            shutil.copytree(volume, copy)
            broker.resume()
        version = self._replicated.directory_version(broker_id)
        self._wait_for_acknowledged(50)
        until(lambda: self._replicated.directory_version(broker_id) > version, "a version", 20 * VERSION_SECONDS)
        self._replicated.wait_in_sync(self._topic)  # One disk may be lost at a time.
        noticed = broker.log_file.read_text().count("directory_went_back")
        broker.kill()
        shutil.rmtree(volume)
        shutil.copytree(copy, volume)
        shutil.rmtree(copy)
        self._cluster.restart(broker)
        assert broker.log_file.read_text().count("directory_went_back") > noticed, "it counts as the same storage"
        self._replicated.wait_in_sync(self._topic)

    def clock_wrong_at_start(self, broker_id: int) -> None:
        """A broker starts with another time and leads: it doubts its clock and stamps with the time of the others."""
        broker, offset_ms = self._replicated.broker(broker_id), self._chance.choice(CLOCKS_MS)
        for each in (offset_ms, 0):
            broker.stop()
            self._machines[broker_id].set_clock(each)
            self._cluster.restart(broker)
            if each:
                until(lambda: self._lead(broker_id), "the broker with the wrong clock leads")
            self._wait_for_acknowledged(50)
            self.hold()

    def _lead(self, broker_id: int) -> bool:
        self._replicated.admin.elect_leaders("preferred")
        return any(
            part.leader_id == broker_id for part in self._replicated.admin.describe_topic(self._topic).partitions
        )

    def full_disk(self, broker_id: int) -> None:
        """There is no room for some file operations, one kind after another; a topic comes and goes meanwhile.

        The broker is registered when it begins: it cannot be without noting that on its disk, and a topic of three
        replicas is made.
        """
        self._replicated.wait_in_sync(self._topic)
        topic = f"for-a-moment-{next(self._numbers)}"
        for _ in range(OPERATIONS_AT_ONCE):
            kind, machine = self._operations.draw(FILE_OPERATIONS), self._machines[broker_id]
            before = machine.refused()[kind]
            with machine.full_disk([kind]):
                self._come_and_go(topic, broker_id, lambda: machine.refused()[kind] > before)  # noqa: B023
                if kind not in SELDOM_OPERATIONS:
                    until(lambda: machine.refused()[kind] > before, f"no room for {kind}")  # noqa: B023
                self.hold()
        self._replicated.wait_in_sync(self._topic)

    def _come_and_go(self, topic: str, broker_id: int, is_refused: Callable[[], bool]) -> None:
        """Make a topic, and delete it when the broker has made its log, or was refused to."""
        admin = self._replicated.admin

        def made() -> Path:
            if topic not in admin.list_topics():
                admin.create_topic(topic, 1, replication_factor=3, config={"file_delete_delay_ms": 0})
            return self._cluster.directory / f"broker-{broker_id}" / f"{admin.describe_topic(topic).topic_id.hex()}-0"

        def gone() -> bool:
            if topic in admin.list_topics():
                admin.delete_topic(topic)
            return True

        log = until(made, "a topic made next to a full disk")
        until(lambda: is_refused() or log.is_dir(), "its log")
        self.hold()
        until(gone, "a topic deleted next to a full disk")

    # --- administrators ---

    def drain(self, broker_id: int) -> None:
        self._drain(broker_id)
        self.hold()
        self._undrain(broker_id)

    def _drain(self, broker_id: int) -> None:
        until(lambda: self._replicated.admin.drain_broker(broker_id), "a drain")

    def _undrain(self, broker_id: int) -> None:
        until(lambda: self._replicated.admin.undrain_broker(broker_id), "its end")

    def records_deleted(self, broker_id: int) -> None:
        """Records that the consumer has read are deleted, and the leader dies as it has said so."""
        assert self.follower is not None
        number = broker_id - 1
        read = len(self.follower.values[number])
        start = self._chance.randint(self.starts[number], max(read, self.starts[number]))

        def attempt() -> bool:
            return bool(self._replicated.admin.delete_records(self._topic, {number: start}))

        until(attempt, f"records below {start} deleted")
        self.starts[number] = start
        if self._chance.random() < 0.5:
            self.kill(self._replicated.leader(self._topic, number))

    def topic_made_anew(self, broker_id: int) -> None:
        """Nothing else happens as it is deleted, or a broker is away then and comes back with the older life."""

        @contextmanager
        def nothing() -> Iterator[None]:
            yield

        self._lives.check()
        self._lives.make_anew(
            self._chance.choice((nothing, lambda: self._killed(broker_id), lambda: self._paused(broker_id)))
        )

    def _wait_for_acknowledged(self, records: int) -> None:
        assert self.writer is not None
        self.writer.wait_for(records)
