"""What a task changes in the Python worker that runs it, once: workers run one task after another. Called by tasks.

Spark collects garbage after each task, and looks at every object of all that was imported: 20 to 30 ms, which the next
task waits for. What is there when the first task begins is there for good, so it need not be looked at again.
"""

import functools
import gc

from headrace.wire.allocator import keep_large_buffers


@functools.cache
def prepare_worker() -> None:
    """Keep large buffers, and leave what has been imported so far to itself. Call it when the imports are done."""
    keep_large_buffers()
    gc.freeze()
