"""A Docker engine of the tests' own, and docker-compose.yml on it.

It lives in the namespaces that `tests.containers.inside` made: published ports are open there and nowhere else, and
processes of containers can be seen, and killed, from the tests.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.containers.images import COMPOSE, ROOT

START_SECONDS = 60.0
CONTROL_GROUP = "headrace-containers"  # Where all containers are, so that what is left of it can be found.
PROJECT = "headrace"
# Bounds that this user may set; an engine's own are above what some machines allow even root.
LIMITS = ("nofile=16384:16384", "nproc=16384:16384")


class Engine:
    """One Docker engine. Its creator stops it. Not thread-safe."""

    def __init__(self, state: Path) -> None:
        self.log = state / "engine.log"
        self.socket = f"unix://{state / 'docker.sock'}"
        self._command = [
            "dockerd",
            f"--host={self.socket}",
            f"--data-root={state / 'engine'}",
            f"--exec-root={state / 'engine-run'}",
            f"--pidfile={state / 'engine.pid'}",
            f"--cgroup-parent=/{CONTROL_GROUP}",
            "--storage-driver=overlay2",
            "--oom-score-adjust=0",
            "--log-level=warn",
            *(f"--default-ulimit={each}" for each in LIMITS),
        ]
        self._environ = {**os.environ, "DOCKER_HOST": self.socket}

    @contextmanager
    def running(self) -> Iterator[Engine]:
        """Start it, wait until it answers, stop it in the end with all its containers."""
        with self.log.open("wb") as log:
            process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not self._answers():
                assert process.poll() is None, f"the engine ended:\n{self.log.read_text()[-4000:]}"
                assert time.monotonic() < deadline, (
                    f"no engine after {START_SECONDS} s:\n{self.log.read_text()[-4000:]}"
                )
            yield self
            containers = self.docker("ps", "--all", "--quiet").split()
            if containers:
                self.docker("rm", "--force", "--volumes", *containers)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(START_SECONDS)

    def _answers(self) -> bool:
        run = subprocess.run(["docker", "version"], env=self._environ, capture_output=True, timeout=10, check=False)
        return run.returncode == 0

    def docker(self, *arguments: str) -> str:
        """Run `docker` and return what it printed; AssertionError with its complaint where it fails."""
        return self._run("docker", *arguments)

    def compose(self, *arguments: str, profile: str = "", file: str = "docker-compose.yml") -> str:
        """Run Docker Compose on a file of the repository as it is, as `docker` above."""
        profiles = ("--profile", profile) if profile else ()
        return self._run(str(COMPOSE), "--file", str(ROOT / file), *profiles, *arguments)

    def inspect(self, name: str) -> dict[str, Any]:
        """All that the engine knows about a container, image or volume."""
        found: dict[str, Any] = json.loads(self.docker("inspect", name))[0]
        return found

    def container(self, service: str) -> dict[str, Any]:
        """What `inspect` says about a service's container."""
        return self.inspect(f"{PROJECT}-{service}-1")

    def _run(self, *command: str) -> str:
        run = subprocess.run(command, env=self._environ, cwd=ROOT, capture_output=True, text=True, check=False)
        assert run.returncode == 0, f"{' '.join(command)} failed ({run.returncode}):\n{run.stdout}\n{run.stderr}"
        return run.stdout
