"""headrace: a distributed log. The blocking SDK; the asyncio classes are in `headrace.aio`.

Names are imported on first use, so that `import headrace.wire`, which the servers use, imports no client.
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
    from headrace.client.base.settings_types import AdminSettings as AdminSettings
    from headrace.client.base.settings_types import ConsumerSettings as ConsumerSettings
    from headrace.client.base.settings_types import ProducerSettings as ProducerSettings
    from headrace.client.base.settings_types import ReaderSettings as ReaderSettings
    from headrace.client.base.settings_types import TableSettings as TableSettings
    from headrace.client.consumer.consumer import Consumer as Consumer
    from headrace.client.consumer.reader import Reader as Reader
    from headrace.client.group.offsets import OffsetAndMetadata as OffsetAndMetadata
    from headrace.client.handlers.handler_pool import RunSummary as RunSummary
    from headrace.client.handlers.work_queue import RetryPolicy as RetryPolicy
    from headrace.client.interceptors.interceptor import ProducedBatch as ProducedBatch
    from headrace.client.interceptors.interceptor import ProducerInterceptor as ProducerInterceptor
    from headrace.client.loading.load import load as load
    from headrace.client.loading.progress import LoadedTopic as LoadedTopic
    from headrace.client.loading.progress import LoadProgress as LoadProgress
    from headrace.client.loading.progress import PartitionProgress as PartitionProgress
    from headrace.client.loading.tables.errors import ConcurrentCommitError as ConcurrentCommitError
    from headrace.client.loading.tables.errors import LoadError as LoadError
    from headrace.client.loading.tables.errors import OtherSourceError as OtherSourceError
    from headrace.client.loading.tables.errors import TableBusyError as TableBusyError
    from headrace.client.mirror.copying import CopyState as CopyState
    from headrace.client.mirror.mirrors import Mirrors as Mirrors
    from headrace.client.mirror.promote import PromotedTopic as PromotedTopic
    from headrace.client.mirror.promote import promote as promote
    from headrace.client.mirror.rows import CommonEnd as CommonEnd
    from headrace.client.mirror.rows import MirrorDescription as MirrorDescription
    from headrace.client.mirror.rows import MirroredSubject as MirroredSubject
    from headrace.client.mirror.rows import MirroredTopic as MirroredTopic
    from headrace.client.mirror.rows import MirrorSettings as MirrorSettings
    from headrace.client.mirror.rows import PartitionReport as PartitionReport
    from headrace.client.opened.directory import LogDirectory as LogDirectory
    from headrace.client.opened.directory import open as open
    from headrace.client.opened.fetched import CopiedPartition as CopiedPartition
    from headrace.client.opened.fetched import fetch as fetch
    from headrace.client.producer.futures import BatchFuture as BatchFuture
    from headrace.client.producer.futures import RecordFuture as RecordFuture
    from headrace.client.producer.producer import Producer as Producer
    from headrace.client.sql.query import SqlResult as SqlResult
    from headrace.client.sql.query import sql as sql
    from headrace.client.table.row_writes import PutManyError as PutManyError
    from headrace.client.table.rows import Row as Row
    from headrace.client.table.rows import VersionConflictError as VersionConflictError
    from headrace.client.table.table import Table as Table
    from headrace.log.errors import DirectoryInUseError as DirectoryInUseError
    from headrace.log.errors import WrongDirectoryError as WrongDirectoryError
    from headrace.wire.allocator import keep_large_buffers as keep_large_buffers
    from headrace.wire.errors import BatchTooLargeError as BatchTooLargeError
    from headrace.wire.errors import ConflictError as ConflictError
    from headrace.wire.errors import CorruptBatchError as CorruptBatchError
    from headrace.wire.errors import DeadlineRequiredError as DeadlineRequiredError
    from headrace.wire.errors import DivergedLogError as DivergedLogError
    from headrace.wire.errors import ErrorCode as ErrorCode
    from headrace.wire.errors import FencedBrokerError as FencedBrokerError
    from headrace.wire.errors import FencedInstanceError as FencedInstanceError
    from headrace.wire.errors import FencedLeaderEpochError as FencedLeaderEpochError
    from headrace.wire.errors import FencedMemberEpochError as FencedMemberEpochError
    from headrace.wire.errors import FencedProducerError as FencedProducerError
    from headrace.wire.errors import GroupNotEmptyError as GroupNotEmptyError
    from headrace.wire.errors import GroupTooLargeError as GroupTooLargeError
    from headrace.wire.errors import HeadraceError as HeadraceError
    from headrace.wire.errors import InternalError as InternalError
    from headrace.wire.errors import InvalidConfigError as InvalidConfigError
    from headrace.wire.errors import InvalidPartitionsError as InvalidPartitionsError
    from headrace.wire.errors import InvalidReplicationFactorError as InvalidReplicationFactorError
    from headrace.wire.errors import InvalidRequestError as InvalidRequestError
    from headrace.wire.errors import InvalidTimestampError as InvalidTimestampError
    from headrace.wire.errors import InvalidTopicNameError as InvalidTopicNameError
    from headrace.wire.errors import LeaderNotAvailableError as LeaderNotAvailableError
    from headrace.wire.errors import MetadataLimitError as MetadataLimitError
    from headrace.wire.errors import MetastoreUnavailableError as MetastoreUnavailableError
    from headrace.wire.errors import NotAuthorizedError as NotAuthorizedError
    from headrace.wire.errors import NotControllerError as NotControllerError
    from headrace.wire.errors import NotEnoughBrokersError as NotEnoughBrokersError
    from headrace.wire.errors import NotEnoughReplicasAfterAppendError as NotEnoughReplicasAfterAppendError
    from headrace.wire.errors import NotEnoughReplicasError as NotEnoughReplicasError
    from headrace.wire.errors import NotLeaderError as NotLeaderError
    from headrace.wire.errors import NotOwnerError as NotOwnerError
    from headrace.wire.errors import OffsetNotAvailableError as OffsetNotAvailableError
    from headrace.wire.errors import OffsetOutOfRangeError as OffsetOutOfRangeError
    from headrace.wire.errors import Outcome as Outcome
    from headrace.wire.errors import OutOfOrderSequenceError as OutOfOrderSequenceError
    from headrace.wire.errors import ReadOnlyTopicError as ReadOnlyTopicError
    from headrace.wire.errors import ShuttingDownError as ShuttingDownError
    from headrace.wire.errors import StorageFullError as StorageFullError
    from headrace.wire.errors import StorageOfflineError as StorageOfflineError
    from headrace.wire.errors import ThrottledError as ThrottledError
    from headrace.wire.errors import TimedOutError as TimedOutError
    from headrace.wire.errors import TopicAlreadyExistsError as TopicAlreadyExistsError
    from headrace.wire.errors import TransportError as TransportError
    from headrace.wire.errors import UnauthenticatedError as UnauthenticatedError
    from headrace.wire.errors import UnknownBrokerError as UnknownBrokerError
    from headrace.wire.errors import UnknownGroupError as UnknownGroupError
    from headrace.wire.errors import UnknownLeaderEpochError as UnknownLeaderEpochError
    from headrace.wire.errors import UnknownMemberError as UnknownMemberError
    from headrace.wire.errors import UnknownPartitionError as UnknownPartitionError
    from headrace.wire.errors import UnknownProducerError as UnknownProducerError
    from headrace.wire.errors import UnknownTopicError as UnknownTopicError
    from headrace.wire.errors import UnknownTopicIdError as UnknownTopicIdError
    from headrace.wire.errors import UnsupportedCodecError as UnsupportedCodecError
    from headrace.wire.errors import UnsupportedVersionError as UnsupportedVersionError
    from headrace.wire.ids import TopicPartition as TopicPartition
    from headrace.wire.table_keys import ABSENT as ABSENT

__version__ = "0.1.0"
"""Version of every distribution, the image and the chart: `make release VERSION=` changes it and derived values."""

_NAMES = {
    "headrace.client.admin.admin": ("Admin",),
    "headrace.client.base.errors": (
        "BufferFullError",
        "ClosedError",
        "ConfigError",
        "DeliveryError",
        "ForkedError",
        "HandlerError",
        "HandlerTimeoutError",
        "LogTruncationError",
        "NoBrokersAvailableError",
        "ProcessEndedError",
        "SerializationError",
        "TopicRecreatedError",
        "WakeupError",
    ),
    "headrace.client.base.records": (
        "Record",
        "RecordBatch",
        "RecordMetadata",
    ),
    "headrace.client.base.settings_types": (
        "AdminSettings",
        "ConsumerSettings",
        "ProducerSettings",
        "ReaderSettings",
        "TableSettings",
    ),
    "headrace.client.consumer.consumer": ("Consumer",),
    "headrace.client.consumer.reader": ("Reader",),
    "headrace.client.group.offsets": ("OffsetAndMetadata",),
    "headrace.client.handlers.handler_pool": ("RunSummary",),
    "headrace.client.handlers.work_queue": ("RetryPolicy",),
    "headrace.client.interceptors.interceptor": (
        "ProducedBatch",
        "ProducerInterceptor",
    ),
    "headrace.client.loading.load": ("load",),
    "headrace.client.loading.progress": ("LoadProgress", "LoadedTopic", "PartitionProgress"),
    "headrace.client.loading.tables.errors": (
        "ConcurrentCommitError",
        "LoadError",
        "OtherSourceError",
        "TableBusyError",
    ),
    "headrace.client.opened.directory": ("LogDirectory", "open"),
    "headrace.client.mirror.copying": ("CopyState",),
    "headrace.client.mirror.mirrors": ("Mirrors",),
    "headrace.client.mirror.promote": ("PromotedTopic", "promote"),
    "headrace.client.mirror.rows": (
        "CommonEnd",
        "MirrorDescription",
        "MirrorSettings",
        "MirroredSubject",
        "MirroredTopic",
        "PartitionReport",
    ),
    "headrace.client.opened.fetched": ("CopiedPartition", "fetch"),
    "headrace.client.producer.futures": (
        "BatchFuture",
        "RecordFuture",
    ),
    "headrace.client.producer.producer": ("Producer",),
    "headrace.client.sql.query": ("SqlResult", "sql"),
    "headrace.client.table.row_writes": ("PutManyError",),
    "headrace.client.table.rows": ("Row", "VersionConflictError"),
    "headrace.client.table.table": ("Table",),
    "headrace.log.errors": ("DirectoryInUseError", "WrongDirectoryError"),
    "headrace.wire.allocator": ("keep_large_buffers",),
    "headrace.wire.errors": (
        "BatchTooLargeError",
        "ConflictError",
        "CorruptBatchError",
        "DeadlineRequiredError",
        "DivergedLogError",
        "ErrorCode",
        "FencedBrokerError",
        "FencedInstanceError",
        "FencedLeaderEpochError",
        "FencedMemberEpochError",
        "FencedProducerError",
        "GroupNotEmptyError",
        "GroupTooLargeError",
        "HeadraceError",
        "InternalError",
        "InvalidConfigError",
        "InvalidPartitionsError",
        "InvalidReplicationFactorError",
        "InvalidRequestError",
        "InvalidTimestampError",
        "InvalidTopicNameError",
        "LeaderNotAvailableError",
        "MetadataLimitError",
        "MetastoreUnavailableError",
        "NotAuthorizedError",
        "NotControllerError",
        "NotEnoughBrokersError",
        "NotEnoughReplicasAfterAppendError",
        "NotEnoughReplicasError",
        "NotLeaderError",
        "NotOwnerError",
        "OffsetNotAvailableError",
        "OffsetOutOfRangeError",
        "OutOfOrderSequenceError",
        "ReadOnlyTopicError",
        "Outcome",
        "ShuttingDownError",
        "StorageFullError",
        "StorageOfflineError",
        "ThrottledError",
        "TimedOutError",
        "TopicAlreadyExistsError",
        "TransportError",
        "UnauthenticatedError",
        "UnknownBrokerError",
        "UnknownGroupError",
        "UnknownLeaderEpochError",
        "UnknownMemberError",
        "UnknownPartitionError",
        "UnknownProducerError",
        "UnknownTopicError",
        "UnknownTopicIdError",
        "UnsupportedCodecError",
        "UnsupportedVersionError",
    ),
    "headrace.wire.ids": ("TopicPartition",),
    "headrace.wire.table_keys": ("ABSENT",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [*sorted(_MODULES), "__version__"]  # noqa: PLE0604  (the keys are strings)


if not TYPE_CHECKING:  # Type checkers know exactly the names above.

    def __getattr__(name: str) -> Any:
        """Import a public name on first use (PEP 562); submodules such as `headrace.aio` too."""
        import importlib

        if name in _MODULES:
            value = getattr(importlib.import_module(_MODULES[name]), name)
        elif name in {"aio", "client", "schemas", "testing", "wire"}:
            value = importlib.import_module(f"headrace.{name}")
        else:
            raise AttributeError(f"module 'headrace' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
