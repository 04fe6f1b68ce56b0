"""What notebooks show: escaped, bounded, and without taking anything from what is shown."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from html.parser import HTMLParser

import headrace
import pytest
from headrace.client.base.records import Record
from headrace.client.table.rows import Row, RowColumn
from headrace.display.html_tables import MAX_CHARACTERS, MAX_COLUMNS, MAX_ROWS, MAX_TOPICS, html_table

WAIT = 60
SCRIPT = '<script>alert("x")</script>'


class Parsed(HTMLParser):
    """Elements, texts of cells and the number of lines of a table."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.styles: set[str] = set()
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.styles.update(str(value) for _, value in attrs)

    def handle_data(self, data):
        self.text.append(data)


def shown(thing) -> Parsed:
    html = thing if isinstance(thing, str) else thing._repr_html_()
    found = Parsed(html)
    assert set(found.tags) <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}, found.tags
    assert not any("color" in style or "background" in style for style in found.styles), "themes decide"
    return found


@pytest.fixture
def log(headrace_directory):
    return headrace_directory


def fill(log, topic, values, **config):
    log.admin.create_topic(topic, config=config)
    with log.producer() as producer:
        producer.send_many(topic, values)


def test_nothing_in_a_value_a_name_or_a_caption_is_markup():
    """Text of others is text: markup is escaped, and control and bidirectional characters are shown as escapes."""
    bad = [SCRIPT, SCRIPT.encode(), {SCRIPT: SCRIPT}, [SCRIPT], "a\u202eb\x1b[2J\n", b"\xff\x00<b>"]
    found = shown(html_table([SCRIPT] * len(bad), [bad], SCRIPT))
    text = " ".join(found.text)
    assert text.count("<script>") == 1 + len(bad) + 5
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert "\\xff\\x00<b>" in text


def test_a_value_without_a_usable_repr_is_shown_by_its_type():
    """Deserializers may return any object, and a display must not fail."""

    class Odd:
        def __repr__(self):
            raise RuntimeError("no")

    text = " ".join(shown(html_table(["a", "b"], [[Odd(), 10**5_000]], "")).text)
    assert "Odd" in text
    assert "<int" in text  # Python 3.14 adds how many digits it has.


def test_values_columns_and_rows_are_bounded():
    """However large the values and however many: the HTML is small."""
    rows = ([b"x" * 1_000_000, "y" * 1_000_000, [list(range(100_000))] * 1_000] for _ in range(10**9))
    html = html_table(["a", "b", "c"], rows, "z" * 10_000)
    assert len(html) < (MAX_ROWS + 2) * 4 * (MAX_CHARACTERS + 100)
    assert Parsed(html).tags.count("tr") == 1 + MAX_ROWS
    found = shown(html_table([f"c{n}" for n in range(1_000)], [list(range(1_000))], "wide"))
    assert found.tags.count("td") == MAX_COLUMNS
    assert "wide; 970 more columns" in found.text


def test_records(log):
    """A batch shows its first records, of which alone objects are made, and how many there are."""
    fill(log, "clicks", [b"%d <b>" % number for number in range(25_000)])
    with log.reader("clicks") as reader:
        batch = reader.read(WAIT)
    found = shown(batch)
    assert "25,000 records, of which the first 10 are shown" in found.text
    assert "0 <b>" in found.text
    assert "10 <b>" not in found.text
    assert "key" not in found.text
    assert batch._records is None, "no objects of all records"
    assert "9 <b>" in shown(batch[9]).text
    moved = Record("t", 0, 5, 10**17, b"k", None, (("trace", b"7f"),))
    assert {"100000000000000000", "k", "null"} <= set(shown(moved).text)


def test_typed_records_have_their_columns(log):
    log.admin.create_topic("views", columns="page string required, user int64")
    with log.producer() as producer:
        for number in range(30):
            producer.send("views", {"page": SCRIPT, "user": number})
    with log.reader("views") as reader:
        found = shown(reader.read(WAIT))
    assert {"page", "user", SCRIPT, "9"} <= set(found.text)
    assert "10" not in found.text


def test_topics(log):
    """A description shows the partitions, a list the topics, and the directory what it has."""
    log.admin.create_topic("clicks", partitions=3)
    log.admin.create_topic("views", columns="page string required")
    log.admin.create_topic("users", config={"cleanup_policy": "compact", "table": "yes"})
    with log.producer() as producer:
        producer.send_many("clicks", [b"x"] * 1_234)
    described = log.admin.describe_topic("clicks")
    assert shown(described).tags.count("tr") == 4
    found = shown(log.admin.describe_topics())
    assert "3 topics" in found.text
    found = shown(log)
    assert {"clicks", "records", "1234", "views", "typed", "users", "table"} <= set(found.text)
    assert log.path in "".join(found.text)


def test_many_topics(log):
    """A list is bounded too."""
    for number in range(MAX_TOPICS + 1):
        log.admin.create_topic(f"t{number:03}")
    for each in (log, log.admin.describe_topics()):
        found = shown(each)
        assert found.tags.count("tr") == 1 + MAX_TOPICS
        assert "51 topics, of which the first 50 are shown" in "".join(found.text)


def test_a_closed_directory_has_its_text(tmp_path):
    """`None` lets a notebook show the text."""
    log = headrace.open(tmp_path / "events")
    log.close()
    assert log._repr_html_() is None


def test_an_asyncio_directory(tmp_path):
    async def seen():
        async with await headrace.aio.open(tmp_path / "events") as log:
            await log.admin.create_topic("clicks")
            async with log.table("clicks") as table:
                assert table._repr_html_() is None
            return shown(log)

    assert "clicks" in asyncio.run(seen()).text


def test_a_table(log):
    """A table shows its size and its first rows; names, keys and values are inert."""
    log.admin.create_topic("users", partitions=2, config={"cleanup_policy": "compact", "table": "yes"})
    with log.table("users") as users:
        users.put_many((f"u{number:04} <i>", {"name": SCRIPT, "n": str(number)}) for number in range(3_000))
        users.put("u0000 <i>", {SCRIPT: "odd"})
        found = shown(users)
        assert "Table users: 3,000 rows, of which the first 10 are shown" in found.text
        assert found.tags.count("tr") == 1 + MAX_ROWS
        assert SCRIPT in found.text
        row = users.get("u0000 <i>")
    assert {"odd", "name", "0"} <= set(shown(row).text)
    assert "\\udcff" in "".join(shown(Row(b"k", 1, {"\udcff": RowColumn("v", 1, 0)}, None)).text)


def test_a_table_that_cannot_be_read_says_why(log):
    """A problem is shown in place of rows."""
    log.admin.create_topic("clicks")
    with log.table("clicks") as table:
        assert "topic clicks is no table" in "".join(shown(table).text)


def test_a_result_of_sql_can_be_read_after_it_was_shown(log):
    """Showing takes no rows from the result; after it was read, it says so."""
    log.admin.create_topic("views", columns="page string required, user int64")
    with log.producer() as producer:
        for number in range(1_000):
            producer.send("views", {"page": SCRIPT, "user": number})
    with log.sql("select page, user from views order by user") as result:
        found = shown(result)
        assert "The first 10 rows; there are more." in found.text
        assert found.tags.count("tr") == 1 + MAX_ROWS
        assert shown(result).text == found.text
        assert [row[1] for row in result] == list(range(1_000))
        assert "The result was read." in shown(result).text
    with log.sql("select user from views where user < 3") as result:
        assert "3 rows" in shown(result).text
        assert result.to_arrow().num_rows == 3
    with log.sql("select user from views where user < 0") as result:
        assert "0 rows" in shown(result).text
        assert result.to_arrow().num_rows == 0


def test_a_value_that_is_a_duration_has_its_repr():
    assert repr(timedelta(hours=1)) in shown(html_table(["a"], [[timedelta(hours=1)]], "")).text
