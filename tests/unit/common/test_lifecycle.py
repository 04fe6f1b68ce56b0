"""From process start to exit code, seen from outside: a child process that is sent signals."""

import json
import signal
import subprocess
import sys
import textwrap

import pytest
from headrace_server.lifecycle import ProcessExitCode, write_ready_file

PRELUDE = """
import asyncio, os, sys
from headrace.wire.errors import ConflictError, InvalidConfigError
from headrace_server.lifecycle import run
from headrace_server.telemetry import configure_logging
def ready(): print("ready", flush=True)
def fill_standard_error():
    configure_logging("info", "console")
    os.set_blocking(2, False)
    try:
        while True: os.write(2, b".")
    except BlockingIOError:
        os.set_blocking(2, True)
"""


def start(body, stop_timeout_seconds=30):
    code = PRELUDE + textwrap.dedent(body) + f"\nsys.exit(run(serve, stop_timeout_seconds={stop_timeout_seconds}))"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def unread_exit_code(process):
    """Wait for the exit of a process without reading what it writes."""
    try:
        return process.wait(30)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_cleanly(number):
    """After SIGTERM or SIGINT the service ends by itself, and the exit code is 0."""
    process = start(
        """
        async def serve(stop):
            ready(); await stop.requested(); print("stopped cleanly", flush=True)
        """
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == ProcessExitCode.OK
    assert out.endswith("stopped cleanly\n")


def test_a_stop_that_hangs_is_ended_at_its_deadline():
    """An orderly stop that never ends, even with the loop stuck, does not keep the process."""
    process = start(
        """
        import time
        async def serve(stop):
            ready(); await stop.requested(); time.sleep(600)
        """,
        stop_timeout_seconds=0.2,
    )
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == ProcessExitCode.STOP_TIMED_OUT


def test_a_service_that_hangs_after_a_failure_is_ended_at_the_same_deadline():
    """It requests the stop by itself."""
    process = start(
        """
        async def serve(stop):
            stop.set("failure"); await asyncio.sleep(600)
        """,
        stop_timeout_seconds=0.2,
    )
    assert unread_exit_code(process) == ProcessExitCode.STOP_TIMED_OUT


def test_a_second_signal_does_not_wait():
    """Who asks twice is not made to wait for the orderly stop."""
    process = start(
        """
        async def serve(stop):
            ready(); await stop.requested(); ready(); await asyncio.sleep(600)
        """
    )
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == ProcessExitCode.FORCED


def test_a_stop_ends_at_its_deadline_if_nothing_reads_the_log():
    """Not even the line that a stop was requested can be written."""
    process = start(
        """
        async def serve(stop):
            fill_standard_error(); ready(); await stop.requested(); await asyncio.sleep(600)
        """,
        stop_timeout_seconds=0.2,
    )
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert unread_exit_code(process) == ProcessExitCode.STOP_TIMED_OUT


def test_a_second_signal_does_not_wait_for_the_log():
    process = start(
        """
        async def serve(stop):
            ready(); await stop.requested(); fill_standard_error(); ready(); await asyncio.sleep(600)
        """
    )
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert unread_exit_code(process) == ProcessExitCode.FORCED


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        ("InvalidConfigError('no such setting', action='Fix it.')", ProcessExitCode.BAD_SETTINGS),
        ("ConflictError('another owner', action='Fix it.')", ProcessExitCode.FAILED),
    ],
)
def test_a_typed_error_is_one_line(raised, code):
    """A typed error, also out of a task group, is one line on standard error that says what to do, and no traceback."""
    process = start(
        f"""
        async def serve(stop):
            async def fail(): raise {raised}
            async with asyncio.TaskGroup() as group: group.create_task(fail())
        """
    )
    _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert err.startswith("error: ")
    assert "Fix it." in err
    assert "Traceback" not in err


def test_a_bug_is_logged_and_fails():
    """Anything unexpected ends the process with a logged traceback and exit code 1."""
    process = start("async def serve(stop): raise ZeroDivisionError")
    out, err = process.communicate(timeout=30)
    assert process.returncode == ProcessExitCode.FAILED
    assert "ZeroDivisionError" in out + err


def test_the_ready_file_is_whole_and_names_the_process(tmp_path):
    """The ready file holds what was given and the process id, and leaves no partial file."""
    write_ready_file(tmp_path / "ready.json", {"address": "127.0.0.1:1"})
    content = json.loads((tmp_path / "ready.json").read_text())
    assert content["address"] == "127.0.0.1:1"
    assert content["pid"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["ready.json"]


def test_a_start_imports_nothing_for_tracebacks_in_colours():
    """Of a service's start, whose log has plain ones, `rich` would be a tenth."""
    code = "import sys, headrace_server.lifecycle; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
