"""A batch that no reader can decode, and what a reader does about it, against the cluster over lists."""

import logging
import time
import tracemalloc
from itertools import islice
from types import SimpleNamespace

import headrace
import headrace.aio
import pytest
from headrace import TopicPartition
from headrace.client.admin.record_times import timestamp_of
from headrace.client.base.errors import ConfigError
from headrace.client.base.operations import execute
from headrace.client.base.records import Deserializers
from headrace.client.fetch.decoding import decoded_batches_of
from headrace.client.fetch.partition_fetch_state import CompletedFetch
from headrace.client.fetch.selections import named_selection
from headrace.metrics import ClientCollector
from headrace.wire import compression
from headrace.wire.batch import HEADER_BYTES, Codec, read_header
from headrace.wire.columns import encode_batch, is_part
from headrace.wire.errors import CorruptBatchError, HeadraceError, InvalidTimestampError, UnsupportedCodecError
from headrace.wire.typed.payload import read_directory
from headrace.wire.typed.selection import select

from tests.fakes.groups import fake_groups
from tests.security.poison import MIB, header_bomb, poisons, zeros_bomb
from tests.unit.client.fetch.reading import batch as stored_batch
from tests.unit.wire.test_wire_typed_payload import COLUMNS, ROWS, resealed, typed

P0 = TopicPartition("clicks", 0)
POISON = poisons()["offsets descend"]
SETTINGS = {"fetch_max_wait_ms": 50}
LETTERS = {"on_corrupt_batch": "dead_letter", "dead_letter_topic": "letters"}
WAIT = 20


def good(first, count=10):
    return encode_batch([b"%d" % n for n in range(first, first + count)], base_timestamp_ms=1_000)


@pytest.fixture
def clicks(fake_cluster):
    """Offsets 0 to 9, two that cannot be decoded, 12 to 21, two more, 24 to 33."""
    fake_cluster.create_topic("clicks", 1)
    fake_cluster.create_topic("letters", 1)
    for batch in (good(0), POISON, good(12), POISON, good(24)):
        fake_cluster.append("clicks", batch)
    return fake_cluster


GOOD = [*range(10), *range(12, 22), *range(24, 34)]


def letters(clicks):
    with headrace.Reader("letters", bootstrap_servers=clicks.address, **SETTINGS) as reader:
        return list(reader)


def cause(letter):
    prefix = "headrace.dead_letter."
    return {name.removeprefix(prefix): value.decode() for name, value in letter.headers if name.startswith(prefix)}


def consumed(clicks, count, **settings):
    settings = {"auto_offset_reset": "earliest", **SETTINGS, **settings}
    with headrace.Consumer("clicks", bootstrap_servers=clicks.address, **settings) as consumer:
        return [record.offset for record in islice(iter(consumer), count)], consumer.calls().corrupt_batches


def test_error_says_that_every_replica_has_it_so(clicks):
    """It is not asked for again, no corruption is reported to a broker, and the advice fits."""
    with headrace.Reader("clicks", bootstrap_servers=clicks.address, **SETTINGS) as reader:
        records = iter(reader)
        assert [record.offset for record in islice(records, 10)] == GOOD[:10]
        with pytest.raises(CorruptBatchError, match=r"on every replica.*Seek to 12.*on_corrupt_batch") as caught:
            next(records)
    assert (caught.value.offset, caught.value.next_offset, caught.value.written_so) == (10, 12, True)
    assert "another replica" not in str(caught.value)
    assert clicks.topics["clicks"].partitions[0].corruption_reported == 0


@pytest.mark.parametrize(
    "name", sorted(poisons().keys() - {"gzip inflates a thousandfold"})
)  # leaders alone refuse that
def test_every_kind_can_be_passed(name, clicks):
    """Whatever is wrong with a batch, `skip` reaches what is behind it."""
    batch = poisons()[name]
    clicks.append("clicks", batch)
    clicks.append("clicks", good(100, 1))
    offsets, passed = consumed(clicks, 31, on_corrupt_batch="skip")
    assert offsets[:30] == GOOD
    assert len(offsets) == 31
    assert passed == 3


def test_skip_continues_and_logs_it(clicks, caplog):
    """A line with topic, partition and offsets, and a count for metrics, a batch."""
    with caplog.at_level(logging.ERROR, "headrace.consumer"):
        assert consumed(clicks, 30, on_corrupt_batch="skip") == (GOOD, 2)
    assert [record.getMessage().partition(" is corrupt")[0] for record in caplog.records] == [
        f"{P0}: the batch with the offsets {first} to {first + 1}" for first in (10, 22)
    ]


def with_wrong_offset():
    """A typed batch whose column b has a wrong first offset."""
    batch = bytearray(typed())
    start = HEADER_BYTES + [*read_directory(batch, read_header(batch)).spans()][1][0]
    batch[start + 16 : start + 20] = (1 << 20).to_bytes(4, "little")  # After the sizes of three buffers.
    return batch


@pytest.mark.parametrize("settings", [{}, {"on_corrupt_batch": "skip"}])
def test_rows_whose_columns_lie(fake_cluster, settings):
    """A batch whose texts have descending offsets, under right checksums: the error names its offset and the column,
    and the rows of other batches are read.
    """
    fake_cluster.create_topic("clicks", 1)
    for batch in (typed(), resealed(with_wrong_offset()), typed()):
        fake_cluster.append("clicks", batch)
    with headrace.Reader("clicks", bootstrap_servers=fake_cluster.address, **SETTINGS, **settings) as reader:
        if settings:
            assert [record.value for record in reader] == [*ROWS, *ROWS]
            return
        assert [record.value for record in islice(reader, len(ROWS))] == ROWS
        with pytest.raises(CorruptBatchError, match="column b") as caught:
            next(iter(reader))
    assert (caught.value.offset, caught.value.next_offset) == (len(ROWS), 2 * len(ROWS))


@pytest.mark.parametrize("names", [None, ["b"], ["b", "_key"]])
@pytest.mark.parametrize("is_sealed", [False, True])
def test_damage_of_one_replica_is_told_from_a_batch_that_was_written_so(names, is_sealed):
    """By the checksums, of a whole batch and of the part that has the columns of a reader alike."""
    damaged = with_wrong_offset()
    damaged = resealed(damaged) if is_sealed else bytes(damaged)
    selection = named_selection("clicks", COLUMNS.batch_text, names, None)
    if selection is not None:
        pieces, _, _ = select(lambda at, size: damaged[at : at + size], len(damaged), selection.on_wire, 0)
        damaged = b"".join(pieces)
        assert is_part(damaged)
    completed = CompletedFetch(P0, 0, 0, None, damaged, columns=COLUMNS.batch_text)
    with pytest.raises(CorruptBatchError) as caught:
        list(decoded_batches_of(completed, Deserializers(), MIB, selection))
    assert (caught.value.written_so, caught.value.base_offset) == (is_sealed, 0)
    assert caught.value.next_offset == (len(ROWS) if is_sealed else -1)


def test_metrics_count_what_was_passed(clicks):
    """`headrace_client_corrupt_batches` is what an alert can be made of."""
    settings = {"auto_offset_reset": "earliest", "on_corrupt_batch": "skip", **SETTINGS}
    with headrace.Consumer("clicks", bootstrap_servers=clicks.address, **settings) as consumer:
        assert len(list(islice(iter(consumer), 30))) == 30
        collector = ClientCollector()
        collector.watch(consumer, "mine")
        (family,) = [each for each in collector.collect() if each.name == "headrace_client_corrupt_batches"]
        assert [(sample.labels, sample.value) for sample in family.samples] == [({"client": "mine"}, 2)]


def test_dead_letter_has_the_bytes_and_where_they_were(clicks):
    """The batch as it is stored, in parts that any topic takes, before anything behind it is received."""
    noise = encode_batch([bytes(range(256)) * 2600], base_timestamp_ms=1_000)
    large = bytearray(noise)
    large[80:84] = b"\1\0\0\0"
    large[32:36] = headrace.wire.crc.crc32c(memoryview(large)[36:]).to_bytes(4, "little")
    clicks.append("clicks", bytes(large))
    clicks.append("clicks", good(35, 1))
    assert consumed(clicks, 31, **LETTERS) == ([*GOOD, 35], 3)
    stored = [batch for _, batch in clicks.topics["clicks"].partitions[0].batches]
    found = letters(clicks)
    assert [letter.value for letter in found[:2]] == [stored[1], stored[3]]
    assert b"".join(letter.value for letter in found[2:]) == stored[5]
    assert len({letter.key for letter in found[2:]}) == 1
    told = [cause(letter) for letter in found]
    assert [(each["offset"], each["next_offset"], each["part"], each["parts"]) for each in told] == [
        ("10", "12", "1", "1"),
        ("22", "24", "1", "1"),
        ("34", "35", "1", "2"),
        ("34", "35", "2", "2"),
    ]
    assert {(each["topic"], each["partition"], each["error"]) for each in told} == {
        ("clicks", "0", "CorruptBatchError")
    }


def test_nothing_is_passed_before_its_letter_is_stored(clicks, monkeypatch):
    """A topic that is not there is the application's error, again and again; what came before is delivered once."""
    monkeypatch.setattr("headrace.client.producer.producer_core.TOPIC_GRACE_S", 0.2)
    settings = {"auto_offset_reset": "earliest", **SETTINGS, **LETTERS, "dead_letter_topic": "none"}
    with headrace.Consumer("clicks", bootstrap_servers=clicks.address, **settings) as consumer:
        assert [record.offset for record in consumer.poll(WAIT)] == GOOD[:10]
        for _ in range(2):
            with pytest.raises(HeadraceError, match="none"):
                consumer.poll(WAIT)
            assert consumer.position(P0) == 10
        clicks.create_topic("none", 1)
        found = []
        while len(found) < 20:
            found += [record.offset for record in consumer.poll(WAIT)]
        assert found == GOOD[10:]


def test_letter_that_is_refused_is_written_again(clicks, faults):
    """A letter counts once it is acknowledged, not once it is sent."""
    clicks.faults.append(faults.refused_with(InvalidTimestampError("too old")))
    settings = {"auto_offset_reset": "earliest", **SETTINGS, **LETTERS}
    with headrace.Consumer("clicks", bootstrap_servers=clicks.address, **settings) as consumer:
        assert [record.offset for record in consumer.poll(WAIT)] == GOOD[:10], "it is tried by the next poll"
        with pytest.raises(HeadraceError, match="too old"):
            consumer.poll(WAIT)
        assert consumer.position(P0) == 10
        assert letters(clicks) == []
        assert [record.offset for record in consumer.poll(WAIT)][:10] == GOOD[10:20]
        assert cause(letters(clicks)[0])["offset"] == "10"


@pytest.mark.parametrize("policy", [{"on_corrupt_batch": "skip"}, LETTERS])
def test_readers_pass_it_in_every_way_of_reading(clicks, policy):
    """Iterating, batches, Arrow, pandas, and a range that ends within what is passed."""

    def reader(**bounds):
        return headrace.Reader("clicks", bootstrap_servers=clicks.address, **SETTINGS, **policy, **bounds)

    with reader() as iterated:
        assert [record.offset for record in iterated] == GOOD
    with reader() as read:
        assert read.to_arrow()["offset"].to_pylist() == GOOD
    with reader() as read:
        assert read.to_pandas()["offset"].tolist() == GOOD
    with reader(start=10, end=23) as read:
        assert [record.offset for batch in read.batches(WAIT) for record in batch] == GOOD[10:20]
    assert len(letters(clicks)) == (8 if policy is LETTERS else 0)


@pytest.mark.parametrize("policy", [{"on_corrupt_batch": "skip"}, LETTERS])
def test_task_of_spark_passes_it_too(clicks, policy):
    """`headrace.on.corrupt.batch` is the Reader's setting: a range of a query is read up to its end."""
    from headrace.spark.options import BATCH, read_options
    from headrace.spark.range_reader import read_range
    from headrace.spark.ranges import OffsetRange

    given = {"subscribe": "clicks", "headrace.bootstrap.servers": clicks.address, "headrace.fetch.max.wait.ms": "50"}
    given |= {"headrace." + name.replace("_", "."): value for name, value in policy.items()}
    settings = read_options(given, BATCH).settings
    for end, expected in ((34, GOOD), (23, GOOD[:20])):
        decoded_batches = read_range(settings, OffsetRange(P0, 0, end), fail_on_data_loss=True)
        assert [offset for decoded in decoded_batches for offset in decoded.offsets()] == expected
    assert len(letters(clicks)) == (4 if policy is LETTERS else 0)


async def test_asyncio_readers_pass_it_too(clicks):
    """The same policy, without a thread: the letter is awaited."""
    settings = {"bootstrap_servers": clicks.address, **SETTINGS, **LETTERS}
    async with headrace.aio.Reader("clicks", **settings) as reader:
        assert [record.offset async for record in reader] == GOOD
    async with headrace.aio.Consumer("clicks", auto_offset_reset="earliest", **settings) as consumer:
        found = []
        while len(found) < 30:
            found += [record.offset for record in await consumer.poll(WAIT)]
        assert found == GOOD
        assert consumer.calls().corrupt_batches == 2
    assert len(letters(clicks)) == 4


def test_group_commits_what_is_behind_it(clicks):
    """What was passed is committed like what was handled: the next owner does not meet it again."""
    clicks.append("clicks", POISON)
    with fake_groups(clicks) as groups:
        groups.assign(("clicks", 0))
        settings = {"auto_offset_reset": "earliest", "group_id": "g", **SETTINGS, "on_corrupt_batch": "skip"}
        with headrace.Consumer("clicks", bootstrap_servers=clicks.address, **settings) as consumer:
            assert [record.offset for record in islice(iter(consumer), 30)] == GOOD
            deadline = time.monotonic() + WAIT
            while consumer.position(P0) < 36:
                consumer.poll(0.05)
                assert time.monotonic() < deadline
        assert groups.offset("clicks", 0) == 36


def test_handlers_continue_after_it(clicks):
    """`run` handles what can be decoded; the batch itself goes where the setting says, not to the handler's topic."""
    with fake_groups(clicks) as groups:
        groups.assign(("clicks", 0))
        settings = {"auto_offset_reset": "earliest", "group_id": "g", **SETTINGS, **LETTERS}
        seen = []
        with headrace.Consumer("clicks", bootstrap_servers=clicks.address, **settings) as consumer:

            def handle(record):
                seen.append(record.offset)
                if len(seen) == 30:
                    consumer.stop()

            consumer.run(handle, concurrency=1, handle_signals=False)
        assert groups.offset("clicks", 0) == 34
    assert seen == GOOD
    assert len(letters(clicks)) == 2


def test_codec_without_its_package_loses_nothing(clicks, monkeypatch):
    """It is no corrupt batch and never passed; what was before it in the same fetch is delivered first."""
    clicks.append("clicks", encode_batch([b"v" * 1000], base_timestamp_ms=1_000, codec=Codec.LZ4))

    def missing():
        raise UnsupportedCodecError("the codec lz4 needs a package that is not installed", action="Install it.")

    monkeypatch.setattr(compression, "_lz4_frame", missing)
    settings = {"auto_offset_reset": "earliest", "on_corrupt_batch": "skip", **SETTINGS}
    with headrace.Consumer("clicks", bootstrap_servers=clicks.address, **settings) as consumer:
        found = []
        while len(found) < 30:
            found += [record.offset for record in consumer.poll(WAIT)]
        assert found == GOOD
        for _ in range(2):
            with pytest.raises(UnsupportedCodecError, match=r"offset 34.*allowed_codecs"):
                consumer.poll(WAIT)
    with headrace.Reader("clicks", bootstrap_servers=clicks.address, on_corrupt_batch="skip", **SETTINGS) as reader:
        assert [record.offset for record in islice(iter(reader), 30)] == GOOD
        for _ in range(2):
            with pytest.raises(UnsupportedCodecError):
                list(reader)


def test_settings_belong_together(clicks):
    """A policy that does nothing, or not what it says, is refused."""
    for settings in ({"on_corrupt_batch": "dead_letter"}, {"dead_letter_topic": "t"}, {"on_corrupt_batch": "drop"}):
        with pytest.raises(ConfigError):
            headrace.Consumer("clicks", bootstrap_servers=clicks.address, **settings)


@pytest.mark.parametrize(
    ("flips", "next_offset", "batches"),
    [
        ([], 10, 1),
        ([(1, 5, 0x10)], 20, 2),  # The offset of the next batch, of which only the stamp is damaged: 17592186044426.
        ([(1, 5, 0x10), (2, 28, 1)], -1, 3),  # Of the one after it, too.
        ([(1, 16, 0x40)], -1, 3),  # The length of the next batch.
        ([(0, 16, 0x40)], -1, 3),  # Its own.
        ([(0, 3, 0x80)], 10, 1),  # Its own offset, from which the next one does not descend.
    ],
)
def test_a_reader_continues_at_an_offset_whose_checksum_is_right(flips, next_offset, batches):
    """Damage that reaches into the next batch, as of a block of a disk does, moves no reader past all that is there."""
    whole = [bytearray(stored_batch(first)) for first in (0, 10, 20)]
    whole[0][-10] ^= 1
    for number, place, bit in flips:
        whole[number][place] ^= bit
    completed = SimpleNamespace(offset=0, data=b"".join(whole), where=P0, columns="", end_offset=None)
    with pytest.raises(CorruptBatchError) as raised:
        list(decoded_batches_of(completed, Deserializers(), MIB))
    assert (raised.value.next_offset, raised.value.written_so) == (next_offset, False)
    assert raised.value.batch == b"".join(whole[:batches])


# --- memory ---


@pytest.fixture
def bombs(fake_cluster):
    """Twelve batches of a few KiB that inflate to 8 MiB each."""
    fake_cluster.create_topic("clicks", 1)
    for _ in range(12):
        fake_cluster.append("clicks", zeros_bomb(8 * MIB, noise=9_000))
    return fake_cluster


def peak_of(work):
    """What `work` gives, and the most memory that Python held meanwhile."""
    tracemalloc.start()
    try:
        found = work()
        return found, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_poll_is_bounded_by_inflated_bytes(bombs):
    """What one fetch brought is given over several polls, none lost, none twice."""
    settings = {"auto_offset_reset": "earliest", "max_poll_bytes": 20 * MIB, **SETTINGS}
    with headrace.Consumer("clicks", bootstrap_servers=bombs.address, **settings) as consumer:

        def polled():
            sizes, offsets = [], []
            while len(offsets) < 12:
                batch = consumer.poll(WAIT)
                sizes.append(sum(decoded.payload_bytes for decoded in batch.decoded_batches))
                offsets += [record.offset for record in batch]
                batch = None
            return sizes, offsets

        (sizes, offsets), peak = peak_of(polled)
    assert offsets == list(range(12))
    assert max(sizes) == 16 * MIB
    assert peak < 64 * MIB


def test_iterating_holds_little_more_than_a_batch(bombs):
    """A Reader's records are made of what fits into `max_poll_bytes`."""
    with headrace.Reader("clicks", bootstrap_servers=bombs.address, max_poll_bytes=8 * MIB, **SETTINGS) as reader:
        count, peak = peak_of(lambda: sum(1 for _ in reader))
    assert count == 12
    assert peak < 48 * MIB


def test_one_batch_over_the_bound_is_given_alone(bombs):
    """`max_poll_bytes` never stops the reading."""
    settings = {"auto_offset_reset": "earliest", "max_poll_bytes": 1, **SETTINGS}
    with headrace.Consumer("clicks", bootstrap_servers=bombs.address, **settings) as consumer:
        assert [len(consumer.poll(WAIT)) for _ in range(12)] == [1] * 12


def test_poll_of_few_records_puts_back_what_does_not_fit(bombs):
    """`max_records` and `max_poll_bytes` together: nothing is lost between two polls."""
    for first in range(0, 40, 10):
        bombs.append("clicks", good(first))
    settings = {"auto_offset_reset": "earliest", "max_poll_bytes": 50, **SETTINGS}
    with headrace.Consumer("clicks", bootstrap_servers=bombs.address, **settings) as consumer:
        found = []
        while len(found) < 52:
            found += [record.offset for record in consumer.poll(WAIT, max_records=7)]
    assert found == list(range(52))


def test_age_of_a_record_in_a_bomb_is_not_known():
    """Who asks for a group's lag in time inflates nothing large, and is not ended by what cannot be read."""
    bomb = zeros_bomb(65 * MIB, noise=80_000, times=(1, 2))
    found, peak = peak_of(lambda: timestamp_of(bomb, 0))
    assert found is None
    assert peak < MIB
    assert timestamp_of(POISON, 0) is not None, "its header says it"


def test_prefetch_counts_what_headers_state(bombs):
    """What waits is counted as it will be, so that one fetch of bombs fills the room for all."""
    with headrace.Reader("clicks", bootstrap_servers=bombs.address, **SETTINGS) as reader:
        completed = execute(reader._core.fetcher.next_fetch(WAIT), reader._fetcher.run_step)
        assert completed.inflated_bytes == 12 * 8 * MIB
        assert reader._core.fetcher.positions.buffered_bytes == 0


def test_headers_of_a_bomb_are_made_a_few_at_a_time(fake_cluster):
    """A million headers are the most that a batch may have, and iterating never holds objects of all of them."""
    fake_cluster.create_topic("clicks", 1)
    names = [[(f"header {number}", b"value") for number in range(1000)]] * 400
    fake_cluster.append("clicks", encode_batch([b"v"] * 400, headers=names, base_timestamp_ms=1_000))
    fake_cluster.append("clicks", header_bomb(1_000_001))
    with headrace.Reader(
        "clicks", bootstrap_servers=fake_cluster.address, on_corrupt_batch="skip", **SETTINGS
    ) as reader:
        count, peak = peak_of(lambda: sum(len(record.headers) for record in reader))
    assert count == 400_000
    assert peak < 48 * MIB
