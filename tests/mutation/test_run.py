"""What the runner calls killed: one of the ledger is, a patch that changes nothing is not, nor is a slip."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutation import __main__ as command
from tests.mutation import run
from tests.mutation.ledger import LEDGER
from tests.mutation.mutants import Mutant, Simulation, Test

KILLED = next(mutant for mutant in LEDGER if mutant.id == "lost-answer-taken-for-no")
HARMLESS = replace(KILLED, id="harmless", new=KILLED.old + "        # Nothing else.\n")
SLIP = replace(KILLED, id="slip", new=KILLED.old + "        nowhere\n")


def test_a_survivor_fails_the_run_and_a_slip_is_no_kill(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three entries, of which one is killed: exit code 1, and the summary says which and why."""
    monkeypatch.setattr(command, "LEDGER", (KILLED, HARMLESS, SLIP))
    summary = tmp_path / "summary.json"
    assert command.main(["--json", str(summary)]) == 1
    found = {
        verdict["id"]: (verdict["killed"], verdict["by"]) for verdict in json.loads(summary.read_text())["verdicts"]
    }
    assert found == {
        KILLED.id: (True, "I4"),
        "harmless": (False, "survived"),
        "slip": (False, "the patch is no mutant"),
    }
    assert "NOT killed: harmless, slip" in capsys.readouterr().out


def _answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *codes: int) -> run.Runner:
    """A runner whose processes end with these codes, one after the other; it copies nothing."""
    left = list(codes)

    def python(arguments: object, copy: Path, given: str) -> subprocess.CompletedProcess[str]:
        code = left.pop(0)
        answer = {"killed": bool(code), "seed": 3, "by": "I3", "message": "", "slip": False}
        return subprocess.CompletedProcess([], 0 if given else code, json.dumps(answer), "")

    monkeypatch.setattr(run, "_python", python)
    monkeypatch.setattr(run, "_copy_sources", lambda source, target: None)
    monkeypatch.setattr(run, "apply", lambda mutant, copy: None)
    return run.Runner(tmp_path)


@pytest.mark.parametrize("killer", [Simulation(9), Test("tests/a.py::test_a", "It is an example.")])
@pytest.mark.parametrize(
    ("codes", "killed", "by"),
    [((1, 0), True, ""), ((1, 1), False, "fails without the patch"), ((0,), False, "survived")],
)
def test_a_killer_that_fails_anyway_kills_nothing(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    killer: Simulation | Test,
    codes: tuple[int, ...],
    killed: bool,
    by: str,
) -> None:
    """The unpatched code has to pass what the patched code fails; it is asked once a killer and seed."""
    runner = _answers(monkeypatch, tmp_path, *codes)
    mutant: Mutant = replace(KILLED, killer=killer)
    verdict = runner.run(mutant)
    assert verdict.killed is killed
    assert by in verdict.by
    assert verdict.seeds == (3 if killed and isinstance(killer, Simulation) else 0)


def test_a_test_that_cannot_be_run_kills_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Exit code 4 of pytest: there is no such test."""
    runner = _answers(monkeypatch, tmp_path, 4)
    verdict = runner.run(replace(KILLED, killer=Test("tests/a.py::test_a", "It is an example.")))
    assert (verdict.killed, verdict.by) == (False, "the patch is no mutant")


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Names that the ledger does not have are wrong arguments."""
    with pytest.raises(SystemExit) as ended:
        command.main(["--id", "nobody"])
    assert ended.value.code == 2
    assert "no mutant is called nobody" in capsys.readouterr().err
