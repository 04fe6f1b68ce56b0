"""Replacements of calls that only one system has, on real files."""

import errno
import fcntl
import os

import pytest
from headrace.log import os_filesystem
from headrace.log.os_filesystem import OsFileSystem


@pytest.fixture
def opened(tmp_path):
    disk = OsFileSystem()
    descriptor = disk.open(str(tmp_path / "file"), create=True)
    yield disk, descriptor
    disk.close(descriptor)


@pytest.mark.parametrize("has_call", [True, False])
def test_allocation_keeps_the_content_and_takes_blocks(opened, monkeypatch, has_call):
    """The file has the size, with its bytes, zeros behind them, and blocks for all; a second time changes nothing."""
    if not has_call:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    disk, descriptor = opened
    disk.pwritev(descriptor, [b"content"], 0)
    size_bytes = (2 << 20) + 5
    for _ in range(2):
        disk.allocate(descriptor, size_bytes)
        assert disk.pread(descriptor, size_bytes + 1, 0) == b"content" + bytes(size_bytes - 7)
        assert os.fstat(descriptor).st_blocks * 512 >= size_bytes
    disk.allocate(descriptor, 10)
    assert disk.size(descriptor) == size_bytes


def test_buffers_are_written_without_pwritev(opened, monkeypatch):
    """One `pwrite` of all of them, at the position."""
    monkeypatch.setattr(os_filesystem, "_HAS_PWRITEV", False)
    disk, descriptor = opened
    assert disk.pwritev(descriptor, [b"ab", memoryview(b"cd"), b""], 3) == 4
    assert disk.pread(descriptor, 100, 0) == b"\0\0\0abcd"


@pytest.mark.parametrize(("error", "falls_back"), [(None, False), (errno.ENOTSUP, True), (errno.EIO, None)])
def test_fsync_is_the_full_one_of_macos(opened, monkeypatch, error, falls_back):
    """It is asked for first; fsync replaces it only where the file system has none, and not after a failure."""
    calls = []

    def control(descriptor, command):
        calls.append(command)
        if error is not None:
            raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os_filesystem, "_FULL_FSYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", control)
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append("fsync"))
    disk, descriptor = opened
    if falls_back is None:
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            disk.fsync(descriptor)
    else:
        disk.fsync(descriptor)
    assert calls == ([51, "fsync"] if falls_back else [51])
