"""Callers have turns, where one of them can ask for much at once: a queue, and slices of the event loop.

A call of another one needs some ten turns of the loop, each of which lasts as long as all that is done in it. So of all
that is done in slices one slice is done in each turn, and the next one is another caller's. A caller is an address
(`places.caller`) or, of what nobody called for, whatever divides it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from headrace_server.calls import CALLER

ItemT = TypeVar("ItemT")


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


_slices: WeakKeyDictionary[asyncio.AbstractEventLoop, CallerQueue[asyncio.Future[None]]] = WeakKeyDictionary()


async def next_turn() -> None:
    """Wait until the next slice of the task's caller may be done."""
    loop = asyncio.get_running_loop()
    waiting = _slices.setdefault(loop, CallerQueue())
    if not waiting:
        loop.call_soon(_give, loop, waiting)
    turn = loop.create_future()
    waiting.put(CALLER.get(), turn)
    await turn


def _give(loop: asyncio.AbstractEventLoop, waiting: CallerQueue[asyncio.Future[None]]) -> None:
    _, turn = waiting.pop()
    if not turn.done():  # Its task was cancelled.
        turn.set_result(None)
    if waiting:
        loop.call_soon(_give, loop, waiting)
