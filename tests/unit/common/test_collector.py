"""What the garbage collector of a service looks at: in a process of its own, since it is one for all."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGIN = """
import gc, weakref
from headrace_server import collector

gc.disable()
now = [0.0]
class Node: pass
def cycle():
    node = Node()
    node.itself = node
    return node
made = [[number] for number in range(10_000)]
collector.CollectorPacer(lambda: now[0]).install()
"""


@pytest.mark.parametrize(
    ("program", "said"),
    [
        pytest.param("print(gc.get_freeze_count() > 10_000, len(gc.get_objects()) < 10_000)", "True True", id="start"),
        pytest.param(
            "collector.LONG_SECONDS = 0.0; later = [[n] for n in range(10_000)]; before = gc.get_freeze_count()\n"
            "gc.collect(); print(gc.get_freeze_count() - before >= 10_000)",
            "True",
            id="survivors of a long collection are set apart",
        ),
        pytest.param(
            "collector.LONG_SECONDS = 1e9; later = [[n] for n in range(10_000)]; before = gc.get_freeze_count()\n"
            "gc.collect(); gc.collect(1); print(gc.get_freeze_count() <= before)",
            "True",
            id="those of a short one are not",
        ),
        pytest.param(
            "collector.LONG_SECONDS = 0.0; node = cycle(); gone = weakref.ref(node); gc.collect(); del node\n"
            "gc.collect(); print(gone() is not None)\n"
            "now[0] = collector.WHOLE_SECONDS; gc.collect(); print(gone() is None)",
            "True True",
            id="garbage among them is found within the hour",
        ),
    ],
)
def test_what_lives_long_is_looked_at_once_an_hour(program: str, said: str) -> None:
    """What was there at the start, and what outlived a long collection."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == said.split()
