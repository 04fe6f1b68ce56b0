"""What every release up to this one asks is answered as it was: the requests as bytes, against a real cluster."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from headrace.wire.releases import RELEASE
from headrace_devcluster.cluster import LocalCluster

from tests.golden import conversation
from tests.golden.conversation import FOLDER, SPEC, all_methods, play, recorded_file, rows_to_record

RECORDED = sorted(FOLDER.glob("requests-*.json"))


def test_every_rpc_of_this_release_has_a_golden_request() -> None:
    """An RPC, or a request that changed, without its record is found before the release is made: `make golden`."""
    rows = json.loads(recorded_file(RELEASE).read_text())
    assert set(all_methods()) - {row["method"] for row in rows} == set()
    recorded = [{name: value for name, value in row.items() if name != "answer"} for row in rows]
    assert recorded == rows_to_record(), "run `make golden` and commit it"


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_requests_are_answered(path: Path) -> None:
    """The same status, the same typed errors at the same places, and every field that was set then."""
    rows = json.loads(path.read_text())
    with LocalCluster(SPEC) as cluster:
        answers = play(cluster, rows)
    for row, answer in zip(rows, answers, strict=True):
        where, expected = f"{row['method']}, {row['note']}", row["answer"]
        assert (answer["status"], answer["errors"]) == (expected["status"], expected["errors"]), where
        assert set(expected["fields"]) - set(answer["fields"]) == set(), where


def test_a_recording_knows_the_answers_recorded_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By them it sees that a server has not heard of a topic yet: else two recordings differ now and then."""
    nothing: dict[str, object] = {"status": "OK", "errors": [], "fields": []}
    old, *new = rows_to_record()
    monkeypatch.setattr(conversation, "FOLDER", tmp_path)
    recorded_file(RELEASE).write_text(json.dumps([{**old, "answer": nothing}]))
    played: list[list[dict[str, object]]] = []

    def play_nothing(cluster: object, rows: list[dict[str, object]]) -> list[dict[str, object]]:
        played.append([dict(row) for row in rows])
        return [nothing for _ in rows]

    monkeypatch.setattr(conversation, "LocalCluster", nullcontext)
    monkeypatch.setattr(conversation, "play", play_nothing)
    conversation.record()
    assert played == [[{**old, "answer": nothing}, *new]] * 2
