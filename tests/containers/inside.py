"""The part of `make test-containers` that runs in namespaces of its own: gets ready, then runs the tests.

The first process of a process namespace: when it ends, or is killed, the kernel ends whatever was started below it,
engine and containers included, and the mounts go with the mount namespace. Images are made in the machine's network,
tests run in a network namespace where there is nothing but what they start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.containers.images import Builder
from tests.containers.packages import UnavailableError, fetch_contents, fetch_tools, lay_over
from tests.containers.tier import UNAVAILABLE

STATE = "HEADRACE_TEST_CONTAINERS"  # Where the tests find the images; without it, pytest collects none of them.


def main() -> int:
    """Make the images, then run pytest with the arguments given; return its exit code, or UNAVAILABLE."""
    cache, state, *arguments = sys.argv[1:]
    begun = time.monotonic()
    try:
        lay_over([fetch_tools(Path(cache))], Path(state))
        contents = fetch_contents(Path(cache))
    except UnavailableError as error:
        print(error, file=sys.stderr)
        return UNAVAILABLE
    Builder(Path(cache), Path(state)).make_all(contents)
    print(f"images made in {time.monotonic() - begun:.0f} s", flush=True)
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-s", "-rs", *arguments]
    # tests/deploy finds Prometheus and its checkers there.
    path = f"{contents / 'usr/bin'}:{os.environ['PATH']}"
    within = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *pytest]
    return subprocess.call(within, env={**os.environ, "PATH": path, STATE: state})


if __name__ == "__main__":
    sys.exit(main())
