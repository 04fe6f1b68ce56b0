"""Loads of a log that an unclean election has truncated, and that has grown again since."""

import headrace
import pytest
from headrace.client.admin.record_times import ROUND_PARTITIONS
from headrace.client.loading.formats import LoadFormat, open_table
from headrace.client.loading.tables.state import Source
from headrace.client.loading.topic_log import TopicLog
from headrace.wire.columns import encode_batch

from tests.fakes.cluster import running_fake

FORMATS = ("parquet", "delta", "iceberg")


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(TopicLog, "columns", lambda _: "")  # The fake has no configs.
    with running_fake() as cluster:
        cluster.create_topic("t")
        fill(cluster, 0, 100)
        yield cluster


def fill(fake, first, end):
    for base in range(first, end, 10):
        fake.append("t", encode_batch([b"%d" % n for n in range(base, base + 10)], base_timestamp_ms=5))


@pytest.mark.parametrize("table_format", FORMATS)
def test_records_that_an_election_replaced_end_a_load(fake, tmp_path, table_format):
    """Also if the log is longer by now; nothing is committed. An election that loses none is not noticed."""

    def load():
        options = {"format": table_format, "partition_by": [], "bootstrap_servers": fake.address}
        (summary,) = headrace.load("t", to=tmp_path / "table", **options)
        return summary.table_rows

    table = open_table(str(tmp_path / "table"), LoadFormat(table_format), "")
    assert load() == 100
    assert dict(table.state().epochs) == {"0": 0}
    fake.topics["t"].partitions[0].truncate(100)
    fill(fake, 100, 120)
    assert load() == 120
    assert dict(table.state().epochs) == {"0": 1}
    fake.topics["t"].partitions[0].truncate(60)
    fill(fake, 60, 160)
    with pytest.raises(headrace.LoadError, match="offset 120, which the table has, those from 60 on were lost"):
        load()
    assert table.state().rows == 120


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_table_of_an_earlier_release_continues_and_gets_epochs(fake, tmp_path, table_format):
    """Its commits have none, or left those of another position."""
    options = {"format": table_format, "partition_by": [], "bootstrap_servers": fake.address}
    headrace.load("t", to=tmp_path / "table", until=50, **options)
    table = open_table(str(tmp_path / "table"), LoadFormat(table_format), "")
    source = table.state().source
    assert isinstance(source, Source)
    fake.topics["t"].partitions[0].truncate(50)
    fill(fake, 50, 100)
    attempt = table.place.begin()
    table.commit(attempt, source, {"0": 80}, [])
    assert dict(table.state().epochs) == {}
    headrace.load("t", to=tmp_path / "table", **options)
    assert dict(table.state().epochs) == {"0": 1}


def test_partitions_whose_last_record_was_deleted_have_no_epoch(fake):
    """Others have theirs, also of more partitions than a request names: retention may empty any of them."""
    fake.create_topic("many", partitions=ROUND_PARTITIONS + 2)
    numbers = range(ROUND_PARTITIONS + 2)
    for number in numbers:
        fake.append("many", encode_batch([b"a", b"b"], base_timestamp_ms=5), number)
    for number in (1, *numbers[2::2]):
        fake.topics["many"].partitions[number].start = 2
    with headrace.Admin(bootstrap_servers=fake.address) as admin:
        found = TopicLog(admin, "many").epochs(dict.fromkeys(numbers, 2))
    assert found == dict.fromkeys((0, *numbers[3::2]), 0)
