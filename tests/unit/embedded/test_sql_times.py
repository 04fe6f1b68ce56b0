"""SQL over a directory of dates and times that Python, or SQL, has not."""

from __future__ import annotations

import headrace
import pyarrow as pa
import pytest
from headrace.wire.errors import InvalidRequestError

pytest.importorskip("duckdb")

COLUMNS = "id int64, day date, ts timestamp[s, UTC], took duration[ms], each list<timestamp[ms, UTC]>"
LATE_DAY, LATE_S = 3_000_000, 300_000_000_000
"""After the year 9999, in days and seconds since 1970."""
UNKNOWN_S = 2**60
"""Too many seconds for 64 bits of microseconds, which SQL has."""


def numbers(kind: pa.DataType, *found: int | None) -> pa.Array:
    return pa.array(found, pa.int32() if kind == pa.date32() else pa.int64()).view(kind)


@pytest.fixture(name="log", scope="module")
def fixture_log(tmp_path_factory):
    with headrace.open(tmp_path_factory.mktemp("directory") / "events") as log:
        log.admin.create_topic("times", columns=COLUMNS)
        table = pa.table(
            {
                "id": [0, 1, 2],
                "day": numbers(pa.date32(), 0, LATE_DAY, None),
                "ts": numbers(pa.timestamp("s", "UTC"), 0, LATE_S, UNKNOWN_S),
                "took": numbers(pa.duration("ms"), 1, None, 2),
                "each": pa.ListArray.from_arrays([0, 1, 1, 2], numbers(pa.timestamp("ms", "UTC"), 0, LATE_S * 1_000)),
            }
        )
        with log.producer() as producer:
            producer.send_table("times", table)
        yield log


def test_rows_and_frames_have_what_python_lacks_as_numbers(log):
    """In the unit of the result's type, which is microseconds for times with a zone."""
    query = "select id, day, ts, took, each from times where id <= 1 and ts < timestamptz '12000-01-01'"
    with log.sql(query) as result:
        _, late = result.rows()
    assert late == (1, LATE_DAY, LATE_S * 1_000_000, None, [])
    with log.sql("select day, each from times") as result:
        assert [row[1] for row in result.rows()][2] == [LATE_S * 1_000_000]
    with log.sql("select id, day from times order by id") as result:
        assert result.to_pandas()["day"].tolist()[1:] == [LATE_DAY, None]
    with log.reader("times", columns=["id", "day"]) as reader:
        assert reader.to_pandas()["day"].tolist()[1:] == [LATE_DAY, None]


def test_a_time_that_sql_lacks_is_an_error_with_its_place(log):
    """Other columns, and rows within a bound, can be queried."""
    said = r"^column ts of times-0 at offset 2 has a time that SQL has not: .*Bound ts in WHERE"
    with log.sql("select ts from times") as result, pytest.raises(InvalidRequestError, match=said):
        result.to_arrow()
    with pytest.raises(InvalidRequestError, match=said):
        log.sql("select a.ts from times a join times b using (id)")
    with log.sql("select id from times where ts < '9000-01-01'") as result:
        assert list(result) == [(0,)]
    with log.sql("select count(*) from times where took > interval '1 millisecond'") as result:
        assert list(result) == [(1,)]
