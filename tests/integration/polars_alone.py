"""Program of `test_typed_polars.py`: a frame of Polars to a typed topic and back. Prints the version of Polars."""

import datetime as dt
import sys

import headrace
import polars as pl

servers, topic, transport = sys.argv[1:]
FRAME = pl.DataFrame(
    {
        "page": ["/a", "/b", None, "/d"],
        "user": pl.Series([1, 2, 3, None], dtype=pl.Int32),
        "seconds": [0.5, 1.5, float("inf"), -0.0],
        "at": [dt.datetime(2026, 1, day, tzinfo=dt.UTC) for day in range(1, 5)],
        "day": [dt.date(2026, 1, day) for day in range(1, 5)],
        "tags": [["x", "y"], [], None, ["z"]],
        "place": [{"city": "Bonn", "floor": 1}, {"city": None, "floor": 2}, {"city": "Rome", "floor": None}, None],
        "kind": pl.Series(["new", "old", "new", "old"], dtype=pl.Categorical),
    }
)
client = {"bootstrap_servers": servers, "transport": transport}
with headrace.Admin(**client) as admin:
    admin.create_topic(topic, partitions=1, columns=FRAME)
with headrace.Producer(**client) as producer:
    producer.send_table(topic, FRAME)
    producer.send_table(topic, FRAME.head(0))
    producer.send_table(topic, FRAME.select("page", "user"))
expected = pl.concat([FRAME.with_columns(pl.col("kind").cast(pl.String)), FRAME.select("page", "user")], how="diagonal")
with headrace.Reader(topic, **client) as reader:
    found = pl.from_arrow(reader.to_arrow())
assert found.equals(expected, null_equal=True), found
with headrace.Reader(topic, columns=["user"], where={"user": (2, None)}, **client) as reader:
    assert pl.from_arrow(reader.to_arrow())["user"].to_list() == [2, 3, 2, 3]
query = f'select page, count(*) as n from "{topic}" group by 1 order by 1'
with headrace.sql(query, bootstrap_servers=servers) as rows:
    assert rows.to_polars().rows() == [("/a", 2), ("/b", 2), ("/d", 2), (None, 2)]
with headrace.Reader(topic, **client) as reader:
    assert [row.value["page"] for row in reader] == expected["page"].to_list()
print(pl.__version__)
