"""Queries that read more than the memory of their control group, with default settings: spilled, and never killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

GROUPS = Path("/sys/fs/cgroup/memory")
"""Control groups (version 1) of memory."""
LIMIT_BYTES = 500_000_000
ROWS = 500_000
TABLES = 10
QUERY = "select max(a.text), count(*) from big a join big b on a.number = b.number where a.number + b.number < 20"
PROGRAM = """
import sys, headrace
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
with headrace.sql(sys.argv[3], bootstrap_servers="dir:" + sys.argv[2]) as result:
    print(*list(result))
"""


@pytest.fixture
def group():
    path = GROUPS / f"headrace-test-{os.getpid()}"
    try:
        path.mkdir()
        (path / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
    except OSError as error:
        pytest.skip(f"no control group of memory: {error}")
    yield path
    path.rmdir()


@pytest.mark.slow
def test_a_topic_that_is_named_twice_and_exceeds_the_memory(headrace_directory, group):
    """Its rows are kept on disk: the process stays within the limit of its control group."""
    log = headrace_directory
    table = pa.table({"number": range(ROWS), "text": [f"{number:080d}" for number in range(ROWS)]})
    log.admin.create_topic("big", partitions=1, columns=table)
    with log.producer() as producer:
        for _ in range(TABLES):
            producer.send_table("big", table)
    arguments = (str(group), str(log.path), QUERY)
    ended = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr[-500:]
    assert ended.stdout.decode().strip() == f"('{9:080d}', {10 * TABLES * TABLES})"
