"""headrace: a distributed log. The blocking SDK; the asyncio classes are in `headrace.aio`.

Names are imported when they are first used, so that `import headrace.wire`, which the servers use, brings no client.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.client.admin import Admin as Admin
    from headrace.client.consumer import Consumer as Consumer
    from headrace.client.errors import BufferFullError as BufferFullError
    from headrace.client.errors import ClosedError as ClosedError
    from headrace.client.errors import ConfigError as ConfigError
    from headrace.client.errors import DeliveryError as DeliveryError
    from headrace.client.errors import ForkedError as ForkedError
    from headrace.client.errors import HandlerError as HandlerError
    from headrace.client.errors import HandlerTimeoutError as HandlerTimeoutError
    from headrace.client.errors import LogTruncationError as LogTruncationError
    from headrace.client.errors import NoBrokersAvailableError as NoBrokersAvailableError
    from headrace.client.errors import ProcessEndedError as ProcessEndedError
    from headrace.client.errors import SerializationError as SerializationError
    from headrace.client.errors import TopicRecreatedError as TopicRecreatedError
    from headrace.client.errors import WakeupError as WakeupError
    from headrace.client.group_offsets import OffsetAndMetadata as OffsetAndMetadata
    from headrace.client.handler_pool import RunSummary as RunSummary
    from headrace.client.producer import Producer as Producer
    from headrace.client.reader import Reader as Reader
    from headrace.client.receipts import ManyReceipt as ManyReceipt
    from headrace.client.receipts import Receipt as Receipt
    from headrace.client.records import Record as Record
    from headrace.client.records import RecordBatch as RecordBatch
    from headrace.client.records import RecordMetadata as RecordMetadata
    from headrace.client.work_queue import RetryPolicy as RetryPolicy
    from headrace.wire.allocator import keep_large_buffers as keep_large_buffers
    from headrace.wire.errors import ErrorCode as ErrorCode
    from headrace.wire.errors import HeadraceError as HeadraceError
    from headrace.wire.errors import Outcome as Outcome
    from headrace.wire.ids import TopicPartition as TopicPartition

__version__ = "0.1.0"

_MODULES = {
    "Admin": "headrace.client.admin",
    "Consumer": "headrace.client.consumer",
    "OffsetAndMetadata": "headrace.client.group_offsets",
    "Producer": "headrace.client.producer",
    "Reader": "headrace.client.reader",
    "ManyReceipt": "headrace.client.receipts",
    "Receipt": "headrace.client.receipts",
    "Record": "headrace.client.records",
    "RecordBatch": "headrace.client.records",
    "RecordMetadata": "headrace.client.records",
    "RetryPolicy": "headrace.client.work_queue",
    "RunSummary": "headrace.client.handler_pool",
    "BufferFullError": "headrace.client.errors",
    "ClosedError": "headrace.client.errors",
    "ConfigError": "headrace.client.errors",
    "DeliveryError": "headrace.client.errors",
    "ForkedError": "headrace.client.errors",
    "HandlerError": "headrace.client.errors",
    "HandlerTimeoutError": "headrace.client.errors",
    "LogTruncationError": "headrace.client.errors",
    "NoBrokersAvailableError": "headrace.client.errors",
    "ProcessEndedError": "headrace.client.errors",
    "SerializationError": "headrace.client.errors",
    "TopicRecreatedError": "headrace.client.errors",
    "WakeupError": "headrace.client.errors",
    "keep_large_buffers": "headrace.wire.allocator",
    "ErrorCode": "headrace.wire.errors",
    "HeadraceError": "headrace.wire.errors",
    "Outcome": "headrace.wire.errors",
    "TopicPartition": "headrace.wire.ids",
}

__all__ = [*sorted(_MODULES), "__version__"]  # noqa: PLE0604  (the keys are strings)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562); submodules such as `headrace.aio` too."""
    import importlib

    if name in _MODULES:
        value = getattr(importlib.import_module(_MODULES[name]), name)
    elif name in {"aio", "client", "wire", "testing"}:
        value = importlib.import_module(f"headrace.{name}")
    else:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
