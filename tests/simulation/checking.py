"""What the tests of both simulations ask of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def sound(result: Any, target: str) -> Any:
    """Fail with the trace's end and the command that repeats the run, a target of make, where it broke a promise."""
    tail = "\n".join(result.trace[-60:])
    plan = result.plan
    assert not result.broken, f"{tail}\n{plan}\n{result.message}\nmake {target} SEED={plan.seed} STEPS={plan.steps}"
    return result


def counts_of_all(
    factory: pytest.TempPathFactory, name: str, first: int, parts: int, counts: Mapping[str, int]
) -> Counter[str] | None:
    """Sum the counts of tests that share a run's seeds, in whichever processes; None but for the last of them."""
    base = factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    directory.mkdir(exist_ok=True)
    written = directory / f"{first}.part"
    written.write_text(json.dumps(counts))
    written.rename(directory / f"{first}.json")
    found = list(directory.glob("*.json"))
    if len(found) < parts:
        return None
    total: Counter[str] = Counter()
    for part in found:
        total.update(json.loads(part.read_text()))
    return total


def outputs_under_two_hash_seeds(code: str) -> list[str]:
    """What the program prints in two processes whose strings hash differently."""
    return [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for hash_seed in ("1", "2")
    ]
