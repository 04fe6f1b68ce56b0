"""`headrace bench`: the distributions, records by partition, pacing on a clock of the test's, and the command."""

import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from headrace.cli.bench import commands as bench
from headrace.cli.bench.distributions import DailyPattern, Popularity, SizeModel, Tail
from headrace.cli.bench.models import ETC, POOLS, SHORT_VALUES, WorkloadModel, model_of
from headrace.cli.bench.pace import percentiles_ms, send_paced
from headrace.cli.bench.records import KeyPool, MadeBlock, RecordColumns, Timetable, block_records, made_blocks
from headrace.cli.bench.waits import WaitHistogram
from headrace.cli.bench.workloads import ModelWorkload, PaperWorkload, Requests
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.records.record_json import OutgoingRecord
from headrace.client.base.errors import DeliveryError
from headrace.client.producer.futures import BatchFuture, PendingBatch, RecordFuture
from headrace.wire.errors import NotEnoughReplicasError, StorageFullError
from headrace.wire.ids import TopicPartition
from headrace.wire.partitioning import partition_for_key
from headrace.wire.request_trace import TableOperation, decode_block

from tests.unit.cli.conftest import FakeProducer


def etc(keys: int, exponent: float, **changes: Any) -> WorkloadModel:
    """ETC with other keys, at an even load."""
    return replace(ETC, keys=keys, zipf_exponent=exponent, **{"hourly_load": (), **changes})


EVEN = (np.arange(200_000) + 0.5) / 200_000
"""Every chance once: sizes of these are the distribution itself, without luck."""


def test_values_follow_the_published_table_and_tail() -> None:
    """Section 5 of the study: 0 to 14 bytes by its table, longer ones by a generalised Pareto from 15 on."""
    sizes = ETC.value_bytes.draw(EVEN)
    shares = np.bincount(sizes, minlength=16)[:15] / len(sizes)
    assert np.abs(shares - SHORT_VALUES).max() < 1e-4
    tail = np.sort(sizes[sizes >= 15])
    for chance in (0.1, 0.5, 0.9, 0.99):
        expected = 15 + 214.476 / 0.348238 * ((1 - chance) ** -0.348238 - 1)
        assert tail[int(chance * len(tail))] == pytest.approx(expected, rel=0.01)


def test_keys_and_gaps_follow_their_distributions() -> None:
    """The quantiles of the generalised extreme value and Pareto distributions, by their closed forms."""
    keys = ETC.key_bytes.draw(EVEN)
    assert (keys.min(), keys.max()) >= (1, 100)
    assert keys.max() <= 250
    for chance in (0.1, 0.5, 0.9):
        expected = 30.7984 + 8.20449 / 0.078688 * ((-math.log(chance)) ** -0.078688 - 1)
        assert abs(keys[int(chance * len(keys))] - expected) <= 1
    gaps = ETC.gap_us.values(EVEN)
    assert gaps[len(gaps) // 2] == pytest.approx(16.0292 / 0.154971 * (0.5**-0.154971 - 1), rel=0.001)
    assert gaps.mean() == pytest.approx(1e6 / ETC.requests_per_second, rel=0.01)


def test_moments_are_those_of_the_study() -> None:
    """Means and deviations by their closed forms, from the parameters of section 5; Zipf's by its sum."""
    keys, gaps, tail = ETC.key_bytes.draw(EVEN), ETC.gap_us.values(EVEN), ETC.value_bytes.draw(EVEN)
    tail = tail[tail >= 15]
    # A length is rounded down, which takes half a byte of the mean.
    assert keys.mean() + 0.5 == pytest.approx(30.7984 + 8.20449 * (math.gamma(1 - 0.078688) - 1) / 0.078688, rel=0.005)
    assert tail.mean() + 0.5 == pytest.approx(15 + 214.476 / (1 - 0.348238), rel=0.01)
    assert gaps.mean() == pytest.approx(16.0292 / (1 - 0.154971), rel=0.005)
    assert gaps.std() == pytest.approx(16.0292 / ((1 - 0.154971) * math.sqrt(1 - 2 * 0.154971)), rel=0.02)
    ranks = Popularity(1_000, 0.99).ranks(EVEN)
    weights = np.arange(1, 1_001) ** -0.99
    assert (ranks == 0).mean() == pytest.approx(1 / weights.sum(), rel=0.001)
    assert (ranks + 1).mean() == pytest.approx((np.arange(1, 1_001) * weights).sum() / weights.sum(), rel=0.001)


@pytest.mark.parametrize(("keys", "exponent"), [(1, 0.99), (7, 0.0), (1_000, 0.99), (200_000, 1.2)])
def test_the_guide_finds_what_a_search_finds(keys: int, exponent: float) -> None:
    """Ranks by the guide table are those of the inverse of the distribution function."""
    weights = np.arange(1, keys + 1) ** -exponent
    ends = np.cumsum(weights) / weights.sum()
    expected = np.minimum(np.searchsorted(ends, EVEN, side="right"), keys - 1)
    found = Popularity(keys, exponent).ranks(EVEN)
    assert np.count_nonzero(found != expected) <= 2  # The sums differ in their last bit.


def test_a_rate_scales_the_gaps_and_a_seed_repeats_them() -> None:
    """Requests continue where the last ones ended; ten times the rate has a tenth of the gaps."""
    first, again = (ModelWorkload(etc(100, 0.99), None, seed=5) for _ in range(2))
    parts = [first.requests(1_000), first.requests(1_000)]
    assert parts[0].due_s[-1] < parts[1].due_s[0]
    for column, same in zip(parts[0], again.requests(1_000), strict=True):
        assert np.array_equal(column, same)
    quick = ModelWorkload(etc(100, 0.99), 10 * ETC.requests_per_second, seed=5).requests(1_000)
    assert quick.due_s * 10 == pytest.approx(parts[0].due_s)
    assert PaperWorkload(200, 1_000.0, made=3).requests(2).due_s.tolist() == [0.003, 0.004]


def test_the_load_of_a_day_follows_its_hours() -> None:
    """In each hour its share of the requests, from any time of the day on, over days; times ascend."""
    load = tuple(np.linspace(0.2, 1.8, 24).tolist())
    for start in (0.0, 13.5):
        times = DailyPattern(load, start).times_s(np.linspace(0, 3 * 86_400, 300_000, endpoint=False))
        assert times[0] == 0.0
        assert np.all(np.diff(times) > 0)
        hours = np.bincount(((times / 3_600 + start) % 24).astype(int), minlength=24)
        assert hours / hours.mean() == pytest.approx(np.array(load), rel=0.01)


def test_the_hours_of_etc_are_those_of_the_study() -> None:
    """The busiest hour has one and a half times the requests of the quietest, at 8 h and 17 h UTC; SYS has no hours."""
    assert np.mean(ETC.hourly_load) == pytest.approx(1.0)
    assert (int(np.argmin(ETC.hourly_load)), int(np.argmax(ETC.hourly_load))) in {(8, 15), (8, 17)}
    assert max(ETC.hourly_load) / min(ETC.hourly_load) == pytest.approx(1.5, abs=0.05)
    assert POOLS["sys"].hourly_load == ()


def test_new_keys_are_used_once() -> None:
    """A fraction of the requests has keys of ranks beyond the others, each once, also across blocks."""
    workload = ModelWorkload(etc(100, 0.9, new_key_rate=0.2), None, seed=5)
    keys = np.concatenate([workload.requests(5_000).keys for _ in range(4)])  # type: ignore[misc]
    new = keys[keys >= 100]
    assert len(new) / len(keys) == pytest.approx(0.2, abs=0.01)
    assert new.tolist() == list(range(100, 100 + len(new)))


def test_new_keys_are_sent_as_keys() -> None:
    """The key of a rank has its digits, the length of the distribution, and the partition of the partitioner."""
    pool = KeyPool(3, partitions=4, seed=1, key_bytes=SizeModel((6,), (1.0,), None, 250))
    texts, partitions = pool.keys(np.array([2, 3, 1_234_567, 0]))
    assert texts.to_pylist() == [b"000002", b"000003", b"1234567", b"000000"]
    assert partitions.tolist() == [partition_for_key(text, 4) for text in texts.to_pylist()]


@pytest.mark.parametrize("name", sorted(POOLS))
def test_a_model_comes_back_from_its_file(name: str) -> None:
    """Every field of every pool; the study's mixes are 30 reads a write, or what it says of the pool."""
    model = POOLS[name]
    assert model_of(model.as_json()) == model
    assert sum(model.operations.values()) == pytest.approx(1.0)
    assert model.operations["get"] == pytest.approx({"usr": 0.998, "var": 0.18, "sys": 0.675}.get(name, 30 / 31))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("operations", {"get": 0.5}),
        ("operations", {"fetch": 1.0}),
        ("hit_rate", 1.5),
        ("zipf_exponent", None),
        ("keys", 10**9),
        ("key_bytes", {"sizes": [1], "probabilities": [], "tail": None, "most": 9, "least": 0}),
        ("value_bytes", {"sizes": [1], "probabilities": [1.0], "tail": None, "most": 10**9, "least": 0}),
        ("gap_us", {"family": "gpd", "location": 0, "scale": 0, "shape": 0.1}),
        ("gap_us", {"family": "gpd", "location": 0, "scale": 1, "shape": 1.0}),
        ("gap_us", {"family": "gev", "location": 0, "scale": 1, "shape": 0.1}),
        ("hourly_load", [1.0] * 23),
        (
            "key_bytes",
            {
                "sizes": [],
                "probabilities": [],
                "tail": {"family": "gev", "location": 9, "scale": 1, "shape": 2.0},
                "most": 9,
                "least": 0,
            },
        ),
    ],
)
def test_a_bad_model_is_refused(field: str, value: object) -> None:
    """The message names the field; what is no model at all is refused as well."""
    document = {**json.loads(ETC.as_json()), field: value}
    with pytest.raises(ValueError, match=field):
        model_of(json.dumps(document))
    for text in ("{", "[]", "{}"):
        with pytest.raises(ValueError, match=r"JSON|not a model"):
            model_of(text)


def test_tails_are_those_of_scipy() -> None:
    """Quantiles and probabilities, for light, exponential and heavy tails (GEV has the other sign there)."""
    stats = pytest.importorskip("scipy.stats")
    chances = (np.arange(99) + 1) / 100
    for shape in (-0.2, 0.0, 0.3):
        for tail, theirs in (
            (Tail("gpd", 5.0, 2.0, shape), stats.genpareto(shape, 5.0, 2.0)),
            (Tail("gev", 5.0, 2.0, shape), stats.genextreme(-shape, 5.0, 2.0)),
        ):
            values = tail.values(chances)
            assert values == pytest.approx(theirs.ppf(chances))
            assert tail.distribution(values) == pytest.approx(chances)


def test_columns_by_partition() -> None:
    """Each key goes where the SDK's partitioner sends it, with its value and due time; order in a partition stays."""
    pool = KeyPool(50, partitions=3, seed=1, key_bytes=ETC.key_bytes)
    (block,) = made_blocks(ModelWorkload(etc(50, 0.5, new_key_rate=0.0), None, seed=2), 1_000, pool, seed=3)
    assert isinstance(block, MadeBlock)
    assert block.requests.keys is not None
    texts = pool.texts.to_pylist()
    found: dict[int, list[tuple[bytes, int, float]]] = {}
    for part in block.columns(100, 900):
        assert part.partition is not None
        sizes = map(len, part.values.to_pylist())
        found.setdefault(part.partition, []).extend(zip(part.keys.to_pylist(), sizes, part.due_s, strict=True))
    expected: dict[int, list[tuple[bytes, int, float]]] = {}
    columns = block.requests.keys, block.requests.value_bytes, block.due_s
    for key, size, due in zip(*(column[100:900] for column in columns), strict=True):
        expected.setdefault(partition_for_key(texts[key], 3), []).append((texts[key], size, due))
    assert found == expected
    assert sum(part.size_bytes for part in block.columns(100, 900)) == sum(
        len(key) + size for rows in found.values() for key, size, _ in rows
    )
    assert len(set(texts)) == 50


def test_a_block_of_large_values_stays_small() -> None:
    """As many records as fit 4 MiB, one at least, so that the largest value that is allowed can be sent."""
    for value_bytes, records in ((200, 4_000), (200_000, 20), (1_000_000, 4)):
        block = next(made_blocks(PaperWorkload(value_bytes, math.inf), 10_000, None, seed=1))
        assert len(block.due_s) == records
        (part,) = block.columns(0, records)
        assert part.values.nbytes < 5 << 20
        assert part.values[records - 1].as_py()[-1:].isalnum()
    assert block_records(1 << 30) == 1


def test_small_values_keep_their_blocks() -> None:
    """A seed gives the records that it gave before blocks were cut by bytes: 4,000 a block, of every workload."""
    for workload in (PaperWorkload(1_048, math.inf), ModelWorkload(etc(50, 0.5), None, seed=2)):
        pool = KeyPool(50, 1, 1, ETC.key_bytes) if isinstance(workload, ModelWorkload) else None
        assert [len(block.due_s) for block in made_blocks(workload, 9_000, pool, seed=3)] == [4_000, 4_000, 1_000]


class Clock:
    """A clock that advances by sleeping, or by a slow step."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= 0.001
        self.now += seconds


def give_time(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """A `time` of the command's own: threads that other tests have left in the process keep the real one."""
    monkeypatch.setattr(bench, "time", SimpleNamespace(**{**vars(time), **changes}))


def evenly(records: int, rate: float, block: int = 100) -> Iterator[MadeBlock]:
    for start in range(0, records, block):
        due = np.arange(start, min(start + block, records)) / rate
        yield MadeBlock(Requests(due, None, np.full(len(due), 7)), due, None, b"x" * 1_000)


def test_what_is_due_is_sent_and_a_stall_is_paid_for() -> None:
    """1,000 a second: each is sent within the tick it is due in; after a stall of 50 ms all 50 go at once, late."""
    clock, sent = Clock(), []

    def send(part: RecordColumns) -> None:
        sent.append((clock.now - 100, part.records))
        if sum(count for _, count in sent) == 201:
            clock.now += 0.05

    progress = send_paced(evenly(400, 1_000.0), send, clock, clock.sleep)
    assert (progress.records, progress.bytes) == (400, 2_800)
    assert progress.due_s == pytest.approx(0.399)
    assert max(count for _, count in sent) in range(48, 52)
    late = progress.late
    assert late.records == 400
    assert late.longest_s == pytest.approx(0.049, abs=0.002)
    assert late.quantile_s(0.87) < 0.002, "what is due after the stall is sent in time"
    assert late.quantile_s(0.9) == pytest.approx(0.01, abs=0.002), "a tenth of the records was due 10 ms before its end"


def test_a_stalled_send_delays_the_other_partitions_of_its_part() -> None:
    """Records that are due at the same time go out by partition: those behind a full buffer are late, too."""
    clock = Clock()

    def send(part: RecordColumns) -> None:
        if part.partition == 0:
            clock.now += 1.0

    due = np.linspace(0.1, 0.1, 100)
    requests = Requests(due, np.arange(100), np.full(100, 7))
    block = MadeBlock(requests, due, KeyPool(100, 2, 1, ETC.key_bytes), b"x" * 1_000)
    progress = send_paced([block], send, clock, clock.sleep)
    behind = next(part.records for part in block.columns(0, 100) if part.partition == 1)
    assert 0 < behind < 100
    assert progress.late.quantile_s(1 - behind / 100) < 0.002
    assert progress.late.quantile_s(1 - (behind - 1) / 100) == pytest.approx(1.0, rel=0.01)


def test_waits_are_counted_in_fixed_memory() -> None:
    """Quantiles are right to half a percent from a microsecond on, whatever the number of records and their parts."""
    waits = WaitHistogram()
    drawn = np.sort(np.random.default_rng(1).exponential(0.01, 10_000))
    for start in range(0, 10_000, 700):
        waits.add(drawn[start : start + 700])
    assert (waits.records, waits.longest_s) == (10_000, drawn[-1])
    for share in (0.01, 0.5, 0.99, 1.0):
        assert waits.quantile_s(share) == pytest.approx(drawn[round(share * 10_000) - 1], rel=0.0051)
    waits.add(np.array([0.0, -1e-9, 1e9]))
    assert (waits.records, waits.longest_s) == (10_003, 1e9)
    assert percentiles_ms(waits)["p99"] == pytest.approx(drawn[9_899] * 1000, rel=0.0052)


def test_seconds_bound_what_is_due() -> None:
    """All that is due within the seconds is sent, however late; at full rate sending ends with them."""
    clock = Clock()
    assert send_paced(evenly(1_000, 1_000.0), lambda _: None, clock, clock.sleep, 0.25).records == 250
    clock = Clock()

    def slow(part: RecordColumns) -> None:
        clock.now += 0.1

    assert send_paced(evenly(1_000, math.inf), slow, clock, clock.sleep, 0.25).records == 300
    assert percentiles_ms(WaitHistogram()) == {"p50": None, "p99": None, "max": None}


def test_times_of_a_file() -> None:
    """Gaps of the time stamps, faster by the speed; an older record is due with the one before it."""
    records = [OutgoingRecord(b"", timestamp_ms=at) for at in (5_000, 5_400, 5_200)]
    timetable = Timetable(2.0, None)
    assert timetable.due_s(records).tolist() == [0.0, 0.2, 0.2]
    assert timetable.due_s([OutgoingRecord(b"", timestamp_ms=6_000)]).tolist() == [0.5]
    assert Timetable(1.0, 10.0).due_s(records).tolist() == [0.0, 0.1, 0.2]
    with pytest.raises(ValueError, match="record 2 has no timestamp_ms"):
        Timetable(1.0, None).due_s([records[0], OutgoingRecord(b"")])


def test_a_load_is_sent_and_told(headrace: Any, held: Any) -> None:
    """Keys where they belong, and one document with what was sent and how late it was."""
    held.add("clicks", partitions=2)
    options = ("--workload", "etc", "--rate", "100000", "--records", "500", "--keys", "100", "--output", "json")
    ended = headrace("bench", "clicks", *options)
    document = json.loads(ended.out)
    assert (ended.code, document["records"], document["asked_records_per_second"]) == (0, 500, 100_000)
    assert 0 <= document["late_ms"]["p50"] <= document["late_ms"]["max"]
    stored = [held.records[TopicPartition("clicks", partition)] for partition in range(2)]
    assert [len(part) > 50 for part in stored] == [True, True]
    assert sum(len(record.key) + len(record.value) for part in stored for record in part) == document["bytes"]
    assert all(partition_for_key(record.key, 2) == where for where, part in enumerate(stored) for record in part)


def test_a_fitted_model_is_replayed(headrace: Any, held: Any, tmp_path: Path) -> None:
    """Keys and values of the model in the file."""
    held.add("clicks", partitions=2)
    (tmp_path / "model.json").write_text(replace(POOLS["usr"], keys=50).as_json())
    ended = headrace("bench", "clicks", "-w", f"fitted:{tmp_path / 'model.json'}", "--rate", "max", "--records", "300")
    assert ended.code == 0
    stored = [record for part in range(2) for record in held.records[TopicPartition("clicks", part)]]
    assert ({len(record.key) for record in stored}, {len(record.value) for record in stored}) == ({16, 21}, {2})
    assert len(stored) == 300


@pytest.mark.parametrize("fraction", [1.0, 0.25])
def test_a_trace_is_sent(headrace: Any, held: Any, fraction: float) -> None:
    """Blocks of a trace with every request, or all requests of a fraction of the keys, in the model's times and mix."""
    held.add("clicks")
    options = ("-w", "var", "--trace", str(fraction), "--rate", "max", "--records", "9000", "--keys", "400")
    document = json.loads(headrace("bench", "clicks", *options, "--output", "json").out)
    blocks = [decode_block(record.value) for record in held.records[TopicPartition("clicks", 0)]]
    assert (document["records"], document["traced_requests"]) == (len(blocks), 9_000)
    assert document["bytes"] == sum(len(record.value) for record in held.records[TopicPartition("clicks", 0)])
    assert ({block.table for block in blocks}, {block.server_id for block in blocks}) == ({"clicks"}, {-1})
    assert sum(block.seen_requests for block in blocks) == 9_000
    hashes = np.concatenate([block.columns.key_hash for block in blocks])
    assert len(np.unique(hashes)) == pytest.approx(400 * fraction, rel=0.25)
    operations = np.concatenate([block.columns.operation for block in blocks])
    assert (operations == TableOperation.GET).mean() == pytest.approx(0.18, abs=0.05)
    span_us = blocks[-1].base_time_us + int(blocks[-1].columns.time_us[-1]) - blocks[0].base_time_us
    assert 50_000 < span_us < 1_000_000


def test_a_trace_that_ends_early_is_whole(headrace: Any, held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of a block that was not finished are sent as well."""
    clock = Clock()
    give_time(monkeypatch, perf_counter=clock, sleep=clock.sleep)
    held.add("clicks")
    options = ("-w", "etc", "--trace", "1", "--rate", "1000", "--seconds", "10", "--keys", "100", "--output", "json")
    document = json.loads(headrace("bench", "clicks", *options).out)
    blocks = [decode_block(record.value) for record in held.records[TopicPartition("clicks", 0)]]
    assert document["traced_requests"] == sum(block.requests for block in blocks) > 4_300  # By the hour of the day.
    assert document["late_ms"]["max"] < 2, "a block is due with its last request"


def test_a_file_is_replayed(headrace: Any, held: Any, tmp_path: Path) -> None:
    """What `consume --output json` writes, with keys and headers, at many times its speed."""
    held.add("clicks", partitions=1)
    lines = [{"key": f"k{n}", "value": "v", "timestamp_ms": 1_000 * n, "headers": {"n": str(n)}} for n in range(20)]
    (tmp_path / "log").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ended = headrace("bench", "clicks", str(tmp_path / "log"), "--workload", "replay", "--speed", "1000")
    assert (ended.code, "records:               20" in ended.out) == (0, True)
    stored = held.records[TopicPartition("clicks", 0)]
    assert [record.key for record in stored] == [b"k%d" % n for n in range(20)]
    assert stored[7].headers == (("n", b"7"),)
    assert all(before.offset < after.offset for before, after in pairwise(stored))


def test_a_file_is_replayed_at_its_own_and_at_a_set_speed(
    headrace: Any, held: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gaps of the time stamps, or records a second in their place, on a clock that only sleeping moves."""
    clock = Clock()
    give_time(monkeypatch, perf_counter=clock, sleep=clock.sleep)
    lines = [json.dumps({"value": "v", "timestamp_ms": 5_000 + 40 * n}) + "\n" for n in range(11)]
    (tmp_path / "log").write_text("".join(lines))
    held.add("clicks")
    arguments = ("bench", "clicks", str(tmp_path / "log"), "--workload", "replay", "--output", "json")
    for options, seconds in (((), 0.4), (("--speed", "4"), 0.1), (("--rate", "100"), 0.1), (("--rate", "max"), 0.0)):
        document = json.loads(headrace(*arguments, *options).out)
        assert (document["records"], document["seconds"]) == (11, pytest.approx(seconds, abs=0.002))
    assert len(held.records[TopicPartition("clicks", 0)]) == 44


def test_ctrl_c_ends_the_load_and_tells_what_was_sent(
    headrace: Any, held: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 130, and the report all the same."""
    held.add("clicks")
    calls: list[float] = []

    def interrupted(seconds: float) -> None:
        calls.append(seconds)
        if len(calls) == 3:
            raise KeyboardInterrupt

    give_time(monkeypatch, sleep=interrupted)
    ended = headrace("bench", "clicks", "--rate", "100", "--seconds", "60", "--output", "json")
    document = json.loads(ended.out)
    stored = len(held.records[TopicPartition("clicks", 0)])
    assert (ended.code, ended.err, document["records"]) == (ExitCode.INTERRUPTED, "", stored)
    assert stored >= 1


def test_what_was_not_delivered_is_told(headrace: Any, held: Any) -> None:
    """The report has how many; the command says why, and fails."""
    held.add("clicks")
    cause = NotEnoughReplicasError("1 replica is in sync")
    where = TopicPartition("clicks", 0)
    held.failures["flush"] = DeliveryError([(where, 30, cause)], failed_records=30, pending_records=12)
    ended = headrace("bench", "clicks", "--records", "100", "--output", "json")
    assert json.loads(ended.out)["failed_records"] == 42
    assert ended.code != 0
    assert "1 replica is in sync" in ended.err


def test_ctrl_c_while_the_last_records_are_awaited_tells_what_was_sent(
    headrace: Any, held: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 130, the report, and no long wait for the rest when the producer is closed."""
    held.add("clicks")
    waits: list[float | None] = []

    def interrupted(self: FakeProducer, timeout: float | None = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeProducer, "flush", interrupted)
    monkeypatch.setattr(FakeProducer, "close", lambda self, timeout=30.0: waits.append(timeout))
    ended = headrace("bench", "clicks", "--rate", "max", "-n", "1000", "--output", "json")
    assert (ended.code, json.loads(ended.out)["records"]) == (ExitCode.INTERRUPTED, 1000)
    assert waits == [bench.CLOSE_SECONDS]


def test_an_error_of_a_send_tells_what_was_sent_before(
    headrace: Any, held: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A buffer that stays full, or a topic that is deleted. Without anything sent there is only the error."""
    held.add("clicks")
    send_many = FakeProducer.send_many
    sends = 0

    def fail_fourth(self: FakeProducer, topic: str, values: Any, **fields: Any) -> None:
        nonlocal sends
        sends += 1
        if sends >= 4:
            raise StorageFullError("the buffer is full")
        send_many(self, topic, values, **fields)

    monkeypatch.setattr(FakeProducer, "send_many", fail_fourth)
    give_time(monkeypatch, perf_counter=(clock := Clock()), sleep=clock.sleep)
    arguments = ("bench", "clicks", "--rate", "100", "-n", "1000", "--output", "json")
    ended = headrace(*arguments)
    assert (ended.code, "the buffer is full" in ended.err) == (ExitCode.FAILED, True)
    assert json.loads(ended.out)["records"] == len(held.records[TopicPartition("clicks", 0)]) == 3
    assert headrace(*arguments).out == ""


def test_a_wait_is_of_what_was_acknowledged() -> None:
    """A batch that failed has not been acknowledged late: its records count nowhere."""
    batches: list[PendingBatch] = []

    def send(part: RecordColumns) -> BatchFuture:
        batches.append(PendingBatch(TopicPartition("clicks", 0), 0, lambda _: None))
        return BatchFuture([(RecordFuture.of(batches[-1], 0), part.records)])

    clock = Clock()
    progress = send_paced(evenly(3, 100.0), send, clock, clock.sleep)
    assert len(batches) == 3
    for batch, error in zip(batches, (None, NotEnoughReplicasError("few"), None), strict=True):
        batch.complete((0,), error)
    waits = progress.acknowledged
    assert waits.records == 2
    assert waits.longest_s == pytest.approx(0.02, abs=0.002)
    assert waits.quantile_s(0.5) < 0.002


def test_an_acknowledgement_counts_for_each_record_of_its_batch() -> None:
    """A send of 100 records, due every 10 ms, whose two batches are acknowledged a second apart."""
    batches = [PendingBatch(TopicPartition("clicks", 0), 0, lambda _: None) for _ in range(2)]
    clock = Clock()
    clock.now += 1.0

    def send(part: RecordColumns) -> BatchFuture:
        assert part.records == 100
        return BatchFuture(
            [(RecordFuture.of(batch, 0), records) for batch, records in zip(batches, (60, 40), strict=True)]
        )

    started = iter([100.0])
    progress = send_paced(evenly(100, 100.0), send, lambda: next(started, clock.now), clock.sleep)
    batches[0].complete((0,), None)
    clock.now += 1.0
    batches[1].complete((60,), None)
    waits = progress.acknowledged
    assert waits.records == 100
    assert waits.longest_s == pytest.approx(1.4)
    assert waits.quantile_s(0.4) == pytest.approx(0.8, rel=0.01), "of the first batch, due after 0.2 s or later"


def test_help_has_examples(headrace: Any) -> None:
    """Every option and the examples are there."""
    text = headrace("bench", "--help").out
    for word in ("--workload", "--rate", "--speed", "--zipf", "--dry-run", "headrace bench clicks --workload etc"):
        assert word in text, word


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "says"),
    [
        (("--rate", "quick"), b"", ExitCode.USAGE, "--rate 'quick' is not a number of records a second, own or max"),
        (("--speed", "2"), b"", ExitCode.USAGE, "--speed is for workloads with a rate of their own"),
        (("--rate", "-1"), b"", ExitCode.USAGE, "is not a number of records a second"),
        (("--rate", "inf"), b"", ExitCode.USAGE, "is not a number of records a second"),
        (("--workload", "etcd"), b"", ExitCode.USAGE, "'etcd' is unknown; choose one of paper, usr"),
        (("--workload", "fitted:/no/file"), b"", ExitCode.USAGE, "fitted:/no/file: [Errno 2]"),
        (("--trace", "0.5"), b"", ExitCode.USAGE, "--trace is for --workload usr"),
        (("--workload", "etc", "--rate", "max", "--speed", "2"), b"", ExitCode.USAGE, "--speed is for workloads"),
        (("--workload", "etc", "--value-bytes", "7"), b"", ExitCode.USAGE, "--value-bytes is for --workload paper"),
        (("--keys", "7"), b"", ExitCode.USAGE, "--keys and --zipf are for --workload usr"),
        (("--zipf", "1.5"), b"", ExitCode.USAGE, "--keys and --zipf are for --workload usr"),
        (("--records", "0"), b"", ExitCode.USAGE, "--records"),
        (("--workload", "replay", "/no/such/file"), b"", ExitCode.FAILED, "/no/such/file: No such file"),
        (("file",), b"", ExitCode.USAGE, "files are for --workload replay"),
        (("--workload", "replay", "--input", "lines"), b"x\n", ExitCode.USAGE, "plain lines have no times"),
        (("--workload", "replay"), b'{"value": "x"}\n', ExitCode.FAILED, "record 1 has no timestamp_ms"),
        (("--workload", "replay"), b'{"valu": 1}\n', ExitCode.FAILED, "standard input:1: unknown field 'valu'"),
    ],
)
def test_bad_input(
    headrace: Any, held: Any, arguments: tuple[str, ...], stdin: bytes, code: ExitCode, says: str
) -> None:
    """One line that says what is wrong; options that would do nothing are refused."""
    held.add("clicks")
    ended = headrace("bench", "clicks", *arguments, stdin=stdin)
    assert (ended.code, says in ended.err) == (code, True), ended.err


def test_a_dry_run_sends_nothing(headrace: Any, held: Any) -> None:
    """Records are made and counted."""
    held.add("clicks")
    ended = headrace("bench", "clicks", "--records", "10000", "--dry-run", "--output", "json")
    document = json.loads(ended.out)
    assert (document["records"], document["bytes"], document["dry_run"]) == (10_000, 2_000_000, True)
    assert not any(held.records.values())
