"""The asyncio Reader against the cluster over lists: bounded, once, from start to end."""

from datetime import UTC, datetime, timedelta

import headrace.aio
import pytest
from headrace import TopicPartition
from headrace.wire.columns import encode_batch
from headrace.wire.errors import CorruptBatchError, TimedOutError, UnknownPartitionError, UnknownTopicError

P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


@pytest.fixture
def clicks(fake_cluster):
    """Partition 0: offsets 0 to 29 at 1,000 ms steps, three a batch; partition 1: four records."""
    fake_cluster.create_topic("clicks", 2)
    for base in range(0, 30, 3):
        values = [str(n).encode() for n in range(base, base + 3)]
        times = [1000 * n for n in range(base, base + 3)]
        fake_cluster.append("clicks", encode_batch(values, base_timestamp_ms=times[0], timestamps_ms=times))
    fake_cluster.append("clicks", encode_batch([b"a", b"b", b"c", b"d"], base_timestamp_ms=5), partition=1)
    return fake_cluster


@pytest.fixture
def read(clicks):
    def make(**arguments):
        arguments.setdefault("fetch_max_wait_ms", 50)
        return headrace.aio.Reader("clicks", bootstrap_servers=clicks.address, **arguments)

    return make


async def offsets(reader):
    async with reader:
        found = {}
        async for record in reader:
            found.setdefault(record.partition, []).append(record.offset)
        return found


async def test_it_reads_everything_that_is_there_and_ends(read):
    """From earliest to what is visible now; then the iteration ends."""
    assert await offsets(read()) == {0: list(range(30)), 1: [0, 1, 2, 3]}


async def numbers(reader, *, until=None):
    """Return the offsets that a loop yields, which is left at `until`."""
    found = []
    async for record in reader:
        found.append(record.offset)
        if record.offset == until:
            break
    return found


@pytest.mark.parametrize("until", [0, 1, 2, 3, 14, 28, 29])
async def test_a_loop_continues_where_an_earlier_one_was_left(read, until):
    """Also within a batch, and between batches of one fetch; and so do the other ways to read."""
    async with read(partitions=[0]) as reader:
        assert await numbers(reader, until=until) == list(range(until + 1))
        assert await numbers(reader) == list(range(until + 1, 30))
    async with read(partitions=[0]) as reader:
        await numbers(reader, until=until)
        assert [record.offset for record in await reader.read()] == list(range(until + 1, 30))


async def test_a_loop_within_a_loop_continues_it(read):
    """Each record is yielded once."""
    async with read(partitions=[0]) as reader:
        found = []
        async for record in reader:
            found.append(record.offset)
            if record.offset == 10:
                found += await numbers(reader)
        assert found == list(range(30))


async def test_what_comes_later_is_not_read(clicks, read):
    """`end="current"` is fixed when the reader connects."""
    async with read(partitions=[1]) as reader:
        clicks.append("clicks", encode_batch([b"late"], base_timestamp_ms=5), partition=1)
        assert await offsets(reader) == {1: [0, 1, 2, 3]}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"start": 4, "end": 8}, list(range(4, 8))),
        ({"start": 28}, [28, 29]),
        ({"start": 99}, []),
        ({"last_per_partition": 5}, list(range(25, 30))),
        ({"last_per_partition": 99}, list(range(30))),
        ({"last_per_partition": 2, "end": 10}, [8, 9]),
        ({"start": datetime.fromtimestamp(10.5, UTC)}, list(range(11, 30))),
        ({"start": datetime.fromtimestamp(3, UTC), "end": datetime.fromtimestamp(5, UTC)}, [3, 4]),
        ({"start": {0: 27}, "end": {0: 28}}, [27]),
        ({"start": timedelta(hours=-1)}, []),
        ({"start": timedelta(days=-36_500)}, list(range(30))),
        ({"start": "latest"}, []),
        ({"start": 10, "end": 5}, []),
    ],
)
async def test_edges(read, arguments, expected):
    """Offsets, times, words, mappings and `last` cut exactly, also inside a batch."""
    assert await offsets(read(partitions=[0], **arguments)) == ({0: expected} if expected else {})


async def test_tables(read):
    """All records as one Arrow table, and as pandas."""
    async with read(partitions=[0], start=4) as reader:
        table = await reader.to_arrow()
    assert table.column("offset").to_pylist() == list(range(4, 30))
    async with read(partitions=[1]) as reader:
        assert (await reader.to_pandas())["value"].tolist() == [b"a", b"b", b"c", b"d"]


async def test_deserializers_apply_to_pandas(read):
    """The columns of a frame have what records have; an Arrow table has bytes."""
    arguments = {"partitions": [0], "start": 4, "value_deserializer": "json"}
    async with read(**arguments) as reader:
        frame = await reader.to_pandas()
    assert (frame["value"].tolist(), frame["key"].tolist()) == (list(range(4, 30)), [None] * 26)
    async with read(**arguments) as reader:
        assert (await reader.to_arrow()).column("value").to_pylist()[0] == b"4"
    async with read(partitions=[1], value_deserializer=lambda data: [data, data]) as reader:
        assert (await reader.to_pandas())["value"].tolist() == [[value, value] for value in (b"a", b"b", b"c", b"d")]


async def test_batches_and_edges_are_told(read):
    """`batches` gives the records in order; start and end offsets are there to ask."""
    async with read(partitions=[0], start=2, end=20) as reader:
        assert reader.start_offsets() == {P0: 2}
        assert reader.end_offsets() == {P0: 20}
        assert [record.offset async for batch in reader.batches() for record in batch] == list(range(2, 20))


async def test_corruption_is_an_error(clicks, read):
    """A reader never skips what it cannot read."""
    log = clicks.topics["clicks"].partitions[0]
    header, stored = log.batches[3]
    log.batches[3] = (header, stored[:-1] + bytes([stored[-1] ^ 1]))
    async with read(partitions=[0]) as reader:
        with pytest.raises(CorruptBatchError):
            async for _ in reader:
                pass


async def test_retention_that_overtakes_a_reader_is_an_error(clicks, read):
    """Records that vanish under a reader are reported with their number, not left out."""
    async with read(partitions=[0], fetch_max_bytes=1, max_partition_fetch_bytes=1, prefetch_bytes=1) as reader:
        records = aiter(reader)
        await anext(records)
        clicks.topics["clicks"].partitions[0].start = 25
        with pytest.raises(headrace.HeadraceError, match="gone"):
            async for _ in records:
                pass


async def test_a_broker_that_falls_silent_is_a_time_out(clicks, read):
    """With a timeout, waiting for records that do not come ends with a typed error; the next call returns them all."""
    async with read(partitions=[1]) as reader:
        with reader._core.fetcher.changing() as positions:
            positions.assign(P1, 0, 5)
        with pytest.raises(TimedOutError):
            await reader.read(timeout=0.3)
        clicks.append("clicks", encode_batch([b"e"], base_timestamp_ms=5), partition=1)
        assert [record.value for record in await reader.read()] == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"start": "yesterday"},
        {"start": timedelta(hours=1)},
        {"end": timedelta(seconds=1)},
        {"start": -1},
        {"start": True},
        {"start": 1.5},
        {"last_per_partition": 0},
        {"last_per_partition": 3, "start": 4},
        {"start": {0: 1}},
        {"partitions": []},
        {"no_such_setting": 1},
    ],
)
async def test_bad_arguments_are_refused(read, arguments):
    """Each in one sentence that names the argument."""
    with pytest.raises(headrace.ConfigError):
        async with read(**arguments):
            pass


async def test_unknown_topics_and_partitions(clicks, read):
    """Typed, at once."""
    with pytest.raises(UnknownPartitionError):
        async with read(partitions=[2]):
            pass
    with pytest.raises(UnknownTopicError):
        async with headrace.aio.Reader("nothing", bootstrap_servers=clicks.address):
            pass


async def test_a_topic_made_anew_ends_the_reading(clicks, read):
    """A Reader reads one life of its topic: what follows under the name is not in its range."""
    async with read(prefetch_bytes=1, max_partition_fetch_bytes=1, partitions=[0]) as reader:
        records = aiter(reader)
        await anext(records)
        old = clicks.topics["clicks"].topic_id
        assert reader.topic_id == old
        with clicks.lock:
            new = clicks.create_topic("clicks", 2).topic_id
        clicks.append("clicks", encode_batch([b"new"] * 40, base_timestamp_ms=1))
        with pytest.raises(headrace.TopicRecreatedError) as caught:
            async for record in records:
                assert record.value != b"new"
        assert (caught.value.old_topic_id, caught.value.new_topic_id) == (old, new)


async def test_a_closed_reader_raises(read):
    """`close` ends it at once and for good; a second one does nothing."""
    async with read() as reader:
        await reader.close()
        await reader.close()
        with pytest.raises(headrace.ClosedError):
            await reader.read()
