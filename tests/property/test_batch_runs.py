"""Runs of small batches are encoded, checked, stamped and noted as the same batches one by one."""

from __future__ import annotations

import random
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from headrace.log.index import IndexCache, SegmentIndex
from headrace.log.os_filesystem import OsFileSystem
from headrace.wire.batch import (
    CRC_START,
    HEADER,
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    STAMP_BYTES,
    BatchHeader,
    check_batch,
    read_header,
    stamp,
)
from headrace.wire.batch_runs import FEW_BATCHES, BatchRun, continuing, encode_run, read_run
from headrace.wire.columns import check_columns
from headrace.wire.crc import crc32c, crc32c_rows
from headrace.wire.encoding import SMALL_BYTES, SMALL_RECORDS, encode_batch
from headrace.wire.errors import HeadraceError
from hypothesis import given, settings
from hypothesis import strategies as st

LIMITS = {"max_batch_bytes": 4096, "max_records": 60, "max_payload_bytes": 4000}
NOW_MS = 1_700_000_000_000
PRODUCERS = st.sampled_from([(-1, -1, -1), (0, 0, 0), (7, 3, 2**31 - 5), (2**62, 2**31 - 1, 9)])
SEEDS = st.integers(0, 2**32 - 1)


def values_of(seed: int, count: int, largest: int) -> list[bytes]:
    """Return values of different sizes, or all of one size."""
    chance = random.Random(seed)
    sizes = [chance.randint(0, largest)] * count if seed % 2 else [chance.randint(0, largest) for _ in range(count)]
    return [chance.randbytes(size) for size in sizes]


def one_by_one(values: list[bytes], step: int, producer: tuple[int, int, int], at_ms: int = NOW_MS) -> list[bytes]:
    """Return the batches as `batch_parts` encodes them."""
    producer_id, epoch, sequence = producer
    return [
        encode_batch(
            values[first : first + step],
            base_timestamp_ms=at_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence if producer_id < 0 else (sequence + first) % 2**31,
        )
        for first in range(0, len(values), step)
    ]


@given(SEEDS, st.integers(1, SMALL_RECORDS), st.integers(1, 40), st.integers(0, 40), PRODUCERS)
def test_run_is_encoded_as_its_batches_are(
    seed: int, step: int, count: int, largest: int, producer: tuple[int, int, int]
) -> None:
    """The same bytes, whatever the sizes, and the size of each batch."""
    values = values_of(seed, step * count, largest)
    names = dict(zip(("producer_id", "producer_epoch", "base_sequence"), producer, strict=True))
    encoded = encode_run(values, step, base_timestamp_ms=NOW_MS, **names)
    expected = one_by_one(values, step, producer)
    assert encoded is not None
    assert bytes(encoded.data) == b"".join(expected)
    assert encoded.sizes == list(map(len, expected))


@pytest.mark.parametrize("wrong", [None, "text", 5, memoryview(np.zeros(2, np.int32)), bytes(SMALL_BYTES + 1)])
def test_other_values_are_not_encoded_as_a_run(wrong: object) -> None:
    """The function for one batch encodes them, or says what is wrong."""
    values: list[bytes] = [*values_of(1, 20, 9), wrong]  # type: ignore[list-item]
    anonymous = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1}
    assert encode_run(values, 1, base_timestamp_ms=1, **anonymous) is None
    assert encode_run([b"v"] * 650, 65, base_timestamp_ms=1, **anonymous) is None


def sound_header(batch: bytes, limits: dict[str, int]) -> BatchHeader | None:
    """Return the header of a batch that a leader accepts by the checks of one batch."""
    try:
        header = check_batch(batch, **limits)
        check_columns(batch, header, max_payload_bytes=limits["max_payload_bytes"])
    except HeadraceError:
        return None
    return header


_LOW_LIMITS = [("max_batch_bytes", 112), ("max_payload_bytes", 24), ("max_records", 2)]
_EDGES = [0, 1, -1, 2, 3, 80, 2**31 - 1, -(2**31), 2**63 - 1, MIN_TIMESTAMP_MS - 1, MAX_TIMESTAMP_MS, NOW_MS + 1]


@st.composite
def damaged(draw: st.DrawFn) -> list[bytes]:
    """Batches of which one has other header fields or bytes, mostly with checksums that are right all the same."""
    step = draw(st.sampled_from([1, 1, 2, 3, 16, 17, 60, 61]))
    count = draw(st.integers(FEW_BATCHES - 1, 24))
    batches = one_by_one(values_of(draw(SEEDS), step * count, draw(st.sampled_from([3, 60]))), step, draw(PRODUCERS))
    place = draw(st.integers(0, count - 1))
    batch = bytearray(batches[place])
    kind = draw(st.sampled_from(["field", "byte", "end", "none", "shorter", "longer"]))
    if kind == "field":
        fields = read_header(batch)._asdict()
        name = draw(st.sampled_from(list(fields)))
        value = draw(st.sampled_from(_EDGES) | st.integers(-3, 3).map(lambda by: fields[name] + by))
        bits = 8 * (HEADER.size // 80) * np.dtype(HEADER.format[1 + list(fields).index(name)]).itemsize
        is_signed = HEADER.format[1 + list(fields).index(name)] in "qi"
        value &= (1 << bits) - 1
        fields[name] = value - (1 << bits) if is_signed and value >> (bits - 1) else value
        HEADER.pack_into(batch, 0, *fields.values())
    elif kind == "byte":
        batch[draw(st.integers(0, len(batch) - 1))] ^= draw(st.sampled_from([1, 2, 0x40, 0x80, 0xFF]))
    elif kind == "end":
        batch[-draw(st.integers(1, 8))] ^= 1
    elif kind == "shorter":
        del batch[draw(st.integers(1, len(batch) - 1)) :]
    elif kind == "longer":
        batch += bytes(draw(st.sampled_from([1, 8])))
    if draw(st.integers(0, 4)) and len(batch) >= CRC_START:
        batch[28:32] = crc32c(batch[:28]).to_bytes(4, "little")
        batch[32:36] = crc32c(batch[CRC_START:]).to_bytes(4, "little")
    batches[place] = bytes(batch)
    return batches


@settings(max_examples=1500)
@given(damaged(), st.sampled_from([LIMITS, *({**LIMITS, name: most} for name, most in _LOW_LIMITS)]))
def test_run_has_only_batches_that_pass_the_checks_of_one(batches: list[bytes], limits: dict[str, int]) -> None:
    """In their order, with their headers and bytes."""
    run = read_run([memoryview(batch) for batch in batches], **limits)
    if run is None:
        return
    headers = [sound_header(batch, limits) for batch in batches[: len(run)]]
    assert [BatchHeader(*header) for header in run.headers.tolist()] == headers
    assert bytes(run.data) == b"".join(batches[: len(run)])
    assert run.ends.tolist() == list(accumulate(map(len, batches[: len(run)])))


@given(SEEDS, st.sampled_from([1, 2, 16, 17, 60]), st.integers(FEW_BATCHES + 1, 40), PRODUCERS, st.data())
def test_run_has_all_batches_before_a_wrong_one(
    seed: int, step: int, count: int, producer: tuple[int, int, int], data: st.DataObject
) -> None:
    """Usual batches are not left to the slower checks; the first of another kind ends the run."""
    batches = one_by_one(values_of(seed, step * count, 50), step, producer)
    run = read_run(batches, **LIMITS)
    assert run is not None
    assert len(run) == continuing(run) == count
    place = data.draw(st.integers(FEW_BATCHES + 1, count))
    batches.insert(place, encode_batch([b"v"] * step, keys=[b"k"] * step, base_timestamp_ms=1))
    run = read_run(batches, **LIMITS)
    assert run is not None
    assert len(run) == place


@pytest.mark.parametrize(
    ("fields", "last_offset"),
    [
        ({"base_timestamp_ms": MIN_TIMESTAMP_MS - 1, "max_timestamp_ms": MIN_TIMESTAMP_MS - 1}, 16),
        ({"base_timestamp_ms": MAX_TIMESTAMP_MS + 1, "max_timestamp_ms": MAX_TIMESTAMP_MS + 1}, 16),
        ({"payload_bytes": 8 + 12}, 12),
        ({"payload_bytes": 8 + 17}, 17),
    ],
    ids=["early", "late", "fewer bytes", "more bytes"],
)
def test_run_ends_before_fields_that_agree_and_are_wrong(fields: dict[str, int], last_offset: int) -> None:
    """Fields that agree with each other, but not with the bytes, or with the years 1 to 9999."""
    batches = one_by_one([bytes(range(1, 17))] * 20, 1, (-1, -1, -1))
    batch = bytearray(batches[12])
    HEADER.pack_into(batch, 0, *read_header(batch)._replace(**fields))
    batch[HEADER.size + 4 : HEADER.size + 8] = last_offset.to_bytes(4, "little")
    batch[32:36] = crc32c(batch[CRC_START:]).to_bytes(4, "little")
    batches[12] = bytes(batch)
    run = read_run(batches, **LIMITS)
    assert run is not None
    assert len(run) == 12
    assert sound_header(batches[12], LIMITS) is None


@pytest.mark.parametrize("step", [1, 2, 60])
def test_run_ends_before_a_batch_that_is_cut_off(step: int) -> None:
    """Wherever it is cut, also within its header, and though it is the last."""
    batches = one_by_one(values_of(1, step * 20, 20), step, (7, 3, 9))
    for size in range(0, len(batches[-1]), 4):
        run = read_run([*batches[:-1], batches[-1][:size]], **LIMITS)
        assert run is not None
        assert len(run) == 19


@given(SEEDS, st.integers(FEW_BATCHES + 1, 30), st.integers(1, 29), st.sampled_from(["id", "epoch", "sequence"]))
def test_run_of_one_sequence_ends_where_the_sequence_does(seed: int, count: int, place: int, changed: str) -> None:
    """At another producer, another epoch, or a sequence that is not the next."""
    place = min(place, count - 1)
    values = values_of(seed, 2 * count, 20)
    other = {"id": (8, 3, 9 + 2 * place), "epoch": (7, 4, 9 + 2 * place), "sequence": (7, 3, 10 + 2 * place)}[changed]
    batches = one_by_one(values[: 2 * place], 2, (7, 3, 9)) + one_by_one(values[2 * place :], 2, other)
    run = read_run(batches, **LIMITS)
    assert run is not None
    assert len(run) == count
    assert continuing(run) == place


@given(SEEDS, st.integers(1, 5), st.integers(FEW_BATCHES + 1, 40), PRODUCERS)
def test_run_is_stamped_as_its_batches_are(seed: int, step: int, count: int, producer: tuple[int, int, int]) -> None:
    """Offsets, chain and checksum; also of the first batches of a run."""
    batches = one_by_one(values_of(seed, step * count, 30), step, producer)
    run = read_run(batches, **LIMITS)
    assert run is not None
    run = run.first(count - seed % 3)
    run.stamp(base_offset=2**40 - 7, append_timestamp_ms=NOW_MS, leader_epoch=5, previous_crc=seed)
    expected, offset, crc = [], 2**40 - 7, seed
    for batch in batches[: len(run)]:
        header = read_header(batch)
        head = stamp(header, base_offset=offset, append_timestamp_ms=NOW_MS, leader_epoch=5, previous_crc=crc)
        expected.append(head + batch[STAMP_BYTES:])
        offset, crc = offset + step, header.crc
    assert bytes(run.data) == b"".join(expected)


@given(
    st.lists(st.lists(st.integers(0, 300), min_size=9, max_size=30), max_size=6), st.sampled_from([1, 90, 400, 4096])
)
def test_run_is_noted_in_the_index_as_its_batches_are(
    tmp_path_factory: pytest.TempPathFactory, runs: list[list[int]], interval_bytes: int
) -> None:
    """The same entries at the same batches, by offset and by time."""
    stem, cache = str(Path(tmp_path_factory.getbasetemp()) / "0"), IndexCache(1 << 20)
    together, separate = (SegmentIndex(OsFileSystem(), stem, 0, cache) for _ in range(2))
    offset = 0
    for number, sizes in enumerate(runs):
        batches = [encode_batch([bytes(size)] * 2, base_timestamp_ms=1000 - size) for size in sizes]
        run = read_run(batches, **LIMITS)
        assert isinstance(run, BatchRun)
        end_offset = together.note_run(offset, run, append_ms=number, interval_bytes=interval_bytes)
        for batch, header in zip(batches, map(read_header, batches), strict=True):
            separate.note(
                offset, offset + 2, len(batch), append_ms=number, record_ms=header.max_timestamp_ms,
                interval_bytes=interval_bytes,
            )  # fmt: skip
            offset += 2
        assert end_offset == offset
    for name in ("covered_offset", "covered_position", "max_append_ms", "max_record_ms", "_last_position"):
        assert getattr(together, name) == getattr(separate, name)
    assert (together.offsets.tail, together.times.tail) == (separate.offsets.tail, separate.times.tail)


@given(SEEDS, st.integers(0, 20), st.integers(1, 40))
def test_checksum_of_each_row_is_that_of_its_bytes(seed: int, count: int, width: int) -> None:
    """Also where all rows are the same at a place, and where there are none."""
    rows = np.random.default_rng(seed).integers(0, 256, (count, width), np.uint8)
    rows[:, :: 1 + seed % 3] = seed % 256
    assert crc32c_rows(rows).tolist() == [crc32c(row.tobytes()) for row in rows]
