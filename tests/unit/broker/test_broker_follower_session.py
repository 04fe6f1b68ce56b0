"""Ranges of a leader's log on their way to a follower: what becomes of them when the log changes meanwhile."""

from __future__ import annotations

import os

import pytest
from headrace.log import CorruptLogError
from headrace.log.slices import Slice
from headrace_broker.core.roles import Role
from headrace_broker.runtime.follower_fetch_session import _Response
from headrace_broker.runtime.partition import Partition
from headrace_server.native import outgoing as queue
from headrace_server.native.outgoing import OutgoingMessage
from headrace_server.partition_state import PartitionState, Replica

from tests.unit.broker.test_broker_runtime import TOPIC_ID, batch


async def response(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> tuple[OutgoingMessage, Slice]:
    """A message to a follower with the whole log, as a range."""
    monkeypatch.setattr(queue, "COPIED_BYTES", 0)
    for number in range(3):
        partition.appender.append_now([batch(b"%d" % number)], -1, committed=False)
    made = _Response()
    found, next_offset = await partition.reads.locate_for_replica(0, 1 << 20)
    assert (found is not None, next_offset) == (True, None)
    made.add((TOPIC_ID, 0), partition, found)
    outgoing = made.outgoing()
    (piece,) = outgoing.attached
    assert piece is found
    return outgoing, found


async def test_a_range_that_was_cut_is_discarded(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    """H148: what the kernel sends after the truncation may be of another leader epoch."""
    outgoing, _ = await response(partition, monkeypatch)
    assert outgoing.is_valid is not None
    assert outgoing.close is not None
    assert outgoing.is_valid()
    partition.open_log.truncate_to(1)
    assert not outgoing.is_valid()
    outgoing.close()


async def test_a_range_that_cannot_be_read_takes_the_replica_offline(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H33: another replica is in sync and leads then; else followers would connect and fail again and again."""
    outgoing, found = await response(partition, monkeypatch)
    others = PartitionState((1, 2), Replica(1, 5), 0, (Replica(1, 5), Replica(2, 7)))
    partition.replica.state = others
    os.truncate(found.path, 10)
    with pytest.raises(CorruptLogError) as caught:
        found.read_part(0, found.size_bytes)
    assert outgoing.failed is not None
    assert outgoing.close is not None
    outgoing.failed(found, caught.value)
    assert partition.replica.role is Role.OFFLINE
    outgoing.close()


async def test_a_little_range_is_sent_by_its_bytes(partition: Partition) -> None:
    """It needs no verdict: the bytes are read while the log is known to hold them."""
    partition.appender.append_now([batch(b"a")], -1, committed=False)
    made = _Response()
    found, _ = await partition.reads.locate_for_replica(0, 1 << 20)
    assert found is not None
    size = len(found)
    result = made.add((TOPIC_ID, 0), partition, found)
    outgoing = made.outgoing()
    assert (outgoing.is_valid, result.batches_size) == (None, size)
    assert [len(piece) for piece in outgoing.attached] == [size]
