"""Faults of a broker's disk and of its clock."""

from __future__ import annotations

import errno
import random

from headrace.log.errors import REFUSALS as REFUSED
from headrace.log.segment import SegmentName, segment_names

from tests.fakes.memory_filesystem import ANY_CALL, NEEDS_DESCRIPTOR, NEEDS_ROOM, UNLIMITED, Loss
from tests.simulation.cluster import DAY_MS
from tests.simulation.faults import Faults, duration
from tests.simulation.host import Host
from tests.simulation.machine import BrokerNode

REFUSALS = (
    (errno.ENOSPC, NEEDS_ROOM),
    (errno.EDQUOT, NEEDS_ROOM),
    (errno.EMFILE, NEEDS_DESCRIPTOR),
    (errno.ENFILE, NEEDS_DESCRIPTOR),
    (errno.ENOMEM, ANY_CALL),
    (errno.EINTR, ANY_CALL),
    (errno.EAGAIN, ANY_CALL),
)
"""What a sound machine answers to which calls."""


class DiskFaults(Faults):
    """Each method does one fault and says whether it could."""

    def _disk_error(self, chance: random.Random) -> bool:
        node = self._victim(chance)
        if node is None or not self._may_corrupt(node):
            return False
        is_log = chance.random() < 0.5
        operation = chance.choice(("fsync", "pwritev", "pread") if is_log else sorted(ANY_CALL - {"create", "space"}))
        drops = chance if operation == "fsync" and chance.random() < 0.7 else None
        node.filesystem.fail(operation, errno.EIO, suffix=".log" if is_log else "", drops=drops)
        return True

    def _rot(self, chance: random.Random) -> bool:
        """While a broker is down, a file of a log that holds no records rots: a checkpoint, an index, epochs (H37)."""
        node = self._victim(chance)
        if node is None or not self._may_corrupt(node):
            return False
        hosts = [host for host in _hosts(node) if host.is_open]
        node.kill(Loss.NOTHING)
        self._later(duration(chance), node.start)
        disk = node.filesystem
        paths = [path for host in hosts for path in disk.versions(host.log.directory)]
        paths = [path for path in sorted(paths) if not path.endswith(".log") and disk.content(path)]
        if not paths:
            return False
        path = chance.choice(paths)
        size_bytes, kind = len(disk.content(path)), chance.choice(("flip", "cut", "zeros"))
        at = chance.randrange(size_bytes)
        self.world.note("op", f"{kind} at {at} of {path}")
        self.world.count(f"rot of {path.rpartition('.')[2] if '.' in path else path.rpartition('/')[2]}")
        for host in hosts:
            self.cluster.checks.log_start_is_open(host)
        match kind:
            case "flip":
                disk.corrupt(path, at, 1 << chance.randrange(8))
            case "cut":
                disk.cut(path, at)
            case _:
                disk.overwrite(path, at, bytes(size_bytes - at))
        return True

    def _disk_full(self, chance: random.Random) -> bool:
        node = self._victim(chance)
        if node is None:
            return False
        node.filesystem.capacity_bytes = node.filesystem._used_bytes() + chance.randrange(2_000)
        self._later(duration(chance), lambda: setattr(node.filesystem, "capacity_bytes", UNLIMITED))
        return True

    def _refuse(self, chance: random.Random) -> bool:
        """There is no room, descriptor or memory for one call, or for all of its kind for a while (H35)."""
        node = self._victim(chance)
        if node is None:
            return False
        error_number, operations = chance.choice(REFUSALS)
        if chance.random() < 0.5:
            operations = frozenset((chance.choice(sorted(operations)),))
        lasts = chance.random() < 0.5
        node.filesystem.refuse(error_number, operations, after=chance.choice((0, 0, 1, 4, 10)), lasting=lasts)
        self._later(duration(chance), node.filesystem.stop_refusing)
        return True

    def _may_corrupt(self, node: BrokerNode) -> bool:
        """Corruption may hit a minority: all others run, and everybody is in sync and intact.

        That is unknown while there is no topic: the next one begins with the sessions that are registered.
        """
        return (
            bool(self.cluster.partitions)
            and all(other.running is not None for other in self.cluster.brokers.values())
            and self.cluster.plan.replication_factor >= 3
            and self.cluster.is_whole()
            and not any(s.corrupt for p in self.cluster.checks.partitions.values() for s in p.replicas.values())
        )

    def _corruption(self, chance: random.Random) -> bool:
        """Corrupt one log on one disk, below what its recovery point vouches for.

        A bit flips, the file ends early, or a write that was meant for another place went here.
        """
        node = self._victim(chance)
        if node is None or not self._may_corrupt(node):
            return False
        hosts = [host for host in _hosts(node) if host.is_open and host.log.flushed_offset > host.log.log_start_offset]
        if not hosts:
            return False
        host = chance.choice(hosts)
        try:
            host.log.durability.checkpoint(host.broker.clock.now_ms(), host.replica.high_watermark, force=True)
        except REFUSED:
            return False
        mark, directory = host.log._state.flushed, host.log.directory
        with node.sound_disk():
            names = segment_names(node.filesystem.list_directory(directory))
        sizes = {
            name: len(node.filesystem.content(f"{directory}/{name.stem}.log"))
            for name in names
            if name.base_offset <= mark.segment
        }
        sizes[SegmentName(mark.segment)] = mark.position
        name = chance.choice(sorted(sizes))
        if not sizes[name]:
            return False
        path, position = f"{directory}/{name.stem}.log", chance.randrange(sizes[name])
        content, kind = node.filesystem.content(path), chance.choice(("flip", "flip", "cut", "misdirect"))
        block = min(len(content) - position, 512)
        source = chance.randrange(len(content) - block + 1)
        if content[source : source + block] == content[position : position + block]:
            kind = "flip"
        self.cluster.checks.corrupt(node.broker_id, host.key)
        self.world.count(f"corruption: {kind}")
        match kind:
            case "flip":
                node.filesystem.corrupt(path, position, 1 << chance.randrange(8))
            case "cut":
                node.filesystem.cut(path, position)
            case _:
                node.filesystem.overwrite(path, position, content[source : source + block])
        if chance.random() < 0.6:
            node.kill(Loss.NOTHING)
            self._later(duration(chance), node.start)
        return True

    def _replace_disk(self, chance: random.Random) -> bool:
        """A machine comes back with an empty disk (H17, H42)."""
        node = self._victim(chance)
        if node is None or not self._may_corrupt(node):
            return False
        node.kill(Loss.ALL)
        node.replace_disk()
        self._later(duration(chance), node.start)
        return True

    def _put_volume_back(self, chance: random.Random) -> bool:
        """A disk is put back to what was durable on it before its broker's present session (H16, H42).

        Where none is in a second session yet, one is restarted first, and its disk put back when all are whole again.
        """
        nodes = [node for node in self.cluster.brokers.values() if node.can_be_put_back]
        node = chance.choice(nodes) if nodes else None
        if node is None or not self._may_corrupt(node):
            if not nodes and (begun := self._victim(chance)) is not None:
                begun.kill(Loss.NOTHING)
                begun.start()
            return False
        node.kill(Loss.ALL)
        node.put_back_disk()
        self._later(duration(chance), node.start)
        return True

    def _scrub(self, chance: random.Random) -> bool:
        """A broker reads all that it has stored, to find what has rotted (H33)."""
        node = self._victim(chance)
        if node is None or node.broker is None:
            return False
        node.broker.scrub()
        return True

    def _start_with_wrong_clock(self, chance: random.Random) -> bool:
        """A machine comes back with another time, as after its battery died, and has the right one later (H43)."""
        node = self._victim(chance)
        if node is None or not self._may_lose(Loss.ALL):
            return False
        wrong_ms = chance.choice((-30 * DAY_MS, 30 * DAY_MS, 30 * DAY_MS, -4_000 * DAY_MS))
        node.kill(Loss.PREFIX)
        node.wall.move(wrong_ms)
        after_ms = duration(chance)
        self._later(after_ms, node.start)
        self._later(after_ms + 1_500, lambda: self._let_lead(node))
        self._later(after_ms + chance.choice((1_000, 6_000, 30_000)), lambda: node.wall.move(-wrong_ms))
        return True

    def _let_lead(self, node: BrokerNode) -> None:
        """Ask for all leaderships that it may have."""
        for key in self.cluster.partitions if not self.cluster.recovery.is_due else ():
            state = self.cluster.state(key)
            members = [entry.broker_id for entry in state.in_sync if entry.broker_id not in state.removing]
            if node.broker_id in members:
                self.cluster.administration.move_leader(key, members.index(node.broker_id))

    def _clock_jump(self, chance: random.Random) -> bool:
        """Where records go by their age, a jump that is guarded against (H43)."""
        node = chance.choice(list(self.cluster.brokers.values()))
        jumps: tuple[int, ...] = (-3_600_000, -5_000, 5_000, 3_600_000)
        if self.cluster.plan.goes_by_age:
            jumps = (-30 * DAY_MS, 30 * DAY_MS)
        node.wall.move(chance.choice(jumps))
        return True


def _hosts(node: BrokerNode) -> list[Host]:
    return list(node.broker.logs.values()) if node.broker is not None else []
