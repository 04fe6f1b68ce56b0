"""The asyncio `Producer`, `Consumer`, `Reader` and `Admin`, with the settings and guarantees of the blocking classes.

They run on gRPC channels of the running loop and start no thread; the decisions are the blocking classes' own. What may
wait is a coroutine, what cannot is a plain method. A cancelled await loses no record and leaves nothing half done.
"""

from headrace.client.aio.admin import Admin
from headrace.client.aio.consumer import Consumer
from headrace.client.aio.producer import ManyReceipt, Producer, Receipt
from headrace.client.aio.reader import Reader

__all__ = ["Admin", "Consumer", "ManyReceipt", "Producer", "Reader", "Receipt"]
