"""The machine that chaos puts brokers on: what it is told to refuse is refused, and nothing else."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.chaos_machine import FILE_OPERATIONS, Machine

CALLS = {
    "create": "os.close(os.open(disk + '/new', os.O_RDWR | os.O_CREAT))",
    "write": "[os.pwritev(file, [b'ab', b'cd'], 0) for _ in range(2)]",
    "allocate": "os.posix_fallocate(file, 0, 10)",
    "truncate": "os.ftruncate(file, 1)",
    "sync": "os.fsync(file)",
    "rename": "os.rename(disk + '/old', disk + '/other')",
    "mkdir": "os.mkdir(disk + '/directory')",
    "unlink": "os.unlink(disk + '/old')",
    "rmdir": "os.rmdir(disk + '/empty')",
}


def run(machine: Machine, program: str) -> str:
    command = [sys.executable, "-S", "-c", f"import sitecustomize, errno, os, time\n{program}"]
    done = subprocess.run(
        command, env={**os.environ, **machine.environment}, capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "disk" / "empty").mkdir(parents=True)
    (tmp_path / "disk" / "old").write_bytes(b"xyz!")
    return Machine(tmp_path / "machine", tmp_path / "disk")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="a path is found by its descriptor in /proc")
def test_each_file_operation_can_find_no_room(machine: Machine, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    assert set(CALLS) == set(FILE_OPERATIONS)
    steps = [f"file, disk = os.open({str(disk / 'old')!r}, os.O_RDWR), {str(disk)!r}"]
    for kind, call in CALLS.items():
        steps += [
            f"open({str(tmp_path / 'machine' / 'full')!r}, 'w').write({kind!r})",
            f"try:\n    {call}\n    print('{kind} went through')",
            "except OSError as error:\n    assert error.errno == errno.ENOSPC, error",
        ]
    steps.append(f"os.mkdir({str(tmp_path / 'elsewhere')!r})")
    assert run(machine, "\n".join(steps)) == ""
    assert set(machine.refused()) == set(FILE_OPERATIONS)
    assert (disk / "old").read_bytes() == b"abz!"  # The first refused write was a short one.
    assert (tmp_path / "elsewhere").is_dir()


def test_the_clock_is_wrong_from_the_start(machine: Machine) -> None:
    program = "print(time.time_ns() // 10**9)"
    machine.set_clock(-3_600_000)
    assert abs(time.time() - 3_600 - int(run(machine, program))) < 60
    machine.set_clock(0)
    assert abs(time.time() - int(run(machine, program))) < 60
