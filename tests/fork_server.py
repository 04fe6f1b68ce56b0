"""Brokers and coordinators of test clusters as forks of one process that has imported them: each start costs half a
second of CPU less, and tests make hundreds.

What a start by command does besides is tested where that is how they start: those that cannot be, the local cluster's
command line, the demo. gRPC is not initialised in the server: each fork does that for itself.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from unittest import mock

import psutil
from headrace_devcluster import guarded_exec, service
from headrace_devcluster.service import Child, environ_without_settings

MODULES = ("headrace_broker", "headrace_coordinator", "headrace_devcluster.single")
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload([__name__, *(f"{module}.__main__" for module in MODULES)])
# jsonschema imports it where it is there, which takes 1.2 s of processor time: for the bill of materials alone.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]


def forked_services() -> AbstractContextManager[object]:
    """Within it `LocalService` has its children from here."""
    return mock.patch.object(service, "Child", _child)


def run_command(module: str, *arguments: str, timeout: float = 90.0) -> subprocess.CompletedProcess[str]:
    """Run one of `MODULES` with these arguments to its end, as `subprocess.run` does that captures output as text."""
    with tempfile.TemporaryDirectory() as directory:
        outputs = [str(Path(directory, name)) for name in ("stdout", "stderr")]
        given = (module, list(arguments), environ_without_settings(), *outputs)
        process = FORKING.Process(target=_be, args=given, name=module)
        process.start()
        process.join(timeout)
        process.kill()
        process.join()
        assert process.exitcode is not None
        return subprocess.CompletedProcess(
            [module, *arguments], process.exitcode, *(Path(output).read_text() for output in outputs)
        )


def is_fork_server(process: psutil.Process) -> bool:
    """Whether it is that of this process, which ends with it."""
    return process.ppid() == os.getpid() and "multiprocessing.forkserver" in " ".join(process.cmdline())


def _child(module: str, arguments: list[str], environment: Mapping[str, str], log_file: Path) -> Child | ForkedChild:
    """As `Child`; one with variables of its own, which may change what is imported, is started as that is."""
    if module not in MODULES or environment:
        return Child(module, arguments, environment, log_file)
    return ForkedChild(module, arguments, log_file)


class ForkedChild:
    """What `LocalService` uses of a `Child`."""

    def __init__(self, module: str, arguments: list[str], log_file: Path) -> None:
        given = (module, arguments, environ_without_settings(), str(log_file), str(log_file))
        self._process = FORKING.Process(target=_be, args=given, name=module)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; `None` while the process runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code without waiting."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return self._process.exitcode

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()

    def wait_until_still(self) -> None:
        """Every thread is stopped, or the process has ended."""
        while self.poll() is None and not all(
            stat.read_text().rpartition(")")[2].split()[0] == "T"
            for stat in Path(f"/proc/{self.pid}").glob("task/*/stat")
        ):
            time.sleep(service.POLL_SECONDS)


def _be(module: str, arguments: list[str], environ: Mapping[str, str], *outputs: str) -> None:
    """In the fork: be the module, as `Child` starts it, with standard output and error in these files."""
    guarded_exec.end_with(os.getppid())
    os.setsid()
    for number, output in enumerate(outputs, 1):
        opened = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = [module, *arguments]
    sys.modules.pop(f"{module}.__main__", None)  # runpy would warn of it.
    runpy.run_module(module, run_name="__main__", alter_sys=True)
