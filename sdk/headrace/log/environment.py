"""What all logs of one data directory share: the file system, descriptors, index memory, the watch on free space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.log.filesystem import FileSystem
from headrace.log.index import IndexCache
from headrace.log.open_files import OpenFiles
from headrace.log.space import DiskSpaceGuard


@dataclass(frozen=True, slots=True)
class LogEnvironment:
    """Made by `DataDirectory`, handed to every `PartitionLog`; its parts say which threads may use them."""

    filesystem: FileSystem
    files: OpenFiles
    index_cache: IndexCache
    space: DiskSpaceGuard
    same_boot: bool
    """The machine has not been started anew since the process that wrote the logs last."""
    on_io_error: Callable[[], None]
    """Called at once when a log meets an I/O error: what the kernel holds of it cannot be relied on any more."""
