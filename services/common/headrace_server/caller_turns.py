"""Fair scheduling between callers: a round-robin queue, and time slices of the event loop for large requests.

A small call needs some ten turns of the loop, each of which lasts as long as all work done in it. Therefore only one
slice of large requests runs at a time, and the next one is another caller's. While there are small calls, slices get
half of the time. `has_others` returns whether it matters that the loop is blocked. A caller is an address
(`places.caller`) or, for work without a caller, any key that divides it.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from headrace_server.calls import CALLER

ItemT = TypeVar("ItemT")

SHORTEST_PAUSE_SECONDS = 0.001
"""Resolution of the event loop's timers."""
SMALL_SECONDS = 0.25
"""A caller of small calls counts as active for this time after a call."""
LARGE_SECONDS = 1.0
"""Calls of a caller that had a slice within this time do not count as small."""
MAX_LARGE = 1_000


class CallerQueue(Generic[ItemT]):
    """Round-robin queue: each caller's items in order and without duplicates, one item per caller in turn."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, OrderedDict[ItemT, None]] = OrderedDict()

    def __bool__(self) -> bool:
        """Return whether there are items."""
        return bool(self._queues)

    def put(self, caller: str, item: ItemT) -> None:
        """Add an item of a caller, unless it is already queued."""
        self._queues.setdefault(caller, OrderedDict())[item] = None

    def pop(self) -> tuple[str, ItemT]:
        """Remove and return the first item of the next caller. Raises KeyError if the queue is empty."""
        caller, queue = self._queues.popitem(last=False)
        item, _ = queue.popitem(last=False)
        if queue:
            self._queues[caller] = queue
        return caller, item


class _Turns:
    """Time slices of one event loop, one at a time.

    While a caller of small calls is active, each millisecond of slices is followed by a pause of the same length.
    Threads that serve small calls need it, too: a loop that runs slices without a pause rarely releases the GIL.
    """

    def __init__(self) -> None:
        self._waiting: CallerQueue[asyncio.Future[None]] = CallerQueue()
        self._is_given = False  # a slice, or the pause after it, is in progress
        self._owed_seconds = 0.0
        self._large: dict[str, float] = {}  # time of each caller's last slice
        self._small, self._small_at = "", -math.inf  # last caller without a recent slice, and time of its call
        self._last, self._last_at = "", -math.inf  # caller and time of the last call
        self._other_at = -math.inf  # time of the last call of another caller

    def note_call(self, caller: str, now: float) -> None:
        """Record a call that may be small."""
        if caller != self._last:
            self._last, self._other_at = caller, self._last_at
        self._last_at = now
        if now - self._large.get(caller, -math.inf) > LARGE_SECONDS:
            self._small, self._small_at = caller, now

    def has_others(self, caller: str, now: float) -> bool:
        """Return whether another caller is active."""
        return now - (self._other_at if caller == self._last else self._last_at) <= SMALL_SECONDS

    def wait(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Return a future that completes when the next slice of the task's caller may run."""
        if not self._is_given:
            self._is_given = True
            loop.call_soon(self._give, loop)
        turn = loop.create_future()
        self._waiting.put(CALLER.get(), turn)
        return turn

    def _give(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_given = bool(self._waiting)
        if not self._is_given:
            return
        caller, turn = self._waiting.pop()
        if turn.done():  # Its task was cancelled.
            loop.call_soon(self._give, loop)
            return
        turn.set_result(None)
        loop.call_soon(self._pause, loop, caller, loop.time())  # Runs after the slice, which the result has scheduled.

    def _pause(self, loop: asyncio.AbstractEventLoop, caller: str, started: float) -> None:
        now = loop.time()
        if caller not in self._large and len(self._large) >= MAX_LARGE:
            self._large = {each: at for each, at in self._large.items() if now - at <= LARGE_SECONDS}
        self._large[caller] = now
        if caller == self._small or now - self._small_at > SMALL_SECONDS:
            self._owed_seconds = 0.0
        else:
            self._owed_seconds += now - started
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
    """Record a call of a caller, for which other callers' slices leave time."""
    loop = asyncio.get_running_loop()
    _turns_of(loop).note_call(caller, loop.time())


def has_others() -> bool:
    """Return whether a caller other than the task's is active, and would notice that the event loop is blocked."""
    loop = asyncio.get_running_loop()
    return _turns_of(loop).has_others(CALLER.get(), loop.time())


async def next_turn() -> None:
    """Wait until the next slice of the task's caller may run."""
    loop = asyncio.get_running_loop()
    await _turns_of(loop).wait(loop)
