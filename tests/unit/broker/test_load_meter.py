"""Moving averages of a replica's load: right from the first sample, and soon those of a new load."""

from __future__ import annotations

import pytest
from headrace.placement.load import ReplicaLoad
from headrace_broker.runtime.load_meter import LoadMeter
from hypothesis import given
from hypothesis import strategies as st

WINDOW_MS = 300_000


@given(
    st.lists(st.integers(1, 60_000), min_size=1, max_size=50),
    st.integers(0, 1_000),
    st.integers(0, 1_000),
    st.integers(1, 9),
)
def test_an_even_load_is_its_rate_after_every_sample(
    steps: list[int], written: int, read: int, per_millisecond: int
) -> None:
    """However long the times between samples are, and however many there were."""
    meter, now_ms = LoadMeter(5), 5
    for step in steps:
        for _ in range(per_millisecond):
            meter.bytes_in += written * step
            meter.bytes_out += read * step
            meter.requests += step
        now_ms += step
        meter.sample(now_ms, WINDOW_MS)
        rate = 1_000 * per_millisecond
        load = meter.load
        assert (load.bytes_in, load.bytes_out, load.requests) == pytest.approx((rate * written, rate * read, rate))


def test_an_old_load_is_forgotten_after_some_windows() -> None:
    """Two thirds after one window, all but a fiftieth after four; a sample of no time changes nothing."""
    meter, now_ms, found = LoadMeter(0), 0, []
    for second in range(6 * 300):
        if second < 2 * 300:
            meter.note_written(1_000)
            meter.note_read(10)
        now_ms += 1_000
        meter.sample(now_ms, WINDOW_MS)
        meter.sample(now_ms, WINDOW_MS)
        if second % 300 == 299:
            found.append(meter.load.bytes_in)
    assert found[:2] == pytest.approx([1_000, 1_000])
    assert 250 < found[2] < 350
    assert found[-1] < 20


def test_nothing_is_reported_before_the_first_sample() -> None:
    """An append and an answer are a request each."""
    meter = LoadMeter(0)
    meter.note_written(100)
    meter.note_read(50)
    assert meter.load == ReplicaLoad()
    meter.sample(1_000, WINDOW_MS)
    assert meter.load == ReplicaLoad(pytest.approx(100), pytest.approx(50), pytest.approx(2))  # type: ignore[arg-type]
