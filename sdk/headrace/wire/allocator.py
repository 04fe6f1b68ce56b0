"""Thresholds of glibc's allocator for requests and responses, which are large and short-lived.

By default glibc returns each freed buffer of a megabyte to the kernel, and the next one is mapped and zeroed page by
page: more than half of the processor time of a loaded broker, a fifth of that of a reading Spark executor. With the
thresholds below such buffers are reused: a broker that takes 800 MB needs 0.5 to 1.3 s of system time instead of 1.6
to 2.0. Brokers, the tasks of `headrace.spark` and the command line set them at their start. The SDK sets nothing by
itself, because an application's allocator is its owner's.
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

    The processor time of a consumer or producer falls by a tenth, more with large responses; up to 64 MiB of free
    memory stay with the process. Call it once, early, in any thread. Return False, and change nothing, if the C library
    has no such setting (musl, macOS, Windows).

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
