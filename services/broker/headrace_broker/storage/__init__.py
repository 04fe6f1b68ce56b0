"""The storage engine: partitions as logs of segment files on one volume.

Synchronous, no clock, all disk calls injected.
The runtime uses what is exported here; `docs/reference/` describes the files.
"""

from headrace_broker.storage.directory import DataDirectory, LogId
from headrace_broker.storage.errors import DirectoryInUseError, LogDamagedError, SliceCutError, WrongDirectoryError
from headrace_broker.storage.filesystem import DiskSpace, FileSystem
from headrace_broker.storage.log import PartitionLog
from headrace_broker.storage.recovery import RecoveryReport
from headrace_broker.storage.settings import DiskLimits, LogSettings
from headrace_broker.storage.slices import Slice
from headrace_broker.storage.space import DiskUsage
from headrace_broker.storage.timestamps import TimestampedOffset, TimestampKind

__all__ = [
    "DataDirectory",
    "DirectoryInUseError",
    "DiskLimits",
    "DiskSpace",
    "DiskUsage",
    "FileSystem",
    "LogDamagedError",
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
