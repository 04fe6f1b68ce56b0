"""Processor time of another process, to the nanosecond. Only the standard library."""

import time
from pathlib import Path


def processor_seconds(pid: int) -> float:
    """Return the user and system time of a process, ended threads included, by Linux's per-process clock."""
    return time.clock_gettime(~pid << 3 | 2)


def waiting_seconds(pid: int) -> float:
    """Return the time for which the main thread of a process was ready to run, and other ones had the processors."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
