"""The image that the real Dockerfile makes, on a real engine."""

from __future__ import annotations

import json

import pytest

from tests.containers.conftest import Figure
from tests.containers.engine import Engine
from tests.containers.images import HEADRACE, PYTHON

LARGEST_BYTES = 350_000_000
HARDENED = ("run", "--rm", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=none")


def test_the_image_is_small(engine: Engine, figure: Figure) -> None:
    """Under 350 MB, Python and Debian included."""
    size = engine.inspect(HEADRACE)["Size"]
    history = engine.docker("history", "--no-trunc", "--human=false", "--format={{json .}}", HEADRACE).splitlines()
    base, *layers = reversed([int(json.loads(line)["Size"]) for line in history])
    figure(
        "image", f"{size / 1e6:.0f} MB, of which {base / 1e6:.0f} MB are {PYTHON}, {sum(layers) / 1e6:.0f} MB are ours"
    )
    assert size < LARGEST_BYTES


def test_it_runs_unprivileged_and_writes_nowhere(engine: Engine) -> None:
    """User and group 10001, no capability, on a file system that it cannot change; the command line works so."""
    program = (
        "import os; print(os.getuid(), os.getgid(), [l for l in open('/proc/self/status') if l.startswith('CapEff')])"
    )
    said = engine.docker(*HARDENED, "--entrypoint=python", HEADRACE, "-c", program)
    assert said == "10001 10001 ['CapEff:\\t0000000000000000\\n']\n"
    with pytest.raises(AssertionError, match="Read-only file system"):
        engine.docker(*HARDENED, "--entrypoint=python", HEADRACE, "-c", "open('/var/lib/headrace/x', 'w')")
    assert "headrace" in engine.docker(*HARDENED, HEADRACE, "version")
    assert "Usage" in engine.docker(*HARDENED, HEADRACE)


def test_it_runs_under_an_assigned_user_id(engine: Engine) -> None:
    """Any user id of the root group works, as OpenShift assigns one: the command line runs, a broker reads settings."""
    assigned = (*HARDENED, "--user=1000650000:0")
    assert "headrace" in engine.docker(*assigned, HEADRACE, "version")
    with pytest.raises(AssertionError) as caught:
        engine.docker(*assigned, "--env=HEADRACE_BROKER_NO_SUCH_SETTING=1", HEADRACE, "broker")
    assert "no_such_setting" in str(caught.value).lower()
    assert "Traceback" not in str(caught.value)


def test_everything_is_compiled(engine: Engine) -> None:
    """Each module of ours has its bytecode, since a read-only file system would have it compiled at each start."""
    program = (
        "import headrace, headrace_broker, headrace_coordinator, pathlib, importlib.util as u;"
        "files = [f for m in (headrace, headrace_broker, headrace_coordinator) for p in m.__path__ "
        "for f in pathlib.Path(p).rglob('*.py')];"
        "print(len(files) > 100, [f for f in files if not pathlib.Path(u.cache_from_source(f)).exists()])"
    )
    assert engine.docker(*HARDENED, "--entrypoint=python", HEADRACE, "-c", program) == "True []\n"


def test_it_has_no_tool_of_development(engine: Engine) -> None:
    """No pip of its own, no uv, no test runner, and nothing that makes a user root in what we add."""
    program = (
        "import pathlib, stat;"
        "files = [f for f in pathlib.Path('/opt').rglob('*') if not f.is_symlink()];"
        "print(sorted({f.name for f in files} & {'pip', 'uv', 'pytest', 'mypy'}), "
        "[f for f in files if f.stat().st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IWOTH)])"
    )
    assert engine.docker(*HARDENED, "--entrypoint=python", HEADRACE, "-c", program) == "[] []\n"


def test_a_failed_start_reports_its_cause(engine: Engine) -> None:
    """A broker without what it needs ends with a sentence, not with a traceback, and with an exit code."""
    with pytest.raises(AssertionError) as caught:
        engine.docker(*HARDENED, "--env=HEADRACE_BROKER_NO_SUCH_SETTING=1", HEADRACE, "broker")
    assert "no_such_setting" in str(caught.value).lower()
    assert "Traceback" not in str(caught.value)
