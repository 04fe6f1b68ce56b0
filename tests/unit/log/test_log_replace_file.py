"""A small file is replaced as a whole or not at all, and for good when that has returned (H36)."""

import random

import pytest
from headrace.log.checkpoint import replace_file

from tests.fakes.memory_filesystem import Loss, MemoryFileSystem, PowerLost

OLD, NEW = b"o" * 5_000, b"n" * 9_000
LOSSES = [(loss, seed) for loss in (Loss.ALL, Loss.PREFIX, Loss.BLOCKS) for seed in range(8)]


@pytest.fixture
def disk() -> MemoryFileSystem:
    """A disk with an older file of that name."""
    disk = MemoryFileSystem()
    disk.make_directory("/d")
    disk.fsync_directory("")
    replace_file(disk, "/d", "name", OLD)
    return disk


@pytest.mark.parametrize(("loss", "seed"), LOSSES)
def test_what_was_replaced_stays_replaced(disk: MemoryFileSystem, loss: Loss, seed: int) -> None:
    """Power is lost right after the call."""
    replace_file(disk, "/d", "name", NEW)
    disk.crash(loss, random.Random(seed))
    assert disk.content("/d/name") == NEW


@pytest.mark.parametrize(("loss", "seed"), LOSSES)
def test_power_that_is_lost_on_the_way_leaves_one_of_the_two(disk: MemoryFileSystem, loss: Loss, seed: int) -> None:
    """At each of its steps; a partial replacement does not block a later one."""
    for after in range(100):
        disk.lose_power(after=after)
        try:
            replace_file(disk, "/d", "name", NEW)
        except PowerLost:
            disk.crash(loss, random.Random(seed))
        else:
            break
        assert disk.content("/d/name") in (OLD, NEW)
        replace_file(disk, "/d", "name", OLD)
    else:
        pytest.fail("it has too many steps")
    assert after > 4
