"""What `headrace doctor` asks of the machine that it runs on."""

import ctypes
import os
import socket
from pathlib import Path

from headrace.cli.doctor_checks import HostFacts
from headrace.client.admin_processes import DiskDescription

_TIME_ERROR = 5
_TIMEX_BYTES = 512  # more than the kernel's struct timex


def look_at_host(data_dir: Path | None) -> HostFacts:
    """Ask the machine; `data_dir`: measure the disk that holds it, which writes a little there.

    Raises OSError: the directory is not there or not ours.
    """
    return HostFacts(
        name=socket.gethostname(),
        max_open_files=_max_open_files(),
        clock_synchronised=_clock_synchronised(),
        available_memory_bytes=_available_memory_bytes(),
        disk=None if data_dir is None else _look_at_disk(data_dir),
    )


def _max_open_files() -> int:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return -1 if soft == resource.RLIM_INFINITY else soft


def _clock_synchronised() -> bool | None:
    """What adjtimex says, asked without changing anything."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    state = int(adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))
    return None if state < 0 else state != _TIME_ERROR


def _available_memory_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return -1
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), -1)


def _look_at_disk(data_dir: Path) -> DiskDescription:
    from headrace.disk_probe import filesystem_of, measure_fsync

    path = str(data_dir)
    usage = os.statvfs(path)
    return DiskDescription(
        data_dir=path,
        filesystem=filesystem_of(path),
        total_bytes=usage.f_blocks * usage.f_frsize,
        free_bytes=usage.f_bavail * usage.f_frsize,
        refuse_below_bytes=0,
        resume_above_bytes=0,
        fsync_us=round(measure_fsync(path) * 1_000_000),
        offline_logs=0,
    )
