"""A machine with a wrong clock and a full disk, for one Python process: on its PYTHONPATH, so that it is loaded first.

The directory HEADRACE_TEST_MACHINE says what is wrong, `chaos_machine.py` writes it:

    offset_ms     by how many milliseconds the wall clock is wrong, read at the start
    full          the kinds of file operations below HEADRACE_TEST_DISK that fail with ENOSPC, while the file is there
    refused       one line for each that did, written here

The process under test knows nothing of it: it calls `time` and `os` as always. `time.time` stays right: gRPC counts its
deadlines from it and compares them with the kernel's clock; services read the wall clock by `time.time_ns` alone. Every
second refused write stores a part and says how much, as a disk does that fills up in the middle of it.
"""

import errno
import itertools
import os
import sys
import time
from pathlib import Path

MACHINE, DISK = Path(os.environ["HEADRACE_TEST_MACHINE"]), os.environ["HEADRACE_TEST_DISK"]

true_ns, true_pwritev, true_open = time.time_ns, os.pwritev, os.open
storing_a_part = itertools.cycle((True, False))


def full() -> list[str]:
    try:
        return (MACHINE / "full").read_text().split()
    except FileNotFoundError:
        return []


def path_of(where: object) -> str:
    if not isinstance(where, int):
        return os.path.abspath(os.fsdecode(where))  # type: ignore[arg-type]
    try:
        return os.readlink(f"/proc/self/fd/{where}")
    except OSError:
        return ""


def refuse(kind: str, where: object) -> bool:
    if not DISK or kind not in full() or not path_of(where).startswith(DISK):
        return False
    line = f"{kind} {path_of(where)}\n".encode()
    log = true_open(MACHINE / "refused", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    try:
        os.write(log, line)
    finally:
        os.close(log)
    return True


def no_space(where: object) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), where if isinstance(where, str) else None)


def may_fail(kind: str, call):
    def checked(where, *arguments, **options):
        if refuse(kind, where):
            raise no_space(where)
        return call(where, *arguments, **options)

    return checked


def open_(path, flags, *arguments, **options):
    if flags & os.O_CREAT and refuse("create", path):
        raise no_space(path)
    return true_open(path, flags, *arguments, **options)


def pwritev(descriptor, buffers, position, *arguments):
    if refuse("write", descriptor):
        data = b"".join(buffers)
        if len(data) < 2 or not next(storing_a_part):
            raise no_space(descriptor)
        return true_pwritev(descriptor, [data[: len(data) // 2]], position, *arguments)
    return true_pwritev(descriptor, buffers, position, *arguments)


def install() -> None:
    os.open, os.pwritev = open_, pwritev
    kinds = {
        "allocate": ["posix_fallocate"],
        "truncate": ["ftruncate"],
        "sync": ["fsync", "fdatasync"],
        "rename": ["rename", "replace"],
        "mkdir": ["mkdir"],
        "unlink": ["unlink", "remove"],
        "rmdir": ["rmdir"],
    }
    for kind, names in kinds.items():
        for name in names:
            setattr(os, name, may_fail(kind, getattr(os, name)))
    if (MACHINE / "offset_ms").exists():
        offset_ms = int((MACHINE / "offset_ms").read_text())
        time.time_ns = lambda: true_ns() + offset_ms * 1_000_000
        sys.stderr.write(f"the clock of this machine is wrong by {offset_ms} ms\n")


install()
