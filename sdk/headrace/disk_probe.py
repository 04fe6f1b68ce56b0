"""File system of a data directory: its type, and the duration of an fsync.

Used by brokers for `DescribeProcess`, and by `headrace doctor` for a machine that has no broker yet.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

PROBE_BYTES = 4096
PROBES = 5


def measure_fsync(directory: str) -> float:
    """Write and fsync `PROBE_BYTES` a few times in a temporary file; return the median in seconds. Blocks.

    Raises OSError.
    """
    took: list[float] = []
    with tempfile.TemporaryFile(dir=directory, prefix=".probe-") as file:
        for number in range(PROBES):
            started = time.perf_counter()
            os.pwrite(file.fileno(), b"\0" * PROBE_BYTES, number * PROBE_BYTES)
            os.fsync(file.fileno())
            took.append(time.perf_counter() - started)
    return statistics.median(took)


def filesystem_of(directory: str) -> str:
    """Return the kernel's name of the file system type that holds `directory`; empty if unknown."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    path, found, kind = os.path.realpath(directory), "", ""
    for line in mounts:
        fields = line.split(" ")
        mount = fields[1].replace("\\040", " ")
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(found):  # the last mount of a place is the visible one
            found, kind = mount, fields[2]
    return kind
