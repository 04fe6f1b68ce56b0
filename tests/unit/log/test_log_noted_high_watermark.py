"""The high watermark that a process notes for the next one, without fsync, in addition to checkpoints (I18, H37)."""

from __future__ import annotations

import random

import pytest

from tests.fakes.memory_filesystem import Loss, MemoryFileSystem


def fill(bench) -> None:
    """Nine batches, fsynced; a checkpoint says 3, and 7 is noted."""
    log = bench.open()
    bench.append(9)
    log.flush()
    log.durability.checkpoint(1, 3, force=True)
    log.durability.note_high_watermark(7)


def again(bench, loss: Loss, seed: int = 0) -> int:
    """What the next process finds."""
    bench.disk.crash(loss, random.Random(seed))
    return int(bench.open().checkpointed_high_watermark)


def test_a_process_that_is_killed_leaves_it_to_the_next(bench) -> None:
    fill(bench)
    assert again(bench, Loss.NOTHING) == 7


@pytest.mark.parametrize("loss", [Loss.ALL, Loss.PREFIX, Loss.BLOCKS])
def test_a_machine_without_power_falls_back_to_the_checkpoint(bench, loss) -> None:
    """The note is torn, or not there: the other slot is whole."""
    found = set()
    for seed in range(20):
        bench.disk = MemoryFileSystem()
        fill(bench)
        found.add(again(bench, loss, seed))
    assert found <= {3, 7}


def test_a_note_of_an_earlier_process_is_synced_before_the_other_slot_is_written(bench) -> None:
    """Or a power loss could tear both; where there is no such note, a checkpoint is one fsync."""
    fill(bench)
    assert again(bench, Loss.NOTHING) == 7
    fsyncs = []
    for high_watermark in (8, 9):
        before = bench.disk.calls["fsync"]
        bench.log.durability.checkpoint(2, high_watermark, force=True)
        fsyncs.append(bench.disk.calls["fsync"] - before)
    assert fsyncs == [2, 1]
    assert again(bench, Loss.ALL) == 9


def test_an_older_one_is_not_noted(bench) -> None:
    """Nothing is written where the checkpoint says as much."""
    fill(bench)
    written = bench.disk.calls["pwritev"]
    bench.log.durability.note_high_watermark(7)
    bench.log.durability.note_high_watermark(2)
    assert bench.disk.calls["pwritev"] == written
    bench.log.durability.checkpoint(3, 8, force=True)
    bench.log.durability.note_high_watermark(8)
    assert again(bench, Loss.ALL) == 8
