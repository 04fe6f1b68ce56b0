"""headrace: a distributed log. The blocking SDK; the asyncio classes are in `headrace.aio`.

Names are imported when they are first used, so that `import headrace.wire`, which the servers use, brings no client.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.client.admin.admin import Admin as Admin
    from headrace.client.base.errors import BufferFullError as BufferFullError
    from headrace.client.base.errors import ClosedError as ClosedError
    from headrace.client.base.errors import ConfigError as ConfigError
    from headrace.client.base.errors import DeliveryError as DeliveryError
    from headrace.client.base.errors import ForkedError as ForkedError
    from headrace.client.base.errors import HandlerError as HandlerError
    from headrace.client.base.errors import HandlerTimeoutError as HandlerTimeoutError
    from headrace.client.base.errors import LogTruncationError as LogTruncationError
    from headrace.client.base.errors import NoBrokersAvailableError as NoBrokersAvailableError
    from headrace.client.base.errors import ProcessEndedError as ProcessEndedError
    from headrace.client.base.errors import SerializationError as SerializationError
    from headrace.client.base.errors import TopicRecreatedError as TopicRecreatedError
    from headrace.client.base.errors import WakeupError as WakeupError
    from headrace.client.base.records import Record as Record
    from headrace.client.base.records import RecordBatch as RecordBatch
    from headrace.client.base.records import RecordMetadata as RecordMetadata
    from headrace.client.consumer.consumer import Consumer as Consumer
    from headrace.client.consumer.reader import Reader as Reader
    from headrace.client.group.offsets import OffsetAndMetadata as OffsetAndMetadata
    from headrace.client.handlers.handler_pool import RunSummary as RunSummary
    from headrace.client.handlers.work_queue import RetryPolicy as RetryPolicy
    from headrace.client.interceptors.interceptor import ProducedBatch as ProducedBatch
    from headrace.client.interceptors.interceptor import ProducerInterceptor as ProducerInterceptor
    from headrace.client.producer.futures import BatchFuture as BatchFuture
    from headrace.client.producer.futures import RecordFuture as RecordFuture
    from headrace.client.producer.producer import Producer as Producer
    from headrace.wire.allocator import keep_large_buffers as keep_large_buffers
    from headrace.wire.errors import ErrorCode as ErrorCode
    from headrace.wire.errors import HeadraceError as HeadraceError
    from headrace.wire.errors import Outcome as Outcome
    from headrace.wire.ids import TopicPartition as TopicPartition

__version__ = "0.1.0"
"""Of every distribution, the image and the chart: `make release VERSION=` changes it and what is derived from it."""

_MODULES = {
    "Admin": "headrace.client.admin.admin",
    "Consumer": "headrace.client.consumer.consumer",
    "ProducedBatch": "headrace.client.interceptors.interceptor",
    "ProducerInterceptor": "headrace.client.interceptors.interceptor",
    "OffsetAndMetadata": "headrace.client.group.offsets",
    "Producer": "headrace.client.producer.producer",
    "Reader": "headrace.client.consumer.reader",
    "BatchFuture": "headrace.client.producer.futures",
    "RecordFuture": "headrace.client.producer.futures",
    "Record": "headrace.client.base.records",
    "RecordBatch": "headrace.client.base.records",
    "RecordMetadata": "headrace.client.base.records",
    "RetryPolicy": "headrace.client.handlers.work_queue",
    "RunSummary": "headrace.client.handlers.handler_pool",
    "BufferFullError": "headrace.client.base.errors",
    "ClosedError": "headrace.client.base.errors",
    "ConfigError": "headrace.client.base.errors",
    "DeliveryError": "headrace.client.base.errors",
    "ForkedError": "headrace.client.base.errors",
    "HandlerError": "headrace.client.base.errors",
    "HandlerTimeoutError": "headrace.client.base.errors",
    "LogTruncationError": "headrace.client.base.errors",
    "NoBrokersAvailableError": "headrace.client.base.errors",
    "ProcessEndedError": "headrace.client.base.errors",
    "SerializationError": "headrace.client.base.errors",
    "TopicRecreatedError": "headrace.client.base.errors",
    "WakeupError": "headrace.client.base.errors",
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
