"""Executes another program that Linux kills when the parent process ends in any way.

`guarded` builds the command line. It imports little, because it delays every start of a process. (A `preexec_fn` would
run between fork and exec in a process with gRPC's threads, where few functions are safe.)
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def guarded(program: list[str]) -> list[str]:
    """Return the command line that executes `program` guarded by this process."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *program]


def main() -> None:
    """Execute the program, or exit if the parent has already ended; never returns."""
    end_with(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])


def end_with(parent: int) -> None:
    """Make Linux kill this process when its parent (process id `parent`) ends; exit if it already has."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux only; elsewhere children outlive a killed parent.
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent ended before this process began")


if __name__ == "__main__":
    main()
