"""Set-up of a Python worker of Spark, once per worker, which runs one task after another. Called by tasks.

Spark collects garbage after each task, which visits all 92,000 imported objects and delays the next task by 20 to 30
ms. Objects that exist when the first task begins live as long as the worker, so they are frozen.
"""

import functools
import gc

from headrace.wire.allocator import keep_large_buffers


@functools.cache
def prepare_worker() -> None:
    """Keep large buffers and freeze all imported objects. Call it after the imports."""
    keep_large_buffers()
    gc.freeze()
