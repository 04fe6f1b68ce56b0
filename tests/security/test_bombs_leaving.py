"""The simple form makes records of batches in the broker, within bounds of bytes and of objects."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import Callable
from typing import TypeVar

import pytest
from headrace.v1 import broker_pb2, topics_pb2
from headrace.wire.batch import Codec
from headrace.wire.encoding import encode_batch
from headrace.wire.errors import BatchTooLargeError, CorruptBatchError
from headrace_broker.rpc.records import MAX_ENTRIES, check_records, decode_records, encode_records
from headrace_broker.runtime.inflation import Inflation

from tests.security.poison import MIB, NOW_MS, poisons, zeros_bomb

Found = TypeVar("Found")


def peak_of(work: Callable[[], Found]) -> tuple[Found, int]:
    """What `work` gives, and the most bytes that Python held meanwhile."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def good(count: int) -> bytes:
    return encode_batch([b"v"] * count, base_timestamp_ms=NOW_MS)


def stored(*batches: bytes) -> bytes:
    """Batches as a log has them one behind the other; offsets are set, checksums are not looked at here."""
    found, offset = b"", 0
    for batch in batches:
        found += offset.to_bytes(8, "little") + batch[8:]
        offset += int.from_bytes(batch[40:44], "little")
    return found


def test_large_batch_is_refused_before_it_is_inflated() -> None:
    """64 MiB of 70 KB on disk cost nothing; the error says what to do, and what is before it is given."""
    bomb = zeros_bomb(64 * MIB, noise=70_000)

    def refused() -> str:
        with pytest.raises(BatchTooLargeError) as caught:
            decode_records(stored(bomb), 0, max_bytes=3 * MIB)
        return str(caught.value)

    said, peak = peak_of(refused)
    assert "continue at offset 1" in said
    assert peak < MIB
    records, next_offset = decode_records(stored(good(3), bomb), 0, max_bytes=3 * MIB)
    assert (len(records), next_offset) == (3, 3)


def test_headers_count_as_records_do() -> None:
    """Eight MiB of empty headers are answered a hundred thousand entries at a time, within 64 MiB."""
    headers = [[("", b"")] * 1000] * 1000
    batch = encode_batch([None] * 1000, headers=headers, base_timestamp_ms=NOW_MS, codec=Codec.LZ4)
    (records, next_offset), peak = peak_of(lambda: decode_records(batch, 0, max_bytes=1 << 40))
    assert next_offset == len(records)
    assert len(records) + sum(len(record.headers) for record in records) <= MAX_ENTRIES
    assert len(records) == MAX_ENTRIES // 1001
    assert peak < 64 * MIB


def test_small_records_are_made_as_far_as_they_fit() -> None:
    """A million empty records are counted before an object is made of one; the next call continues behind them."""
    batch = encode_batch([b""] * 1_000_000, base_timestamp_ms=NOW_MS)
    (records, next_offset), peak = peak_of(lambda: decode_records(batch, 10, max_bytes=MIB))
    assert [record.offset for record in (records[0], records[-1])] == [10, next_offset - 1]
    assert len(records) == MIB // 32
    assert peak < 64 * MIB


def test_every_record_is_answered_once_over_several_calls() -> None:
    """Bounds decide how many a call answers, never which."""
    headers = [[("h", b"w")] * (number % 5) for number in range(500)]
    batch = encode_batch(
        [b"v" * (number % 50) for number in range(500)],
        keys=[b"%d" % number if number % 3 else None for number in range(500)],
        headers=headers,
        timestamps_ms=list(range(500)),
        base_timestamp_ms=0,
    )
    found: list[topics_pb2.Record] = []
    while len(found) < 500:
        records, next_offset = decode_records(batch, len(found), max_bytes=1_000)
        found += records
        assert next_offset == len(found)
    assert [(each.offset, each.timestamp_ms, len(each.value), len(each.headers)) for each in found] == [
        (number, number, number % 50, number % 5) for number in range(500)
    ]
    assert [each.HasField("key") for each in found] == [number % 3 > 0 for number in range(500)]


def test_poison_errors_name_the_next_offset() -> None:
    """A client without the SDK is not stuck before what cannot be decoded, and gets what is before it."""
    with pytest.raises(CorruptBatchError, match="Continue at offset 2"):
        decode_records(poisons()["offsets descend"], 0, max_bytes=MIB)
    records, next_offset = decode_records(stored(good(3), poisons()["offsets descend"]), 0, max_bytes=MIB)
    assert (len(records), next_offset) == (3, 3)


def test_headers_that_come_in_are_counted() -> None:
    """Empty headers have no bytes; a list of a million of them is refused before it is encoded."""
    record = topics_pb2.Record(value=b"v", headers=[topics_pb2.RecordHeader(key="", value=b"")] * 1_000)
    part = broker_pb2.PartitionProduce(records=[record] * 99)
    check_records(part.records)
    encode_records(part, NOW_MS)
    with pytest.raises(BatchTooLargeError, match="100100 records and headers"):
        check_records([record] * 100)


async def test_calls_that_inflate_wait_for_room_in_the_order_in_which_they_came() -> None:
    """Of 64 MiB two calls of 32 are at work; the others wait, and an error gives its room back."""
    inflation, go_on = Inflation(), threading.Event()
    order: list[int] = []

    both, loop = asyncio.Event(), asyncio.get_running_loop()

    def work(number: int) -> None:
        order.append(number)
        if len(order) == 2:
            loop.call_soon_threadsafe(both.set)
        assert go_on.wait(20)
        if number == 0:
            raise ValueError

    calls = [asyncio.create_task(inflation.run(32 * MIB, lambda number=n: work(number))) for n in range(5)]
    await both.wait()
    assert inflation.used_bytes == 64 * MIB
    calls[3].cancel()
    go_on.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [
        ValueError,
        type(None),
        type(None),
        asyncio.CancelledError,
        type(None),
    ]
    assert sorted(order) == [0, 1, 2, 4], "a caller that is gone leaves the line, or what waits fills the memory"
    assert inflation.used_bytes == 0
    inflation.close()
