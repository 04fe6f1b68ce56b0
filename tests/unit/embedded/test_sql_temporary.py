"""Temporary directories of queries whose process was killed."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from headrace.client.sql.temporary import QueryDirectory

from tests.children import running

QUERY = """
from headrace.client.sql.temporary import QueryDirectory
print(QueryDirectory().path, flush=True)
input()
"""


@pytest.fixture(autouse=True)
def _temporary(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_the_directory_of_a_killed_query_is_removed_by_the_next_one(tmp_path):
    """One of a process that lives is not, nor one that was just made and may not be locked yet."""
    with running([sys.executable, "-c", QUERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        path = Path(process.stdout.readline().strip())
        (path / "kept").write_bytes(b"rows")
        os.utime(path, (0, 0))
        QueryDirectory().close()
        assert (path / "kept").exists()
        process.send_signal(signal.SIGKILL)
        process.wait()
    unlocked = path.with_name(path.name + "new")
    unlocked.mkdir()
    left = tmp_path / "headrace-other"
    left.mkdir()
    os.utime(left, (0, 0))
    own = QueryDirectory()
    assert sorted(tmp_path.iterdir()) == sorted([Path(own.path), unlocked, left])
    own.close()
    own.close()
    assert not Path(own.path).exists()


def test_a_file_system_without_locks_has_queries_and_keeps_what_was_left(tmp_path, monkeypatch):
    """Whether a directory is in use cannot be known there."""

    def refuse(_file, _operation):
        raise OSError(errno.ENOLCK, "No locks available")

    left = QueryDirectory()
    os.utime(left.path, (0, 0))
    monkeypatch.setattr(fcntl, "flock", refuse)
    own = QueryDirectory()
    assert sorted(tmp_path.iterdir()) == sorted([Path(own.path), Path(left.path)])
    own.close()
    left.close()
    assert list(tmp_path.iterdir()) == []
