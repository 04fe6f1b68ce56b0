"""A machine without the calls that only Linux has: `pytest -p tests.without_linux`, before headrace is imported.

What replaces them is tested by the tests of what uses them (tests/unit/workspace/test_other_platforms.py).
"""

import os
import resource
import shutil
import socket
import time

GONE = {
    os: (
        "O_DIRECTORY",
        "RWF_NOWAIT",
        "copy_file_range",
        "memfd_create",
        "posix_fadvise",
        "posix_fallocate",
        "pwritev",
        "sched_getaffinity",
        "sendfile",
        "waitid",
    ),
    resource: ("prlimit",),
    socket: ("TCP_KEEPIDLE", "TCP_USER_TIMEOUT"),
    time: ("CLOCK_BOOTTIME",),
}

shutil._USE_CP_SENDFILE = False  # type: ignore[attr-defined]
for module, names in GONE.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
