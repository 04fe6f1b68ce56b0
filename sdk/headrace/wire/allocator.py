"""Thresholds of glibc's allocator for requests and responses, which are large and short-lived.

By default glibc returns each freed buffer of a megabyte to the kernel, and the next one is mapped and zeroed page by
page: more than half of the CPU time of a loaded broker, a fifth of that of a reading Spark executor. With the
thresholds below such buffers are reused: a broker that receives 800 MB needs 0.5 to 1.3 s of system time instead of 1.6
to 2.0. Brokers, the tasks of `headrace.spark` and the command line set them at their start. The SDK sets nothing by
itself, because the application owns its allocator.
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
    """Make glibc reuse large freed buffers in this process, for applications with a high throughput.

    The CPU time of a consumer or producer decreases by a tenth, more with large responses; up to 64 MiB of free memory
    stay with the process. Call it once, early, in any thread. Return `False` without a change if the C library has no
    such setting (musl, macOS, Windows).

    Free memory above `TRIM_BYTES` at the top of the heap is still returned to the kernel.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # Windows cannot open a library without a name.
        return False
    done = [
        mallopt(M_MMAP_THRESHOLD, MMAP_BYTES),
        mallopt(M_TRIM_THRESHOLD, TRIM_BYTES),
        mallopt(M_ARENA_MAX, ARENAS),
    ]
    return all(result == 1 for result in done)
