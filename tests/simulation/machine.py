"""A broker's machine: disk, clock and boots, which outlive the processes on it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NoReturn

from headrace.log.open_files import OpenFiles

from tests.fakes.memory_filesystem import BLOCK_BYTES, Loss, MemoryFileSystem, PowerLost, _Fault
from tests.simulation.broker import Broker
from tests.simulation.exercise import CHECKED
from tests.simulation.world import WallClock

LOSSES = (Loss.ALL, Loss.PREFIX, Loss.BLOCKS)
"""Which writes without an fsync a machine may lose with its power."""

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


class Disk(MemoryFileSystem):
    """The disk of a machine; when the power fails, nothing on it runs further, and no handler catches that."""

    def __init__(self, node: BrokerNode) -> None:
        super().__init__()
        self._node = node
        self.cached = not node.cluster.plan.cold_cache
        # Of the sizes of a batch and below, so that one can be torn in its middle.
        self.block_bytes = random.Random(f"{node.cluster.plan.seed}/{node.name}/blocks").choice((64, 512, BLOCK_BYTES))

    def stop_refusing(self) -> None:
        """See `MemoryFileSystem`."""
        self._node.cluster.world.count(CHECKED + "H35", self.refused)
        self.refused = 0
        super().stop_refusing()

    def crash(self, loss: Loss, chance: random.Random) -> None:
        """See `MemoryFileSystem`."""
        self.stop_refusing()
        super().crash(loss, chance)

    def _fail(self, fault: _Fault, path: str) -> NoReturn:
        try:
            super()._fail(fault, path)
        except PowerLost as lost:
            self._node.cluster.world.stopped = lost
            if self._node.broker is not None:
                self._node.broker.process.alive = False
            raise


class BrokerNode:
    """The machine: what outlives the process."""

    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.name = f"b{broker_id}"
        self.filesystem = Disk(self)
        skew_ms = cluster.world.chance("skew").randrange(-5_000, 5_000)
        self.wall = WallClock(skew_ms // 100 if cluster.plan.clocks_agree else skew_ms)
        self.boot_id = f"{self.name} boot 0"
        self.broker: Broker | None = None
        self.wanted = True
        """Whether the operator wants it to run: a process that exits by itself is started again."""
        self.snapshot: dict[str, bytes | None] | None = None
        """What was durable when the present process started, where the plan puts volumes back."""
        self._generation = 0
        """That of the last session; a disk from before the present one is not taken any more."""

    @property
    def can_be_put_back(self) -> bool:
        """Whether there is a copy of the disk from before the present session."""
        return self.snapshot is not None and self.broker is not None and self.broker.registered

    @property
    def running(self) -> Broker | None:
        """The process, where there is one and it is not paused."""
        broker = self.broker
        return broker if broker is not None and not broker.process.paused else None

    def start(self) -> None:
        """Start a process, where none runs."""
        if self.broker is None and self.cluster.recovery.may_start(self.broker_id):
            self.wanted = True
            if "volume put back" in self.cluster.plan.faults and self.filesystem.exists("/data/session"):
                # What is corrupt would come back as what is not known to be.
                is_corrupt = self.cluster.checks.is_corrupt(self.broker_id)
                is_taken = not is_corrupt and self._generation == self.cluster.identity.generation
                self.snapshot = self.filesystem.snapshot() if is_taken else None
            self.broker = Broker(self)

    @contextmanager
    def sound_disk(self) -> Iterator[None]:
        """For the simulator's own look at the disk: faults wait for the broker's next call, and its files stay open."""
        disk = self.filesystem
        waiting = disk._faults, disk._refusal
        disk._faults, disk._refusal = [], None
        try:
            with ExitStack() as stack:
                if self.broker is not None and self.broker.app is not None:
                    stack.enter_context(_as_before(self.broker.app._directory._environment.files))
                yield
        finally:
            disk._faults, disk._refusal = waiting

    def replace_disk(self) -> None:
        """Take out the disk, with all that is on it."""
        self.filesystem = Disk(self)
        for key in self.cluster.checks.partitions:
            self.cluster.checks.set_aside(self.broker_id, key)

    def put_back_disk(self) -> None:
        """Put the disk back to what it was before the present session, as a volume is restored from a snapshot."""
        snapshot, self.snapshot = self.snapshot, None
        assert snapshot is not None
        self.replace_disk()
        self.filesystem.put_back(snapshot)

    def kill(self, loss: Loss, *, in_a_call: bool = False) -> None:
        """End the process: `Loss.NOTHING` is kill -9, the others are the machine without power.

        `in_a_call`: in the middle of an event, so that its progress is unknown.
        """
        broker, self.broker = self.broker, None
        if broker is None:
            return
        if broker.registered:
            self._generation = self.cluster.identity.generation
        self.cluster.world.note(self.name, f"dies, losing {loss.value} of what was not fsynced")
        broker.process.alive = False
        self.cluster.dead_loops.append(broker.loop)
        if loss is not Loss.NOTHING:
            self.boot_id = f"{self.name} boot {self.cluster.world.now_ms}"
        # A process may die before it sees that an fsync has failed.
        certain = loss is Loss.NOTHING and not in_a_call and not self.filesystem.has_dropped
        self.cluster.checks.died(broker, certain=certain)
        self.cluster.network.process_died(broker.process, silently=loss is not Loss.NOTHING)
        if loss is Loss.NOTHING:
            self.cluster.transport.process_died(broker.process)
        self.filesystem.crash(loss, self.cluster.world.chance(f"loss/{self.name}"))

    def exited(self, broker: Broker) -> None:
        """The process has ended by itself; who is wanted is started again soon."""
        if self.broker is not broker:
            return
        broker.loop.check()
        self.kill(Loss.NOTHING)
        if self.wanted:
            delay_ms = 500 + self.cluster.world.chance(f"restart/{self.name}").randrange(500)
            self.cluster.world.after(delay_ms, self.cluster.operator, "", self._restart)

    def _restart(self) -> None:
        if self.wanted:
            self.start()


@contextmanager
def _as_before(files: OpenFiles) -> Iterator[None]:
    """Open files beyond the capacity within, and have the same ones open afterwards, in the same order of use."""
    capacity, opened, order = files._capacity, set(files._files), list(files._unpinned)
    files._capacity = capacity + 1_000
    try:
        yield
    finally:
        files._capacity = capacity
        for file in [file for path, file in files._files.items() if path not in opened]:
            files._close(file)
        for path in order:
            files._unpinned.move_to_end(path)
