"""How glibc hands out the memory of requests and answers, which are large and short-lived.

As it comes, glibc gives each buffer of a megabyte back to the kernel when it is freed, and the next one is mapped and
zeroed page by page again: more than half of the processor time of a broker under load, a fifth of that of an executor
of Spark which reads. With the thresholds below such buffers are reused. Called by brokers when they start, by the tasks
of `headrace.spark` and by the command line. An application's process is its own: it calls it where it moves much.
"""

from __future__ import annotations

import ctypes

# <malloc.h>
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8

TRIM_BYTES = 64 << 20
MMAP_BYTES = 32 << 20
ARENAS = 2


def keep_large_buffers() -> bool:
    """Let glibc keep large buffers that are free for the next ones, in this process: for one that moves much.

    A consumer's or producer's processor time falls by a tenth, more where answers are large; up to 64 MiB that are free
    stay with the process. Call it once, early, in any thread. False where the C library has no such setting (musl,
    macOS, Windows): then nothing changes.

    Above `TRIM_BYTES` of free memory at the top of the heap, memory goes back to the kernel all the same.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # Windows names no library by None.
        return False
    done = [
        mallopt(M_MMAP_THRESHOLD, MMAP_BYTES),
        mallopt(M_TRIM_THRESHOLD, TRIM_BYTES),
        mallopt(M_ARENA_MAX, ARENAS),
    ]
    return all(result == 1 for result in done)
