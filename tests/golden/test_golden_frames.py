"""What clients and followers of every release send in frames is answered as it was, by a real cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from headrace.wire.releases import RELEASE
from headrace_devcluster.cluster import LocalCluster

from tests.golden.frames import FOLDER, SPEC, frames_to_record, play_frames, recorded_frames

RECORDED = sorted(FOLDER.glob("frames-*.json"))


def test_the_frames_of_this_release_are_recorded() -> None:
    """A frame that changed without its record is found before the release is made: `make golden`."""
    rows = json.loads(recorded_frames(RELEASE).read_text())
    recorded = [{name: value for name, value in row.items() if name != "answers"} for row in rows]
    assert recorded == frames_to_record(), "run `make golden` and commit it"


@pytest.mark.native
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_frames_are_answered(path: Path) -> None:
    """By the same kinds, correlations and codes, and every field that was set then."""
    rows = json.loads(path.read_text())
    with LocalCluster(SPEC) as cluster:
        answered = play_frames(cluster, rows)
    for row, answers in zip(rows, answered, strict=True):
        expected = row["answers"]
        where = f"{row['port']}, {row['note']}"
        for answer, known in zip(answers, expected, strict=True):
            fields = set(known.pop("fields", ()))
            assert fields - set(answer.pop("fields", ())) == set(), where
            assert answer == known, where
