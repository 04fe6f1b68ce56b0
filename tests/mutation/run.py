"""Runs the ledger: each mutant in a copy of the sources of its own, several at a time; the work tree is not touched.

A mutant is killed when its killer fails on the patched copy and passes on the unpatched one: of the simulator the seed
that killed it is run again without the patch. Whoever survives fails the run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutation.mutants import Killer, Mutant, Scenario, Simulation, StaleEntryError, Test, apply

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("sdk", "services/common", "services/broker", "services/coordinator", "services/devcluster")
PACKAGES = (
    "sdk/headrace",
    "services/common/headrace_server",
    "services/broker/headrace_broker",
    "services/coordinator/headrace_coordinator",
    "services/devcluster/headrace_devcluster",
)
TESTS = tuple(f"tests/{each}" for each in ("mutation", "property", "scenario", "security", "simulation", "unit"))
FILES = ("pyproject.toml", "tests/conftest.py", "tests/spark_session.py")
TIME_LIMIT_S = 300.0
"""A killer that takes longer has not decided."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one mutant ended."""

    mutant: Mutant
    killed: bool
    by: str
    """What noticed: the broken promise, or why there is no verdict."""
    seeds: int
    """Seeds that it took; 0: it was not the simulator."""
    seconds: float
    message: str = ""

    def as_json(self) -> dict[str, Any]:
        """For the summary."""
        return {
            "id": self.mutant.id,
            "rule": self.mutant.rule,
            "file": self.mutant.file,
            "breaks": self.mutant.breaks,
            "killer": type(self.mutant.killer).__name__.lower(),
            "killed": self.killed,
            "by": self.by,
            "seeds": self.seeds,
            "seconds": round(self.seconds, 1),
            "message": self.message,
        }


class Runner:
    """Owns the copies; `run` may be called from several threads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pristine = directory / "pristine"
        self._lock = threading.Lock()
        self._sound: dict[str, threading.Event] = {}
        self._results: dict[str, dict[str, Any]] = {}
        _copy_sources(ROOT, self._pristine)

    def run(self, mutant: Mutant) -> Verdict:
        """Let a mutant's killer loose on it."""
        started = time.monotonic()

        def verdict(killed: bool, by: str, seeds: int = 0, message: str = "") -> Verdict:
            return Verdict(mutant, killed, by, seeds, time.monotonic() - started, message)

        copy = Path(tempfile.mkdtemp(prefix=f"{mutant.id}-", dir=self._directory))
        try:
            _copy_sources(self._pristine, copy)
            apply(mutant, copy)
            found = _judge(mutant.killer, copy)
        except StaleEntryError as error:
            return verdict(False, "stale entry", message=str(error))
        except subprocess.TimeoutExpired:
            return verdict(False, f"no end within {TIME_LIMIT_S:g} s")
        finally:
            shutil.rmtree(copy)
        if not found["killed"]:
            return verdict(False, "survived", message=found["message"])
        if found["slip"]:
            return verdict(False, "the patch is no mutant", message=found["message"])
        without = self._judge_unpatched(mutant.killer, found["seed"])
        if without["killed"]:
            return verdict(False, "fails without the patch", message=without["message"])
        return verdict(True, found["by"], found["seed"], found["message"])

    def _judge_unpatched(self, killer: Killer, seed: int) -> dict[str, Any]:
        """Run the same on the code as it is; once, whoever asks."""
        key = f"{killer} {seed}"
        with self._lock:
            done = self._sound.get(key)
            first = done is None
            if done is None:
                done = self._sound[key] = threading.Event()
        if first:
            try:
                self._results[key] = _judge(killer, self._pristine, seed)
            finally:
                self._results.setdefault(key, {"killed": True, "message": "it did not end"})
                done.set()
        done.wait()
        return self._results[key]


def _copy_sources(source: Path, target: Path) -> None:
    being_compiled = shutil.ignore_patterns("*.pyc.*")
    for folder in (*PACKAGES, *TESTS):
        shutil.copytree(source / folder, target / folder, ignore=being_compiled)
    for file in FILES:
        shutil.copy2(source / file, target / file)


def _judge(killer: Killer, copy: Path, seed: int = 0) -> dict[str, Any]:
    """Run a killer in a copy; `seed`: only this one."""
    match killer:
        case Simulation():
            request = {
                "first": seed or 1,
                "last": seed or killer.seeds,
                "groups": killer.groups,
                "durability": killer.durability,
                "buggy_etcd": killer.buggy_etcd,
                "changes": dict(killer.changes),
            }
            return _ask(request, copy)
        case Scenario(test):
            return _ask({"test": test}, copy)
        case Test(test):
            return _run_pytest(test, copy)


def _ask(request: dict[str, Any], copy: Path) -> dict[str, Any]:
    done = _python(["-m", "tests.mutation.seeds"], copy, json.dumps(request))
    if done.returncode:
        return {"killed": True, "slip": True, "seed": 0, "by": "", "message": _tail(done.stderr)}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _run_pytest(test: str, copy: Path) -> dict[str, Any]:
    done = _python(["-m", "pytest", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", test], copy, "")
    if done.returncode not in (0, 1):  # 1: tests failed; the others: they could not be run.
        return {"killed": True, "slip": True, "seed": 0, "by": "", "message": _tail(done.stdout + done.stderr)}
    failed = [line for line in done.stdout.splitlines() if line.startswith(("E  ", "FAILED"))]
    return {
        "killed": bool(done.returncode),
        "slip": False,
        "seed": 0,
        "by": test.rpartition("::")[2],
        "message": failed[0] if failed else "",
    }


def _python(arguments: Sequence[str], copy: Path, given: str) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([*(str(copy / each) for each in SOURCES), str(copy)])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        env=environment,
        input=given,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )


def _tail(text: str) -> str:
    return " | ".join(text.strip().splitlines()[-3:])


def run_all(mutants: Sequence[Mutant], *, jobs: int, report: Callable[[Verdict], None]) -> list[Verdict]:
    """Run `mutants`, `jobs` at a time, and give the verdicts in the order of the ledger."""
    with tempfile.TemporaryDirectory(prefix="headrace-mutants-") as directory:
        runner = Runner(Path(directory))
        verdicts: dict[str, Verdict] = {}
        with ThreadPoolExecutor(jobs) as pool:
            for future in as_completed([pool.submit(runner.run, mutant) for mutant in mutants]):
                verdict = future.result()
                verdicts[verdict.mutant.id] = verdict
                report(verdict)
    return [verdicts[mutant.id] for mutant in mutants]
