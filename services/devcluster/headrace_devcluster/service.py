"""Broker or coordinator as a process that can be started, stopped, killed, paused, and restarted on the same port.

Used only by `cluster.py`, and by tests through it. The process reports readiness by writing its ready file, logs to a
file, and ends when this process ends (`guarded_exec.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace_devcluster.errors import PartStartError, PortInUseError
from headrace_devcluster.guarded_exec import guarded
from headrace_devcluster.ports import ReservedPort
from headrace_devcluster.process_state import wait_until_still

START_TIMEOUT_SECONDS = 30.0
STOP_TIMEOUT_SECONDS = 20.0
POLL_SECONDS = 0.01
METRICS_TIMEOUT_SECONDS = 10.0
LOG_TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """Description of a process to start."""

    name: str
    """Display name, also of its log file: `broker-1`, `coordinator-a`."""
    module: str
    """Run as `python -m module`."""
    directory: Path
    """Directory of its log, its ready file and, for a broker, its data."""
    port: int = 0
    """`0` means that the kernel chooses at the first start; restarts keep the port."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Settings in addition to `listen` and `ready_file`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables in addition to those of this process."""
    api_key_file: Path | None = None
    """File with the API key by which its metrics are read; `None` means that they are open."""


class Child(subprocess.Popen[bytes]):
    """`python -m` of a module in its own session, so that Ctrl-C in a terminal reaches only the owner of the cluster,
    which stops it cleanly. Its output is appended to a log, and it ends with this process.
    """

    def __init__(self, module: str, arguments: list[str], environment: Mapping[str, str], log_file: Path) -> None:
        with log_file.open("ab") as log:
            super().__init__(
                guarded([sys.executable, "-m", module, *arguments]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**environ_without_settings(), **environment},
            )

    def wait_until_still(self) -> None:
        """Wait until a SIGSTOP has stopped it, or it has ended."""
        if self.poll() is None:
            wait_until_still(self.pid)


class LocalService:
    """Process and its files. Any thread may call it, one at a time.

    The thread that calls `launch` must live as long as the process, because Linux treats the end of that thread as the
    end of the parent. `LocalCluster` has a thread for it.
    """

    def __init__(self, spec: ServiceSpec) -> None:
        self.spec = spec
        self.name = spec.name
        self.log_file = spec.directory / f"{spec.name}.log"
        self.ready_file = spec.directory / f"{spec.name}.ready.json"
        """Path of the ready file, which exists while the process serves."""
        self.metrics_address = ""
        """host:port of its Prometheus endpoint since it was last ready; empty if it has none."""
        self.internal_address = ""
        """host:port for brokers and coordinators since it was last ready; empty if it has none."""
        self.replication_address = ""
        """host:port for followers since it was last ready; empty if it has none."""
        self.schema_registry_address = ""
        """host:port of its schema registry since it was last ready; empty if it has none."""
        self._port = spec.port
        self._process: Child | None = None
        self._paused = False
        self._terminated = False

    @property
    def address(self) -> str:
        """host:port for clients, after the first launch."""
        assert self._port, f"{self.name} was never launched"
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """Process id while it runs or is paused, else `None`."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def state(self) -> str:
        """`running`, `paused` or `stopped`."""
        if self.pid is None:
            return "stopped"
        return "paused" if self._paused else "running"

    def launch(self) -> None:
        """Start the process and return at once.

        Raises:
            PortInUseError: If its port is in use.
        """
        assert self.pid is None, f"{self.name} is already running"
        self._port = self._port or ReservedPort()
        check_port_is_free(self._port, self.name)
        self.spec.directory.mkdir(parents=True, exist_ok=True)
        self.ready_file.unlink(missing_ok=True)
        self._paused = self._terminated = False
        settings = {
            "listen": f"127.0.0.1:{self._port}",
            "ready_file": str(self.ready_file),
            **self.spec.settings,
        }
        arguments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        self._process = Child(self.spec.module, arguments, self.spec.environment, self.log_file)

    def wait_until_ready(self, timeout_seconds: float = START_TIMEOUT_SECONDS) -> None:
        """Wait until it serves.

        Raises:
            PartStartError: If it ended or was not ready in time; it is then killed.
        """
        assert self._process is not None, f"{self.name} was not launched"
        deadline = time.monotonic() + timeout_seconds
        while not self.ready_file.exists():
            if self._process.poll() is not None:
                raise self._start_error(f"ended with exit code {self._process.returncode}")
            if time.monotonic() > deadline:
                self.kill()
                raise self._start_error(f"was not ready within {timeout_seconds:g} s")
            time.sleep(POLL_SECONDS)
        ready = json.loads(self.ready_file.read_text())
        self.metrics_address = str(ready.get("metrics_address", ""))
        self.internal_address = str(ready.get("internal_address", ""))
        self.replication_address = str(ready.get("replication_address", ""))
        self.schema_registry_address = str(ready.get("schema_registry_address", ""))

    def terminate(self) -> None:
        """Request a clean stop (SIGTERM) and return at once. Repeated calls do nothing, because a second signal would
        force the exit.
        """
        if self._process is not None and self._process.poll() is None and not self._terminated:
            self._terminated = True
            self._process.terminate()
            self.resume()

    def stop(self, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> int | None:
        """Stop it cleanly, by force after the timeout; return the exit code, or `None` if it did not run."""
        if self._process is None:
            return None
        self.terminate()
        try:
            code = self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL
        self._process = None
        return code

    def kill(self) -> None:
        """End it at once (SIGKILL), as a crash would; do nothing if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Pause the process (SIGSTOP): it keeps its connections and answers none. Return when it has stopped."""
        self._signal(signal.SIGSTOP)
        self._paused = self.pid is not None
        if self._process is not None:
            self._process.wait_until_still()

    def resume(self) -> None:
        """Resume the process (SIGCONT)."""
        self._signal(signal.SIGCONT)
        self._paused = False

    def metrics(self, path: str = "/metrics") -> dict[str, float]:
        """Return the samples of a page of its Prometheus endpoint, by name with labels."""
        text = self.page(path)
        return {name: float(value) for name, value in re.findall(r"^(?!#)(\S.*) (\S+)$", text, re.MULTILINE)}

    def page(self, path: str) -> str:
        """Return a page of its HTTP endpoint."""
        key_file = self.spec.api_key_file
        headers = {} if key_file is None else {"Authorization": f"Bearer {key_file.read_text().strip()}"}
        request = urllib.request.Request(f"http://{self.metrics_address}{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=METRICS_TIMEOUT_SECONDS) as answer:
            text: str = answer.read().decode()
            return text

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """Return the last lines of its log."""
        try:
            return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])
        except OSError as error:
            return f"(no log: {error.strerror})"

    def _signal(self, number: int) -> None:
        pid = self.pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):  # It ended between the two lines.
                os.kill(pid, number)

    def _start_error(self, what: str) -> PartStartError:
        return PartStartError(
            f"{self.name} {what}; the end of {self.log_file}:\n{self.log_tail()}",
            action="Look for the cause in its log.",
        )


def check_port_is_free(port: int, part: str) -> None:
    """Check that a port is free, to report a conflict more clearly than the started process would.

    Raises:
        PortInUseError: If something listens there.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise PortInUseError(
                f"port {port} of {part} is in use ({error.strerror})",
                action="Stop what holds it (an older `make up`?), or let the kernel choose: --any-port.",
            ) from error


def environ_without_settings() -> dict[str, str]:
    """Return this process's environment without headrace's settings, so that only the spec configures a cluster."""
    prefixes = ("HEADRACE_BROKER_", "HEADRACE_COORDINATOR_")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
