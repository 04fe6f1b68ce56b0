"""Real headrace cluster for the tests of programs that use the SDK. Needs `headrace-devcluster`.

::

    @pytest.fixture(scope="session")
    def headrace_cluster():
        with headrace.testing.cluster() as running:
            yield running

    def test_mine(headrace_cluster):
        with headrace.Producer(bootstrap_servers=headrace_cluster.bootstrap_servers) as producer:
            ...
        headrace_cluster.kill("broker-1")
        headrace_cluster.restart("broker-1")

The cluster is a child process (`python -m headrace_devcluster run --control`). It ends, and its data is deleted, when
the context or this process ends in any way.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from headrace.wire.errors import HeadraceError, InvalidConfigError

STOP_TIMEOUT_SECONDS = 60.0
INSTALL_DEVCLUSTER = "Install headrace-devcluster: in a clone of headrace, run `pip install ./sdk ./services/*`."


class TestClusterError(HeadraceError):
    """The cluster did not start, or could not execute a command; the message has the cause."""

    __test__ = False


class RunningCluster:
    """Cluster in a child process. Made by `cluster()`; any thread, one at a time."""

    def __init__(self, process: subprocess.Popen[str], state: dict[str, Any]) -> None:
        self._process = process
        self.bootstrap_servers: str = state["bootstrap_servers"]
        """Addresses for `Producer`, `Consumer`, `Reader`, `Admin`."""
        self.parts: dict[str, str] = {part["name"]: part["address"] for part in state["parts"]}
        """Name -> host:port: `etcd`, `coordinator-a`, ..., `broker-1`, ...; or `single` alone."""

    def kill(self, part: str) -> None:
        """Kill a part at once, like a crash."""
        self._tell("kill", part)

    def stop(self, part: str) -> None:
        """Stop a part cleanly."""
        self._tell("stop", part)

    def pause(self, part: str) -> None:
        """Freeze a part: it keeps its connections and answers no request."""
        self._tell("pause", part)

    def resume(self, part: str) -> None:
        """Resume a paused part."""
        self._tell("resume", part)

    def restart(self, part: str) -> None:
        """Start a part again, with its data and on its address; stop it first if it is running."""
        self._tell("restart", part)

    def _tell(self, verb: str, part: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{verb} {part}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise TestClusterError("the cluster has ended", action="Start another one.")
        error = json.loads(answer).get("error")
        if error:
            raise TestClusterError(str(error))


@contextlib.contextmanager
def cluster(
    *, brokers: int | None = None, coordinators: int | None = None, single: bool = False
) -> Iterator[RunningCluster]:
    """Start a cluster on ports that the kernel chooses; stop it at the end. Takes a few seconds.

    Args:
        brokers: number of brokers, by default 3.
        coordinators: number of coordinators, by default 2.
        single: run everything in one process without etcd, which starts in a second. It has one broker, one
            coordinator and no other numbers.

    Raises:
        InvalidConfigError: If the local cluster is not installed.
        TestClusterError: If it did not start; the message has the log of the part that failed.
    """
    if importlib.util.find_spec("headrace_devcluster") is None:
        raise InvalidConfigError("the local cluster is not installed", action=INSTALL_DEVCLUSTER)
    command = [sys.executable, "-m", "headrace_devcluster", "run", "--control", "--any-port"]
    for name, number in (("--brokers", brokers), ("--coordinators", coordinators)):
        command += [] if number is None else [name, str(number)]
    command += ["--single"] if single else []
    # Separate session: Ctrl-C ends the test run, and the end of its input then ends the cluster.
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            first = process.stdout.readline()
            if not first:
                raise TestClusterError(process.stderr.read().strip().removeprefix("error: "))
            yield RunningCluster(process, json.loads(first))
        finally:
            with contextlib.suppress(BrokenPipeError):  # It has ended already.
                process.stdin.close()
            try:
                process.wait(STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
