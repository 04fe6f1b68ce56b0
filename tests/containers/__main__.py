"""`make test-containers`: docker-compose.yml and the Dockerfile as they are, on a real Docker engine of this run's own.

Runs `tests.containers.inside` in namespaces for processes, mounts and (for the tests) the network, so that the kernel
clears up whatever becomes of us: `setpriv` has it killed with us. What is left then is a folder and empty control
groups, which this process removes; where it was killed, the next run does. Where no engine can run, nothing is tested,
and the exit code says so: never 0.
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
from pathlib import Path

from tests.containers.engine import CONTROL_GROUP
from tests.containers.images import COMPOSE, ROOT
from tests.containers.inside import UNAVAILABLE

CACHE = ROOT / ".headrace" / "containers"
PREFIX = "headrace-containers-"
NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def why_not() -> str:
    """Why no engine can be started here, and what would help; empty: nothing speaks against it."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "it needs Linux on x86-64: the lock file has no etcd and no Docker Compose for other platforms"
    if os.geteuid() != 0:
        return "it needs root, for namespaces and an engine: sudo make test-containers"
    missing = [name for name in ("unshare", "setpriv", "apt-get", "dpkg", "perl") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not found: it needs a Debian with util-linux"
    if not COMPOSE.exists():
        return f"{COMPOSE} is not there: make set-up"
    tried = subprocess.run([*NAMESPACES, "--net", "true"], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"this machine allows no namespaces: {tried.stderr.strip()}"


@contextlib.contextmanager
def state_directory() -> Iterator[Path]:
    """A folder for engine and images, on a short path as sockets want it; removed at the end, as are killed runs'."""
    for left in Path("/var/tmp").glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), (left / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left)
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/var/tmp"))
    with (path / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield path
        finally:
            shutil.rmtree(path)
            for group in Path("/sys/fs/cgroup").glob(f"*/{CONTROL_GROUP}"):
                _remove_control_groups(group)


def _remove_control_groups(group: Path) -> None:
    """Depth first; each is a folder that only the kernel's files are left in."""
    for below in sorted(group.glob("**/"), key=lambda path: len(path.parts), reverse=True):
        with contextlib.suppress(OSError):
            below.rmdir()


def end(number: int, _: object) -> None:
    """Clear up and end. A second signal, as `timeout` sends one to each of a group, does not stop the clearing up."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> int:
    """Run the tier; return pytest's exit code, or UNAVAILABLE."""
    reason = why_not()
    if not reason:
        signal.signal(signal.SIGTERM, end)
        CACHE.mkdir(parents=True, exist_ok=True)
        with state_directory() as state:
            inside = [sys.executable, "-m", "tests.containers.inside", str(CACHE), str(state), *sys.argv[1:]]
            process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *NAMESPACES, *inside], cwd=ROOT)
            try:
                code = _wait(process)
            finally:
                process.kill()
                process.wait()
        if code != UNAVAILABLE:
            return code
        reason = "see above"
    print(f"\n{'!' * 79}\n!!! CONTAINERS NOT TESTED: {reason}\n{'!' * 79}", file=sys.stderr)
    return UNAVAILABLE


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for its end; a Ctrl-C reaches it as well, and it ends by itself."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


if __name__ == "__main__":
    sys.exit(main())
