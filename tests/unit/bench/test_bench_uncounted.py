"""What `bench.metrics cost` compares with: instruments that stop and resume counting, also through kept references."""

from headrace_server.instruments import LOOP_SECONDS, LoopTimes
from prometheus_client import CollectorRegistry, Counter

from bench.uncounted import Switch


class Times(LoopTimes):
    """With functions of its own, so that those of other tests stay as they are."""

    def observe(self, seconds: float) -> None:
        """Take in one time."""
        self.sum_seconds += seconds


def test_switched_off_instruments_count_nothing_and_then_resume() -> None:
    """A method that was kept before the switch is switched, too."""
    times, counter = Times(LOOP_SECONDS), Counter("calls", "Calls", registry=CollectorRegistry())
    kept = times.observe
    code = Counter.inc.__code__
    switch = Switch((Times.observe, Counter.inc))
    try:
        for _ in range(4):
            kept(1.0)
            counter.inc()
            switch(0, None)
        assert times.sum_seconds == 2.0
        assert counter._value.get() == 2.0
    finally:
        Counter.inc.__code__ = code
