"""A broker that counts nothing: what `bench.metrics cost` compares with. Run as `python -m bench.uncounted`."""

from __future__ import annotations

from typing import Any

from headrace_broker.__main__ import main
from headrace_broker.rpc.produce import ProduceHandler
from headrace_server.instruments import LoopCounter, LoopTimes
from prometheus_client import Counter, Gauge, Histogram


def nothing(*_: Any, **__: Any) -> None:
    """In place of counting."""


LoopCounter.inc = LoopTimes.observe = ProduceHandler._observe = nothing  # type: ignore[method-assign, assignment]
Counter.inc = Gauge.set = Gauge.inc = Gauge.dec = Histogram.observe = nothing  # type: ignore[method-assign]

if __name__ == "__main__":
    main()
