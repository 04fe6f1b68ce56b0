"""Collection of facts about the machine that `headrace doctor` runs on."""

import ctypes
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from headrace.cli.doctor.host_checks import HostFacts, UnreadableCertificate
from headrace.client.admin.processes import CertificateDescription, DiskDescription

_TIME_ERROR = 5
_TIMEX_BYTES = 512  # more than the kernel's struct timex
CONTROL_GROUPS = Path("/sys/fs/cgroup")


def look_at_host(
    data_dir: Path | None, certificates: Iterable[Path] = (), *, control_groups: Path = CONTROL_GROUPS
) -> HostFacts:
    """Return facts about the machine.

    Args:
        data_dir: directory whose disk is measured, which writes a few KiB there.
        certificates: files to read.
        control_groups: mount point of control groups (version 2).

    Raises OSError if the data directory does not exist or is not accessible.
    """
    import resource

    group = _own_group()
    memory = [_available_memory_bytes(), _group_limit(control_groups, group, "memory.max")]
    threads = [_limit(resource.RLIMIT_NPROC), _group_limit(control_groups, group, "pids.max")]
    return HostFacts(
        name=socket.gethostname(),
        max_open_files=_limit(resource.RLIMIT_NOFILE, hard=True),  # A broker raises its soft limit to it.
        clock_synchronised=_clock_synchronised(),
        available_memory_bytes=_least(memory),
        max_threads=_least(threads),
        max_file_bytes=_limit(resource.RLIMIT_FSIZE),
        disk=None if data_dir is None else _look_at_disk(data_dir),
        free_files=-1 if data_dir is None else _free_files(data_dir),
        certificates=tuple(found for path in certificates for found in _look_at_certificate(path)),
    )


def _limit(what: int, *, hard: bool = False) -> int:
    import resource

    limit = resource.getrlimit(what)[hard]
    return -1 if limit == resource.RLIM_INFINITY else limit


def _least(limits: list[int]) -> int:
    """Return the lowest limit; `-1` means none."""
    return min((limit for limit in limits if limit >= 0), default=-1)


def _own_group() -> str:
    """Return this process's control group (version 2) below the root; empty if there is none."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")


def _group_limit(root: Path, group: str, name: str) -> int:
    """Return the lowest limit of the group and its parents; `-1` means no limit, or no such file."""
    limits = []
    for folder in (root / group, *(root / group).parents):
        if folder.is_relative_to(root):
            try:
                text = (folder / name).read_text(encoding="ascii").strip()
            except OSError:
                continue
            limits.append(int(text) if text.isdigit() else -1)
    return _least(limits)


def _clock_synchronised() -> bool | None:
    """Return the state of adjtimex, without changing it."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError, TypeError):  # On Windows `CDLL(None)` fails.
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
        unclaimed_logs=0,
        unclaimed_topic_ids=(),
    )


def _free_files(data_dir: Path) -> int:
    usage = os.statvfs(data_dir)
    return usage.f_favail if usage.f_files else -1  # File systems with dynamic inodes report 0.


def _look_at_certificate(path: Path) -> Iterator[CertificateDescription | UnreadableCertificate]:
    """Yield all certificates in the file, because a chain expires with its first certificate to expire."""
    from headrace.wire.certificates import CertificateFormatError, read_facts

    try:
        for found in read_facts(path.read_bytes()):
            ends_ms = round(found.not_after.timestamp() * 1000)
            yield CertificateDescription(path.name, str(path), found.subject, ends_ms)
    except OSError as error:
        yield UnreadableCertificate(str(path), error.strerror or str(error))
    except CertificateFormatError as error:
        yield UnreadableCertificate(str(path), str(error))
