"""What the runner calls killed: an entry of the catalogue is, a patch without effect is not, nor is a slip."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.mutation import __main__ as command
from tests.mutation import run
from tests.mutation.catalogue import CATALOGUE
from tests.mutation.mutants import Edit, Test

KILLED = next(mutant for mutant in CATALOGUE if mutant.id == "lost-answer-taken-for-no")
QUICK = next(mutant for mutant in CATALOGUE if mutant.id == "epoch-not-persisted")
HARMLESS = replace(QUICK, id="harmless", edit=Edit(QUICK.edit.old, QUICK.edit.old + "\nassert True"))
SLIP = replace(QUICK, id="slip", edit=Edit(QUICK.edit.old, QUICK.edit.old + "\nnowhere"))
UNHARMED = replace(HARMLESS, id="unharmed", killer=Test("tests/unit/wire/test_wire_releases.py", "It is an example."))
UNTESTED = replace(QUICK, id="untested", killer=Test("tests/unit/nowhere.py::test_a", "It is an example."))


def test_a_survivor_fails_the_run_and_a_slip_is_no_kill(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five entries, of which one is killed: exit code 1, and the summary says which and why."""
    monkeypatch.setattr(command, "CATALOGUE", (KILLED, HARMLESS, UNHARMED, SLIP, UNTESTED))
    summary = tmp_path / "summary.json"
    assert command.main(["--jobs", "1", "--json", str(summary)]) == 1
    found = {
        verdict["id"]: (verdict["killed"], verdict["by"]) for verdict in json.loads(summary.read_text())["verdicts"]
    }
    assert found == {
        KILLED.id: (True, "I4"),
        "harmless": (False, "survived"),
        "unharmed": (False, "survived"),
        "slip": (False, "the patch is no mutant"),
        "untested": (False, "the patch is no mutant"),
    }
    assert "NOT killed: harmless, unharmed, slip, untested" in capsys.readouterr().out


class Answers:
    """A judge that returns these answers, one after the other."""

    def __init__(self, *answers: dict[str, Any] | None) -> None:
        self.left = list(answers)

    def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        return self.left.pop(0)


def _runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *answers: dict[str, Any] | None) -> run.Runner:
    """A runner with such a judge; it copies nothing."""
    monkeypatch.setattr(run, "_copy_sources", lambda source, target, copy: None)
    monkeypatch.setattr(run, "apply", lambda mutant, copy: None)
    return run.Runner(tmp_path, [Answers(*answers)])


def _found(killed: bool, *, slip: bool = False) -> dict[str, Any]:
    return {"killed": killed, "seed": 3, "by": "I3", "message": "", "slip": slip}


@pytest.mark.parametrize(
    ("answers", "killed", "by"),
    [
        ((_found(True), _found(False)), True, "I3"),
        ((_found(True), _found(True)), False, "fails without the patch"),
        ((_found(True), None), False, "fails without the patch"),
        ((_found(False),), False, "survived"),
        ((_found(True, slip=True),), False, "the patch is no mutant"),
        ((None,), False, "no end within"),
    ],
)
def test_a_killer_that_fails_anyway_kills_nothing(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    answers: tuple[dict[str, Any] | None, ...],
    killed: bool,
    by: str,
) -> None:
    """The unpatched code has to pass what the patched code fails, in time."""
    runner = _runner(monkeypatch, tmp_path, *answers)
    verdict = runner.run(KILLED)
    assert verdict.killed is killed
    assert by in verdict.by
    assert verdict.seeds == (3 if killed else 0)


def test_the_unpatched_code_is_asked_once_a_killer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two mutants with one killer: three answers are enough."""
    runner = _runner(monkeypatch, tmp_path, _found(True), _found(False), _found(True))
    assert runner.run(KILLED).killed
    assert runner.run(replace(KILLED, id="another")).killed


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Names that the catalogue does not have are wrong arguments."""
    with pytest.raises(SystemExit) as ended:
        command.main(["--id", "unknown"])
    assert ended.value.code == 2
    assert "no mutant is called unknown" in capsys.readouterr().err
