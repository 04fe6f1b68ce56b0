"""What the first task changes in a worker, seen in a process of its own."""

import subprocess
import sys

PROGRAM = """
import gc
from headrace.spark.worker_process import prepare_worker
prepare_worker()
first = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
prepare_worker()
print(first, gc.get_freeze_count())
"""


def test_what_the_first_task_found_is_collected_no_more():
    """And what came later is, whatever tasks follow."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    first, second = map(int, done.stdout.split())
    assert first > 1000, "everything that was imported"
    assert abs(second - first) < 500, "the second task froze what the first one left"
