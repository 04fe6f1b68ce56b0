"""Rows and positions are committed together or not at all, in both formats, wherever a job is killed. Without Spark."""

import json
import shutil
import sys
from collections import Counter
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from headrace.client.loading import tables
from headrace.client.loading.tables.attempts import begin, table_lock
from headrace.client.loading.tables.delta_table import DeltaTable
from headrace.client.loading.tables.errors import ConcurrentCommitError, LoadError, OtherSourceError, TableBusyError
from headrace.client.loading.tables.parquet_table import ParquetTable
from headrace.client.loading.tables.state import Source, TableState

CLICKS = Source("topic", "clicks", "a1" * 16)
HOURS = ("2026-11-21-09", "%2Fa b", None)
"""Directories: one with what Spark and loads escape in its name."""
TABLES = str(Path(tables.__file__).parent)


@pytest.fixture(params=[ParquetTable, DeltaTable])
def table(request, tmp_path):
    return request.param(tmp_path / "table")


def attempt_with(table, first, rows):
    """Write rows `first` .. `first + rows` as Spark would: a file an hour, and hidden files."""
    attempt = begin(table.root)
    attempt.data.mkdir()
    for number, hour in enumerate(HOURS):
        offsets = list(range(first, first + rows))[number :: len(HOURS)]
        if not offsets:
            continue
        directory = attempt.data / f"event_hour={hour or '__HIVE_DEFAULT_PARTITION__'}"
        directory.mkdir(parents=True)
        pyarrow.parquet.write_table(pyarrow.table({"offset": offsets}), directory / f"part-{number:05d}-x.parquet")
        (directory / f".part-{number:05d}-x.parquet.crc").write_bytes(b"crc")
    (attempt.data / "_SUCCESS").touch()
    return attempt


def add(table, first, rows):
    with table_lock(table.root):
        table.recover()
        return table.commit(attempt_with(table, first, rows), CLICKS, {"0": first + rows, "1": 0}, ["event_hour"])


def offsets_of(paths):
    return sorted(offset for path in paths for offset in pyarrow.parquet.read_table(path)["offset"].to_pylist())


def visible(table):
    """What a reader sees that knows nothing but Parquet files and that names with `_` are not for it."""
    found = [path for path in table.root.rglob("*.parquet") if "_headrace" not in path.parts]
    return offsets_of(found)


def committed(table):
    """The position and the rows that readers of the format see."""
    return table.state().positions.get("0", 0), offsets_of(table.data_files())


def test_a_new_directory_is_an_empty_table(table):
    """Nothing is needed before the first commit."""
    table.root.mkdir()
    assert table.state() == TableState()
    assert table.data_files() == []
    table.recover()


def test_a_first_commit_may_be_killed_at_any_step(table):
    """Readers find an empty table or all of it, as after later ones, and the next load writes to the directory."""
    for step in steps_of(lambda: add(type(table)(table.root / "whole"), 0, 6)):
        killed = type(table)(table.root / f"{step[0]}-{step[1]}")
        steps_of(lambda killed=killed: add(killed, 0, 6), step)
        assert killed.state().positions.get("0", 0) in (0, 6)
        with table_lock(killed.root):
            killed.recover()
            begins = killed.state().positions.get("0", 0)
        add(killed, begins, 10 - begins)
        assert committed(killed) == (10, list(range(10)))
        assert visible(killed) == list(range(10))


def test_directories_of_another_program_are_refused(table):
    """Whatever files they hold; a directory without files does not count."""
    (table.root / "hour=9").mkdir(parents=True)
    assert table.state() == TableState()
    (table.root / "hour=9" / "part.orc").touch()
    with pytest.raises(LoadError, match="give another directory"):
        table.state()


def test_commits_add_up(table):
    """Rows, bytes, files and positions are those of all commits; files lie in the hour of their rows."""
    add(table, 0, 10)
    state = add(table, 10, 2)
    assert state == table.state()
    assert (state.version, state.source, state.rows, state.files) == (2, CLICKS, 12, 5)
    assert dict(state.positions) == {"0": 12, "1": 0}
    assert state.bytes == sum(path.stat().st_size for path in table.data_files())
    assert committed(table) == (12, list(range(12)))
    assert visible(table) == list(range(12))
    assert {path.parent.name for path in table.data_files()} == {
        "event_hour=2026-11-21-09",
        "event_hour=%2Fa b",
        "event_hour=__HIVE_DEFAULT_PARTITION__",
    }
    assert list((table.root / "_headrace" / "attempts").iterdir()) == []


class Killed(BaseException):
    """Represents SIGKILL: nothing in the tables catches it."""


def steps_of(action, kill_at=None):
    """Run `action` and give its steps in the tables' code: its lines, each where it is reached first.

    With `kill_at`, end it there, before the step.
    """
    steps = []

    def trace(frame, event, _argument):
        if not frame.f_code.co_filename.startswith(TABLES):
            return None
        if event == "line":
            step = Path(frame.f_code.co_filename).name, frame.f_lineno
            if step not in steps:
                steps.append(step)
                if step == kill_at:
                    raise Killed
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except Killed:
        pass
    finally:
        sys.settrace(before)
    return steps


@pytest.fixture
def quick_disk(monkeypatch):
    """What is synced survives a power failure; here only a process is killed."""
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture
def copies(table, quick_disk):
    """Returns copies of the table with three rows and, where wanted, of an attempt that was left behind."""
    add(table, 0, 3)

    def make(name, prepare=lambda copy: None):
        copy = type(table)(table.root.with_name(name))
        shutil.copytree(table.root, copy.root)
        prepare(copy)
        return copy

    return make


def whole(table, position):
    """Whether the table has exactly the rows below its position, for every kind of reader, and nothing else."""
    offsets = list(range(position))
    attempts = list((table.root / "_headrace" / "attempts").glob("*"))
    return committed(table) == (position, offsets) and visible(table) == offsets and attempts == []


def recover(table):
    with table_lock(table.root):
        table.recover()


def test_a_job_that_is_killed_at_any_step_leaves_all_or_nothing(copies):
    """Position and rows agree at once and after recovery; a plain reader sees no row twice and none too early; the
    next job continues without loss, and nothing of the attempt is left."""
    steps = steps_of(lambda: add(copies("all"), 3, 4))
    seen = Counter()
    for number, step in enumerate(steps):
        table = copies(str(number))
        steps_of(lambda table=table: add(table, 3, 4), step)
        position, offsets = committed(table)
        seen[position] += 1
        assert offsets == list(range(position)), step
        if isinstance(table, ParquetTable):
            assert visible(table) == sorted(set(visible(table)) & set(offsets)), step
        recover(table)
        assert whole(table, position), step
        assert add(table, position, 2).rows == position + 2
        shutil.rmtree(table.root)
    assert set(seen) == {3, 7}, "killed before and after the commit"
    assert min(seen.values()) > 5


def test_recovery_may_be_killed_at_any_step_too(copies):
    """It is repeated until it is done, before and after the commit."""
    commit_steps = steps_of(lambda: add(copies("all"), 3, 4))
    for number, at in enumerate((commit_steps[-1], commit_steps[len(commit_steps) // 2])):

        def killed(copy, at=at):
            steps_of(lambda: add(copy, 3, 4), at)
            attempt_with(copy, 7, 3)

        for step in steps_of(lambda name=f"r{number}", killed=killed: recover(copies(name, killed))):
            table = copies(f"{number}-{step[0]}-{step[1]}", killed)
            position, _ = committed(table)
            steps_of(lambda table=table: recover(table), step)
            recover(table)
            assert whole(table, position), step


def test_of_two_jobs_past_the_lock_one_commits(tmp_path, monkeypatch):
    """Where the lock does not hold (some network file systems) the link decides: the loser's rows are in no table."""
    table = ParquetTable(tmp_path / "table")
    first, second = attempt_with(table, 0, 5), attempt_with(table, 0, 5)
    stale = table.state()
    table.commit(first, CLICKS, {"0": 5}, ["event_hour"])
    monkeypatch.setattr(table, "state", lambda: stale)
    with pytest.raises(ConcurrentCommitError):
        table.commit(second, CLICKS, {"0": 5}, ["event_hour"])
    monkeypatch.undo()
    assert committed(table) == (5, list(range(5)))
    assert visible(table) == list(range(5))


def test_of_two_delta_jobs_past_the_lock_one_commits(tmp_path, monkeypatch):
    """Delta's transaction identifiers decide."""
    table = DeltaTable(tmp_path / "table")
    add(table, 0, 3)
    log = table._log()
    add(table, 3, 3)
    monkeypatch.setattr(table, "_log", lambda: log)
    with pytest.raises(ConcurrentCommitError):
        table.commit(attempt_with(table, 3, 3), CLICKS, {"0": 6, "1": 0}, ["event_hour"])
    monkeypatch.undo()
    assert committed(table) == (6, list(range(6)))
    with table_lock(table.root):
        table.recover()
    assert visible(table) == list(range(6))


def test_of_two_delta_jobs_one_commits_if_it_has_a_new_column(tmp_path, monkeypatch):
    """The column is a commit of its own, after which the log is that of the other job."""
    table = DeltaTable(tmp_path / "table")
    add(table, 0, 3)
    log = table._log()
    add(table, 3, 3)
    attempt = attempt_with(table, 3, 3)
    for path in attempt.data.rglob("*.parquet"):
        with_column = pyarrow.parquet.ParquetFile(path).read().append_column("new", pyarrow.array([1]))
        pyarrow.parquet.write_table(with_column, path)
    monkeypatch.setattr(table, "_log", lambda: log)
    with pytest.raises(ConcurrentCommitError):
        table.commit(attempt, CLICKS, {"0": 6, "1": 0}, ["event_hour"])
    monkeypatch.undo()
    assert committed(table) == (6, list(range(6)))


def test_a_second_job_is_refused_while_a_first_one_writes(tmp_path):
    """At once, and not after its work."""
    with table_lock(tmp_path), pytest.raises(TableBusyError, match="another job writes"):
        with table_lock(tmp_path):
            pass
    with table_lock(tmp_path):
        pass


def test_a_table_holds_one_life_of_one_topic(table):
    """Offsets of another topic, or of one that was created anew, mean other records."""
    add(table, 0, 3)
    attempt = attempt_with(table, 3, 3)
    with pytest.raises(OtherSourceError, match="another directory"):
        table.commit(attempt, Source("topic", "clicks", "b2" * 16), {"0": 6}, ["event_hour"])
    assert committed(table) == (3, [0, 1, 2])


def test_a_directory_with_foreign_files_is_refused(table):
    """Not mixed with them."""
    table.root.mkdir()
    (table.root / "x.parquet").touch()
    with pytest.raises(LoadError, match="another directory"):
        table.state()


def test_a_commit_without_rows_moves_the_position(table):
    """Offsets without records, as after a deletion."""
    add(table, 0, 3)
    state = add(table, 3, 0)
    assert (state.version, state.rows, state.positions["0"]) == (2, 3, 3)


def test_manifests_are_for_people_too(tmp_path):
    """JSON with names that say what they are."""
    table = ParquetTable(tmp_path / "table")
    add(table, 0, 3)
    (path,) = (tmp_path / "table" / "_headrace" / "manifests").iterdir()
    manifest = json.loads(path.read_text())
    assert path.name == f"{1:020d}.json"
    assert manifest["positions"] == {"0": 3, "1": 0}
    assert manifest["source"] == {"kind": "topic", "name": "clicks", "id": "a1" * 16}
    assert manifest["totals"]["rows"] == sum(file["rows"] for file in manifest["files"]) == 3


def test_a_manifest_of_a_newer_release_is_not_guessed_at(tmp_path):
    """An error that says so."""
    table = ParquetTable(tmp_path / "table")
    add(table, 0, 3)
    (path,) = (tmp_path / "table" / "_headrace" / "manifests").iterdir()
    path.write_text(path.read_text().replace('"manifest": 1', '"manifest": 9'))
    with pytest.raises(LoadError, match="newer release"):
        table.state()
