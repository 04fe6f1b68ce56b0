"""Asyncio `Producer`, `Consumer`, `Reader` and `Admin`, with the settings and guarantees of the blocking classes.

They use gRPC channels of the running loop and start no thread; the decisions are those of the blocking classes. Methods
that may wait are coroutines, others are plain. A cancelled await loses no record and leaves no partial work.
"""

from typing import TYPE_CHECKING, Any

from headrace.client.admin.admin_async import AsyncAdmin as Admin
from headrace.client.consumer.consumer_async import AsyncConsumer as Consumer
from headrace.client.consumer.reader_async import AsyncReader as Reader
from headrace.client.mirror.mirrors_async import AsyncMirrors as Mirrors
from headrace.client.producer.producer_async import BatchFuture, Producer, RecordFuture
from headrace.client.table.table_async import AsyncTable as Table

if TYPE_CHECKING:
    from headrace.client.opened.directory_async import AsyncLogDirectory, open

__all__ = [
    "Admin",
    "AsyncLogDirectory",
    "BatchFuture",
    "Consumer",
    "Mirrors",
    "Producer",
    "Reader",
    "RecordFuture",
    "Table",
    "open",
]

if not TYPE_CHECKING:  # Only a directory needs the storage engine.

    def __getattr__(name: str) -> Any:
        """Import what opens a directory on first use (PEP 562)."""
        if name not in ("AsyncLogDirectory", "open"):
            raise AttributeError(f"module 'headrace.aio' has no attribute {name!r}")
        from headrace.client.opened import directory_async

        return getattr(directory_async, name)
