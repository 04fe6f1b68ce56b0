"""The workspace's own files: locks without places, a Makefile that explains itself, a set-up that is quick twice."""

import ast
import importlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
LOCKS = ["requirements-bootstrap.lock", "requirements-proto.lock", "requirements.lock"]


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_names_no_host_and_no_path(name: str) -> None:
    """A lock file speaks of names, versions and hashes: nothing of the machine or the index that wrote it."""
    text = (ROOT / name).read_text()
    assert not re.search(r"https?://|file:|@ |^-|/(home|root|tmp|usr|work)/", text, re.MULTILINE)


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_package_has_a_hash(name: str) -> None:
    """A package without a hash would be installed unchecked."""
    entries = re.split(r"^(?=[a-z0-9])", (ROOT / name).read_text(), flags=re.MULTILINE)[1:]
    assert entries
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


def test_formats_of_json_schema_are_checked_as_in_the_image() -> None:
    """The image has no grammar of IRIs, whose import costs a second: neither have tests and their services."""
    assert "rfc3987-syntax==" not in (ROOT / "requirements-image.lock").read_text()
    assert "iri" not in jsonschema.FormatChecker.checkers


def test_make_alone_prints_its_targets() -> None:
    """`make` without a target is harmless and lists what there is."""
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)
    targets = set(re.findall(r"^  make ([a-z-]+)", done.stdout, re.MULTILINE))
    assert {"help", "demo", "up", "down", "status", "test", "check", "proto", "lock", "docs", "clean"} <= targets


def test_make_test_runs_no_slow_test() -> None:
    """Neither of its two stages: a thousand crash points in one test are for `make test-slow`."""
    done = subprocess.run(["make", "--dry-run", "test"], cwd=ROOT, capture_output=True, text=True, check=True)
    stages = [line for line in done.stdout.splitlines() if "bin/pytest -n" in line]
    assert len(stages) == 2
    assert all('-m "not slow"' in stage for stage in stages)


def test_a_second_set_up_does_nothing() -> None:
    """Set-up after the first time installs nothing, writes nothing and says nothing: it only compares the stamp."""
    environment = Path(sys.prefix)
    before = {path: path.stat().st_mtime_ns for path in (environment, *environment.iterdir())}
    done = subprocess.run(
        [sys.executable, "tools/set_up.py"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert {path: path.stat().st_mtime_ns for path in (environment, *environment.iterdir())} == before


@pytest.fixture
def set_up(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of the set-up."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("set_up")


def test_a_step_of_the_set_up_leaves_no_temporary_file(
    set_up: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uv leaves a lock file for each distribution that it builds."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    program = "import pathlib, tempfile; pathlib.Path(tempfile.gettempdir(), 'left.lock').touch()"
    set_up.run("leaving a file", [sys.executable, "-c", program])
    assert not list(tmp_path.rglob("*"))


def test_an_unfinished_set_up_is_taken_up_again(set_up: ModuleType, tmp_path: Path) -> None:
    """The stamp is written last: an environment without one, or with another lock's, counts as not set up."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    assert set_up.read_stamp(str(tmp_path)) == {}
    set_up.write_stamp(str(tmp_path), "a digest")
    assert set_up.read_stamp(str(tmp_path))["digest"] == "a digest"
    (tmp_path / "bin" / "python").unlink()
    assert set_up.read_stamp(str(tmp_path)) == {}


@pytest.mark.parametrize("path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_a_workflow_calls_targets_of_the_makefile(path: Path) -> None:
    """CI does what a person does: each step is an action with a whole version, or `make` with a target that exists."""
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+\.\d+\.\d+", step["uses"])
                continue
            words = step["run"].split()
            called = job["strategy"]["matrix"]["target"] if words[1] == "${{" else [words[1]]
            assert words[0] == "make"
            assert {each.split()[0] for each in called} <= targets


def test_every_file_has_an_owner_that_exists() -> None:
    """Each path in CODEOWNERS is there."""
    lines = [line.split() for line in (ROOT / ".github/CODEOWNERS").read_text().splitlines()]
    paths = [words[0] for words in lines if words and not words[0].startswith(("#", "*"))]
    assert [path for path in paths if not (ROOT / path.lstrip("/")).exists()] == []


def test_hooks_call_the_project_s_own_tools() -> None:
    """No hook is fetched: each runs a program of .venv, in the version of the lock file."""
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local"
    assert {hook["entry"].split()[0].rpartition("/")[0] for hook in local["hooks"]} == {".venv/bin"}


def test_no_public_class_of_the_product_has_the_name_of_another() -> None:
    """A name that is searched for leads to one class; those of `headrace.aio` are named as the blocking ones."""
    command = ["git", "ls-files", "sdk/*.py", "services/*.py", "spark_jobs/*.py"]
    files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    places: dict[str, list[str]] = {}
    for file in files:
        if (ROOT / file).is_file() and not file.endswith(("_pb2.py", "_pb2_grpc.py", "_async.py")):
            for node in ast.parse((ROOT / file).read_text("utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(file)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_test_waits_for_a_child_without_limit() -> None:
    """The `with` of a Popen waits for ever where its block fails: `tests.children.running` kills the child first."""
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.name not in ("children.py", Path(__file__).name)]
    assert [str(path) for path in files if "with subprocess.Popen(" in path.read_text("utf-8")] == []
