"""The check of wheels: what uv says, and which packages of a lock it asks about. No index is asked here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LOCK = """# made by make lock
alpha==1.0 ; sys_platform == 'linux' \\
    --hash=sha256:00
beta-x==2.0 \\
    --hash=sha256:11
etcd3==0.12.0 \\
    --hash=sha256:22
"""
REFUSED = """error: No solution found when resolving dependencies
  cause: Because {package}==2.0 has no usable wheels and you require beta-x==2.0, we can conclude
"""


@pytest.fixture
def wheels(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import wheels

    yield wheels
    sys.modules.pop("wheels")


@pytest.fixture
def uv(wheels, monkeypatch):
    """Answers of uv in place of the index: (exit code, stderr); the locks that it was given."""
    answers, locks = [], []

    def run(command, **_):
        locks.append(Path(command[-1]).read_text())
        code, said = answers.pop(0)
        return subprocess.CompletedProcess(command, code, "", said)

    monkeypatch.setattr(wheels.subprocess, "run", run)
    return answers, locks


@pytest.mark.parametrize("package", ["beta-x", "beta-x{sys_platform == 'linux'}"])
def test_all_packages_without_a_wheel_are_found(wheels, uv, package):
    """uv names one at a time: it is asked again without that one. Those that are always built are not asked about."""
    answers, locks = uv
    answers += [(1, REFUSED.format(package=package)), (1, REFUSED.replace("{package}", "alpha")), (0, "")]
    assert wheels.missing_wheels(LOCK, "aarch64-apple-darwin", "3.14") == ["beta-x", "alpha"]
    assert ["etcd3" in lock for lock in locks] == [False] * 3
    assert ["beta-x" in lock for lock in locks] == [True, False, False]
    assert "alpha" not in locks[-1]


def test_another_error_is_not_taken_for_a_wheel(wheels, uv):
    """An index that does not answer fails the check."""
    answers, _ = uv
    answers.append((2, "error: the index does not answer"))
    with pytest.raises(SystemExit, match="the index does not answer"):
        wheels.missing_wheels(LOCK, "aarch64-apple-darwin", "3.14")


@pytest.mark.parametrize(("missing", "fails"), [([], False), (["cryptography"], False), (["numpy"], True)])
def test_only_what_is_known_may_be_missing(wheels, monkeypatch, capsys, missing, fails):
    """A known gap is printed, and any other one is an error."""
    of_mac = {"x86_64-apple-darwin": missing}
    monkeypatch.setattr(wheels, "missing_wheels", lambda lock, platform, python: of_mac.get(platform, []))
    if fails:
        with pytest.raises(SystemExit) as error:
            wheels.main()
        assert error.value.code == 1
    else:
        wheels.main()
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 16
    assert sum("no wheel of" in line for line in printed) == 4 * len(missing)
