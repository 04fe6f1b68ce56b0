"""A broker's machine: disk, clock and boots, which outlive the processes on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace_broker.storage.memory_filesystem import Loss, MemoryFileSystem

from tests.simulation.broker import Broker
from tests.simulation.world import WallClock

LOSSES = (Loss.ALL, Loss.PREFIX, Loss.BLOCKS)
"""What of the writes that nobody had fsynced a machine without power may lose."""

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


class BrokerNode:
    """The machine: what outlives the process."""

    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.name = f"b{broker_id}"
        self.filesystem = MemoryFileSystem()
        self.wall = WallClock(cluster.world.chance("skew").randrange(-5_000, 5_000))
        self.suspects: dict[int, None] = {}
        """Partitions in whose log damage was found: set aside at the next start."""
        self.boot_id = f"{self.name} boot 0"
        self.broker: Broker | None = None
        self.wanted = True
        """Whether the operator wants it to run: a process that exits by itself is started again."""
        self.restart_due = False
        """It will be, soon."""

    @property
    def running(self) -> Broker | None:
        """The process, where one is alive and not paused."""
        broker = self.broker
        return broker if broker is not None and not broker.process.paused else None

    def start(self) -> None:
        """Start a process, where none runs."""
        if self.broker is None:
            self.wanted = True
            self.broker = Broker(self)
            self.broker.start()

    @contextmanager
    def sound_disk(self) -> Iterator[None]:
        """For the simulator's own look at the disk: faults that wait for the next call wait on."""
        faults, self.filesystem._faults = self.filesystem._faults, []
        try:
            yield
        finally:
            self.filesystem._faults = faults

    def replace_disk(self) -> None:
        """Take out the disk, with all that is on it."""
        self.filesystem = MemoryFileSystem()
        self.suspects.clear()
        for number in self.cluster.partitions:
            self.cluster.checks.set_aside(self.broker_id, number)

    def kill(self, loss: Loss, *, in_a_call: bool = False) -> None:
        """End the process: `Loss.NOTHING` is kill -9, the others are the machine without power.

        `in_a_call`: in the middle of an event, so that nobody knows how far it came.
        """
        broker, self.broker = self.broker, None
        if broker is None:
            return
        self.cluster.world.note(self.name, f"dies, losing {loss.value} of what was not fsynced")
        broker.process.alive = False
        if loss is not Loss.NOTHING:
            self.boot_id = f"{self.name} boot {self.cluster.world.now_ms}"
        self.cluster.checks.died(broker, certain=loss is Loss.NOTHING and not in_a_call)
        self.cluster.network.process_died(broker.process, silently=loss is not Loss.NOTHING)
        self.filesystem.crash(loss, self.cluster.world.chance(f"loss/{self.name}"))

    def ended(self, broker: Broker) -> None:
        """The process has stopped in order."""
        if self.broker is broker:
            self.kill(Loss.NOTHING)
