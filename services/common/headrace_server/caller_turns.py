"""Fair scheduling between callers: turns of the event loop by bytes, and time for small calls between them.

A small call needs some ten iterations of the loop, each of which lasts as long as all work done in it. Therefore the
calls of a caller that uses much, and the slices of large requests, run in turns, one at a time: deficit round robin
(Shreedhar and Varghese, 1995), in which a turn has `QUANTUM_BYTES`. While there are callers that use little, whose
calls wait for no turn, each turn is followed by a pause of its length. A caller is `Access.share_key`, the user or else
the address; for work without a caller, any key that divides it. There are no settings.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from headrace_server.calls import CALLER

ItemT = TypeVar("ItemT")

QUANTUM_BYTES = 256 << 10
"""Bytes of a turn; cost of a slice whose bytes are not known."""
CALL_BYTES = 256 << 10
"""Cost of a call, in addition to its bytes."""
LIGHT_BYTES_PER_SECOND = 64 << 20
"""A caller that uses less does not wait; some 6 % of what a broker can do."""
BURST_SECONDS = 0.25
"""Use at this rate that is free for a caller that was idle."""
HEAVY_SECONDS = 1.0
"""Maximum time for which a caller counts as one that uses much after its last call."""
ACTIVE_SECONDS = 0.25
"""A caller counts as active for this time after a call."""
LOOP_BYTES_PER_SECOND = 1 << 30
"""A turn costs the loop, other threads and the kernel at least as long as its bytes take at this rate."""
MAX_HELD_SECONDS = 0.02
"""A turn that waits for a disk for longer is no longer held: the next caller's may not need that disk."""
SHORTEST_PAUSE_SECONDS = 0.001
"""Resolution of the event loop's timers."""
MAX_CALLERS = 1_000


class CallerQueue(Generic[ItemT]):
    """Deficit round robin of callers: each caller's items in order and without duplicates, in turns of equal cost."""

    def __init__(self, quantum: int = 1) -> None:
        self._quantum = quantum
        self._queues: OrderedDict[str, OrderedDict[ItemT, int]] = OrderedDict()
        self._credits: dict[str, int] = {}

    def __bool__(self) -> bool:
        """Return whether there are items."""
        return bool(self._queues)

    def put(self, caller: str, item: ItemT, cost: int = 1) -> None:
        """Add an item of a caller, unless it is already queued."""
        self._queues.setdefault(caller, OrderedDict())[item] = cost

    def pop(self) -> tuple[str, ItemT, int]:
        """Remove and return the next item of a queue with items, with its caller and its cost."""
        assert self._queues, "a turn of nothing"
        while True:
            caller, queue = next(iter(self._queues.items()))
            item, cost = next(iter(queue.items()))
            credit = self._credits.pop(caller, 0)
            if credit < cost:
                self._credits[caller] = credit + self._quantum
                self._queues.move_to_end(caller)
                continue
            del queue[item]
            if queue:
                self._credits[caller] = credit - cost
            else:
                del self._queues[caller]
            return caller, item, cost


class _Turns:
    """Turns of one event loop, one at a time.

    Threads that serve small calls need the pauses, too: a loop that runs without one rarely releases the GIL.
    """

    def __init__(self) -> None:
        self._waiting: CallerQueue[asyncio.Future[None]] = CallerQueue(QUANTUM_BYTES)
        self._is_given = False  # a turn, or the pause after it, is in progress
        self._owed_seconds = 0.0
        self._is_in_step = False  # the first step of a turn may not be over
        self._held: object = None  # token of the turn that did not end with its first step
        self._paid_at: OrderedDict[str, float] = OrderedDict()
        """Time until which each caller has used its rate, the one of the last call last."""
        self._last, self._last_at, self._other_at = "", -math.inf, -math.inf
        """Caller and time of the last call, and time of the last one of another caller."""
        self._light, self._light_at = "", -math.inf
        """The same of the last call of a caller that uses little."""

    def note_call(self, caller: str, now: float) -> None:
        """Record a call, from the cost of which on its caller may be one that uses much."""
        if caller != self._last:
            self._last, self._other_at = caller, self._last_at
        self._last_at = now
        if self._charge(caller, CALL_BYTES, now) <= now:
            self._light, self._light_at = caller, now

    def must_wait(self, caller: str, size_bytes: int, now: float) -> bool:
        """Return whether a call must `wait`: its caller uses much, and another one is active. If not, charge it."""
        other_at = self._other_at if caller == self._last else self._last_at
        if now - other_at <= ACTIVE_SECONDS and self._paid_after(caller, size_bytes, now) > now:
            return True
        self._charge(caller, size_bytes, now)
        return False

    def wait(self, loop: asyncio.AbstractEventLoop, caller: str, size_bytes: int) -> asyncio.Future[None]:
        """Charge the bytes; return a future that completes when the caller's turn begins, for the step that follows."""
        self._charge(caller, size_bytes, loop.time())
        if not self._is_given:
            self._is_given = True
            loop.call_soon(self._give, loop)
        turn = loop.create_future()
        self._waiting.put(caller, turn, size_bytes)
        return turn

    def _paid_after(self, caller: str, size_bytes: int, now: float) -> float:
        idle_at = now - BURST_SECONDS
        return max(self._paid_at.get(caller, idle_at), idle_at) + size_bytes / LIGHT_BYTES_PER_SECOND

    def _charge(self, caller: str, size_bytes: int, now: float) -> float:
        paid_at = self._paid_at[caller] = min(self._paid_after(caller, size_bytes, now), now + HEAVY_SECONDS)
        self._paid_at.move_to_end(caller)
        if len(self._paid_at) > MAX_CALLERS:
            self._paid_at.popitem(last=False)
        return paid_at

    def hold(self, loop: asyncio.AbstractEventLoop, caller: str, size_bytes: int) -> Callable[[], None]:
        """Prolong the turn that has just begun until the returned function is called."""
        token = self._held = object()
        started = loop.time()

        def end() -> None:
            timer.cancel()
            if self._held is token:
                self._held = None
                if not self._is_in_step:
                    self._pause(loop, caller, size_bytes, started)

        timer = loop.call_later(MAX_HELD_SECONDS, end)
        return end

    def _give(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_given = bool(self._waiting)
        if not self._is_given:
            return
        caller, turn, size_bytes = self._waiting.pop()
        if turn.done():  # Its task was cancelled.
            loop.call_soon(self._give, loop)
            return
        turn.set_result(None)
        self._is_in_step = True
        # The result has scheduled the step, or its task has not begun yet and takes the result in the next iteration.
        loop.call_soon(loop.call_soon, self._end_step, loop, caller, size_bytes, loop.time())

    def _end_step(self, loop: asyncio.AbstractEventLoop, caller: str, size_bytes: int, started: float) -> None:
        self._is_in_step = False
        if self._held is None:
            self._pause(loop, caller, size_bytes, started)

    def _pause(self, loop: asyncio.AbstractEventLoop, caller: str, size_bytes: int, started: float) -> None:
        now = loop.time()
        if caller == self._light or now - self._light_at > ACTIVE_SECONDS:
            self._owed_seconds = 0.0
        else:
            self._owed_seconds += max(now - started, size_bytes / LOOP_BYTES_PER_SECOND)
        if self._owed_seconds < SHORTEST_PAUSE_SECONDS:
            loop.call_soon(self._give, loop)
        else:
            loop.call_later(self._owed_seconds, self._give, loop)
            self._owed_seconds = 0.0


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()


def _turns_of(loop: asyncio.AbstractEventLoop) -> _Turns:
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = _Turns()
    return turns


def note_call(caller: str) -> None:
    """Record a call of a caller, for which the turns of others leave time."""
    loop = asyncio.get_running_loop()
    _turns_of(loop).note_call(caller, loop.time())


def must_wait(size_bytes: int) -> bool:
    """Return whether the task's caller must wait for its turn, because it uses much and another one is active.

    If not, the bytes are charged here, otherwise by `next_turn`.
    """
    loop = asyncio.get_running_loop()
    return _turns_of(loop).must_wait(CALLER.get(), size_bytes, loop.time())


async def next_turn(size_bytes: int = QUANTUM_BYTES) -> None:
    """Wait until the next turn of the task's caller, in which it handles `size_bytes`."""
    loop = asyncio.get_running_loop()
    await _turns_of(loop).wait(loop, CALLER.get(), size_bytes)


@contextmanager
def held_turn(size_bytes: int) -> Iterator[None]:
    """Prolong the turn that `next_turn` has just given until the block ends, also where it waits for a thread."""
    loop = asyncio.get_running_loop()
    end = _turns_of(loop).hold(loop, CALLER.get(), size_bytes)
    try:
        yield
    finally:
        end()
