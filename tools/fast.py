"""`make fast`: run the unit and property tests of changed code, nearest first, for at most a minute.

Changed files differ from the merge base with main; uncommitted and new ones are included (`--base` sets another
commit). A test file is selected if it is changed, or if it imports a changed module or one that imports it, directly or
indirectly, by the import graph of grimp, a dependency of import-linter. Files at the shortest distance run first; files
left out for lack of time are counted and named. pytest-testmon is more exact, but needs a traced run first, and does
not trace processes that a test starts.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "headrace": "sdk",
    "headrace_server": "services/common",
    "headrace_broker": "services/broker",
    "headrace_coordinator": "services/coordinator",
    "headrace_devcluster": "services/devcluster",
    "spark_jobs": "spark_jobs",
}
TESTS = ("tests/unit", "tests/property")
SECONDS = 45.0
"""Time for tests; start-up and the tests still running at the end fit in the rest of the minute."""
FILES = 60
"""Maximum number of files: collecting more takes the whole minute."""
FAR = 99


def main() -> int:
    """Select and run the tests, and print what was left out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", help="the commit to compare with; the default is the merge base with main")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for the tests (default: %(default)s)")
    parser.add_argument(
        "--list", action="store_true", help="print the chosen files with their distance, and run nothing"
    )
    options = parser.parse_args()
    changed = changed_files(options.base)
    chosen = choose(changed)
    if not chosen:
        print("no unit or property test concerns what changed" if changed else "nothing changed")
        return 0
    if options.list:
        print("\n".join(f"{distance:2} {path}" for path, distance in chosen))
        return 0
    left_out = len(chosen) - len(chosen[:FILES])
    print(f"{len(changed)} files changed; {len(chosen)} test files concern them, nearest first", flush=True)
    chosen = chosen[:FILES]
    os.environ["HEADRACE_TEST_DEADLINE"] = str(time.time() + options.seconds)
    workers = ["-n", str(min(len(chosen), os.cpu_count() or 1)), "--dist", "loadfile"]
    code = int(pytest.main(["-q", "-rs", *workers, *(path for path, _ in chosen)]))
    if left_out:
        print(f"left out: {left_out} test files that are further away; `make test` runs them")
    return code


def changed_files(base: str | None) -> list[str]:
    """Return the paths that differ from `base`, and untracked ones."""
    if base is None:
        found = subprocess.run(
            ["git", "merge-base", "HEAD", "main"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        base = found.stdout.strip() or "HEAD"
    differing = _git("diff", "--name-only", base)
    return sorted({*differing, *_git("ls-files", "--others", "--exclude-standard")})


def _git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def choose(changed: Iterable[str]) -> list[tuple[str, int]]:
    """Return the test files for changed files as (path, distance in imports), nearest first."""
    changed = list(changed)
    distances = module_distances([name for name in map(module_of, changed) if name])
    found: dict[str, int] = {}
    for folder in TESTS:
        for file in sorted((ROOT / folder).rglob("test_*.py")):
            path = str(file.relative_to(ROOT))
            near = [distances[name] for name in imported(file) if name in distances]
            near += [0] * (path in changed)
            near += [path.count("/") - each.count("/") for each in changed if _is_helper_of(each, path)]
            if any(each.startswith(("docs/", "README", "CONTRIBUTING")) for each in changed) and "unit/docs/" in path:
                near.append(1)
            if near:
                found[path] = min(near)
    return sorted(found.items(), key=lambda item: (item[1], item[0]))


def _is_helper_of(changed: str, test: str) -> bool:
    """Return whether a changed file is a conftest or helper in the test's directory or above."""
    folder, _, name = changed.rpartition("/")
    return changed.startswith("tests/") and not name.startswith("test_") and test.startswith(f"{folder}/")


def module_of(path: str) -> str | None:
    """Return the module of a path, such as `headrace.log.segment`; `None` if it is not in the workspace."""
    for package, folder in PACKAGES.items():
        if path.startswith(f"{folder}/{package}/") and path.endswith(".py"):
            return path.removeprefix(f"{folder}/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return None


def module_distances(changed: Iterable[str]) -> dict[str, int]:
    """Return the modules that import changed ones, with the distance in imports; a changed module has distance 0."""
    graph = grimp.build_graph(*PACKAGES, include_external_packages=False)
    distances = dict.fromkeys(changed, 0)
    edge = [name for name in distances if name in graph.modules]
    for distance in range(1, FAR):
        edge = [
            name for each in edge for name in graph.find_modules_that_directly_import(each) if name not in distances
        ]
        if not edge:
            break
        distances.update(dict.fromkeys(edge, distance))
    return distances


def imported(file: Path) -> Iterator[str]:
    """Yield the names of the modules that a test file imports, and of their parent packages."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


if __name__ == "__main__":
    sys.exit(main())
