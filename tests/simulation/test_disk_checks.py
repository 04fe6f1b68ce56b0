"""The simulator reads again what changed on a disk, and a fault of a medium changes only its own bytes."""

import errno
import random
from contextlib import closing

import pytest

from tests.fakes.memory_filesystem import Loss, MemoryFileSystem
from tests.simulation.broker import simulated
from tests.simulation.cluster import Cluster
from tests.simulation.disk_checks import check_epochs
from tests.simulation.plan import Plan
from tests.simulation.reference_log import Entry
from tests.simulation.world import SimulationError


def disk_with_two_files():
    disk = MemoryFileSystem()
    disk.make_directory("/d")
    for name in "ab":
        descriptor = disk.open(f"/d/{name}", create=True)
        disk.pwritev(descriptor, [b"written"], 0)
    return disk, descriptor


def failed_fsync(disk, descriptor):
    disk.fail("fsync", errno.EIO, drops=random.Random(1))
    with pytest.raises(OSError, match="Input/output error"):
        disk.fsync(descriptor)


CHANGES = {
    "write": lambda disk, descriptor: disk.pwritev(descriptor, [b"more"], 7),
    "truncate": lambda disk, descriptor: disk.truncate(descriptor, 3),
    "allocate": lambda disk, descriptor: disk.allocate(descriptor, 100),
    "create": lambda disk, _: disk.open("/d/c", create=True),
    "rename": lambda disk, _: disk.rename("/d/a", "/d/b"),
    "unlink": lambda disk, _: disk.unlink("/d/a"),
    "flip": lambda disk, _: disk.corrupt("/d/b", 0, 1),
    "cut": lambda disk, _: disk.cut("/d/b", 3),
    "misdirect": lambda disk, _: disk.overwrite("/d/b", 0, b"x"),
    "failed fsync": failed_fsync,
    "crash": lambda disk, _: disk.crash(Loss.ALL, random.Random(1)),
    "put back": lambda disk, _: disk.put_back(disk.snapshot()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_has_another_version(change):
    """Whatever makes a directory hold other bytes, or under another name, shows; a reading does not."""
    disk, descriptor = disk_with_two_files()
    before = disk.versions("/d")
    disk.pread(descriptor, 7, 0)
    assert disk.versions("/d") == before
    CHANGES[change](disk, descriptor)
    assert disk.versions("/d") != before


def test_corruption_of_durable_bytes_leaves_what_was_not_fsynced_so():
    """A crash takes the tail of a file that is corrupt before it."""
    disk, descriptor = disk_with_two_files()
    disk.fsync(descriptor)
    disk.fsync_directory("/d")
    disk.pwritev(descriptor, [b" later"], 7)
    disk.corrupt("/d/b", 0, 1)
    assert disk.content("/d/b") == b"vritten later"
    disk.crash(Loss.ALL, random.Random(1))
    assert disk.content("/d/b") == b"vritten"


def test_a_disk_that_changed_since_its_check_is_read_again():
    """Nothing was written since, and a byte of a log is another one."""
    with simulated(1, small=True), closing(Cluster(Plan(1))) as cluster:
        cluster.prepare()
        cluster.run_for(500)
        cluster.checks.check_all()
        host = cluster.leader_host(cluster.partitions[0])
        assert host.log.log_end_offset > 0
        read = host.read_disk
        cluster.checks.check_all()
        assert host.read_disk == read
        path = host.log._segments.active.path
        host.broker.node.filesystem.corrupt(path, 40, 1)
        with pytest.raises(Exception, match=r"corrupt|CRC|checksum"):
            cluster.checks.check_all()


def scan(*batches):
    return [Entry(base, end, epoch, 0, -1, -1, -1, 0) for base, end, epoch in batches]


SCAN = scan((0, 10, 5), (10, 20, 5), (20, 30, 7))


@pytest.mark.parametrize("held", [[(5, 0), (7, 20)], [(5, 0), (7, 20), (8, 30)]])
def test_epochs_of_a_scan_are_those_that_a_log_holds(held):
    check_epochs(held, SCAN, 30, "b1")
    check_epochs(held, SCAN[1:], 30, "b1")
    check_epochs([(5, 3), *held[1:]], SCAN, 30, "b1")
    check_epochs([(4, 30)], [], 30, "b1")


@pytest.mark.parametrize(
    "held",
    [
        [(5, 0), (6, 12), (7, 20)],
        [(5, 0), (6, 20), (7, 20)],
        [(5, 0), (7, 20), (8, 25)],
        [(5, 0), (7, 20), (8, 31)],
        [(5, 0), (7, 19)],
        [(4, 0), (7, 20)],
        [(5, 20), (7, 20)],
        [(5, 20), (7, 10)],
        [(5, 0)],
        [(7, 20)],
    ],
)
def test_an_epoch_too_many_too_few_or_elsewhere_is_found(held):
    with pytest.raises(SimulationError, match="I6"):
        check_epochs(held, SCAN, 30, "b1")
