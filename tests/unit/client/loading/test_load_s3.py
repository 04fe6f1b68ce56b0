"""Tables on object storage: the server and the proxy of tests/object_store.py."""

import contextlib
import os
import re

import headrace
import pyarrow as pa
import pytest
from deltalake import DeltaTable as DeltaLog
from headrace.client.loading.formats import LoadFormat, open_table
from headrace.client.loading.tables import compaction, places
from headrace.client.loading.tables.places import ObjectAttempt, ObjectPlace
from pyarrow import parquet

from tests.faulty_s3 import ALL, NONE, Fault

URL = "s3://lake/clicks"


@pytest.fixture
def log(headrace_directory):
    headrace_directory.admin.create_topic("clicks", partitions=2)
    return headrace_directory


@pytest.fixture(params=["delta", "iceberg"])
def loaded(request, s3, log):
    """Loads `clicks` into a table of the bucket, and reads it: (load, read, open)."""
    if request.param == "delta":
        target, options = URL, {"format": "delta"}
    else:
        options = {"format": "iceberg", "catalog": request.getfixturevalue("lake")}
        target = "shop.clicks"

    def table():
        return open_table(target, LoadFormat(options["format"]), options.get("catalog", ""), is_typed=False)

    def read():
        if request.param == "delta":
            return numbers(pa.table(DeltaLog(URL).to_pyarrow_table()))
        return numbers(table()._table().scan().to_arrow())

    def load(**more):
        return headrace.load("clicks", to=target, bootstrap_servers=log.bootstrap_servers, **options, **more)

    return load, read, table


def numbers(found):
    return sorted(int(value) for value in found["value"].to_pylist())


def send(log, first, count):
    with log.producer() as producer:
        for number in range(first, first + count):
            producer.send("clicks", b"%d" % number, partition=number % 2)


def test_each_load_continues_the_table(log, loaded):
    """As in a directory; nothing is left of the attempts."""
    load, read, table = loaded
    for first in (0, 10):
        send(log, first, 10)
        (summary,) = load()
        assert (summary.rows, summary.table_rows) == (10, first + 10)
    assert read() == list(range(20))
    assert table().place._files(f"{table().place._base}/_headrace/attempts", recursive=True) == []


def test_small_objects_become_few(log, loaded, monkeypatch):
    """In one commit; the rows stay. Objects of four loads are enough here."""
    monkeypatch.setattr(compaction, "GROUP_FILES", 4)
    load, read, _ = loaded
    for number in range(4):
        send(log, number, 1)
        (summary,) = load()
    assert summary.compacted == 4
    assert summary.table_files < 4
    assert read() == list(range(4))


@pytest.mark.parametrize("moment", ["files", "publish"])
def test_of_two_loads_one_commits(log, loaded, monkeypatch, moment):
    """There is no lock: a load that another one overtakes is refused, before it looks at the table for its commit
    (`files`) and between that and the commit (`publish`). The next load has no row twice."""
    load, read, _ = loaded
    send(log, 0, 10)
    load()
    send(log, 10, 10)
    real = getattr(ObjectAttempt, moment)
    overtaken = []

    def late(*arguments):
        if not overtaken:
            overtaken.append(True)
            overtaken.extend(load())
        return real(*arguments)

    monkeypatch.setattr(ObjectAttempt, moment, late)
    with pytest.raises(headrace.ConcurrentCommitError, match="run th"):
        load()
    assert overtaken[1].rows == 10
    assert read() == list(range(20))
    send(log, 20, 5)
    assert load()[0].rows == 5
    assert read() == list(range(25))


def test_remains_of_killed_loads_go_after_a_day(log, loaded, monkeypatch):
    """Younger ones may be of a load at work. Committed objects stay."""
    load, read, table = loaded
    send(log, 0, 10)
    load()
    place = table().place
    attempt = place.begin()
    with attempt.new_file("event_hour=x") as stream:
        parquet.write_table(pa.table({"value": [b"0"]}), stream)

    def parquet_files():
        return len(list(place._parquet_files()))

    assert parquet_files() == 2
    table().recover()
    assert parquet_files() == 2
    monkeypatch.setattr(places, "REMAINS_SECONDS", -60.0)
    table().recover()
    assert parquet_files() == 1
    assert read() == list(range(10))


def test_remains_of_the_first_load_are_no_foreign_files(log, s3):
    """The next load is the first commit. Objects without a note are another program's, and refused."""
    send(log, 0, 10)
    attempt = ObjectPlace(URL).begin()
    with attempt.new_file("event_hour=x") as stream:
        parquet.write_table(pa.table({"value": [b"0"]}), stream)

    def load():
        return headrace.load("clicks", to=URL, format="delta", bootstrap_servers=log.bootstrap_servers)

    assert load()[0].table_rows == 10
    s3.delete_dir("lake/clicks/_delta_log")
    with pytest.raises(headrace.LoadError, match="no Delta log"):
        load()


def test_a_failed_load_leaves_no_objects(log, s3, monkeypatch):
    """Those of an attempt that is known not to be committed are removed at once."""
    send(log, 0, 10)

    def full(*_):
        raise OSError("AWS Error ACCESS_DENIED during PutObject")

    monkeypatch.setattr("headrace.client.loading.row_writer.RowWriter.close", full)
    with pytest.raises(headrace.LoadError, match=r"s3://lake/clicks: AWS Error ACCESS_DENIED.*run the load again"):
        headrace.load("clicks", to=URL, format="delta", bootstrap_servers=log.bootstrap_servers)
    assert not ObjectPlace(URL)._files("lake/clicks", recursive=True)
    assert os.environ["AWS_ENDPOINT_URL"]


def test_a_bucket_that_refuses_writes_fails_the_load_alone(log, loaded, faulty):
    """With S3's reason; the rows before stay, and once it accepts them the next load has the others."""
    load, read, _ = loaded
    send(log, 0, 10)
    load()
    send(log, 10, 10)
    faulty.set(Fault(403, "AccessDenied"))
    with pytest.raises(headrace.LoadError, match=r"(?i)access.?denied"):
        load()
    faulty.set(NONE)
    assert read() == list(range(10))
    assert load()[0].rows == 10
    assert read() == list(range(20))


def test_a_bucket_that_is_too_busy_is_asked_again(log, loaded, faulty):
    """Each object is written at the second attempt."""
    load, read, _ = loaded
    send(log, 0, 10)
    faulty.set(Fault(503, "SlowDown", each_path_once=True))
    assert load()[0].rows == 10
    _, failures = faulty.set(NONE)
    assert failures > 2
    assert read() == list(range(10))


@pytest.mark.slow
def test_a_bucket_that_answers_after_seconds_has_each_row_once(log, loaded, faulty):
    """Every write is answered late, by more than the default time of the SDK of AWS: the load waits for them and
    reports its commit, and the next one continues."""
    load, read, _ = loaded
    send(log, 0, 10)
    load()
    send(log, 10, 10)
    faulty.set(Fault(late_seconds=4.0))
    reports = []
    assert load(progress=reports.append)[0].rows == 10
    _, late = faulty.set(NONE)
    assert late > 2
    assert [report.rows for report in reports] == [10]
    send(log, 20, 10)
    assert load()[0].rows == 10
    assert read() == list(range(30))


@pytest.mark.slow
@pytest.mark.parametrize("part", ["/attempts/", ".parquet", ".json", ""])
def test_a_bucket_that_does_not_answer_ends_the_load(log, loaded, faulty, monkeypatch, part):
    """With an error after a stated time: where it answers no request, or no write of some objects. The writes are made
    after all, later; loads from then on have each row once."""
    monkeypatch.setattr(places, "SILENT_SECONDS", 1)
    monkeypatch.setattr(places, "ATTEMPTS", 2)
    load, read, _ = loaded
    send(log, 0, 10)
    load()
    send(log, 10, 10)
    faulty.set(Fault(part=part, methods=("PUT",) if part else ALL, late_seconds=120.0))
    with pytest.raises(headrace.LoadError, match="run the load again, which continues"):
        load()
    faulty.set(NONE)
    for _ in range(3):  # The commit may come while another load makes the same.
        with contextlib.suppress(headrace.ConcurrentCommitError):
            assert load()[0].table_rows == 20
    assert read() == list(range(20))


@pytest.mark.parametrize("part", ["/attempts/", ".parquet", ".json"])
def test_a_write_whose_answer_is_lost_is_there_once(log, loaded, faulty, part):
    """Of the note of the attempt, of rows, and of the commit: the load finds out that it is done."""
    load, read, _ = loaded
    for first in (0, 10):
        send(log, first, 10)
        faulty.set(Fault(part=part, methods=("PUT",), times=1))
        assert load()[0].rows == 10
        _, failures = faulty.set(NONE)
        assert failures == 1
        assert read() == list(range(first + 10))


def test_credentials_that_expire_in_the_middle_fail_the_load_alone(log, loaded, faulty):
    """At any request; with new ones the next load continues, and has no row twice."""
    load, read, _ = loaded
    send(log, 0, 10)
    load()
    faulty.set(NONE)
    send(log, 10, 10)
    load()
    requests, _ = faulty.set(NONE)
    rows, reasons = 20, []
    for after in range(0, requests, requests // 3):
        send(log, rows, 10)
        faulty.set(Fault(400, "ExpiredToken", ALL, after=after))
        try:
            load()
        except headrace.LoadError as error:
            reasons.append(str(error))
        faulty.set(NONE)
        load()
        rows += 10
        assert read() == list(range(rows))
    assert len(reasons) > 2
    # The answer to a HEAD has no body, and so no code.
    assert all(re.search("(?i)expired|status 400", reason) for reason in reasons), reasons
