"""Child processes of tests that end with the block in which they run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def running(arguments: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Run a program as `subprocess.Popen`, and kill it at the end of the block if it still runs.

    The `with` of a Popen waits without limit: where the test fails within the block, for ever.
    """
    with subprocess.Popen(arguments, **options) as process:
        try:
            yield process
        finally:
            process.kill()
