"""Requests in transit: calls whose headers have arrived but not their message.

gRPC starts a call when its headers arrive, and the caller chooses the deadline, so that a call could stay half open for
years. Here the message must arrive within one second. gRPC does not report how much of a message has arrived. A method
with large messages, which may take longer on a slow network, therefore releases its slot after that second and
continues without one for at most `LATE_SECONDS`, if there is memory: each counts as the largest message of its method,
against `LATE_BYTES` in total and `LATE_BYTES_OF_PEER` per peer. Time is counted in turns of this event loop, not by the
clock, so that a stall of the loop makes no request late. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from typing import Any

from headrace_server.methods import Pool
from headrace_server.places import Place

ROUND_SECONDS = 0.2
ARRIVAL_ROUNDS = 5
LATE_SECONDS = 30.0
LATE_BYTES = 256 << 20
"""Eight Produce requests. Their data is in gRPC's memory, outside of the broker's budget."""
LATE_BYTES_OF_PEER = 64 << 20


class NotArrivedError(Exception):
    """The request did not arrive in time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class _Arrival:
    __slots__ = ("is_late", "late_bytes", "place", "rounds", "seconds", "task")

    def __init__(self, task: asyncio.Task[Any], place: Place, late_bytes: int) -> None:
        self.task = task
        self.place = place
        self.late_bytes = late_bytes
        self.rounds = 0
        self.is_late = False
        self.seconds = 0.0  # time that it had, once it has ended


class Arrivals:
    """Calls of one server whose request is in transit."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[Pool, str], dict[_Arrival, None]] = {}  # by pool and peer, oldest first
        self._late: dict[str, int] = {}  # bytes, by peer
        self._is_sweeping = False

    async def read(self, context: Any, place: Place, pool: Pool, *, late_bytes: int) -> Any:
        """Wait for the message of a call and return it; the call holds `place` again on return.

        `late_bytes` is the memory counted for a late message; `0` means that it must not be late.

        Raises:
            NotArrivedError: If the message does not arrive in time.
            ThrottledError: If it arrives late and no slot is free.
        """
        task = asyncio.current_task()
        assert task is not None
        arrival = _Arrival(task, place, late_bytes)
        waiting = self._waiting.setdefault((pool, place.peer), {})
        waiting[arrival] = None
        if not self._is_sweeping:
            self._is_sweeping = True
            asyncio.get_running_loop().call_later(ROUND_SECONDS, self._sweep)
        try:
            message = await context.read()
        except asyncio.CancelledError:
            if arrival.seconds and task.uncancel() == 0:
                raise NotArrivedError(arrival.seconds) from None
            raise
        finally:
            waiting.pop(arrival, None)
            if not waiting and self._waiting.get((pool, place.peer)) is waiting:
                del self._waiting[(pool, place.peer)]
            if arrival.is_late:
                self._leave_late(arrival)
        if arrival.is_late:
            place.retake()
        return message

    def end_oldest(self, pool: Pool, peer: str) -> bool:
        """Free the slot of the peer's oldest call in transit; return False if it has none in this pool."""
        waiting = self._waiting.get((pool, peer), {})
        oldest = next((arrival for arrival in waiting if not arrival.is_late), None)
        if oldest is not None:
            del waiting[oldest]
            oldest.place.release()
            self._end(oldest)
        return oldest is not None

    def _sweep(self) -> None:
        for arrival in [arrival for waiting in self._waiting.values() for arrival in waiting]:
            arrival.rounds += 1
            if arrival.is_late:
                if arrival.rounds * ROUND_SECONDS >= LATE_SECONDS:
                    self._end(arrival)
            elif arrival.rounds >= ARRIVAL_ROUNDS:
                if not (arrival.late_bytes and self._may_be_late(arrival)):
                    self._end(arrival)
                    continue
                arrival.is_late = True
                self._late[arrival.place.peer] = self._late.get(arrival.place.peer, 0) + arrival.late_bytes
                arrival.place.release()
        self._is_sweeping = bool(self._waiting)
        if self._is_sweeping:
            asyncio.get_running_loop().call_later(ROUND_SECONDS, self._sweep)

    def _end(self, arrival: _Arrival) -> None:
        if not arrival.seconds:
            arrival.seconds = max(1, arrival.rounds) * ROUND_SECONDS
            arrival.task.cancel()

    def _may_be_late(self, arrival: _Arrival) -> bool:
        of_peer = self._late.get(arrival.place.peer, 0) + arrival.late_bytes
        return of_peer <= LATE_BYTES_OF_PEER and sum(self._late.values()) + arrival.late_bytes <= LATE_BYTES

    def _leave_late(self, arrival: _Arrival) -> None:
        left = self._late.pop(arrival.place.peer) - arrival.late_bytes
        if left:
            self._late[arrival.place.peer] = left
