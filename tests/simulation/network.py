"""Messages between the nodes: delayed, dropped, duplicated, overtaken; links blocked one way; streams that break.

A unary call is two messages, each with a fate of its own. A stream keeps its order, holds what a blocked link does not
let through, and breaks: both sides hear of it or only one, and what was under way may still be delivered after that
(PROTOCOL T2, H6).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tests.simulation.world import Process, World

Call = Callable[[], object]
Link = tuple[str, str]

LATE_PRODUCES = "produces that came late"
LATE_MS = 300, 4_000
"""When a late request arrives: so long after it was sent, and at random up to so much later."""


@dataclass(frozen=True, slots=True)
class NetworkRates:
    """How a run's network behaves; each rate is a probability a message."""

    least_delay_ms: int = 1
    usual_delay_ms: int = 4
    slow_rate: float = 0.0
    """A message takes up to `slow_ms` instead."""
    slow_ms: int = 400
    drop_rate: float = 0.0
    double_rate: float = 0.0
    late_produce_rate: float = 0.0
    """A client's attempt to produce arrives when the client has mostly tried again."""
    late_rate: float = 0.3
    """What was under way on a stream when it broke is delivered nevertheless."""


class Network:
    """All links of the cluster. Links are open unless `block` closed them."""

    def __init__(self, world: World, rates: NetworkRates) -> None:
        self.world = world
        self.rates = rates
        self._chance = world.chance("network")
        self._blocked: dict[Link, int] = {}
        self._streams: list[Stream] = []

    def block(self, source: str, target: str) -> None:
        """Let nothing through from `source` to `target`."""
        self._blocked[(source, target)] = 1

    def unblock(self, source: str, target: str) -> None:
        """Open one link; messages that streams held are delivered."""
        if self._blocked.pop((source, target), None) is None:
            return
        for stream in self._streams:
            stream.release(source, target)

    def unblock_all(self) -> None:
        """Open every link."""
        for source, target in list(self._blocked):
            self.unblock(source, target)

    def blocked_links(self) -> list[Link]:
        """The links that are closed, in the order of closing."""
        return list(self._blocked)

    def is_blocked(self, source: str, target: str) -> bool:
        """Whether nothing goes from `source` to `target`."""
        return (source, target) in self._blocked

    def delay_ms(self) -> int:
        """Draw how long one message takes."""
        rates, chance = self.rates, self._chance
        if rates.slow_rate and chance.random() < rates.slow_rate:
            return chance.randrange(rates.slow_ms) + 1
        return rates.least_delay_ms + int(chance.random() * rates.usual_delay_ms)

    def send(self, source: str, target: Process, what: str, deliver: Call, *, once: bool = False) -> None:
        """Send one message; it may be lost, overtake another, or, unless `once`, come twice."""
        rates, chance = self.rates, self._chance
        if self._blocked and (source, target.name) in self._blocked:
            return
        if rates.drop_rate and chance.random() < rates.drop_rate:
            self.world.count("messages dropped")
            return
        self.world.after(self.delay_ms(), target, what, deliver)
        if not once and rates.double_rate and chance.random() < rates.double_rate:
            self.world.count("messages duplicated")
            self.world.after(self.delay_ms() * 3, target, f"{what} (again)" if what else "", deliver)

    def send_produce(self, source: str, target: Process, what: str, deliver: Call) -> None:
        """Send a request to produce; it may arrive seconds later, after its caller has asked again (H48)."""
        late = self.world.chance("late produces")
        if late.random() >= self.rates.late_produce_rate:
            self.send(source, target, what, deliver, once=True)
        elif not self.is_blocked(source, target.name):
            self.world.count(LATE_PRODUCES)
            self.world.after(LATE_MS[0] + late.randrange(LATE_MS[1]), target, f"{what} (late)", deliver)

    def open_stream(
        self, client: Process, server: Process, on_break: Callable[[Process], None], keepalive_ms: int | None = None
    ) -> Stream:
        """Open a stream; `on_break(side)` is called at each side that hears of its end.

        The client hears of any end within `keepalive_ms`, if its kernel probes the connection.
        """
        stream = Stream(self, client, server, on_break, keepalive_ms)
        self._streams.append(stream)
        return stream

    def process_died(self, process: Process, *, silently: bool) -> None:
        """Break the streams of a process: its peers hear of it, or, of a machine without power, nothing."""
        for stream in list(self._streams):
            if process in stream.sides:
                stream.end(heard_by=[side for side in stream.sides if side is not process and not silently])

    def break_some(self, rate: float) -> int:
        """Break streams by chance; each side hears of it or not, but one of them does. Returns how many."""
        broken = 0
        for stream in list(self._streams):
            if self._chance.random() < rate:
                heard = [side for side in stream.sides if self._chance.random() < 0.6]
                stream.end(heard_by=heard or [stream.sides[self._chance.randrange(2)]])
                broken += 1
        return broken

    def break_at(self, process: Process) -> None:
        """Break the streams of a process; both sides hear of it."""
        for stream in [each for each in self._streams if process in each.sides]:
            stream.end(heard_by=list(stream.sides))

    def break_between(self, one: Process, other: Process) -> None:
        """Break the streams between two processes; both hear of it."""
        for stream in [each for each in self._streams if set(each.sides) == {one, other}]:
            stream.end(heard_by=[one, other])

    def forget(self, stream: Stream) -> None:
        """Drop a stream that has ended."""
        if stream in self._streams:
            self._streams.remove(stream)


class Stream:
    """Two directions, each in order. Once ended nothing new goes; a side that did not hear of it may still send."""

    __slots__ = ("_held", "_keepalive_ms", "_network", "_on_break", "_ready_ms", "_silent", "closed", "ended", "sides")

    def __init__(
        self,
        network: Network,
        client: Process,
        server: Process,
        on_break: Callable[[Process], None],
        keepalive_ms: int | None,
    ) -> None:
        self._network = network
        self._keepalive_ms = keepalive_ms
        self._on_break = on_break
        self.sides = (client, server)
        self.ended = False
        self.closed = [False, False]
        """Whether each side knows of the end."""
        self._ready_ms = [0, 0]
        self._silent = [False, False]
        self._held: tuple[list[tuple[str, Call]], list[tuple[str, Call]]] = ([], [])

    def send(self, source: Process, what: str, deliver: Call) -> None:
        """Send from one side to the other, behind everything sent before."""
        at = 0 if source is self.sides[0] else 1
        if self.ended:
            return
        target = self.sides[1 - at]
        if self._held[at] or self._network.is_blocked(source.name, target.name):
            self._held[at].append((what, deliver))
            return
        self._schedule(at, what, deliver)

    def _schedule(self, at: int, what: str, deliver: Call) -> None:
        world = self._network.world
        self._ready_ms[at] = max(self._ready_ms[at], world.now_ms + self._network.delay_ms())
        world.at(self._ready_ms[at], self.sides[1 - at], what, lambda: self._deliver(1 - at, deliver))

    def _deliver(self, target: int, deliver: Call) -> None:
        if self.ended:
            late = self._network.world.chance("late")
            if self._silent[target] or late.random() >= self._network.rates.late_rate:
                self._silent[target] = True  # What was behind it does not come either.
                return
            self._network.world.count("messages of ended streams")
        deliver()

    def release(self, source: str, target: str) -> None:
        """Let go what a link held that is open again."""
        for at in (0, 1):
            if (self.sides[at].name, self.sides[1 - at].name) == (source, target):
                held = self._held[at][:]
                self._held[at].clear()
                for what, deliver in held:
                    self._schedule(at, what, deliver)

    def end(self, heard_by: list[Process]) -> None:
        """End it; those in `heard_by` hear of it after a while."""
        if self.ended:
            return
        self.ended = True
        self._held[0].clear()
        self._held[1].clear()
        self._network.forget(self)
        for side in self.sides:
            if side in heard_by:
                self._network.world.after(self._network.delay_ms(), side, "a stream broke", partial(self._hear, side))
            elif side is self.sides[0] and self._keepalive_ms is not None:
                self._network.world.after(self._keepalive_ms, side, "a stream is dead", partial(self._hear, side))

    def _hear(self, side: Process) -> None:
        at = 0 if side is self.sides[0] else 1
        if not self.closed[at]:
            self.closed[at] = True
            self._on_break(side)

    def close(self, side: Process) -> None:
        """Close it from one side, which needs no notice; the other hears of it."""
        self.closed[0 if side is self.sides[0] else 1] = True
        self.end(heard_by=[other for other in self.sides if other is not side])
