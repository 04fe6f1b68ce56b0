"""Storage engine: partitions as logs of segment files on one volume.

Synchronous and without a clock; all disk calls are injected.
The brokers use the names exported here; `docs/reference/` describes the files.
"""

from headrace.log.directory import DataDirectory, LogId
from headrace.log.errors import CorruptLogError, DirectoryInUseError, SliceCutError, WrongDirectoryError
from headrace.log.filesystem import DiskSpace, FileSystem
from headrace.log.log import PartitionLog
from headrace.log.recovery import RecoveryReport
from headrace.log.settings import DiskLimits, LogSettings
from headrace.log.slices import Slice
from headrace.log.space import DiskUsage
from headrace.log.timestamps import TimestampedOffset, TimestampKind

__all__ = [
    "CorruptLogError",
    "DataDirectory",
    "DirectoryInUseError",
    "DiskLimits",
    "DiskSpace",
    "DiskUsage",
    "FileSystem",
    "LogId",
    "LogSettings",
    "PartitionLog",
    "RecoveryReport",
    "Slice",
    "SliceCutError",
    "TimestampKind",
    "TimestampedOffset",
    "WrongDirectoryError",
]
