"""A `FileSystem` in memory that can lose power, fill up and fail: for tests and the simulator, never for a broker.

What is written is there at once for readers, but durable only after `fsync`; a name only after `fsync_directory`.
`crash` keeps what is durable and, of the rest, what chance leaves: a prefix of the written bytes, or any blocks
(PROTOCOL T2).
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NoReturn

from headrace.log.filesystem import DiskSpace

BLOCK_BYTES = 4096
UNLIMITED = 1 << 40
"""Capacity that no test fills: the size of the files is not summed up for each write."""
_ANY = "any"


class Loss(Enum):
    """What a crash leaves of writes that were not fsynced."""

    ALL = "all"
    PREFIX = "prefix"  # the first bytes in the order of writing, cut anywhere
    BLOCKS = "blocks"  # any subset of its blocks
    NOTHING = "nothing"  # only the process died


class PowerLost(BaseException):
    """The machine has stopped in the middle of a call; nothing on it runs further, and no handler may catch it."""

    def __init__(self, filesystem: MemoryFileSystem) -> None:
        super().__init__("the machine has stopped")
        self.filesystem = filesystem


@dataclass(slots=True)
class _File:
    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    # Since the last fsync, in order: (position, bytes), or (size, None) for a truncation.
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    locked: bool = False
    # When its content changed last, in the order of all changes on this disk.
    version: int = 0


@dataclass(slots=True)
class _Refusal:
    error_number: int
    operations: frozenset[str]
    after: int
    lasting: bool


NEEDS_ROOM = frozenset(
    ("create", "pwritev", "truncate", "allocate", "fsync", "fsync_directory", "make_directory", "rename", "unlink")
)
"""Operations that a full disk may refuse; which of them do depends on the file system."""
NEEDS_DESCRIPTOR = frozenset(("create", "open", "fsync_directory", "list_directory"))
"""Operations that open something."""
ANY_CALL = NEEDS_ROOM | NEEDS_DESCRIPTOR | {"pread", "space"}
"""Operations that a machine without memory may refuse."""


@dataclass(slots=True)
class _Fault:
    operation: str
    error_number: int
    suffix: str
    after: int
    drops: random.Random | None


class MemoryFileSystem:
    """Implements `FileSystem`; one thread. A descriptor is a number that is never used twice."""

    def __init__(self, capacity_bytes: int = UNLIMITED) -> None:
        self.capacity_bytes = capacity_bytes
        # What of a write reaches the disk as one.
        self.block_bytes = BLOCK_BYTES
        # Counts calls by name; tests compare them.
        self.calls: dict[str, int] = {}
        # Bytes read from files whose names end so, by suffix.
        self.read_bytes: dict[str, int] = {}
        # What `pread_nowait` says: whether everything is in the page cache.
        self.cached = True
        self._descriptors: dict[int, tuple[str, _File]] = {}
        self._next_descriptor = self._first_descriptor = 1000  # of all processes; of the present one
        self._names: dict[str, _File | None] = {"": None}  # None is a directory
        self._durable_names: dict[str, _File | None] = {"": None}
        self._changed: set[str] = set()  # all paths that differ in the two
        self._faults: list[_Fault] = []
        self._refusal: _Refusal | None = None
        # How many calls `refuse` has made to fail.
        self.refused = 0
        # Whether a failed fsync of the present process has dropped blocks.
        self.has_dropped = False
        self._stopped = False
        self._version = 0

    # -- faults ----------------------------------------------------------------------------------------------------

    def fail(
        self, operation: str, error_number: int, *, suffix: str = "", after: int = 0, drops: random.Random | None = None
    ) -> None:
        """Let the next call of `operation` on a path that ends in `suffix` fail once.

        after `after` successful ones. `drops`: blocks that were not durable are gone from the page cache too, as after
        a failed fsync on Linux.
        """
        self._faults.append(_Fault(operation, error_number, suffix, after, drops))

    def refuse(self, error_number: int, operations: frozenset[str], *, after: int, lasting: bool) -> None:
        """Let one of `operations` fail after `after` others have gone well; `lasting`: all, until `stop_refusing`."""
        self._refusal = _Refusal(error_number, operations, after, lasting)

    def stop_refusing(self) -> None:
        """There is room, or there are descriptors, again."""
        self._refusal = None

    def lose_power(self, *, after: int) -> None:
        """Stop the machine at one of the next calls, after `after` others: it raises `PowerLost` until `crash`."""
        self._faults.append(_Fault(_ANY, 0, "", after, None))

    def snapshot(self) -> dict[str, bytes | None]:
        """Return what is durable now, as a snapshot of the volume: contents by path, `None` for directories."""
        return {name: None if file is None else file.durable for name, file in self._durable_names.items()}

    def put_back(self, snapshot: Mapping[str, bytes | None]) -> None:
        """Hold what a snapshot holds and nothing else. Only while nothing is open."""
        self._names = {
            name: None if content is None else _File(bytearray(content), content) for name, content in snapshot.items()
        }
        for file in self._names.values():
            self._changes(file)
        self._durable_names = dict(self._names)
        self._changed.clear()

    def keep_power(self) -> None:
        """Take back `lose_power`, where it has not happened yet."""
        self._faults = [fault for fault in self._faults if fault.operation != _ANY]

    def crash(self, loss: Loss, chance: random.Random) -> None:
        """Lose power: close everything, keep what is durable and what `loss` and `chance` leave of the rest."""
        self._descriptors.clear()
        self._first_descriptor = self._next_descriptor
        self._faults.clear()
        self._refusal = None
        self._stopped = self.has_dropped = False
        if loss is not Loss.NOTHING:
            names = dict(self._durable_names)
            for path in sorted(self._names.keys() | self._durable_names.keys()):
                if self._same(path) or loss is Loss.ALL or chance.random() < 0.5:
                    continue
                if path in self._names:  # a change of the directory that reached the disk without an fsync
                    names[path] = self._names[path]
                else:
                    del names[path]
            self._names = names
        self._durable_names = dict(self._names)
        self._changed.clear()
        for file in {id(file): file for file in self._names.values() if file is not None}.values():
            file.locked = False
            if loss is not Loss.NOTHING:
                _lose(file, loss, chance, self.block_bytes)
                self._changes(file)

    def corrupt(self, path: str, position: int, mask: int) -> None:
        """Flip bits of a byte on the medium."""
        self.overwrite(path, position, bytes((self._file(path).data[position] ^ mask,)))

    def cut(self, path: str, size_bytes: int) -> None:
        """Shorten a file on the medium, behind everybody's back."""
        file = self._file(path)
        del file.data[size_bytes:]
        file.durable = bytes(file.data)
        file.pending.clear()
        self._changes(file)

    def overwrite(self, path: str, position: int, data: bytes) -> None:
        """Put bytes on the medium that were meant for another place; what was not fsynced stays so."""
        file = self._file(path)
        _put(file.data, position, data)
        durable = bytearray(file.durable)
        _put(durable, position, data[: max(len(durable) - position, 0)])
        file.durable = bytes(durable)
        self._changes(file)

    def content(self, path: str) -> bytes:
        """Return a file's bytes as readers see them."""
        return bytes(self._file(path).data)

    def versions(self, directory: str) -> dict[str, int]:
        """Return of each file in a directory when it changed last: the same ones hold the same bytes."""
        inside = ((name, file) for name, file in self._names.items() if file is not None and _parent(name) == directory)
        return {name: file.version for name, file in inside}

    def _changes(self, file: _File | None) -> None:
        self._version += 1
        if file is not None:
            file.version = self._version

    def _same(self, path: str) -> bool:
        return path in self._names and path in self._durable_names and self._names[path] is self._durable_names[path]

    # -- FileSystem ------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> int:
        """Open or create."""
        self._enter("open", path, "create" if create else "open")
        if create:
            if path in self._names:
                raise _error(errno.EEXIST, path)
            self._require_directory(path)
            self._names[path] = file = _File()
            self._changes(file)
            self._changed.add(path)
        self._next_descriptor += 1
        self._descriptors[self._next_descriptor] = (path, self._file(path))
        return self._next_descriptor

    def close(self, descriptor: int) -> None:
        """Close, and give up its lock. A crash closed those of the process that it ended, whose objects go later."""
        if descriptor <= self._first_descriptor:
            return
        _, file = self._descriptors.pop(descriptor)
        if not any(other is file for _, other in self._descriptors.values()):
            file.locked = False

    def pwritev(self, descriptor: int, buffers: Sequence[bytes | memoryview], position: int) -> int:
        """Write what there is room for; ENOSPC when that is nothing."""
        path, file = self._descriptors[descriptor]
        self._enter("pwritev", path)
        data = b"".join(buffers)
        grows = max(position + len(data) - len(file.data), 0)
        if grows > (free := self._free_bytes()):
            data = data[: len(data) - (grows - free)]
            if not data:
                raise _error(errno.ENOSPC, path)
        _put(file.data, position, data)
        file.pending.append((position, data))
        self._changes(file)
        return len(data)

    def pread(self, descriptor: int, size_bytes: int, position: int) -> bytes:
        """Read."""
        path, file = self._descriptors[descriptor]
        self._enter("pread", path)
        data = bytes(file.data[position : position + size_bytes])
        suffix = os.path.splitext(path)[1]
        self.read_bytes[suffix] = self.read_bytes.get(suffix, 0) + len(data)
        return data

    def pread_nowait(self, descriptor: int, size_bytes: int, position: int) -> bytes | None:
        """Read if `cached` and if all of it is there."""
        data = self.pread(descriptor, size_bytes, position)
        return data if self.cached and len(data) == size_bytes else None

    def size(self, descriptor: int) -> int:
        """Size of the file."""
        return len(self._descriptors[descriptor][1].data)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Set the size."""
        path, file = self._descriptors[descriptor]
        self._enter("truncate", path)
        _resize(file.data, size_bytes)
        file.pending.append((size_bytes, None))
        self._changes(file)

    def allocate(self, descriptor: int, size_bytes: int) -> None:
        """Grow to at least this size, if there is room."""
        path, file = self._descriptors[descriptor]
        self._enter("allocate", path)
        if size_bytes - len(file.data) > self._free_bytes():
            raise _error(errno.ENOSPC, path)
        if size_bytes > len(file.data):
            _resize(file.data, size_bytes)
            file.pending.append((size_bytes, None))
            self._changes(file)

    def fsync(self, descriptor: int) -> None:
        """Make the content durable; a failed one drops nothing, but the caller must not trust it."""
        path, file = self._descriptors[descriptor]
        self._enter("fsync", path)
        file.durable = bytes(file.data)
        file.pending.clear()

    def fsync_directory(self, path: str) -> None:
        """Make the names in it durable."""
        self._enter("fsync_directory", path)
        inside = {name for name in self._changed if _parent(name) == path}
        for name in sorted(inside):  # The order decides what a crash draws for which file.
            if name in self._names:
                self._durable_names[name] = self._names[name]
            else:
                self._durable_names.pop(name, None)
        self._changed -= inside

    def make_directory(self, path: str) -> None:
        """Make a directory."""
        self._enter("make_directory", path)
        if path in self._names:
            raise _error(errno.EEXIST, path)
        self._require_directory(path)
        self._names[path] = None
        self._changed.add(path)

    def list_directory(self, path: str) -> list[str]:
        """Names in it."""
        self._enter("list_directory", path)
        if not self.is_directory(path):
            raise _error(errno.ENOENT, path)
        return sorted(name.rpartition("/")[2] for name in self._names if name and _parent(name) == path)

    def is_directory(self, path: str) -> bool:
        """Whether it is one."""
        return path in self._names and self._names[path] is None

    def exists(self, path: str) -> bool:
        """Whether there is anything."""
        return path in self._names

    def rename(self, source: str, target: str) -> None:
        """Rename a file, or a directory with all that is in it."""
        self._enter("rename", source)
        if source not in self._names:
            raise _error(errno.ENOENT, source)
        for names in (self._names, self._durable_names):  # what is in a renamed directory keeps its durability
            for name in [name for name in names if name.startswith(source + "/")]:
                names[target + name[len(source) :]] = names.pop(name)
                self._changed |= {name, target + name[len(source) :]}
        self._names[target] = self._names.pop(source)
        self._changed |= {source, target}

    def unlink(self, path: str) -> None:
        """Remove a name."""
        self._enter("unlink", path)
        self._file(path)
        del self._names[path]
        self._changed.add(path)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        if self.list_directory(path):
            raise _error(errno.ENOTEMPTY, path)
        del self._names[path]
        self._changed.add(path)

    def space(self, path: str) -> DiskSpace:
        """Room by `capacity_bytes`."""
        self._enter("space", path)
        return DiskSpace(self.capacity_bytes, self._free_bytes())

    def try_lock(self, descriptor: int) -> bool:
        """Lock the file for this descriptor."""
        file = self._descriptors[descriptor][1]
        if file.locked:
            return False
        file.locked = True
        return True

    def _enter(self, operation: str, path: str, refusable: str = "") -> None:
        self.calls[operation] = self.calls.get(operation, 0) + 1
        if self._stopped:
            raise PowerLost(self)
        refusal = self._refusal
        if refusal is not None and (refusable or operation) in refusal.operations:
            if refusal.after == 0:
                self.refused += 1
                self._refusal = refusal if refusal.lasting else None
                raise _error(refusal.error_number, path)
            refusal.after -= 1
        for fault in self._faults:
            if fault.operation in (operation, _ANY) and path.endswith(fault.suffix):
                if fault.after == 0:
                    self._faults.remove(fault)
                    self._fail(fault, path)
                fault.after -= 1
                return

    def _fail(self, fault: _Fault, path: str) -> NoReturn:
        if fault.operation == _ANY:
            self._stopped = True
            raise PowerLost(self)
        if fault.drops is not None and (file := self._names.get(path)) is not None:
            _lose(file, Loss.BLOCKS, fault.drops, self.block_bytes)
            self._changes(file)
            self.has_dropped = True
        raise _error(fault.error_number, path)

    def _file(self, path: str) -> _File:
        file = self._names.get(path)
        if file is None:
            raise _error(errno.EISDIR if path in self._names else errno.ENOENT, path)
        return file

    def _require_directory(self, path: str) -> None:
        if not self.is_directory(_parent(path)):
            raise _error(errno.ENOENT, path)

    def _free_bytes(self) -> int:
        return UNLIMITED if self.capacity_bytes >= UNLIMITED else max(self.capacity_bytes - self._used_bytes(), 0)

    def _used_bytes(self) -> int:
        return sum(len(file.data) for file in self._names.values() if file is not None)


def _lose(file: _File, loss: Loss, chance: random.Random, block_bytes: int) -> None:
    """Build the content after a crash: the durable bytes and what is kept of the pending writes."""
    data = bytearray(file.durable)
    pieces = [piece for write in file.pending for piece in _blocks(*write, block_bytes)]
    if loss is Loss.PREFIX:
        budget = chance.randrange(sum(len(piece or b"") for _, piece in pieces) + 1)
        for position, piece in pieces:
            if piece is None:
                _resize(data, position)
                continue
            _put(data, position, piece[:budget])
            budget -= min(budget, len(piece))
            if not budget:
                break
    elif loss is Loss.BLOCKS:
        for position, piece in pieces:
            if chance.random() < 0.5:
                if piece is None:
                    _resize(data, position)
                else:
                    _put(data, position, piece)
    file.data = data
    file.durable = bytes(data)
    file.pending.clear()


def _blocks(position: int, data: bytes | None, block_bytes: int) -> list[tuple[int, bytes | None]]:
    """Split a write at block borders."""
    if data is None:
        return [(position, None)]
    pieces: list[tuple[int, bytes | None]] = []
    done = 0
    while done < len(data):
        size = min(block_bytes - (position + done) % block_bytes, len(data) - done)
        pieces.append((position + done, data[done : done + size]))
        done += size
    return pieces


def _put(target: bytearray, position: int, data: bytes) -> None:
    if data:
        if len(target) < position:
            _resize(target, position)
        target[position : position + len(data)] = data


def _resize(target: bytearray, size_bytes: int) -> None:
    if size_bytes < len(target):
        del target[size_bytes:]
    else:
        target.extend(bytes(size_bytes - len(target)))


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
