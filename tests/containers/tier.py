"""A tier of tests in namespaces of its own: those of containers, and those of Kubernetes.

Runs the tier's module in namespaces for processes, mounts and (for the tests) the network, so that the kernel clears
up whatever becomes of us: `setpriv` has it killed with us. What is left then is a folder and empty control groups,
which this process removes; where it was killed, the next run does. Where a tier cannot run, nothing is tested, and the
exit code says so: never 0.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.containers.images import COMPOSE, ROOT

UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits.h
STATES = Path("/var/tmp")
NEW = "new-"
NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


@dataclass(frozen=True, slots=True)
class Tier:
    """What is run, and where it keeps things."""

    name: str
    """What is not tested where it cannot run; its target is `make test-` and this."""
    module: str
    """Run inside with the cache, the state and the arguments of pytest."""
    cache: Path
    """A folder that is kept from run to run."""
    control_group: str
    """Where all its containers are, in each hierarchy."""
    programs: tuple[str, ...] = ("unshare", "setpriv", "apt-get", "dpkg", "perl")
    """What the machine must have."""

    def why_not(self) -> str:
        """Why it cannot be started here, and what would help; empty: nothing speaks against it."""
        if sys.platform != "linux" or platform.machine() != "x86_64":
            return "it needs Linux on x86-64: the lock file has no etcd and no Docker Compose for other platforms"
        if os.geteuid() != 0:
            return f"it needs root, for namespaces and an engine: sudo make test-{self.name}"
        missing = [name for name in self.programs if shutil.which(name) is None]
        if missing:
            return f"{', '.join(missing)} not found: it needs a Debian with util-linux"
        if not COMPOSE.exists():
            return f"{COMPOSE} is not there: make set-up"
        tried = subprocess.run([*NAMESPACES, "--net", "true"], capture_output=True, text=True, check=False)
        return "" if tried.returncode == 0 else f"this machine allows no namespaces: {tried.stderr.strip()}"

    def run(self, arguments: list[str]) -> int:
        """Run it; return pytest's exit code, or UNAVAILABLE."""
        reason = self.why_not()
        if not reason:
            signal.signal(signal.SIGTERM, _end)
            self.cache.mkdir(parents=True, exist_ok=True)
            with self._state_directory() as state:
                inside = [sys.executable, "-m", self.module, str(self.cache), str(state), *arguments]
                process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *NAMESPACES, *inside], cwd=ROOT)
                try:
                    code = _wait(process)
                finally:
                    process.kill()
                    process.wait()
            if code != UNAVAILABLE:
                return code
            reason = "see above"
        print(f"\n{'!' * 79}\n!!! {self.name.upper()} NOT TESTED: {reason}\n{'!' * 79}", file=sys.stderr)
        return UNAVAILABLE

    @contextlib.contextmanager
    def _state_directory(self) -> Iterator[Path]:
        """A folder for what runs, on a short path as sockets want it; removed at the end, as are killed runs'."""
        prefix = f"headrace-{self.name}-"
        for left in STATES.glob(f"{prefix}*"):
            with contextlib.suppress(OSError), _locked(left):
                shutil.rmtree(left)
        # One that has the prefix and is not locked was left: it gets its name when it is locked.
        path = Path(tempfile.mkdtemp(prefix=NEW + prefix, dir=STATES))
        with _locked(path):
            path = path.rename(STATES / path.name.removeprefix(NEW))
            try:
                yield path
            finally:
                shutil.rmtree(path)
                for group in Path("/sys/fs/cgroup").glob(f"*/{self.control_group}"):
                    _remove_control_groups(group)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold a directory, by itself: a file in it would be gone before the rest of it is. OSError: another holds it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _remove_control_groups(group: Path) -> None:
    """Depth first; each is a folder that only the kernel's files are left in."""
    for below in sorted(group.glob("**/"), key=lambda path: len(path.parts), reverse=True):
        with contextlib.suppress(OSError):
            below.rmdir()


def _end(number: int, _: object) -> None:
    """Clear up and end. A second signal, as `timeout` sends one to each of a group, does not stop the clearing up."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for its end; a Ctrl-C reaches it as well, and it ends by itself."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue
