"""Broker whose metrics SIGUSR1 switches off and on, for `bench.metrics cost`.

Run as `python -m bench.uncounted`. The code of the instruments is exchanged, not the instruments, so that a stored
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
    """Do nothing; replaces the instruments' methods."""


class Switch:
    """Signal handler that exchanges the code at each call."""

    def __init__(self, functions: tuple[Any, ...]) -> None:
        self._functions = functions
        self._codes = [function.__code__ for function in functions]
        self._counts = True

    def __call__(self, *_: object) -> None:
        """Exchange the code; called by the signal."""
        self._counts = not self._counts
        for function, code in zip(self._functions, self._codes, strict=True):
            function.__code__ = code if self._counts else nothing.__code__


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, Switch(COUNTING))
    main()
