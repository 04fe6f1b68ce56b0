"""Descriptors of segments: a name that is removed and made anew never leads to the old file (H47)."""

import errno

import pytest
from headrace.log.open_files import OpenFiles, pin_empty

from tests.fakes.memory_filesystem import MemoryFileSystem


@pytest.fixture
def disk() -> MemoryFileSystem:
    disk = MemoryFileSystem()
    disk.make_directory("/log")
    return disk


@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_file_made_anew_behind_an_open_one_takes_its_name(disk: MemoryFileSystem, is_pinned: bool) -> None:
    """The old descriptor serves those who pinned it, and is closed with the last of them."""
    files = OpenFiles(disk, capacity=4)
    old = files.pin_new("/log/a")
    disk.pwritev(old.descriptor, [b"old"], 0)
    if not is_pinned:
        files.unpin(old)
    disk.unlink("/log/a")
    new = files.pin_new("/log/a")
    assert disk.size(new.descriptor) == 0
    if is_pinned:
        assert disk.pread(old.descriptor, 3, 0) == b"old"
        files.unpin(old)
    with pytest.raises(KeyError):
        disk.size(old.descriptor)
    assert files.pin("/log/a") is new


def test_an_empty_file_that_a_crash_left_is_used_again_and_a_full_one_never(disk: MemoryFileSystem) -> None:
    """Nothing that was written is written over; the refused pin is given back."""
    files = OpenFiles(disk, capacity=1)
    left = files.pin_new("/log/a")
    assert pin_empty(files, "/log/a") is left
    files.unpin(left)
    disk.pwritev(left.descriptor, [b"1"], 0)
    with pytest.raises(FileExistsError) as refused:
        pin_empty(files, "/log/a")
    assert refused.value.errno == errno.EEXIST
    assert left.pins == 1
