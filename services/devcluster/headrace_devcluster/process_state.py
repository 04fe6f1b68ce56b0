"""Whether a process runs, is paused or has ended."""

from __future__ import annotations

import os
import time

import psutil

POLL_SECONDS = 0.002


def process_state(pid: int) -> str:
    """Return `running`, `paused` or `stopped`; a zombie counts as stopped, and so does `0`, the id of an ended part."""
    if not pid:
        return "stopped"  # macOS has such a process.
    try:
        status = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return "stopped"
    return {psutil.STATUS_STOPPED: "paused", psutil.STATUS_ZOMBIE: "stopped"}.get(status, "running")


def wait_until_still(pid: int) -> None:
    """Wait until a SIGSTOP has stopped a child process, or it has ended; it is not reaped."""
    if hasattr(os, "waitid"):
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return
    while process_state(pid) == "running":  # macOS has the call since Python 3.13.
        time.sleep(POLL_SECONDS)
