"""The leader epochs of a log are what its batches say, and what was promised before the first of them (H2, I6)."""

import random

from headrace.log.checkpoint import read_sealed

from tests.fakes.memory_filesystem import Loss


def test_an_epoch_without_records_gives_way(bench):
    """Start offsets rise strictly: of two epochs that begin at one offset the log keeps the later one."""
    bench.open()
    bench.append(epoch=1)
    bench.log.start_epoch(2)
    bench.log.start_epoch(3)
    bench.append(epoch=3)
    assert bench.log.epochs() == ((1, 0), (3, 1))


def test_a_log_without_an_epoch_has_no_epoch_file(bench):
    """The first epoch follows at once where a replica leads: of a new topic each file is two fsyncs a partition."""
    bench.open()
    path = f"{bench.log.directory}/leader-epochs"
    assert not bench.disk.exists(path)
    bench.log.start_epoch(0)
    assert bench.disk.exists(path)
    bench.directory.close(clean=True)
    assert bench.open().epochs() == ((0, 0),)


def test_an_unreadable_epoch_file_of_an_empty_log_is_replaced(bench):
    bench.open()
    bench.log.start_epoch(0)
    bench.directory.close(clean=True)
    path = f"{bench.log.directory}/leader-epochs"
    bench.disk.corrupt(path, 0, 1)
    assert bench.open().epochs() == ()
    bench.directory.close(clean=True)
    assert read_sealed(bench.disk, path) == b""


def test_the_start_of_an_epoch_is_durable_when_it_is_said_to_be(bench):
    """Power is lost right after `start_epoch`: the next process knows the epoch, which has no batch yet."""
    bench.open()
    bench.append(epoch=1)
    bench.log.flush()
    assert bench.log.start_epoch(4) == 1
    bench.disk.crash(Loss.ALL, random.Random(1))
    bench.open()
    assert bench.log.epochs() == ((1, 0), (4, 1))


def test_the_epoch_of_each_record_is_known(bench):
    """Also of those before the log's first epoch, of which nothing is known: -1."""
    bench.open()
    for epoch in (1, 1, 4):
        bench.append(epoch=epoch)
    assert [bench.log.epoch_at(offset) for offset in range(-1, 4)] == [-1, 1, 1, 4, 4]


def test_an_epoch_that_is_not_known_ends_where_the_largest_below_it_does(bench):
    """KIP-279: a follower's epoch that this log never had is answered with the one before it that both may have."""
    bench.open()
    for epoch in (1, 1, 4):
        bench.append(epoch=epoch)
    ends = {epoch: bench.log.epoch_end(epoch) for epoch in range(6)}
    assert ends == {0: (-1, 0), 1: (1, 2), 2: (1, 2), 3: (1, 2), 4: (4, 3), 5: (4, 3)}
