"""Programs that a bench starts, and that end with it, however it ends."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from headrace_devcluster import guarded_exec


def search_path() -> str:
    """Where programs are looked for: servers lie where a user's path does not lead."""
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def guarded(command: Sequence[str | Path]) -> list[str]:
    """The command, so that what it runs ends with this process, however that ends."""
    program = shutil.which(command[0], path=search_path())
    assert program is not None, f"{command[0]} was there when it was looked for"
    return guarded_exec.guarded([program, *map(str, command[1:])])
