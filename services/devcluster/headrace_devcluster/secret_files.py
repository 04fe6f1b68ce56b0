"""Secrets in files of a cluster's directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path


def keep_secret(file: Path, make: Callable[[], str]) -> None:
    """Write a new secret to a file that only its owner may read, unless there is one."""
    if not file.exists():
        with open(file, "x", opener=partial(os.open, mode=0o600)) as opened:
            opened.write(make())
