"""Values of Arrow that Python has no type for stop no reader."""

from __future__ import annotations

import datetime as dt

import pandas as pd
import pyarrow as pa
import pytest
from headrace.client.base.arrow_objects import frame_of, objects_of

DATE, MOMENT, ZONED = pa.date32(), pa.timestamp("us"), pa.timestamp("ms", "Asia/Tokyo")
TODAY = dt.date(2026, 1, 2)
LATE = 3_000_000
"""A day after the year 9999, in days since 1970."""


def dates(*days: int | None) -> pa.Array:
    return pa.array(days, pa.int32()).view(DATE)


def numbers(kind: pa.DataType, *found: int | None) -> pa.Array:
    return pa.array(found, pa.int64()).view(kind)


@pytest.mark.parametrize(
    ("array", "objects"),
    [
        (dates(0, LATE, None, -(2**31)), [dt.date(1970, 1, 1), LATE, None, -(2**31)]),
        (numbers(MOMENT, 2**62, 0), [2**62, dt.datetime(1970, 1, 1)]),
        (numbers(ZONED, -(2**60), None), [-(2**60), None]),
        (numbers(pa.duration("s"), 2**62, 60), [2**62, dt.timedelta(minutes=1)]),
        (pa.ListArray.from_arrays([0, 2, 2], dates(LATE, 0)), [[LATE, dt.date(1970, 1, 1)], []]),
        (pa.StructArray.from_arrays([dates(LATE), pa.array(["x"])], ["d", "s"]), [{"d": LATE, "s": "x"}]),
        (pa.MapArray.from_arrays([0, 1], dates(LATE), dates(-LATE)), [[(LATE, -LATE)]]),
        (pa.chunked_array([dates(LATE), dates(0)]), [LATE, dt.date(1970, 1, 1)]),
        (pa.array([1, None]), [1, None]),
    ],
)
def test_what_python_lacks_is_its_number(array: pa.Array, objects: list[object]) -> None:
    """As in rows, at any depth; the other values are what they are."""
    assert objects_of(array) == objects


def test_a_frame_has_what_pandas_has() -> None:
    """Timestamps as pandas has them, dates and times of day that it has not as numbers, other columns unchanged."""
    plain = {"n": pa.array([1, 2]), "day": pa.array([TODAY, None])}
    table = pa.table(
        {
            **plain,
            "d": dates(LATE, 0),
            "at": numbers(MOMENT, 2**62, 0),
            "clock": numbers(pa.time64("ns"), 1_001, None),
            "days": pa.ListArray.from_arrays([0, 1, 1], dates(LATE)),
        }
    )
    frame = frame_of(table)
    assert frame["d"].tolist() == [LATE, dt.date(1970, 1, 1)]
    assert frame["clock"].tolist() == [1_001, None]
    assert frame["days"].tolist() == [[LATE], []]
    assert frame["at"].equals(table.select(["at"]).to_pandas()["at"])
    pd.testing.assert_frame_equal(frame[["n", "day"]], pa.table(plain).to_pandas())
    pd.testing.assert_frame_equal(frame_of(pa.table(plain)), pa.table(plain).to_pandas())
