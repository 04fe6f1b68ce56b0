"""`headrace.load` of topics in a directory: what is in the tables, and what is said if it cannot be."""

import json
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path

import duckdb
import headrace
import pyarrow as pa
import pytest
from deltalake import DeltaTable as DeltaLog
from headrace.client.base.errors import ConfigError
from headrace.client.loading import load as load_module
from headrace.client.loading import load_target
from headrace.client.loading.formats import LoadFormat, open_table
from headrace.client.loading.tables.compaction import GROUP_FILES
from headrace.client.loading.tables.iceberg_table import IcebergTable
from headrace.client.loading.tables.state import Source
from headrace.client.loading.topic_log import TopicLog
from headrace.display import progress
from pyarrow import parquet

from tests.children import running as child_running

FORMATS = ("parquet", "delta", "iceberg")
VISITS = "page string required, user int64, ts timestamp[ms, UTC]"
DAY = date(2025, 11, 21)
AT_MS = 1_763_719_200_000  # 2025-11-21 10:00 UTC
DEADLINE_SECONDS = 60


@pytest.fixture
def log(headrace_directory):
    headrace_directory.admin.create_topic("clicks", partitions=3)
    headrace_directory.admin.create_topic("visits", columns=VISITS)
    return headrace_directory


@pytest.fixture
def loaded(log, tmp_path):
    """Loads topics of the directory into `tmp_path / "table"`."""

    def run(*topics, to=tmp_path / "table", **options):
        return headrace.load(*(topics or ("clicks",)), to=to, bootstrap_servers=log.bootstrap_servers, **options)

    return run


def send(log, first, count, at_ms=AT_MS):
    with log.producer() as producer:
        for number in range(first, first + count):
            headers = [("trace", b"x")] if number % 2 else []
            producer.send("clicks", b"%d" % number, key=b"k", partition=number % 3, headers=headers, timestamp_ms=at_ms)


def visit(log, rows, topic="visits"):
    with log.producer() as producer:
        producer.send_table(topic, pa.Table.from_pylist(rows))


def table_of(tmp_path, table_format, *, is_typed=False, name="table"):
    return open_table(str(tmp_path / name), LoadFormat(table_format), "", is_typed=is_typed)


def read(tmp_path, table_format, name="table"):
    """Read a table by a reader of its format: DuckDB, deltalake, pyiceberg."""
    where = tmp_path / name
    if table_format == "parquet":
        with duckdb.connect() as connection:
            connection.execute("set timezone = 'UTC'")
            options = "union_by_name=true, hive_types_autocast=false"
            return connection.sql(f"from read_parquet('{where}/*/*.parquet', {options})").to_arrow_table()
    if table_format == "delta":
        return pa.table(DeltaLog(str(where)).to_pyarrow_table())
    return IcebergTable(where)._table().scan().to_arrow()


def numbers(found):
    return sorted(int(value) for value in found["value"].to_pylist())


@pytest.mark.parametrize("table_format", FORMATS)
def test_the_url_of_a_directory_names_its_table(log, loaded, tmp_path, table_format):
    """So a load by the one continues a load by the other; a URL has `%20` for a space."""
    send(log, 0, 3)
    loaded(to=(tmp_path / "a table").as_uri(), format=table_format)
    send(log, 3, 2)
    (second,) = loaded(to=tmp_path / "a table", format=table_format)
    assert (second.rows, second.table_rows) == (2, 5)
    assert numbers(read(tmp_path, table_format, "a table")) == list(range(5))


@pytest.mark.parametrize("table_format", FORMATS)
def test_each_load_continues_the_table(log, loaded, tmp_path, table_format):
    """Rows have the columns of the Spark job, and headers; a load without new records commits nothing."""
    send(log, 0, 30)
    (first,) = loaded(format=table_format)
    send(log, 30, 12)
    (second,) = loaded(format=table_format)
    (third,) = loaded(format=table_format)
    assert [(each.commits, each.rows, each.table_rows) for each in (first, second, third)] == [
        (1, 30, 30),
        (1, 12, 42),
        (0, 0, 42),
    ]
    found = read(tmp_path, table_format)
    assert numbers(found) == list(range(42))
    row = min(found.to_pylist(), key=lambda row: (row["partition"], row["offset"]))
    assert row["timestamp"] == datetime(2025, 11, 21, 10, tzinfo=UTC)
    assert (row["key"], row["value"], row["topic"], row["partition"], row["offset"]) == (b"k", b"0", "clicks", 0, 0)
    assert sum(bool(headers) for headers in found["headers"].to_pylist()) == 21
    assert dict(table_of(tmp_path, table_format).state().positions) == {"0": 14, "1": 14, "2": 14}
    if table_format != "iceberg":
        assert set(found["event_hour"].to_pylist()) == {"2025-11-21-10"}


def test_iceberg_distinguishes_null_and_every_text_in_directories(log, loaded, tmp_path):
    """A file has one value of each column of the partitioning: readers skip files by it."""
    log.admin.create_topic("texts", partitions=1, columns="page string, n int64")
    reserved = ["__EMPTY__", "__EMPTY___", "__HIVE_DEFAULT_PARTITION__"]
    pages = [None, "", "/", *reserved, "", None]
    visit(log, [{"page": page, "n": n} for n, page in enumerate(pages)], "texts")
    loaded("texts", format="iceberg", partition_by=["page"])
    table = IcebergTable(tmp_path / "table")._table()
    found = {
        page: sorted(table.scan(row_filter=f"page = '{page}'").to_arrow()["n"].to_pylist()) for page in pages if page
    }
    assert found == {"/": [2], **{page: [3 + place] for place, page in enumerate(reserved)}}
    nulls = table.scan(row_filter="page is null").to_arrow()["n"].to_pylist()
    empty = table.scan(row_filter="page = ''").to_arrow()["n"].to_pylist()
    assert (sorted(nulls), sorted(empty)) == ([0, 7], [1, 6])


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_typed_topic_becomes_its_columns(log, loaded, tmp_path, table_format):
    """With directories by a column; a column that is added to the topic is added to the table."""
    visit(log, [{"page": "/a b", "user": 1}, {"page": "/c", "user": 2}])
    loaded("visits", format=table_format, partition_by=["page"])
    log.admin.alter_config("visits", {"columns": f"{VISITS}, country string"})
    visit(log, [{"page": "/c", "user": 3, "country": "DE"}])
    loaded("visits", format=table_format, partition_by=["page"])
    found = read(tmp_path, table_format)
    pages = {"/a b", "/c"}
    rows = {(row["page"], row["user"], row["country"], row["_offset"]) for row in found.to_pylist()}
    assert rows == {("/a b", 1, None, 0), ("/c", 2, None, 1), ("/c", 3, "DE", 2)}
    assert set(found["page"].to_pylist()) == pages
    assert {"_partition", "_offset", "_timestamp", "_key"} <= set(found.column_names)


@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.parametrize(("kind", "values"), [("int64", (1, 2)), ("bool", (True, False)), ("date", (DAY, DAY))])
def test_a_table_may_have_directories_by_any_value_and_continue(log, loaded, tmp_path, table_format, kind, values):
    """Delta's log has the column as strings, files do not have it."""
    log.admin.create_topic("parted", columns=f"by {kind}, n int64", partitions=1)
    for n, value in enumerate(values):
        visit(log, [{"by": value, "n": n}], "parted")
        loaded("parted", format=table_format, partition_by=["by"])
    assert sorted(read(tmp_path, table_format)["n"].to_pylist()) == [0, 1]


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_type_that_changed_is_refused(log, loaded, table_format):
    """Before anything is committed; the error says what to do."""
    log.admin.create_topic("small", columns="n int32")
    visit(log, [{"n": 1}], "small")
    loaded("small", format=table_format)
    log.admin.alter_config("small", {"columns": "n int64"})
    visit(log, [{"n": 2}], "small")
    with pytest.raises(headrace.LoadError, match=r"column n is .* now, and .* in the table: load small into another"):
        loaded("small", format=table_format)


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_column_that_comes_back_with_another_type_is_refused(log, loaded, table_format):
    """Also where the newest files do not have it."""
    log.admin.create_topic("back", columns="page string, n int32")
    visit(log, [{"page": "/", "n": 1}], "back")
    loaded("back", format=table_format)
    log.admin.alter_config("back", {"columns": "page string"})
    visit(log, [{"page": "/"}], "back")
    loaded("back", format=table_format)
    log.admin.alter_config("back", {"columns": "page string, n string"})
    visit(log, [{"page": "/", "n": "2"}], "back")
    with pytest.raises(headrace.LoadError, match=r"column n is .* now, and .* in the table: load back into another"):
        loaded("back", format=table_format)


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_load_follows_and_compacts(log, loaded, tmp_path, table_format, monkeypatch):
    """New records, new columns and new partitions come into the table, small files become few, and `stop` commits the
    rest."""
    monkeypatch.setattr("headrace.client.loading.load.LOOK_SECONDS", 0.0)
    stop = threading.Event()
    commits, results = threading.Semaphore(0), []

    def follow():
        every = {"follow": True, "every": 0.01, "stop": stop, "progress": lambda _: commits.release()}
        results.extend(loaded(format=table_format, **every))

    thread = threading.Thread(target=follow)
    thread.start()
    count = load_target.COMPACTION_FILES + 4
    try:
        for number in range(count):
            send(log, number, 1)
            assert commits.acquire(timeout=DEADLINE_SECONDS)
        log.admin.create_partitions("clicks", 4)
        with log.producer() as producer:
            producer.send("clicks", b"%d" % count, partition=3)
        assert commits.acquire(timeout=DEADLINE_SECONDS)
    finally:
        stop.set()
        thread.join(DEADLINE_SECONDS)
    (summary,) = results
    assert summary.rows == count + 1
    assert summary.compacted > 0
    assert summary.table_files < summary.files
    assert [(each.partition, each.lag_records, each.lag_ms) for each in summary.partitions][3] == (3, 0, 0)
    assert numbers(read(tmp_path, table_format)) == list(range(count + 1))


@pytest.fixture
def following(loaded):
    """Starts a load that follows a topic; returns a call that waits for its next commit. Ends it after the block."""

    @contextmanager
    def run(topic):
        stop, commits = threading.Event(), threading.Semaphore(0)
        every = {"follow": True, "every": 0.01, "stop": stop, "progress": lambda _: commits.release()}
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(loaded, topic, **every)
            load.add_done_callback(lambda _: commits.release())
            try:
                yield lambda: commits.acquire(timeout=DEADLINE_SECONDS)
            finally:
                stop.set()
            load.result(DEADLINE_SECONDS)

    return run


def test_columns_that_are_added_while_a_load_follows(log, following, tmp_path):
    """Rows before and after are in one table."""
    with following("visits") as committed:
        visit(log, [{"page": "/a", "user": 1}])
        assert committed()
        log.admin.alter_config("visits", {"columns": f"{VISITS}, country string"})
        visit(log, [{"page": "/c", "user": 3, "country": "DE"}])
        assert committed()
    rows = [(row["page"], row["country"]) for row in read(tmp_path, "parquet").to_pylist()]
    assert sorted(rows) == [("/a", None), ("/c", "DE")]


def test_the_commit_before_a_change_of_columns_is_reported(log, loaded, monkeypatch):
    """They change after the load has begun."""
    visit(log, [{"page": "/a", "user": 1}] * 3)
    found = [log.admin.describe_config("visits")["columns"].value]
    log.admin.alter_config("visits", {"columns": f"{VISITS}, country string"})
    visit(log, [{"page": "/c", "user": 3, "country": "DE"}] * 2)
    columns, commits = TopicLog.columns, []
    monkeypatch.setattr(TopicLog, "columns", lambda self: found.pop() if found else columns(self))
    (summary,) = loaded("visits", progress=commits.append)
    assert summary.commits == 2
    assert [commit.rows for commit in commits] == [3, 2]


@pytest.mark.parametrize(
    ("was", "now", "value"), [("float", "double", 0.1), ("int32", "int64", 1 << 40), ("string", "binary", b"\xff")]
)
def test_a_column_that_is_widened_while_a_load_follows_ends_it(log, loaded, following, tmp_path, was, now, value):
    """No row is rounded, and those before are committed."""
    log.admin.create_topic("wider", columns=f"n {was}, page string", partitions=1)
    with pytest.raises(headrace.LoadError, match=r"column n is .* now, and .* in the table: load wider into another"):
        with following("wider") as committed:
            visit(log, [{"page": "/a"}], "wider")
            assert committed()
            log.admin.alter_config("wider", {"columns": f"n {now}, page string"})
            visit(log, [{"n": value, "page": "/b"}], "wider")
            assert committed()
    assert read(tmp_path, "parquet")["page"].to_pylist() == ["/a"]
    loaded("wider", to=tmp_path / "another")
    assert read(tmp_path, "parquet", "another")["n"].to_pylist() == [None, value]


def test_a_widened_column_that_a_coordinator_does_not_know_yet_is_not_rounded(log, loaded, monkeypatch):
    log.admin.create_topic("wider", columns="n float", partitions=1)
    columns = log.admin.describe_config("wider")["columns"].value
    log.admin.alter_config("wider", {"columns": "n double"})
    visit(log, [{"n": 0.1}], "wider")
    monkeypatch.setattr(TopicLog, "columns", lambda _: columns)
    monkeypatch.setattr("headrace.client.loading.topic_load.COLUMNS_SECONDS", 0.0)
    with pytest.raises(headrace.LoadError, match="run the load again"):
        loaded("wider")


def test_a_column_that_is_dropped_while_a_load_follows_is_null(log, following, tmp_path):
    """And not its default."""
    log.admin.create_topic("fewer", columns='page string, country string default "DE"', partitions=1)
    with following("fewer") as committed:
        visit(log, [{"page": "/a"}], "fewer")
        assert committed()
        log.admin.alter_config("fewer", {"columns": "page string"})
        visit(log, [{"page": "/b"}], "fewer")
        assert committed()
    rows = [(row["page"], row["country"]) for row in read(tmp_path, "parquet").to_pylist()]
    assert sorted(rows) == [("/a", "DE"), ("/b", None)]


def test_records_with_older_columns_are_looked_up_once(log, loaded, monkeypatch):
    """Those of producers that do not know a new column yet."""
    for number in range(5):
        visit(log, [{"page": f"/{number}", "user": 1}])
    log.admin.alter_config("visits", {"columns": f"{VISITS}, country string"})
    columns, calls = TopicLog.columns, []
    monkeypatch.setattr(TopicLog, "columns", lambda self: (calls.append(self), columns(self))[1])
    (summary,) = loaded("visits")
    assert (summary.rows, summary.commits, len(calls)) == (5, 1, 2)


@pytest.mark.parametrize("is_known_in_time", [True, False])
def test_columns_that_a_coordinator_does_not_know_yet_are_waited_for(
    log, loaded, tmp_path, monkeypatch, is_known_in_time
):
    """The broker and the producer have them."""
    log.admin.alter_config("visits", {"columns": f"{VISITS}, country string"})
    visit(log, [{"page": "/c", "user": 3, "country": "DE"}])
    columns, old = TopicLog.columns, iter([VISITS] * 2)
    default = columns if is_known_in_time else lambda _: VISITS
    monkeypatch.setattr(TopicLog, "columns", lambda self: next(old, None) or default(self))
    if not is_known_in_time:
        monkeypatch.setattr("headrace.client.loading.topic_load.COLUMNS_SECONDS", 0.0)
        with pytest.raises(headrace.LoadError, match="run the load again"):
            loaded("visits")
        return
    loaded("visits")
    assert read(tmp_path, "parquet")["country"].to_pylist() == ["DE"]


@pytest.mark.parametrize("omitted_at", ["earliest", "latest"])
def test_metadata_that_omits_a_partition_is_no_loss(log, loaded, monkeypatch, omitted_at):
    """A server that cannot reach etcd responds with the partitions that it knew."""
    send(log, 0, 30)
    loaded()
    offsets = TopicLog.offsets
    with monkeypatch.context() as outdated:
        outdated.setattr(
            TopicLog,
            "offsets",
            lambda self, at: {n: found for n, found in offsets(self, at).items() if n < 2 or at != omitted_at},
        )
        with pytest.raises(headrace.LoadError, match=r"omits partition 2, .* run the load again, which continues"):
            loaded()
    send(log, 30, 3)
    (summary,) = loaded()
    assert summary.rows == 3


def test_snapshots_of_iceberg_expire_by_the_clock_of_the_world(log, loaded, tmp_path, monkeypatch):
    """And not by that of a time zone: those of the last hour are kept."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        for number in range(GROUP_FILES):
            send(log, 3 * number, 1)
            (summary,) = loaded(format="iceberg")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert summary.compacted == GROUP_FILES
    assert len(IcebergTable(tmp_path / "table")._table().snapshots()) > GROUP_FILES


def test_a_value_that_is_too_long_for_a_directory_is_named(log, loaded):
    """The next load would fail in the same way."""
    visit(log, [{"page": "/" + "x" * 300, "user": 1}])
    with pytest.raises(headrace.LoadError, match="another column, into another table"):
        loaded("visits", partition_by=["page"])


def test_a_place_that_is_a_file_is_no_table(log, loaded, tmp_path):
    """To run the load again does not help there."""
    send(log, 0, 1)
    (tmp_path / "table").write_text("own")
    with pytest.raises(headrace.LoadError, match=r"choose another place, or allow to write there, and run"):
        loaded()
    assert (tmp_path / "table").read_text() == "own"


def test_large_backlogs_are_several_commits(log, loaded, tmp_path):
    """Of about `max_bytes` each; `until` ends the load, and the next continues there."""
    with log.producer() as producer:
        producer.send_many("clicks", [b"%0100d" % number for number in range(60_000)], partition=0)
    (summary,) = loaded(until=50_000, max_bytes=1 << 20)
    assert summary.commits > 1
    assert (summary.rows, summary.lag_records) == (50_000, 10_000)
    (rest,) = loaded(until=datetime.now(UTC))
    assert (rest.rows, rest.lag_records) == (10_000, 0)
    assert numbers(read(tmp_path, "parquet")) == list(range(60_000))


def test_several_topics_have_tables_of_their_names(log, loaded, tmp_path):
    """In one directory, by one reader."""
    send(log, 0, 5)
    visit(log, [{"page": "/a", "user": 1}])
    assert [(each.topic, each.rows) for each in loaded("clicks", "visits", to=tmp_path)] == [
        ("clicks", 5),
        ("visits", 1),
    ]
    assert numbers(read(tmp_path, "parquet", "clicks")) == list(range(5))
    assert read(tmp_path, "parquet", "visits")["page"].to_pylist() == ["/a"]


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_table_has_one_topic_and_one_writer(log, loaded, tmp_path, table_format):
    """Another topic, the same name created again, other directories and a second writer are refused."""
    send(log, 0, 5)
    loaded(format=table_format)
    with pytest.raises(headrace.LoadError, match="directories by event_hour, not by partition"):
        loaded(format=table_format, partition_by=["partition"])
    with table_of(tmp_path, table_format).place.lock(), pytest.raises(headrace.TableBusyError, match="another job"):
        loaded(format=table_format)
    log.admin.delete_topic("clicks")
    log.admin.create_topic("clicks", partitions=3)
    with pytest.raises(headrace.OtherSourceError, match="give another directory"):
        loaded(format=table_format)
    assert numbers(read(tmp_path, table_format)) == list(range(5))


def test_records_that_retention_removed_are_an_error_or_counted(log, loaded, tmp_path):
    """The message has partition, offsets and the option to continue."""
    send(log, 0, 9)
    loaded()
    send(log, 9, 9)
    log.admin.delete_records("clicks", {1: 5})
    with pytest.raises(headrace.LoadError, match=r"begins at offset 5 and the table ends at 3: 2 .*--accept-data-loss"):
        loaded()
    (summary,) = loaded(accept_data_loss=True)
    assert (summary.rows, summary.lost) == (7, 2)
    assert numbers(read(tmp_path, "parquet")) == [number for number in range(18) if number not in {10, 13}]


def test_records_that_retention_removes_while_partitions_are_added_are_counted(log, loaded, monkeypatch):
    """The new partitions are for the next load."""
    send(log, 0, 9)
    assign = headrace.Consumer.assign

    def assign_after_removal(consumer, partitions):
        log.admin.create_partitions("clicks", 4)
        log.admin.delete_records("clicks", {1: 2})
        assign(consumer, partitions)

    monkeypatch.setattr(headrace.Consumer, "assign", assign_after_removal)
    (summary,) = loaded(accept_data_loss=True)
    assert (summary.rows, summary.lost) == (7, 2)


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_load_without_records_decides_on_no_directories_but_those_of_its_table(loaded, log, table_format):
    """An Iceberg table is made with them; in the other formats the first rows make the table."""
    loaded(format=table_format)
    send(log, 0, 3)
    if table_format == "iceberg":
        with pytest.raises(headrace.LoadError, match="has directories by event_hour, not by partition"):
            loaded(format=table_format, partition_by=["partition"])
    else:
        assert loaded(format=table_format, partition_by=["partition"])[0].rows == 3


def test_partitions_that_are_added_when_a_load_begins_are_for_the_next_one(log, loaded, monkeypatch):
    """The end of the load is what there was at its beginning."""
    send(log, 0, 6)
    ends_of = load_module._ends

    def ends(loads, until):
        found = ends_of(loads, until)
        log.admin.create_partitions("clicks", 4)
        with log.producer() as producer:
            producer.send("clicks", b"later", partition=3)
        return found

    monkeypatch.setattr(load_module, "_ends", ends)
    assert loaded()[0].rows == 6
    monkeypatch.undo()
    assert loaded()[0].rows == 1


def break_a_batch(log):
    """Send three records, each a batch, and break the second one on disk."""
    for value in (b"1", b"broken", b"3"):
        with log.producer() as producer:
            producer.send("clicks", value, partition=0).result(DEADLINE_SECONDS)
    for path in Path(log.bootstrap_servers.removeprefix("dir:")).glob("*/*.log"):
        path.write_bytes(path.read_bytes().replace(b"broken", b"br0ken"))


def test_a_corrupt_batch_ends_a_load_or_is_skipped(log, loaded, tmp_path):
    """The error names the option; with it all other records are in the table, and the next load continues."""
    break_a_batch(log)
    with pytest.raises(headrace.CorruptBatchError) as caught:
        loaded()
    assert "--skip-corrupt" in caught.value.action
    (summary,) = loaded(on_corrupt_batch="skip")
    assert (summary.rows, summary.lag_records) == (2, 0)
    assert numbers(read(tmp_path, "parquet")) == [1, 3]
    assert loaded()[0].commits == 0


def test_the_command_skips_corrupt_batches(tmp_path):
    """Without the option it ends with an error that names it."""
    directory, table = str(tmp_path / "log"), str(tmp_path / "table")
    with headrace.open(directory) as log:
        log.admin.create_topic("clicks")
        break_a_batch(log)
        command = headrace_command("load", "clicks", "--to", table, "--dir", directory, "-o", "json")
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
        assert refused.returncode != 0
        assert "--skip-corrupt" in refused.stderr
        done = subprocess.run([*command, "--skip-corrupt"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (summary,) = json.loads(done.stdout.splitlines()[-1])["loaded"]
    assert (summary["rows"], summary["partitions"][0]["position"]) == (2, 3)


def test_the_lag_is_the_age_of_the_oldest_record_that_is_not_in_the_table(log, loaded):
    """By its timestamp, whatever was read last; a partition without such records has none."""
    send(log, 0, 3)
    loaded()
    for at_ms in (AT_MS, AT_MS + 60_000):
        with log.producer() as producer:
            producer.send("clicks", b"0", partition=1, timestamp_ms=at_ms)
    before_ms = time.time_ns() // 1_000_000
    (summary,) = loaded(until=1)
    lags = {each.partition: (each.position, each.lag_records, each.lag_ms) for each in summary.partitions}
    assert (lags[0], lags[2]) == ((1, 0, 0), (1, 0, 0))
    assert lags[1][:2] == (1, 2)
    assert before_ms - AT_MS <= lags[1][2] <= time.time_ns() // 1_000_000 - AT_MS


def test_a_log_that_lost_records_is_refused(log, loaded, monkeypatch):
    """The table is ahead of it: its next records are other ones."""
    send(log, 0, 9)
    loaded()
    offsets = TopicLog.offsets
    monkeypatch.setattr(TopicLog, "offsets", lambda self, at: {**offsets(self, at), 0: 2})
    with pytest.raises(headrace.LoadError, match=r"ends at offset 3 of partition 0, and the log at 2: the log"):
        loaded()


def test_a_full_disk_leaves_the_table_as_it_was(log, loaded, tmp_path, monkeypatch):
    """The message says that it continues; the next load does."""
    send(log, 0, 9)
    loaded()
    send(log, 9, 9)
    writing = parquet.ParquetWriter.write_table

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parquet.ParquetWriter, "write_table", full)
    with pytest.raises(headrace.LoadError, match=r"no space is left at .*free some and run the load again"):
        loaded()
    monkeypatch.setattr(parquet.ParquetWriter, "write_table", writing)
    assert list((tmp_path / "table" / "_headrace" / "attempts").iterdir()) == []
    assert numbers(read(tmp_path, "parquet")) == list(range(9))
    assert loaded()[0].rows == 9


@pytest.mark.parametrize("is_created_again", [True, False])
def test_a_topic_that_is_deleted_ends_a_load_that_follows(log, loaded, tmp_path, monkeypatch, is_created_again):
    """Whether it sees the topic gone or another one in its place; nothing of that one is loaded."""
    monkeypatch.setattr("headrace.client.loading.load.LOOK_SECONDS", 0.0)
    send(log, 0, 9)

    def replace(_):
        log.admin.delete_topic("clicks")
        if is_created_again:
            log.admin.create_topic("clicks", partitions=3)
            send(log, 100, 9)

    with pytest.raises(headrace.HeadraceError, match=r"another table|no topic"):
        loaded(follow=True, every=0.01, progress=replace)
    assert set(numbers(read(tmp_path, "parquet"))) <= set(range(9))


def test_a_topic_that_is_created_again_meanwhile_is_not_mixed_in(log, loaded, monkeypatch):
    """The id is compared before each commit."""
    send(log, 0, 9)
    real = TopicLog._source_now
    sources = iter([None, Source("topic", "clicks", "other")])
    monkeypatch.setattr(TopicLog, "_source_now", lambda self: next(sources) or real(self))
    with pytest.raises(headrace.LoadError, match="deleted and created again meanwhile; nothing was committed"):
        loaded()


def test_foreign_files_are_not_mixed_in(log, loaded, tmp_path):
    """A directory with other files, or a table of another format, is refused."""
    send(log, 0, 9)
    loaded(format="parquet")
    for table_format in ("delta", "iceberg"):
        with pytest.raises(headrace.LoadError, match="give another directory"):
            loaded(format=table_format)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"format": "orc"}, "format='orc'"),
        ({"until": 3, "follow": True}, "exclude each other"),
        ({"partition_by": ["page"]}, "--partition-by page"),
    ],
)
def test_wrong_options_are_errors(loaded, options, said):
    """Before anything is read."""
    with pytest.raises((ConfigError, headrace.LoadError), match=said):
        loaded(**options)


@pytest.mark.parametrize(
    ("package", "table_format", "extra"),
    [("pyarrow", "parquet", "load"), ("deltalake", "delta", "delta"), ("pyiceberg", "iceberg", "iceberg")],
)
def test_what_is_missing_is_named_with_its_extra(tmp_path, package, table_format, extra):
    """And importing headrace imports none of it."""
    where, servers = str(tmp_path / "table"), f"dir:{tmp_path}/log"
    program = f"""
import sys
sys.modules[{package!r}] = None
import headrace

with headrace.open({str(tmp_path / "log")!r}) as log:
    log.admin.create_topic("clicks")
    try:
        headrace.load("clicks", to={where!r}, format={table_format!r}, bootstrap_servers={servers!r})
    except headrace.HeadraceError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert f"pip install 'headrace[{extra}]'" in done.stdout


def headrace_command(*arguments):
    return [sys.executable, "-m", "headrace.cli", *arguments]


def test_the_command_follows_until_ctrl_c(tmp_path):
    """Each commit is a line of JSON with the lag of each partition; Ctrl-C commits what was read and ends with 0."""
    directory = str(tmp_path / "log")
    with headrace.open(directory) as log:
        log.admin.create_topic("clicks", partitions=3)
        send(log, 0, 9)
    arguments = ("load", "clicks", "--to", str(tmp_path / "table"), "--dir", directory, "--follow")
    command = headrace_command(*arguments, "--every", "0.1", "-o", "json")
    with child_running(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        line = json.loads(running.stdout.readline())
        running.send_signal(signal.SIGINT)
        rest = running.stdout.read()
        assert running.wait(DEADLINE_SECONDS) == 0
    assert (line["topic"], line["rows"]) == ("clicks", 9)
    assert [(each["position"], each["lag_records"], each["lag_ms"]) for each in line["partitions"]] == [(3, 0, 0)] * 3
    (loaded,) = json.loads(rest.splitlines()[-1])["loaded"]
    assert (loaded["rows"], loaded["table_rows"], loaded["lag_records"]) == (9, 9, 0)


@pytest.mark.parametrize("table_format", FORMATS)
def test_the_command_needs_no_pandas(tmp_path, table_format):
    """It is not imported where it is installed, which would take 40 MB."""
    directory = str(tmp_path / "log")
    with headrace.open(directory) as log:
        log.admin.create_topic("clicks", partitions=3)
        for hour in range(2):
            send(log, 3 * hour, 3, AT_MS + hour * 3_600_000)
    arguments = ["load", "clicks", "--to", str(tmp_path / "table"), "--dir", directory, "--format", table_format]
    program = f"""
import sys
from typer.testing import CliRunner
from headrace.cli.main import app
result = CliRunner().invoke(app, {arguments!r})
print(result.exit_code, "pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "False"]
    assert numbers(read(tmp_path, table_format)) == list(range(6))


def test_the_command_says_what_is_wrong(tmp_path):
    """In a sentence, with an exit code: the topic does not exist."""
    with headrace.open(str(tmp_path / "log")):
        pass
    command = headrace_command("load", "nope", "--to", str(tmp_path / "table"), "--dir", str(tmp_path / "log"))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "there is no topic named 'nope'" in done.stderr


def test_a_load_shows_its_progress(log, loaded, monkeypatch, capsys):
    """Up to where it ends, also if it continues a table."""
    monkeypatch.setenv("HEADRACE_PROGRESS", "on")
    monkeypatch.setattr(progress, "SHOWN_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(progress.Lines, "interval_seconds", 0.0)
    send(log, 0, 40)
    loaded(until=10)
    send(log, 40, 20)
    loaded()
    err = capsys.readouterr().err
    assert "load clicks: 100 %, 30 of 30 records" in err
