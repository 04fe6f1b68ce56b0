"""Asyncio `Producer`, `Consumer`, `Reader` and `Admin`, with the settings and guarantees of the blocking classes.

They use gRPC channels of the running loop and start no thread; the decisions are those of the blocking classes. Methods
that may wait are coroutines, others are plain. A cancelled await loses no record and leaves no partial work.
"""

from headrace.client.admin.admin_async import AsyncAdmin as Admin
from headrace.client.consumer.consumer_async import AsyncConsumer as Consumer
from headrace.client.consumer.reader_async import AsyncReader as Reader
from headrace.client.opened.directory_async import AsyncLogDirectory, open
from headrace.client.producer.producer_async import BatchFuture, Producer, RecordFuture
from headrace.client.table.table_async import AsyncTable as Table

__all__ = [
    "Admin",
    "AsyncLogDirectory",
    "BatchFuture",
    "Consumer",
    "Producer",
    "Reader",
    "RecordFuture",
    "Table",
    "open",
]
