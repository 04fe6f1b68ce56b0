"""`spark_jobs.load` that follows a topic, and tables of it on object storage."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import headrace
import pyarrow as pa
import pytest
from headrace.client.loading import load_target
from headrace.client.loading.formats import LoadFormat, open_table
from headrace.client.loading.progress import LoadProgress
from headrace.client.loading.tables import compaction
from headrace.client.loading.tables.errors import LoadError
from headrace.client.loading.tables.places import ObjectPlace
from headrace.client.mirror.mirrors import Mirrors
from headrace.client.mirror.rows import MirrorSettings
from pyarrow import dataset
from spark_jobs.load_options import Load
from spark_jobs.progress import ProgressLine
from spark_jobs.topic_loading import load_topic

from tests.children import running
from tests.faulty_s3 import NONE, Fault

from .replicated import until

pytestmark = pytest.mark.timeout(600)
QUIET = ProgressLine(quiet=True)
FEW = 3
"""New files after which a test compacts, and the number of small files that become one."""


@pytest.fixture
def servers(spark_cluster) -> str:
    return spark_cluster.bootstrap_servers


@pytest.fixture
def topic(servers, topic_name) -> Iterator[str]:
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(topic_name, partitions=2, replication_factor=1)
        yield topic_name
        admin.delete_topic(topic_name)


def send(servers: str, topic: str, first: int, count: int, partition: int | None = None) -> None:
    with headrace.Producer(bootstrap_servers=servers) as producer:
        for number in range(first, first + count):
            producer.send(topic, b"%d" % number, partition=number % 2 if partition is None else partition)


def numbers(found: pa.Table) -> list[int]:
    return sorted(int(value) for value in found["value"].to_pylist())


def held(wanted: Load) -> list[int]:
    files = open_table(str(wanted.table), wanted.format).data_files()
    return numbers(dataset.dataset([str(path) for path in files]).to_table())


def reporting(steps: list[Callable[[], None]], told: list[LoadProgress]) -> Callable[[LoadProgress], None]:
    """Return a report that takes one step after each commit, and after the last one interrupts the load as Ctrl-C."""
    left = iter(steps)

    def report(commit: LoadProgress) -> None:
        told.append(commit)
        step = next(left, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    return report


@pytest.mark.parametrize("table_format", list(LoadFormat))
def test_a_load_follows_its_topic(jobs, servers, topic, tmp_path, monkeypatch, table_format):
    """Each commit has the records since the one before, also of a partition that is new; small files become few, and
    Ctrl-C is the end of it."""
    monkeypatch.setattr(load_target, "COMPACTION_FILES", FEW)
    monkeypatch.setattr(compaction, "GROUP_FILES", FEW)
    wanted = Load(topic, tmp_path / "table", servers, table_format, every=0.01)
    send(servers, topic, 0, 10)

    def add_partition() -> None:
        with headrace.Admin(bootstrap_servers=servers) as admin:
            admin.create_partitions(topic, 3)
        send(servers, topic, 40, 10, partition=2)

    more = [lambda first=first: send(servers, topic, first, 10) for first in (10, 20, 30)]
    told: list[LoadProgress] = []
    summary = load_topic(jobs, wanted, QUIET, reporting([*more, add_partition], told))
    assert [commit.rows for commit in told] == [10] * 5
    assert [part.position for part in told[-1].partitions] == [20, 20, 10]
    assert {part.lag_records for part in told[-1].partitions} == {0}
    assert (summary.rows, summary.commits, summary.lag_records, summary.table_rows) == (50, 5, 0, 50)
    assert summary.compacted >= FEW
    assert summary.table_files < summary.files
    assert held(wanted) == list(range(50))
    assert list(Path(wanted.table).glob("_headrace/attempts/*")) == []


def test_a_load_that_waits_for_records_reports_its_lag(jobs, servers, topic, tmp_path, monkeypatch):
    """A supervisor sees that it is alive."""
    monkeypatch.setattr("spark_jobs.topic_loading.TOLD_SECONDS", 0.0)
    told: list[LoadProgress] = []
    summary = load_topic(jobs, Load(topic, tmp_path / "table", servers, every=0.01), QUIET, reporting([], told))
    assert [(commit.rows, commit.files) for commit in told] == [(0, 0)]
    assert [(part.position, part.lag_records) for part in told[0].partitions] == [(0, 0), (0, 0)]
    assert summary.commits == 0


@pytest.mark.parametrize("table_format", [LoadFormat.DELTA, pytest.param(LoadFormat.ICEBERG, marks=pytest.mark.slow)])
def test_a_table_on_object_storage(jobs, servers, topic, tmp_path, faulty, lake, table_format):
    """Commits continue each other and those of `headrace load`; a write whose answer is lost is there once; a bucket
    that refuses fails the load alone; nothing is left of attempts, nor of killed ones in the staging directory."""
    target, catalog = ("s3://lake/clicks", "") if table_format is LoadFormat.DELTA else ("shop.clicks", lake)
    wanted = Load(topic, target, servers, table_format, catalog=catalog, staging=tmp_path / "staging")
    (tmp_path / "staging" / "_headrace" / "attempts" / "killed").mkdir(parents=True)

    def read() -> list[int]:
        table = open_table(target, table_format, catalog)
        found = (
            table._log().to_pyarrow_table() if table_format is LoadFormat.DELTA else table._table().scan().to_arrow()
        )
        return numbers(pa.table(found))

    send(servers, topic, 0, 10)
    assert load_topic(jobs, wanted, QUIET).rows == 10
    send(servers, topic, 10, 10)
    faulty.set(Fault(part=".json" if table_format is LoadFormat.DELTA else ".parquet", methods=("PUT",), times=1))
    assert load_topic(jobs, wanted, QUIET).rows == 10
    assert faulty.set(NONE)[1] == 1
    send(servers, topic, 20, 10)
    faulty.set(Fault(403, "AccessDenied", part=".parquet"))
    with pytest.raises(LoadError, match=r"(?i)access.?denied"):
        load_topic(jobs, wanted, QUIET)
    faulty.set(NONE)
    assert read() == list(range(20))
    where = {"to": target, "format": table_format.value, "catalog": catalog, "bootstrap_servers": servers}
    assert headrace.load(topic, **where)[0].rows == 10
    send(servers, topic, 30, 10)
    assert load_topic(jobs, wanted, QUIET).table_rows == 40
    assert read() == list(range(40))
    place = open_table(target, table_format, catalog).place
    assert isinstance(place, ObjectPlace)
    assert place._files(f"{place._base}/_headrace/attempts", recursive=True) == []
    assert list((tmp_path / "staging").rglob("*.parquet")) == []
    assert list((tmp_path / "staging" / "_headrace" / "attempts").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--table", "s3://lake/clicks"], "plain Parquet files cannot be committed on object storage"),
        (["--table", "s3://lake/clicks", "--format", "delta"], "s3://lake/clicks needs --staging DIRECTORY"),
        (["--table", "s3://lake/c", "--format", "delta", "--staging", ".", "--query", "SELECT 1"], "in a directory"),
        (["--table", "here", "--staging", "."], "--staging is for a table on object storage"),
    ],
)
def test_a_place_that_is_not_possible_is_refused_before_spark_starts(s3, options, reason):
    """No server is there to be asked either."""
    command = [sys.executable, "-m", "spark_jobs.load", "--topic", "t", "-b", "localhost:1", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert reason in done.stderr


@pytest.mark.slow
def test_a_supervisor_sees_commits_and_their_lag(servers, topic, tmp_path):
    """Each as a line of JSON, from the program; SIGTERM ends it with 0, and the summary is the last line."""
    send(servers, topic, 0, 10)
    command = [sys.executable, "-m", "spark_jobs.load", "--topic", topic, "--table", tmp_path / "table", "-b", servers]
    more = ["--follow", "--every", "0.1", "--json", "--quiet", "--master", "local[1]"]
    with running([*command, *more], stdout=subprocess.PIPE, text=True) as process:
        first = json.loads(process.stdout.readline())
        send(servers, topic, 10, 4)
        second = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        last = json.loads(process.stdout.readline())
        assert process.wait(60) == 0
    assert (first["topic"], first["rows"], second["rows"]) == (topic, 10, 4)
    assert [(part["position"], part["lag_records"]) for part in second["partitions"]] == [(7, 0), (7, 0)]
    assert (last["job"], last["rows"], last["commits"], last["lag_records"]) == ("load", 14, 2, 0)


@pytest.mark.slow
def test_a_topic_of_a_mirror_is_loaded_as_any_other(jobs, servers, own_cluster, topic_name, tmp_path):
    """While it is copied, and on from there when it is promoted and has records of its own."""
    source, name = own_cluster(brokers=1, coordinators=1), topic_name[:60]
    wanted = Load(topic_name, tmp_path / "table", servers)
    with headrace.Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        admin.create_topic(topic_name, partitions=2)
    send(source.bootstrap_servers, topic_name, 0, 20)
    settings = MirrorSettings({"bootstrap_servers": source.bootstrap_servers}, topics=(topic_name,))
    worker = [sys.executable, "-m", "headrace.cli", "mirror", "run", name, "-b", servers]

    def copied() -> bool:
        with headrace.Admin(bootstrap_servers=servers) as admin:
            return {at.offset for at in admin.list_offsets(topic_name, "latest").values()} == {10}

    with Mirrors(bootstrap_servers=servers) as mirrors, running(worker):
        mirrors.create(name, settings)
        until(copied, "the mirror is equal", 60)
        assert load_topic(jobs, wanted, QUIET).rows == 20
        mirrors.promote(name)
        mirrors.delete(name)
    send(servers, topic_name, 20, 10)
    assert load_topic(jobs, wanted, QUIET).rows == 10
    assert held(wanted) == list(range(30))
