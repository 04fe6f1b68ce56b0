"""The process that runs one killer against one copy of the sources: `python -m tests.mutation.seeds`.

Reads a JSON object from standard input and writes one to standard output. It runs in the copy, with the copy first in
PYTHONPATH, so that what it imports is what was patched; it refuses to go on otherwise.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

ROOT = Path.cwd()

NO_JUDGEMENT = (
    "NameError",
    "TypeError",
    "AttributeError",
    "UnboundLocalError",
    "ImportError",
    "KeyError",
    "IndexError",
)
"""A patch that dies of these is a slip of its author, not a rule taken out."""


def _check_sources() -> None:
    import headrace
    import headrace_broker
    import headrace_coordinator
    import headrace_server

    for package in (headrace, headrace_broker, headrace_coordinator, headrace_server):
        assert Path(package.__path__[0]).is_relative_to(ROOT), f"{package.__name__} is not the copy under {ROOT}"


def run_seeds(request: dict[str, Any]) -> dict[str, Any]:
    """Run seeds `first` to `last` until one breaks a promise."""
    from tests.simulation import group_simulation, simulation
    from tests.simulation.group_plan import GroupPlan
    from tests.simulation.plan import Plan

    buggy_etcd = request["buggy_etcd"]
    changes = {name: tuple(value) if isinstance(value, list) else value for name, value in request["changes"].items()}
    for seed in range(request["first"], request["last"] + 1):
        if request["groups"]:
            group_plan = replace(GroupPlan.draw(seed, buggy_etcd=buggy_etcd), **changes)
            result = group_simulation.run(group_plan)
        else:
            plan = replace(Plan.draw(seed, durability=request["durability"], buggy_etcd=buggy_etcd), **changes)
            result = simulation.run(plan)
        if result.broken:
            return {"killed": True, "seed": seed, "by": result.broken, "message": result.message}
    return {"killed": False, "seed": 0, "by": "", "message": ""}


def run_scenario(request: dict[str, Any]) -> dict[str, Any]:
    """Call one function of a scenario file, which takes no arguments."""
    from tests.simulation.broker import simulated

    file, _, name = request["test"].partition("::")
    spec = importlib.util.spec_from_file_location("scenario", ROOT / "tests" / "scenario" / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    scenario = cast(Callable[[], None], getattr(module, name))
    try:
        with simulated():
            scenario()
    except Exception as error:
        by = getattr(error, "name", None) if type(error).__name__ == "SimulationError" else type(error).__name__
        return {"killed": True, "seed": 0, "by": by, "message": str(error)}
    return {"killed": False, "seed": 0, "by": "", "message": ""}


def main() -> None:
    """Do what standard input asks for."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what the code logs does not mix with the answer
    _check_sources()
    request = json.load(sys.stdin)
    result = run_scenario(request) if "test" in request else run_seeds(request)
    result["slip"] = result["by"] in NO_JUDGEMENT
    json.dump(result, answers)


if __name__ == "__main__":
    main()
