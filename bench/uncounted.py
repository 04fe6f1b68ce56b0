"""A broker that counts nothing after SIGUSR1, and counts again after the next: what `bench.metrics cost` compares.

Run as `python -m bench.uncounted`. The code of the instruments is exchanged, not the instruments: a kept
reference to a method calls the other code, too.
"""

from __future__ import annotations

import signal
from typing import Any

from headrace_broker.__main__ import main
from headrace_broker.rpc.produce import ProduceHandler
from headrace_server.instruments import LoopCounter, LoopTimes
from prometheus_client import Counter, Gauge, Histogram

COUNTING: tuple[Any, ...] = (
    LoopCounter.inc,
    LoopTimes.observe,
    ProduceHandler._observe,
    Counter.inc,
    Gauge.set,
    Gauge.inc,
    Gauge.dec,
    Histogram.observe,
)


def nothing(*_: Any, **__: Any) -> None:
    """In place of counting."""


class Switch:
    """Exchanges the codes at each call."""

    def __init__(self, functions: tuple[Any, ...]) -> None:
        self._functions = functions
        self._codes = [function.__code__ for function in functions]
        self._counts = True

    def __call__(self, *_: object) -> None:
        """As a handler of signals."""
        self._counts = not self._counts
        for function, code in zip(self._functions, self._codes, strict=True):
            function.__code__ = code if self._counts else nothing.__code__


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, Switch(COUNTING))
    main()
