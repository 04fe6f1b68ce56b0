"""Child programs of a benchmark, which end with it, however it ends."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from headrace_devcluster import guarded_exec


def search_path() -> str:
    """Return the search path of programs, including directories of servers that a user's PATH lacks."""
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def guarded(command: Sequence[str | Path]) -> list[str]:
    """Return a command whose process ends with this process, however that ends."""
    program = shutil.which(command[0], path=search_path())
    assert program is not None, f"{command[0]} was there when it was looked for"
    return guarded_exec.guarded([program, *map(str, command[1:])])
