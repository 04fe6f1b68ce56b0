"""The sampler of the event loop's lag, and the thread that watches it."""

import asyncio
import errno
import io
import json
import threading

import pytest
import structlog
from headrace_server import event_loop_watchdog
from headrace_server.event_loop_watchdog import EventLoopWatchdog, LoopLagSampler
from headrace_server.health import Health, HealthCause
from headrace_server.instruments import CommonMetrics
from headrace_server.telemetry import configure_logging
from prometheus_client import CollectorRegistry

SECONDS = 20


def test_a_blocked_loop_is_not_alive_and_its_stack_is_logged():
    """While the loop is stuck liveness says why; the log has the line that it is stuck in; then it is well again."""
    logged = io.StringIO()
    lines: list[str] = []
    reported = threading.Event()

    def count(level: str) -> None:
        lines.append(level)
        reported.set()

    configure_logging("info", "json", stream=logged, count=count)
    registry = CollectorRegistry()
    metrics, health, changed = CommonMetrics("headrace_x", registry), Health(), threading.Event()
    health.subscribe(changed.set)

    def get_stuck() -> None:
        assert changed.wait(SECONDS), "the watchdog did not bark"
        assert health.causes("liveness") == (HealthCause.EVENT_LOOP_BLOCKED,)
        assert HealthCause.EVENT_LOOP_BLOCKED not in health.causes("readiness")
        assert reported.wait(SECONDS)

    async def scenario() -> None:
        sampler = LoopLagSampler([metrics])
        sampler.INTERVAL_SECONDS = 0.01
        sampling = asyncio.create_task(sampler.run())
        watchdog = EventLoopWatchdog(sampler, health, [metrics], stall_ms=300)
        watchdog.start()
        try:
            get_stuck()
            changed.clear()
            assert await asyncio.to_thread(changed.wait, SECONDS)
            assert health.causes("liveness") == ()
        finally:
            await asyncio.to_thread(watchdog.stop)
            sampling.cancel()

    try:
        asyncio.run(scenario())
    finally:
        configure_logging("info", "console")
    events = [json.loads(line) for line in logged.getvalue().splitlines()]
    stalled, again = events
    assert stalled["event"] == "event_loop_stalled"
    assert stalled["threads"].startswith("event loop:")
    assert "in get_stuck" in stalled["threads"]
    assert again["event"] == "event_loop_recovered"
    assert lines == ["error", "warning"]
    assert registry.get_sample_value("headrace_x_loop_stalls_total") == 1


class UnreadPipe(io.StringIO):
    """Standard error that accepts no line until the watchdog has failed a probe."""

    def __init__(self, changed: threading.Event) -> None:
        super().__init__()
        self._changed = changed

    def write(self, text: str) -> int:
        """Wait like a write to a full pipe."""
        assert self._changed.wait(SECONDS), "liveness did not fail"
        return super().write(text)


@pytest.mark.parametrize("has_descriptors", [True, False])
async def test_a_loop_that_is_blocked_by_its_log_is_not_alive(monkeypatch, has_descriptors):
    """Liveness fails before anything is written of it, and if the stacks cannot be had."""
    metrics, health, changed = CommonMetrics("headrace_x", CollectorRegistry()), Health(), threading.Event()
    health.subscribe(changed.set)

    def no_descriptors() -> None:
        raise OSError(errno.EMFILE, "too many open files")

    if not has_descriptors:
        monkeypatch.setattr(event_loop_watchdog, "_scratch_file", no_descriptors)
    logged = UnreadPipe(changed)
    configure_logging("info", "json", stream=logged)
    watchdog = EventLoopWatchdog(LoopLagSampler([metrics]), health, [metrics], stall_ms=10)
    watchdog.start()
    try:
        structlog.get_logger().warning("blocks")
        assert health.causes("liveness") == (HealthCause.EVENT_LOOP_BLOCKED,)
    finally:
        watchdog.stop()
        configure_logging("info", "console")
    blocking, stalled = map(json.loads, logged.getvalue().splitlines())
    assert blocking["event"] == "blocks"
    assert ("too many open files" in stalled["threads"]) == (not has_descriptors)


async def test_a_beat_measures_how_late_the_loop_is():
    """A loop that is kept busy for a while is that late, and its processor time is counted."""
    registry = CollectorRegistry()
    metrics = CommonMetrics("headrace_x", registry)
    beats: list[int] = []
    done = asyncio.Event()

    def on_sample() -> None:
        beats.append(sampler.count)
        if sampler.count == 3:
            done.set()

    sampler = LoopLagSampler([metrics], on_sample)
    sampler.INTERVAL_SECONDS = 0.001
    sampling = asyncio.create_task(sampler.run())
    await done.wait()
    sampling.cancel()
    assert beats == [1, 2, 3]
    assert registry.get_sample_value("headrace_x_loop_lag_seconds_count") == 3
    assert registry.get_sample_value("headrace_x_loop_cpu_seconds_total") > 0
