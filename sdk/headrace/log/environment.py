"""Environment shared by all logs of one data directory: file system, descriptors, index memory, free space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.log.filesystem import FileSystem
from headrace.log.index import IndexCache
from headrace.log.open_files import OpenFiles
from headrace.log.space import DiskSpaceGuard


@dataclass(frozen=True, slots=True)
class LogEnvironment:
    """Made by `DataDirectory`, passed to every `PartitionLog`; its parts document which threads may use them."""

    filesystem: FileSystem
    files: OpenFiles
    index_cache: IndexCache
    space: DiskSpaceGuard
    same_boot: bool
    """Whether the machine has not rebooted since the process that last wrote the logs."""
    on_io_error: Callable[[], None]
    """Called at once after an I/O error of a log: the kernel's copy of it cannot be trusted any more."""
