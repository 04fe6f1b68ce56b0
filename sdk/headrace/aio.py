"""The asyncio `Producer`, `Consumer`, `Reader` and `Admin`, with the settings and guarantees of the blocking classes.

They run on gRPC channels of the running loop and start no thread; the decisions are the blocking classes' own. What may
wait is a coroutine, what cannot is a plain method. A cancelled await loses no record and leaves nothing half done.
"""

from headrace.client.admin.admin_async import AsyncAdmin as Admin
from headrace.client.consumer.consumer_async import AsyncConsumer as Consumer
from headrace.client.consumer.reader_async import AsyncReader as Reader
from headrace.client.producer.producer_async import BatchFuture, Producer, RecordFuture

__all__ = ["Admin", "BatchFuture", "Consumer", "Producer", "Reader", "RecordFuture"]
