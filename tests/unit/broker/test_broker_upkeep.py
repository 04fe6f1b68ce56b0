"""Background work on a real log: the scrubber, and work that a cancelled caller must not break off."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from headrace.wire.ids import Offset
from headrace_broker.core.messages import StateSeen
from headrace_broker.core.replica import Role
from headrace_broker.runtime.upkeep import scrub
from headrace_server.partition_state import PartitionState, Replica

from tests.unit.broker.test_broker_runtime import TOPIC_ID, batch, committed, leading_partition


@pytest.mark.parametrize(("others", "role"), [(True, Role.OFFLINE), (False, Role.LEADING)])
def test_the_scrubber_finds_rot(tmp_path: Path, others: bool, role: Role) -> None:
    """H33: a flipped bit in what was flushed; the replica gives way where another one has the records."""

    async def scenario() -> None:
        async with leading_partition(tmp_path) as partition:
            assert partition.append_now([batch(b"a"), batch(b"b")], -1, committed=True) is not None
            await committed(partition, 2)
            if others:
                me, other = Replica(1, 5), Replica(2, 6)
                partition.handle(StateSeen(PartitionState((1, 2), me, 0, (me, other), partition_epoch=1), 10))
            file = tmp_path / f"{TOPIC_ID.hex()}-0" / f"{0:020d}.log"
            content = bytearray(file.read_bytes())
            content[-1] ^= 1
            file.write_bytes(content)
            settings = dataclasses.replace(partition.services.settings, scrub_interval_ms=1)
            services = dataclasses.replace(partition.services, settings=settings)
            task = asyncio.create_task(scrub(SimpleNamespace(partitions=[partition]), services))  # type: ignore[arg-type]
            found = services.metrics.damage_found
            async with asyncio.timeout(20):
                while partition.replica.role is Role.LEADING and not found._value.get():  # noqa: ASYNC110 - a counter
                    await asyncio.sleep(0)
            task.cancel()
            assert partition.replica.role is role

    asyncio.run(scenario())


def test_a_cancelled_append_ends_before_the_next_begins(tmp_path: Path) -> None:
    """The client goes away while its batch is being written in a thread: core and log agree afterwards."""

    async def scenario() -> None:
        async with leading_partition(tmp_path) as partition:
            real_append, writing, go_on = partition.open_log.append, threading.Event(), threading.Event()

            def append(*arguments: object, **fields: object) -> Offset:
                writing.set()
                assert go_on.wait(20)
                return real_append(*arguments, **fields)  # type: ignore[arg-type]

            partition.open_log.append = append  # type: ignore[assignment,method-assign]
            first = asyncio.create_task(partition.append([batch(b"a")], -1, committed=True))
            await asyncio.to_thread(writing.wait, 20)
            first.cancel()
            second = asyncio.create_task(partition.append([batch(b"b")], -1, committed=True))
            await asyncio.sleep(0)
            assert partition.log_lock.locked()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await first
            result = await second
            assert result.base_offsets == [1]
            assert partition.replica.log_end_offset == partition.open_log.log_end_offset == 2

    asyncio.run(scenario())
