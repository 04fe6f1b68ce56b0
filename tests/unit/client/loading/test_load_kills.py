"""Every record is in a table once, wherever in the loading code a process is killed by SIGKILL."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

KILLED_LOADS = Path(__file__).with_name("killed_loads.py")


def kill_loads(table_format, directory, share):
    """Kill a load at every `share`-th line; return what the program found."""
    command = [sys.executable, str(KILLED_LOADS), table_format, str(directory), str(share)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(found):
    assert found["problems"] == []
    assert found["killed"] == len(found["steps"])
    assert len(found["steps"]) > 5


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "table_format",
    ["parquet", pytest.param("delta", marks=pytest.mark.slow), pytest.param("iceberg", marks=pytest.mark.slow)],
)
def test_a_killed_load_leaves_all_or_nothing_and_the_next_one_the_rest(tmp_path, table_format):
    """Rows and positions of the table agree after the kill, in a commit and in a compaction. After the next load each
    record is there once, and nothing of the killed load is left. At some of the lines."""
    check(kill_loads(table_format, tmp_path, 61))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
def test_a_load_may_be_killed_at_any_line(tmp_path, table_format):
    """The same, at every third of the lines."""
    found = kill_loads(table_format, tmp_path, 3)
    check(found)
    assert any(path == f"/tables/{table_format}_table.py" for path, _ in found["steps"])
    assert "/tables/compaction.py" in {path for path, _ in found["steps"]}
