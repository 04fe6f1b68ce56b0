"""Callers have turns, where one of them can ask for much at once: a queue, and slices of the event loop.

A call of another one needs some ten turns of the loop, each of which lasts as long as all that is done in it. So of all
that is done in slices one slice is done at a time, and the next one is another caller's; while others make calls that
need no slices, slices have half of the time. A caller is an address (`places.caller`) or, for work without a caller,
whatever divides it.
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
"""The event loop's timers are no finer."""
SMALL_SECONDS = 0.25
"""A caller of small calls is there for so long after one."""
LARGE_SECONDS = 1.0
"""Calls of a caller that had a slice so lately are not taken for small ones."""
MAX_LARGE = 1_000


class CallerQueue(Generic[ItemT]):
    """Items in the order in which each caller put them, each once; of the callers one item after the other."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, OrderedDict[ItemT, None]] = OrderedDict()

    def __bool__(self) -> bool:
        """Whether there is an item."""
        return bool(self._queues)

    def put(self, caller: str, item: ItemT) -> None:
        """Add an item of a caller, who has it once."""
        self._queues.setdefault(caller, OrderedDict())[item] = None

    def pop(self) -> tuple[str, ItemT]:
        """Take the first item of the caller whose turn it is. Raises KeyError where there is none."""
        caller, queue = self._queues.popitem(last=False)
        item, _ = queue.popitem(last=False)
        if queue:
            self._queues[caller] = queue
        return caller, item


class _Turns:
    """Slices of one event loop, one at a time.

    While a caller of small calls is there, the loop is left to others after each millisecond of slices for as long.
    They need the interpreter in threads, too, in which a loop that goes from slice to slice leaves them little.
    """

    def __init__(self) -> None:
        self._waiting: CallerQueue[asyncio.Future[None]] = CallerQueue()
        self._is_given = False  # a slice is being done, or its pause
        self._owed_seconds = 0.0
        self._large: dict[str, float] = {}  # when a caller had its last slice
        self._small, self._small_at = "", -math.inf  # who made a call without a recent slice, and when

    def note_call(self, caller: str, now: float) -> None:
        """Note a call that may be small."""
        if now - self._large.get(caller, -math.inf) > LARGE_SECONDS:
            self._small, self._small_at = caller, now

    def wait(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Return what is done once the next slice of the task's caller may be done."""
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
        loop.call_soon(self._pause, loop, caller, loop.time())  # Behind the slice, which its result has put there.

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
    """Note a call of a caller, whom slices of others leave the event loop to."""
    loop = asyncio.get_running_loop()
    _turns_of(loop).note_call(caller, loop.time())


async def next_turn() -> None:
    """Wait until the next slice of the task's caller may be done."""
    loop = asyncio.get_running_loop()
    await _turns_of(loop).wait(loop)
