"""Runs the catalogue: each mutant in its own copy of the sources, several at a time; the work tree is not touched.

A mutant is killed when its killer fails on the patched copy and passes on the unpatched one: of the simulator the seed
that killed it is run again without the patch. A mutant that survives fails the run.
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
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, Self

from tests.mutation.mutants import PACKAGES, Killer, Mutant, Scenario, Simulation, StaleEntryError, Test, apply

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("sdk", "services/common", "services/broker", "services/coordinator", "services/devcluster")
TESTS = tuple(
    f"tests/{each}" for each in ("fakes", "mutation", "property", "scenario", "security", "simulation", "unit")
)
FILES = (
    "pyproject.toml",
    "tests/async_tests.py",
    "tests/children.py",
    "tests/conftest.py",
    "tests/faulty_s3.py",
    "tests/fork_server.py",
    "tests/object_store.py",
    "tests/spark_session.py",
)
TIME_LIMIT_S = 300.0
"""A killer that takes longer has not decided."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one mutant ended."""

    mutant: Mutant
    killed: bool
    by: str
    """The broken invariant or the failed test, or why there is no verdict."""
    seeds: int
    """Seeds that it took; 0: it was not the simulator."""
    seconds: float
    message: str = ""

    def as_json(self) -> dict[str, Any]:
        """For the summary."""
        return {
            "id": self.mutant.id,
            "rules": self.mutant.rules,
            "place": self.mutant.place,
            "breaks": self.mutant.breaks,
            "killer": type(self.mutant.killer).__name__.lower(),
            "killed": self.killed,
            "by": self.by,
            "seeds": self.seeds,
            "seconds": round(self.seconds, 1),
            "message": self.message,
        }


class Judge(Protocol):
    """Runs a killer in a copy."""

    def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the killer's result; `None` if it exceeds the time limit."""
        ...


class JudgeProcess:
    """The process of `judge.py`; one caller at a time. It ends with the context."""

    def __enter__(self) -> Self:
        # What a copy compiles to is of no use to another one.
        ours = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
        environment = {name: value for name, value in os.environ.items() if name not in ours}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-B", str(Path(__file__).with_name("judge.py"))],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """See `Judge`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] | None = json.loads(self._process.stdout.readline())
        return found


class Runner:
    """Owns the copies; `run` may be called from as many threads as there are judges."""

    def __init__(self, directory: Path, judges: Sequence[Judge]) -> None:
        self._directory = directory
        self._judges: SimpleQueue[Judge] = SimpleQueue()
        for judge in judges:
            self._judges.put(judge)
        self._pristine = directory / "pristine"
        self._lock = threading.Lock()
        self._sound: dict[str, threading.Event] = {}
        self._results: dict[str, dict[str, Any]] = {}
        _copy_sources(ROOT, self._pristine, shutil.copy2)

    def run(self, mutant: Mutant) -> Verdict:
        """Execute a mutant's killer on its copy."""
        started = time.monotonic()

        def verdict(killed: bool, by: str, seeds: int = 0, message: str = "") -> Verdict:
            return Verdict(mutant, killed, by, seeds, time.monotonic() - started, message)

        copy = Path(tempfile.mkdtemp(prefix=f"{mutant.id}-", dir=self._directory))
        try:
            _copy_sources(self._pristine, copy, os.link)
            apply(mutant, copy)
            found = self._judge(mutant.killer, copy)
        except StaleEntryError as error:
            return verdict(False, "stale entry", message=str(error))
        finally:
            shutil.rmtree(copy)
        if found is None:
            return verdict(False, f"no end within {TIME_LIMIT_S:g} s")
        if not found["killed"]:
            return verdict(False, "survived", message=found["message"])
        if found["slip"]:
            return verdict(False, "the patch is no mutant", message=found["message"])
        without = self._judge_unpatched(mutant.killer, found["seed"])
        if without["killed"]:
            return verdict(False, "fails without the patch", message=without["message"])
        return verdict(True, found["by"], found["seed"], found["message"])

    def _judge_unpatched(self, killer: Killer, seed: int) -> dict[str, Any]:
        """Run the same on the code as it is, once for all mutants that have this killer and seed."""
        key = f"{killer} {seed}"
        with self._lock:
            done = self._sound.get(key)
            first = done is None
            if done is None:
                done = self._sound[key] = threading.Event()
        if first:
            try:
                found = self._judge(killer, self._pristine, seed)
                self._results[key] = found or {"killed": True, "message": "it did not end"}
            finally:
                done.set()
        done.wait()
        return self._results[key]

    def _judge(self, killer: Killer, copy: Path, seed: int = 0) -> dict[str, Any] | None:
        """Run a killer in a copy; `seed`: only this one. `None`: it has not ended in time."""
        request = {
            "copy": str(copy),
            "path": [*(str(copy / each) for each in SOURCES), str(copy)],
            "seconds": TIME_LIMIT_S,
            **_question(killer, seed),
        }
        judge = self._judges.get()
        try:
            return judge.ask(request)
        finally:
            self._judges.put(judge)


def _question(killer: Killer, seed: int) -> dict[str, Any]:
    match killer:
        case Simulation():
            return {
                "kind": "simulation",
                "first": seed or 1,
                "last": seed or killer.seeds,
                "groups": killer.groups,
                "durability": killer.durability,
                "buggy_etcd": killer.buggy_etcd,
                "changes": dict(killer.changes),
            }
        case Scenario(test):
            return {"kind": "scenario", "test": test}
        case Test(test):
            return {"kind": "test", "test": test}


def _copy_sources(source: Path, target: Path, copy: Callable[[str, str], object]) -> None:
    """Copy the packages and tests, each file with `copy`; those of a mutant are links but for what is patched."""
    being_compiled = shutil.ignore_patterns("*.pyc.*")
    for folder in (*PACKAGES, *TESTS):
        shutil.copytree(source / folder, target / folder, ignore=being_compiled, copy_function=copy)
    for file in FILES:
        copy(str(source / file), str(target / file))


def run_all(mutants: Sequence[Mutant], *, jobs: int, report: Callable[[Verdict], None]) -> list[Verdict]:
    """Run `mutants`, `jobs` at a time, and return the verdicts in the order of `mutants`."""
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-mutants-"))
        judges = [stack.enter_context(JudgeProcess()) for _ in range(min(jobs, len(mutants)))]
        runner = Runner(Path(directory), judges)
        verdicts: dict[str, Verdict] = {}
        with ThreadPoolExecutor(len(judges)) as pool:
            for future in as_completed([pool.submit(runner.run, mutant) for mutant in mutants]):
                verdict = future.result()
                verdicts[verdict.mutant.id] = verdict
                report(verdict)
    return [verdicts[mutant.id] for mutant in mutants]
