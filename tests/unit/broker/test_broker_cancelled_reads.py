"""A consumer that goes away while a thread reads: no file stays open for it, and none is closed under the thread."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest
from headrace.log.slices import Slice
from headrace.wire.typed.selection import ColumnSelection
from headrace_broker.runtime.partition import Partition

from tests.unit.broker.test_broker_runtime import Gate, batch, committed


async def write(partition: Partition) -> None:
    assert partition.appender.append_now([batch(b"0")], -1, committed=True) is not None
    await committed(partition, 1)


async def test_a_slice_that_a_cancelled_caller_does_not_take_is_closed(partition: Partition) -> None:
    """Its file would stay in use until the garbage collector finds it, and a purge or an unlink wait for that."""
    await write(partition)
    slices: list[Slice] = []
    read = partition.open_log.reader.read

    def note(*arguments: int) -> Slice:
        slices.append(read(*arguments))
        return slices[-1]

    with mock.patch.object(partition.open_log.reader, "read", note):
        gate = Gate(partition.open_log.reader, "read")
        located = asyncio.create_task(partition.reads.locate(0, 1 << 20))
        await gate.reached()
        located.cancel()
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await located
    (found,) = slices
    assert found._file is None


@pytest.mark.parametrize("is_selected", [False, True])
async def test_a_file_is_open_until_a_thread_has_left_it(partition: Partition, is_selected: bool) -> None:
    """A closed one would be an I/O error, which takes the log offline."""
    await write(partition)
    found = partition.open_log.reader.read(0, 1 << 20, 1)
    with mock.patch.object(Slice, "try_read_nowait", return_value=None):
        gate = Gate(partition.open_log.reader._state.segments.filesystem, "pread")
        reads, selection = partition.reads, ColumnSelection(frozenset(), rest=True)
        reading: asyncio.Task[object] = asyncio.create_task(
            reads.read_selected(found, selection, 1 << 20) if is_selected else reads.read(found)
        )
        await gate.reached()
        reading.add_done_callback(lambda _: found.close())  # As its caller does.
        reading.cancel()
        await asyncio.wait([reading], timeout=0.05)
        assert found._file is not None
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert found._file is None
