"""Processor time of another process, to the nanosecond. Only the standard library."""

import time


def processor_seconds(pid: int) -> float:
    """Return the user and system time of a process, ended threads included, by Linux's per-process clock."""
    return time.clock_gettime(~pid << 3 | 2)
