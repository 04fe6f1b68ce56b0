"""The process that executes killers on copies of the sources, one at a time, each in its own fork.

`run` starts it by its path, with `python -P`. It imports what killers need and is not ours, which takes most of their
time, then reads one JSON object a line from standard input and writes one to standard output. A fork puts its copy
first in the path, so that what it imports is what was patched, and checks that it did.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast

FOREIGN = (
    "cramjam",
    "google.protobuf.json_format",
    "grpc.aio",
    "hypothesis",
    "numpy",
    "prometheus_client",
    "psutil",
    "pyarrow",
    "pydantic",
    "pytest",
    "rich.traceback",
    "structlog",
)
"""What the code and its tests import from elsewhere, where it takes long."""
OURS = ("headrace", "headrace_broker", "headrace_coordinator", "headrace_devcluster", "headrace_server", "tests")
NO_JUDGEMENT = (
    "NameError",
    "TypeError",
    "AttributeError",
    "UnboundLocalError",
    "ImportError",
    "KeyError",
    "IndexError",
)
"""A patch that the simulator dies of with one of these is a slip of its author, not a rule taken out."""
NO_JUDGEMENT_OF_TESTS = ("NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError")
"""The same for a test, which may well find one of the others."""
OUTPUT = "output-of-the-killer"

Answer = dict[str, Any]


def answer(*, killed: bool, by: str = "", seed: int = 0, message: str = "", slip: bool = False) -> Answer:
    """What a killer found; `seed` 0: it was not the simulator."""
    return {"killed": killed, "by": by, "seed": seed, "message": message, "slip": slip}


def run_seeds(request: dict[str, Any]) -> Answer:
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
            slip = result.broken in NO_JUDGEMENT
            return answer(killed=True, seed=seed, by=result.broken, message=result.message, slip=slip)
    return answer(killed=False)


def run_scenario(request: dict[str, Any]) -> Answer:
    """Call one function of a scenario file, which takes no arguments."""
    from tests.simulation.broker import simulated

    file, _, name = request["test"].partition("::")
    spec = importlib.util.spec_from_file_location("scenario", Path.cwd() / "tests" / "scenario" / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    scenario = cast(Callable[[], None], getattr(module, name))
    try:
        with simulated():
            scenario()
    except Exception as error:
        name = type(error).__name__
        by = getattr(error, "name", name) if name == "SimulationError" else name
        message = str(error) or str(traceback.extract_tb(error.__traceback__)[-1].line)
        return answer(killed=True, by=by, message=message, slip=by in NO_JUDGEMENT)
    return answer(killed=False)


class _Failures:
    """Notes why tests failed; a plugin of pytest."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called by pytest."""
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.messages.append(str(report.longrepr) if crash is None else crash.message)


def run_test(request: dict[str, Any]) -> Answer:
    """Run one test by its pytest id."""
    import pytest

    failures = _Failures()
    code = pytest.main(["-x", "-p", "no:cacheprovider", "-p", "no:xdist", request["test"]], plugins=[failures])
    if code not in (0, 1):  # 1: tests failed; the others: they could not be run.
        return answer(killed=True, slip=True, message=_tail(Path(OUTPUT).read_text("utf-8", "replace")))
    message = failures.messages[0] if failures.messages else ""
    slip = message.startswith(NO_JUDGEMENT_OF_TESTS)
    return answer(killed=bool(code), by=request["test"].rpartition("::")[2], message=message, slip=slip)


KINDS: dict[str, Callable[[dict[str, Any]], Answer]] = {
    "simulation": run_seeds,
    "scenario": run_scenario,
    "test": run_test,
}


def _tail(text: str) -> str:
    return " | ".join(text.strip().splitlines()[-3:])


def _check_sources() -> None:
    """Everything of ours that was imported is the copy."""
    root = Path.cwd()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] in OURS and file is not None:
            assert Path(file).is_relative_to(root), f"{name} is not the copy under {root}, but {file}"


def _in_a_fork(request: dict[str, Any], result: int) -> NoReturn:
    """Judge, write a line to the descriptor `result` and end."""
    try:
        os.setsid()
        os.chdir(request["copy"])
        sys.path[:0] = request["path"]
        os.environ["PYTHONPATH"] = os.pathsep.join(request["path"])
        written = os.open(OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (written, 1), (written, 2)):
            os.dup2(source, target)
        found = KINDS[request["kind"]](request)
        _check_sources()
    except BaseException:
        found = answer(killed=True, slip=True, message=_tail(traceback.format_exc()))
    line = json.dumps(found).encode() + b"\n"
    while line:
        line = line[os.write(result, line) :]
    os._exit(0)


def _judge(request: dict[str, Any]) -> Answer | None:
    """Return the answer of a fork; `None` if it exceeds the time limit."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        os.close(reads)
        _in_a_fork(request, writes)
    os.close(writes)
    deadline = time.monotonic() + request["seconds"]
    line = b""
    try:
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([reads, 0], [], [], max(0.0, deadline - time.monotonic()))
            if reads not in ready:  # Too late, or the caller has ended.
                return None
            part = os.read(reads, 65_536)
            if not part:
                return answer(killed=True, slip=True, message="the killer's process ended without an answer")
            line += part
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reads)
    return cast(Answer, json.loads(line))


def main() -> None:
    """Answer what standard input asks for, until it ends."""
    for name in FOREIGN:
        with suppress(ModuleNotFoundError):  # It is there to save time alone.
            importlib.import_module(name)
    assert not any(name.partition(".")[0] in OURS for name in sys.modules)
    while line := _read_line():
        found = _judge(json.loads(line))
        os.write(1, json.dumps(found).encode() + b"\n")


def _read_line() -> bytes:
    """Return the next line of standard input without reading on; nothing: it has ended."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 65_536)
        if not part:
            return b""
        line += part
    return line


if __name__ == "__main__":
    main()
