"""The tour runs from its first cell to its last one, shows what it says, and is committed without outputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOUR = Path(__file__).resolve().parents[3] / "examples" / "tour.ipynb"
SHELL = Path(__file__).with_name("tour_shell.py")
PROGRESS = """
from headrace.display import progress
progress.SHOWN_AFTER_SECONDS = progress.NotebookBar.interval_seconds = 0.0
with headrace.open(tempfile.mkdtemp()) as log:
    log.admin.create_topic("clicks")
    with log.producer() as producer:
        producer.send_many("clicks", [b"x"] * 50_000)
"""


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """What the code cells show, and then one that takes long."""
    directory = tmp_path_factory.mktemp("tour")
    done = subprocess.run(
        [sys.executable, str(SHELL), str(TOUR), PROGRESS],
        capture_output=True, text=True, timeout=300, check=False,
        cwd=directory, env={**os.environ, "TMPDIR": str(directory)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


def test_it_has_no_outputs():
    """What a run shows is not committed: it would be out of date, and has paths of a machine."""
    code = [cell for cell in json.loads(TOUR.read_text())["cells"] if cell["cell_type"] == "code"]
    assert code
    assert {(cell["execution_count"], len(cell["outputs"])) for cell in code} == {(None, 0)}


@pytest.mark.parametrize(
    ("cell", "texts"),
    [
        (0, ["0 topics in /", "open"]),
        (1, ["RecordMetadata(topic='clicks', partition="]),
        (2, ["100,001 records, of which the first 10 are shown", "hello", "u17", "trace"]),
        (3, ["TopicPartition(topic='clicks', partition="]),
        (4, ["(10000, ['page', 'user'])"]),
        (5, ["<th>views</th>", "/p4", "2000", "5 rows"]),
        (6, ["2000"]),
        (7, ["('/p4', 20)"]),
        (8, ["Table users: 1,000 rows, of which the first 10 are shown", "User "]),
        (9, ["pro", "User 17"]),
        (10, ["refused:"]),
        (11, []),
    ],
)
def test_a_cell_shows_what_it_promises(cells, cell, texts):
    """By the displays of a notebook: HTML where a class has it."""
    shown = cells[cell]["stdout"] + " ".join(text for data in cells[cell]["displays"] for text in data.values())
    for text in texts:
        assert text in shown


def test_progress_is_a_bar_of_the_cell(cells):
    """IPython takes the bar, its steps and its end."""
    bars = [data["text/html"] for data in cells[-1]["displays"]]
    assert '<progress max="1" value="1.0000"></progress> <code>send to clicks: 100 %' in bars[-2]
    assert bars[-1] == ""
