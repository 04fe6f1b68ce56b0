"""Request traces: blocks keep their requests, damaged bytes are refused, and sampling is by key, keyed and bounded."""

import random
from dataclasses import replace

import numpy as np
import pytest
from headrace.wire.request_trace import (
    COLUMNS,
    HEADER_BYTES,
    MAX_BLOCK_REQUESTS,
    UNKNOWN_GAP_US,
    KeySampler,
    RequestOutcome,
    TableOperation,
    TraceBlock,
    TraceBuffer,
    TraceColumns,
    TraceFormatError,
    block_ranges,
    decode_block,
    encode_block,
    requests_in,
)

TABLE_ID = bytes(range(16))
SECRET = b"of a test"
NOW_US = 1_700_000_000_000_000


def note(
    buffer: TraceBuffer,
    at_us: int,
    operation: TableOperation,
    outcome: RequestOutcome,
    key: bytes,
    value_bytes: int = 1,
    latency_us: int = 1,
) -> None:
    """Record a request that ends as it arrives."""
    buffer.add(at_us, buffer.arrive(at_us), operation, outcome, key, value_bytes, latency_us)


def block_of(count: int, seed: int = 1, table: str = "users") -> TraceBlock:
    chance = np.random.default_rng(seed)
    columns = [chance.integers(0, np.iinfo(dtype).max, count, dtype, endpoint=True) for dtype in COLUMNS.values()]
    columns[-2] = chance.integers(1, 6, count, np.uint8)
    columns[-1] = chance.integers(0, 7, count, np.uint8)
    return TraceBlock(table, TABLE_ID, 2, NOW_US, 1 << 20, 7 * count, 3, TraceColumns(*columns))


def buffer_of(fraction: float, capacity: int = 100) -> TraceBuffer:
    return TraceBuffer(KeySampler(SECRET, TABLE_ID, fraction), "users", TABLE_ID, 4, capacity)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 1_001, MAX_BLOCK_REQUESTS])
def test_a_block_comes_back(count: int) -> None:
    """Every field and column, for lengths with and without padding; the largest fits a batch of a mebibyte."""
    block = block_of(count, table="t" * (count % 249 + 1))
    value = encode_block(block)
    found = decode_block(value)
    assert replace(found, columns=block.columns) == replace(block)
    assert all(np.array_equal(mine, other) for mine, other in zip(found.columns, block.columns, strict=True))
    assert len(value) < (1 << 20) - 4_096


def test_columns_are_views_and_aligned() -> None:
    """A reader copies nothing, and each column begins at a multiple of 8."""
    value = encode_block(block_of(5))
    start = np.frombuffer(value, np.uint8).ctypes.data
    for column in decode_block(value).columns:
        assert (column.ctypes.data - start) % 8 == 0
        assert not column.flags.owndata


def test_damaged_bytes_are_refused_or_a_block() -> None:
    """Any bytes: either `TraceFormatError`, or a block whose columns are as long as it says; no other error."""
    chance = random.Random(20)
    whole = encode_block(block_of(9))
    refused = 0
    for _ in range(20_000):
        value = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            match chance.randrange(4):
                case 0:
                    value[chance.randrange(min(len(value), HEADER_BYTES + 8))] = chance.randrange(256)
                case 1:
                    value[chance.randrange(len(value))] ^= 1 << chance.randrange(8)
                case 2:
                    del value[chance.randrange(len(value)) :]
                case _:
                    value += bytes(chance.randrange(1, 64))
            if not value:
                break
        try:
            block = decode_block(bytes(value))
        except TraceFormatError:
            refused += 1
            continue
        assert {len(column) for column in block.columns} == {block.requests}
        assert encode_block(block)
    assert 5_000 < refused < 20_000


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, 2, "version 2"),
        (1, 0, "name"),
        (1, 250, "name"),
        (2, 1, "reserved"),
        (36, 1, "reserved"),
        (4, 10, "10 requests has"),
        (46, 255, "threshold"),
        (15, 8, "1970 to 9999"),
        (15, 255, "1970 to 9999"),
        (HEADER_BYTES, 0xFF, "name of a topic"),
        (HEADER_BYTES, ord("<"), "name of a topic"),
        (-8, 7, "unknown outcome"),
    ],
)
def test_each_field_is_checked(position: int, value: int, message: str) -> None:
    """The error says which field is wrong."""
    damaged = bytearray(encode_block(block_of(9)))
    damaged[position] = value
    with pytest.raises(TraceFormatError, match=message):
        decode_block(bytes(damaged))


def test_an_unknown_operation_is_refused() -> None:
    """A block of a newer release is not read as something else."""
    block = block_of(4)
    for operation in (0, 6):
        columns = block.columns._replace(operation=np.full(4, operation, np.uint8))
        with pytest.raises(TraceFormatError, match="operation"):
            decode_block(encode_block(replace(block, columns=columns)))


def test_a_key_is_sampled_with_all_its_requests() -> None:
    """At 10 %: a tenth of the keys, each with every request; the fraction is kept in the block, as are all counted."""
    buffer = buffer_of(0.1, capacity=10_000)
    keys = [b"user-%d" % number for number in range(2_000)]
    for turn in range(3):
        for number, key in enumerate(keys):
            note(buffer, NOW_US + turn * 9_000 + number, TableOperation.GET, RequestOutcome.HIT, key, 5, 1)
    (value,) = buffer.drain()
    block = decode_block(value)
    hashes, counts = np.unique(block.columns.key_hash, return_counts=True)
    assert set(counts.tolist()) == {3}
    assert 150 < len(hashes) < 250
    assert (block.seen_requests, block.dropped_requests) == (6_000, 0)
    assert block.sample_threshold / 2**32 == pytest.approx(0.1)


def test_a_sample_is_independent_of_partitions() -> None:
    """Each partition, the remainder of the CRC, has its share of the sampled keys."""
    from headrace.wire.partitioning import partition_for_key

    sampler = KeySampler(SECRET, TABLE_ID, 0.125)
    keys = [b"user-%d" % number for number in range(40_000)]
    shares = np.zeros((8, 2))
    for key in keys:
        shares[partition_for_key(key, 8), int(sampler.samples(key))] += 1
    fractions = shares[:, 1] / shares.sum(axis=1)
    assert fractions == pytest.approx(0.125, abs=0.02)


def test_hashes_are_keyed() -> None:
    """Another secret or another table gives other hashes; the same give the same, at any server."""
    one, again = (KeySampler(SECRET, TABLE_ID, 1.0).key_hash(b"ada") for _ in range(2))
    assert one == again
    assert one != KeySampler(b"other", TABLE_ID, 1.0).key_hash(b"ada")
    assert one != KeySampler(SECRET, bytes(16), 1.0).key_hash(b"ada")
    with pytest.raises(AssertionError, match="dictionary"):
        KeySampler(b"", TABLE_ID, 1.0)


def test_no_block_has_a_key() -> None:
    """The bytes of a key are in no block."""
    buffer = buffer_of(1.0)
    note(buffer, NOW_US, TableOperation.PUT, RequestOutcome.DONE, b"a person's name", 10, 1)
    (value,) = buffer.drain()
    assert b"person" not in value


def test_gaps_count_every_request() -> None:
    """The gap is to the request before, sampled or not; the first is unknown, and a clock that steps back gives 0."""
    sampler = KeySampler(SECRET, TABLE_ID, 0.5)
    inside = next(key for key in (b"k%d" % n for n in range(99)) if sampler.samples(key))
    outside = next(key for key in (b"k%d" % n for n in range(99)) if not sampler.samples(key))
    buffer = TraceBuffer(sampler, "users", TABLE_ID, 4)
    for at_us, key in ((0, inside), (50, outside), (57, inside), (40, inside)):
        note(buffer, NOW_US + at_us, TableOperation.GET, RequestOutcome.MISS, key, 0, 1)
    columns = decode_block(buffer.drain()[0]).columns
    assert columns.gap_us.tolist() == [UNKNOWN_GAP_US, 7, 0]
    assert columns.time_us.tolist() == [0, 57, 40]


def test_gaps_are_between_arrivals() -> None:
    """Requests that end in another order: a put that takes 5 ms, and meanwhile a get every 100 us. No gap is longer."""
    buffer = buffer_of(1.0)
    put_gap = buffer.arrive(NOW_US)
    for at_us in range(100, 5_001, 100):
        note(buffer, NOW_US + at_us, TableOperation.GET, RequestOutcome.HIT, b"k")
    buffer.add(NOW_US, put_gap, TableOperation.PUT, RequestOutcome.DONE, b"k", 1, 5_000)
    note(buffer, NOW_US + 5_100, TableOperation.GET, RequestOutcome.HIT, b"k")
    columns = decode_block(buffer.drain()[0]).columns
    assert columns.gap_us.tolist() == [100] * 50 + [UNKNOWN_GAP_US, 100]
    assert columns.time_us.tolist() == [*range(100, 5_001, 100), 0, 5_100]


def test_memory_is_bounded() -> None:
    """Beyond the capacity requests are dropped and counted; the next block begins again."""
    buffer = buffer_of(1.0, capacity=10)
    for number in range(15):
        note(buffer, NOW_US + number, TableOperation.PUT, RequestOutcome.DONE, b"k%d" % number, 1, 1)
    block = decode_block(buffer.drain()[0])
    assert (block.requests, block.seen_requests, block.dropped_requests) == (10, 15, 5)
    assert buffer.drain() == []
    note(buffer, NOW_US, TableOperation.PUT, RequestOutcome.DONE, b"k", 1, 1)
    assert decode_block(buffer.drain()[0]).dropped_requests == 0


def test_large_numbers_are_capped() -> None:
    """What a column cannot hold is its maximum, and does not spoil the block."""
    buffer = buffer_of(1.0)
    note(buffer, NOW_US, TableOperation.PUT, RequestOutcome.DONE, bytes(70_000), 2**40, 2**40)
    columns = decode_block(buffer.drain()[0]).columns
    assert (columns.key_bytes[0], columns.value_bytes[0], columns.latency_us[0]) == (65_535, 2**32 - 1, 2**32 - 1)


def test_a_clock_that_jumps_begins_a_block() -> None:
    """By an hour and more, in either direction; no time is changed, and seen requests are counted once."""
    buffer = buffer_of(1.0)
    jumps = [0, 5, 4_000_000_000, 4_000_000_001, -4_000_000_000]
    for jump in jumps:
        note(buffer, NOW_US + jump, TableOperation.GET, RequestOutcome.HIT, b"k", 1, 1)
    blocks = [decode_block(value) for value in buffer.drain()]
    times = [block.base_time_us + int(after) - NOW_US for block in blocks for after in block.columns.time_us]
    assert times == jumps
    assert [block.requests for block in blocks] == [2, 2, 1]
    assert sum(block.seen_requests for block in blocks) == 5
    assert block_ranges(np.zeros(MAX_BLOCK_REQUESTS + 1, np.int64)) == [(0, MAX_BLOCK_REQUESTS), (32_768, 32_769)]


def test_skipped_and_lost_requests_are_counted():
    """Keys outside the sample count as seen; what a lost block had counts as seen and dropped."""
    sampler = KeySampler(SECRET, TABLE_ID, 0.5)
    keys = [b"%d" % number for number in range(100)]
    places = sampler.positions(keys)
    assert places == [place for place, key in enumerate(keys) if sampler.samples(key)]
    buffer = TraceBuffer(sampler, "users", TABLE_ID, 4, 1)
    for _ in range(3):
        note(buffer, 900, TableOperation.GET, RequestOutcome.HIT, keys[places[0]])
    assert buffer.overflowed == 2
    (lost,) = buffer.drain()
    buffer.note_lost(lost)
    buffer.skip(5)
    note(buffer, 910, TableOperation.GET, RequestOutcome.HIT, keys[places[0]])
    (value,) = buffer.drain()
    block = decode_block(value)
    assert requests_in(value) == block.requests == 1
    assert (block.seen_requests, block.dropped_requests, block.columns.gap_us.tolist()) == (9, 3, [10])
