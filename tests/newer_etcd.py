"""`python -m tests.newer_etcd`: prints the path of an etcd that may be killed, for `HEADRACE_ETCD`.

The first that there is of: `HEADRACE_ETCD`, etcd on PATH, etcd built from its Go modules in `build/etcd`. Without any
of them it prints nothing, and tests use the wheel's, which may lose applied writes when it is killed. Standard error
has the choice and the reason.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from headrace_devcluster.etcd_program import FIRST_SAFE_VERSION_TO_KILL, EtcdNotFoundError, find_etcd, version_of

from tests.containers.packages import UnavailableError
from tests.go_programs import build_etcd

BUILT = Path(__file__).resolve().parents[1] / "build" / "etcd"


def choose() -> tuple[Path | None, str]:
    """Return the program, and the reason for the choice."""
    if os.environ.get("HEADRACE_ETCD"):
        return find_etcd(), "it is HEADRACE_ETCD"
    with contextlib.suppress(EtcdNotFoundError):
        if version_of(found := find_etcd()) >= FIRST_SAFE_VERSION_TO_KILL:
            return found, "it is on PATH"
    try:
        return build_etcd(BUILT), "it was built from its Go modules"
    except UnavailableError as error:
        return None, f"{error}; no etcd that may be killed is on PATH"


def main() -> None:
    """Print the path, or nothing."""
    with contextlib.redirect_stdout(sys.stderr):
        program, reason = choose()
    if program is None:
        print(f"etcd: the wheel's; {reason}", file=sys.stderr)
        return
    version = ".".join(map(str, version_of(program))) or "of an unknown version"
    print(f"etcd: {program} {version}: {reason}", file=sys.stderr)
    print(program)


if __name__ == "__main__":
    main()
