"""Becomes another program that Linux kills when the program that started this one ends, however it ends.

`guarded` builds the command line. Imports as little as it can: it delays every start of a process. (A `preexec_fn`
would do the same between fork and exec, in a process that has gRPC's threads, where little may be called.)
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def guarded(program: list[str]) -> list[str]:
    """The command that makes this module become a program and its arguments, which this process starts."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *program]


def main() -> None:
    """Never returns: becomes the program, or ends because the parent is gone already."""
    end_with(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])


def end_with(parent: int) -> None:
    """Ask Linux to kill this process when its parent, which had that id, ends; end at once where it has."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux only; elsewhere children outlive a killed parent.
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent ended before this process began")


if __name__ == "__main__":
    main()
