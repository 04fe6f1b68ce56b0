"""Which files are merged, and that their rows stay."""

import errno
import json
import os
import shutil

import pyarrow
import pytest
from headrace.client.loading.load_target import LoadTarget
from headrace.client.loading.progress import LoadedTopic
from headrace.client.loading.tables.attempts import Attempt, begin, table_lock
from headrace.client.loading.tables.compaction import GROUP_FILES, TARGET_BYTES, merge_files, small_groups
from headrace.client.loading.tables.errors import ConcurrentCommitError
from headrace.client.loading.tables.parquet_table import KEPT_SECONDS, ParquetTable
from headrace.client.loading.tables.state import Source
from pyarrow import parquet

CLICKS = Source("topic", "clicks", "a1" * 16)


def test_few_files_stay_as_they_are():
    """A file is rewritten only together with GROUP_FILES others of its directory and size."""
    files = [(f"event_hour=a/{number}", 1_000) for number in range(GROUP_FILES - 1)]
    assert small_groups([*files, ("event_hour=b/x", 1_000), ("event_hour=a/y", 90_000)]) == []
    assert small_groups([*files, ("event_hour=a/z", 1_000)]) == [[*(path for path, _ in files), "event_hour=a/z"]]


def test_merged_files_have_the_target_size():
    """Files of it are not merged again; more than fits is several files."""
    files = [(str(number), TARGET_BYTES // 4) for number in range(9)]
    assert small_groups(files) == [["0", "1", "2", "3"], ["4", "5", "6", "7"]]
    assert small_groups([(str(number), TARGET_BYTES // 2) for number in range(99)]) == []


def test_rows_are_rewritten_a_few_times_only():
    """With a commit after the other, a row is written about once for each power of 8, not once a compaction."""
    files, written, number = [], 0, 0
    for _ in range(2_000):
        files.append((str(number), 10_000))
        number += 1
        for group in small_groups(files):
            size = sum(size for path, size in files if path in group)
            files = [each for each in files if each[0] not in group]
            files.append((str(number), size))
            written += size
            number += 1
    assert written < 4 * 2_000 * 10_000
    assert len(files) < 4 * GROUP_FILES


def test_columns_that_a_file_has_not_are_null(tmp_path):
    """Files before a new column, and those after it, become one."""
    parquet.write_table(pyarrow.table({"page": ["/a"]}), tmp_path / "a")
    parquet.write_table(pyarrow.table({"page": ["/b"], "user": [7]}), tmp_path / "b")
    with (tmp_path / "c").open("wb") as stream:
        merge_files([str(tmp_path / "a"), str(tmp_path / "b")], stream)
    assert parquet.read_table(tmp_path / "c").to_pylist() == [{"page": "/a", "user": None}, {"page": "/b", "user": 7}]


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)
    made = ParquetTable(tmp_path / "table")
    with table_lock(made.root):
        for number in range(GROUP_FILES):
            add(made, number)
        yield made


def add(table, number, **more):
    attempt = begin(table.root)
    with attempt.new_file("event_hour=x") as stream:
        parquet.write_table(pyarrow.table({"offset": [number], **more}), stream)
    table.commit(attempt, CLICKS, {"0": number + 1}, ["event_hour"])


def rows(table):
    return sorted(offset for path in table.data_files() for offset in parquet.read_table(path)["offset"].to_pylist())


def test_a_compaction_is_a_commit(table):
    """One file has the rows of all, the position stays, and loads continue; nothing is left of the small files."""
    before = table.state()
    assert table.compact() == GROUP_FILES
    state = table.state()
    assert (state.version, state.rows, state.files) == (before.version + 1, GROUP_FILES, 1)
    assert (state.positions, state.source) == (before.positions, CLICKS)
    assert len(list(table.root.rglob("*.parquet"))) == 1
    assert state.bytes == sum(path.stat().st_size for path in table.data_files())
    add(table, GROUP_FILES)
    assert rows(table) == list(range(GROUP_FILES + 1))
    assert table.compact() == 0


def test_files_that_were_removed_by_hand_end_no_compaction(table):
    """An hour is deleted as a directory: later rows of it are merged, and the table is loaded further."""
    shutil.rmtree(table.root / "event_hour=x")
    before = [path.name for path in table.data_files()]
    for number in range(GROUP_FILES, 2 * GROUP_FILES):
        assert table.compact() == 0
        add(table, number)
    assert table.compact() == GROUP_FILES
    (merged,) = (table.root / "event_hour=x").iterdir()
    assert parquet.read_table(merged)["offset"].to_pylist() == list(range(GROUP_FILES, 2 * GROUP_FILES))
    assert [path.name for path in table.data_files()] == [*before, merged.name]
    assert table.state().rows == 2 * GROUP_FILES


@pytest.fixture
def target(table, monkeypatch):
    """Commits a further row, and compacts the table."""
    monkeypatch.setattr("headrace.client.loading.load_target.COMPACTION_FILES", 1)
    target = LoadTarget(table, CLICKS, ["event_hour"], LoadedTopic("clicks", str(table.root), "parquet"))

    def commit():
        attempt = begin(table.root)
        with attempt.new_file("event_hour=x") as stream:
            parquet.write_table(pyarrow.table({"offset": [GROUP_FILES]}), stream)
        target.commit(attempt, {"0": GROUP_FILES + 1})

    target.commit_row = commit
    return target


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(errno.EIO, "I/O error")])
def test_a_compaction_that_is_interrupted_after_its_commit_is_completed(table, target, monkeypatch, error):
    """Readers of the directory find every row: the merged files are in the place of those that they replace."""
    publish = Attempt.publish

    def interrupted_publish(attempt, files):
        if len(files) == 1 and files[0].path.endswith(".parquet") and not list(table.root.glob("*/*.parquet")):
            monkeypatch.setattr(Attempt, "publish", publish)
            raise error
        publish(attempt, files)

    monkeypatch.setattr(Attempt, "publish", interrupted_publish)
    with pytest.raises(error if isinstance(error, type) else OSError):
        target.commit_row()
    assert offsets_in(table.root) == list(range(GROUP_FILES + 1))
    assert target.state == table.state()


def test_a_compaction_for_which_no_space_is_left_is_left_out(table, target, monkeypatch, caplog):
    """The rows are committed, and the load continues."""

    def fill_disk(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("headrace.client.loading.tables.parquet_table.merge_files", fill_disk)
    target.commit_row()
    assert offsets_in(table.root) == list(range(GROUP_FILES + 1))
    assert (target.state.rows, target.state.files) == (GROUP_FILES + 1, GROUP_FILES + 1)
    assert caplog.messages == ["no space is left to compact the table of clicks; the load continues"]


def offsets_in(root):
    """The rows that a reader of the directory finds."""
    return sorted(
        offset for path in root.glob("*/*.parquet") for offset in parquet.read_table(path)["offset"].to_pylist()
    )


def test_old_manifests_are_not_read_and_go_after_a_day(table):
    """The manifest of a compaction lists the whole table."""
    manifests = table.root / "_headrace" / "manifests"
    first = min(manifests.iterdir())
    os.utime(first, (0, first.stat().st_mtime - KEPT_SECONDS - 60))
    table.compact()
    assert not first.exists()
    assert len(list(manifests.iterdir())) == GROUP_FILES
    for path in sorted(manifests.iterdir())[:-1]:
        path.unlink()
    assert rows(table) == list(range(GROUP_FILES))


def test_types_of_columns_that_only_older_files_have_are_known(table):
    """From manifests, or from the files that earlier builds wrote without them in manifests."""
    refused = ["column user is int64 now, and list<element: string> in the table"]
    wanted = pyarrow.schema([("user", pyarrow.int64())])
    add(table, 100, user=[["x"]])
    add(table, 101)
    assert table.conflicts(wanted) == refused
    assert table.conflicts(pyarrow.schema([("user", pyarrow.list_(pyarrow.string()))])) == []
    for path in (table.root / "_headrace" / "manifests").iterdir():
        manifest = json.loads(path.read_text())
        del manifest["columns"]
        path.write_text(json.dumps(manifest))
    assert table.conflicts(wanted) == refused
    assert table.compact()
    assert table.conflicts(wanted) == refused


def test_types_of_the_newest_columns_are_known_after_a_compaction(table):
    """A column of another type is refused, also one that only the newest files have."""
    for number in range(GROUP_FILES, 2 * GROUP_FILES):
        add(table, number, user=["x"])
    assert table.compact() == 2 * GROUP_FILES
    assert table.conflicts(pyarrow.schema([("user", pyarrow.int64())])) == [
        "column user is int64 now, and string in the table"
    ]
    assert table.conflicts(pyarrow.schema([("user", pyarrow.string()), ("new", pyarrow.int64())])) == []


def test_of_a_load_and_a_compaction_past_the_lock_one_commits(table, monkeypatch):
    """The link decides."""
    stale = table.state()
    add(table, GROUP_FILES)
    monkeypatch.setattr(table, "state", lambda: stale)
    with pytest.raises(ConcurrentCommitError):
        table.compact()
    monkeypatch.undo()
    assert rows(table) == list(range(GROUP_FILES + 1))
