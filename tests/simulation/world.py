"""Virtual time: one queue of events, chance by name, processes that die and pause, and the trace a person can read.

One seed gives one order of events: nothing here asks the machine's clock, iterates a set, or looks at an address or a
hash. Every node of the simulation schedules through one `World` (PROTOCOL T2).
"""

from __future__ import annotations

import heapq
import random
import zlib
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from tests.fakes.memory_filesystem import PowerLost

ResultT = TypeVar("ResultT")
Call = Callable[[], object]

EPOCH_MS = 1_700_000_000_000
"""The time of day when a run begins."""
TRACE_TAIL = 400
"""Lines kept where the whole trace is not asked for."""


class SimulationError(Exception):
    """A promise was broken: which one, and what was seen."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class Process:
    """One life of one node: what is scheduled for it is done while it is alive, and waits while it is paused."""

    __slots__ = ("after_event", "alive", "backlog", "name", "number", "paused", "started_ms")

    def __init__(self, name: str, number: int, started_ms: int) -> None:
        self.name = name
        self.number = number
        self.started_ms = started_ms
        self.alive = True
        self.paused = False
        self.backlog: list[Event] = []
        self.after_event: Call | None = None
        """Called after each event of it, while it is alive."""


class Event:
    """Something that happens at a moment; `call` is None once it was cancelled."""

    __slots__ = ("call", "process", "what")

    def __init__(self, process: Process, what: str, call: Call) -> None:
        self.process = process
        self.what = what
        self.call: Call | None = call

    def cancel(self) -> None:
        """Let it not happen."""
        self.call = None


class World:
    """The queue, the clock, the dice and the trace of one run."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.now_ms = 0
        self.steps = 0
        """Events done."""
        self.digest = 0
        """Of all lines of the trace: two runs of one seed have the same."""
        self.trace: deque[str] = deque(maxlen=None if keep_trace else TRACE_TAIL)
        self.counts: dict[str, int] = {}
        """What happened and how often, by name."""
        self.stopped: PowerLost | None = None
        """A machine that stopped in the middle of the event that is being done."""
        self.on_power_lost: Callable[[PowerLost], None]
        """Called once that event is over."""
        self._queue: list[tuple[int, int, Event]] = []
        """Events by their moment, and by a number that no other has."""
        self._sequence = 0
        self._resumed = -(1 << 60)
        self._streams: dict[str, random.Random] = {}
        self._processes: dict[str, int] = {}

    def chance(self, name: str) -> random.Random:
        """Return the stream of chance of that name: draws from one do not move another."""
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = random.Random(f"{self.seed}/{name}")
        return stream

    def start_process(self, name: str) -> Process:
        """Begin a new life of the node `name`."""
        number = self._processes[name] = self._processes.get(name, 0) + 1
        return Process(name, number, self.now_ms)

    def pause(self, process: Process) -> None:
        """Stop a process as SIGSTOP does: what comes for it waits."""
        process.paused = True

    def resume(self, process: Process) -> None:
        """Resume it, if it is paused; what waited happens now, in order."""
        if not process.paused:
            return
        process.paused = False
        for event in process.backlog:
            self._resumed += 1
            heapq.heappush(self._queue, (self.now_ms, self._resumed, event))  # Before all else that is due now.
        process.backlog.clear()

    def at(self, at_ms: int, process: Process, what: str, call: Call) -> Event:
        """Let `call` happen at a moment, if the process is alive then."""
        return self._push(max(at_ms, self.now_ms), process, what, call)

    def after(self, delay_ms: int, process: Process, what: str, call: Call) -> Event:
        """Let `call` happen `delay_ms` from now, if the process is alive then."""
        return self._push(self.now_ms + delay_ms, process, what, call)

    def _push(self, at_ms: int, process: Process, what: str, call: Call) -> Event:
        self._sequence += 1
        event = Event(process, what, call)
        heapq.heappush(self._queue, (at_ms, self._sequence, event))
        return event

    def step(self) -> bool:
        """Do the next event; False when there is none."""
        while self._queue:
            at_ms, _, event = heapq.heappop(self._queue)
            call = event.call
            if call is None or not event.process.alive:
                continue
            if event.process.paused:
                event.process.backlog.append(event)
                continue
            self.now_ms = at_ms
            self.steps += 1
            if event.what:
                self.note(event.process.name, event.what)
            try:
                call()
            except PowerLost as error:
                self.stopped = error
            if self.stopped is not None:
                lost, self.stopped = self.stopped, None
                self.on_power_lost(lost)
            process = event.process
            if process.after_event is not None and process.alive:
                process.after_event()
            return True
        return False

    def note(self, node: str, what: str) -> None:
        """Write one line of the trace."""
        line = f"{self.now_ms:>8} {node:<6} {what}"
        self.trace.append(line)
        self.digest = zlib.crc32(line.encode(), self.digest)

    def count(self, name: str, by: int = 1) -> None:
        """Count something that happened, for the summary."""
        self.counts[name] = self.counts.get(name, 0) + by


class NodeClock:
    """A `Clock` of one process: wall time is off by a skew that may jump, the others begin with the process."""

    def __init__(self, world: World, process: Process, wall: WallClock) -> None:
        self._world = world
        self._process = process
        self._wall = wall

    def now_ms(self) -> int:
        """Wall time."""
        return self._world.now_ms + self._wall.offset_ms

    def monotonic_ms(self) -> int:
        """Milliseconds since the process began."""
        return self._world.now_ms - self._process.started_ms

    def boottime_ms(self) -> int:
        """As `monotonic_ms`."""
        return self._world.now_ms - self._process.started_ms


class WallClock:
    """How far a machine's wall time is from the world's; faults move it."""

    def __init__(self, skew_ms: int) -> None:
        self.offset_ms = self.lowest_ms = self.highest_ms = EPOCH_MS + skew_ms

    def move(self, by_ms: int) -> None:
        """Set it forward or back."""
        self.offset_ms += by_ms
        self.lowest_ms, self.highest_ms = min(self.lowest_ms, self.offset_ms), max(self.highest_ms, self.offset_ms)


class Wait(Generic[ResultT]):
    """What a coroutine of a node waits for; `start` is given what to call with the result or the error."""

    __slots__ = ("start",)

    def __init__(self, start: Callable[[Callable[[Any], None]], object]) -> None:
        self.start = start

    def __await__(self) -> Generator[Wait[ResultT], Any, ResultT]:
        result = yield self
        if isinstance(result, BaseException):
            raise result
        return result  # type: ignore[no-any-return]
