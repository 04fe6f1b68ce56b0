"""What the tests of both simulations ask of a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def sound(result, target):
    """Fail with the trace's end and the command that repeats the run, a target of make, where it broke a promise."""
    tail = "\n".join(result.trace[-60:])
    plan = result.plan
    assert not result.broken, f"{tail}\n{plan}\n{result.message}\nmake {target} SEED={plan.seed} STEPS={plan.steps}"
    return result


def outputs_under_two_hash_seeds(code):
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
