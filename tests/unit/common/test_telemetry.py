"""Logs: keys on every line of every thread, levels that change at run time, the request id of the call served."""

import io
import json
import threading
from types import SimpleNamespace

import pytest
import structlog
from headrace.wire.errors import REQUEST_ID_KEY
from headrace_server.calls import CURRENT_CALL, calls_are_traced
from headrace_server.telemetry import LogInterval, configure_logging, log_level, set_log_level

from tests.fakes.manual_clock import ManualClock


@pytest.fixture
def logged():
    """What is written at level info, as JSON."""
    stream = io.StringIO()
    configure_logging("info", "json", bound={"broker_id": 7}, stream=stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    configure_logging("info", "console")


def test_keys_are_on_the_lines_of_every_thread(logged):
    """Context variables alone would leave out threads, such as the one that renews the lease."""
    log = structlog.get_logger("test")
    log.info("here", topic="t")
    thread = threading.Thread(target=lambda: log.warning("there"))
    thread.start()
    thread.join()
    first, second = logged()
    assert (first["event"], first["broker_id"], first["topic"], first["level"]) == ("here", 7, "t", "info")
    assert (second["event"], second["broker_id"], second["level"]) == ("there", 7, "warning")


def test_the_level_changes_at_run_time(logged):
    """Also for loggers that are there already; at debug, calls are traced."""
    log = structlog.get_logger("test")
    log.debug("unseen")
    set_log_level("debug")
    assert (log_level(), calls_are_traced()) == ("debug", True)
    log.debug("seen")
    set_log_level("error")
    assert not calls_are_traced()
    log.warning("unseen")
    assert [line["event"] for line in logged()] == ["seen"]


@pytest.mark.parametrize(("sent", "written"), [("ab12-7", "ab12-7"), ("x" * 65, None), ("a\nb", None)])
def test_a_line_inside_a_call_has_the_callers_request_id(logged, sent, written):
    """What could not have come from a client of ours is left out."""
    token = CURRENT_CALL.set(SimpleNamespace(invocation_metadata=lambda: (("other", b"1"), (REQUEST_ID_KEY, sent))))
    try:
        structlog.get_logger("test").info("inside")
    finally:
        CURRENT_CALL.reset(token)
    structlog.get_logger("test").info("outside")
    inside, outside = logged()
    assert inside.get("request_id") == written
    assert "request_id" not in outside


def test_log_interval_doubles_up_to_a_minute_and_begins_again_after_the_end():
    """An hour of waiting is 65 lines, the first of them at once; the next wait begins with a line again."""
    clock = ManualClock()
    interval = LogInterval(clock.monotonic_ms)
    lines = []
    for _ in range(2 * 3_600):
        if interval.is_due():
            lines.append(interval.for_seconds)
        clock.advance(500)
    assert lines[:8] == [0, 1, 3, 7, 15, 31, 63, 123]
    assert len(lines) == 65
    assert not interval.is_due()
    interval.end()
    assert interval.is_due()
    assert interval.for_seconds == 0
