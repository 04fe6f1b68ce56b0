"""The version has one place, and `make release` changes all that follows from it or nothing."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata, util
from pathlib import Path
from types import ModuleType

import headrace
import pytest
from headrace.wire.releases import RELEASE

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = util.spec_from_file_location("release", ROOT / "tools/release.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *identity, *arguments], cwd=root, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def checkout(release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with the files that hold the version, at 0.1.0, and a changelog that names 0.2.0 too."""
    for path in (str(release.SOURCE), *release.DERIVED):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text((ROOT / path).read_text())
    release.write_version(tmp_path, "0.1.0")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased (0.2.0)\n\n## 0.1.0\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "all")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    return tmp_path


def test_the_version_is_in_one_place(release: ModuleType) -> None:
    """Distributions read it from the SDK's first file; no other line of product or packaging has it but the copies."""
    assert headrace.__version__ == RELEASE == release.read_version(ROOT)
    for name, folder in release.DISTRIBUTIONS.items():
        document = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())
        assert document["project"]["name"] == name
        assert document["project"]["dynamic"] == ["version"]
        assert (ROOT / folder / document["tool"]["hatch"]["version"]["path"]).resolve() == ROOT / release.SOURCE
        assert metadata.version(name) == RELEASE
    tracked = git(ROOT, "ls-files", "sdk", "services", "spark_jobs", "deploy", "pyproject.toml", "tools").splitlines()
    about_a_release = {"deploy/helm/headrace/UPGRADING.md"}
    named = re.compile(rf"(?i)version\W+{re.escape(RELEASE)}\b")
    having = {path for path in tracked if named.search((ROOT / path).read_text("utf-8", errors="replace"))}
    assert having - about_a_release <= {str(release.SOURCE), *release.DERIVED}


def test_every_copy_is_of_the_version(release: ModuleType) -> None:
    """The chart, the image's label and the guide: what `make release` would write is there already."""
    for path, pattern in release.DERIVED.items():
        assert set(pattern.findall((ROOT / path).read_text())) == {RELEASE}, path


def test_a_new_version_is_written_to_all_places_and_read_back(release: ModuleType, checkout: Path) -> None:
    """The files that changed are named; a second time there is nothing to change."""
    assert set(release.write_version(checkout, "0.2.0rc1")) == {str(release.SOURCE), *release.DERIVED}
    assert release.read_version(checkout) == "0.2.0rc1"
    assert release.write_version(checkout, "0.2.0rc1") == []
    chart = (checkout / "deploy/helm/headrace/Chart.yaml").read_text()
    assert re.findall(r"^(?:version|appVersion): (.*)$", chart, re.MULTILINE) == ["0.2.0rc1", "0.2.0rc1"]


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("", "is no version"),
        ("v0.2.0", "is no version"),
        ("0.2", "is no version"),
        ("0.2.0; true", "is no version"),
        ("0.0.9", "is older than 0.1.0"),
        ("0.3.0", "no heading that names 0.3.0"),
    ],
)
def test_a_version_that_cannot_follow_is_refused(
    release: ModuleType, checkout: Path, version: str, reason: str
) -> None:
    """Before anything is built."""
    with pytest.raises(release.ReleaseError, match=reason):
        release.check_may_release(version)
    release.check_may_release("0.2.0")
    release.check_may_release("0.2.0rc1")


def test_only_what_is_committed_is_released(release: ModuleType, checkout: Path) -> None:
    """Changes are named; a tag of the version is that of this commit."""
    (checkout / "new.txt").write_text("")
    with pytest.raises(release.ReleaseError, match=r"commit first.*\n.*new\.txt"):
        release.check_may_release("0.2.0")
    git(checkout, "tag", "v0.2.0")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "more")
    with pytest.raises(release.ReleaseError, match="tag of another commit"):
        release.check_may_release("0.2.0")
    git(checkout, "tag", "--force", "v0.2.0")
    release.check_may_release("0.2.0")


@pytest.mark.parametrize("step", ["build", "check", "write_sums"])
def test_a_release_that_fails_leaves_the_checkout_as_it_was(
    release: ModuleType, checkout: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Whichever step fails: no file changes, nothing in dist, no directory of it in the temporary directory."""

    def fail(*_: object) -> None:
        raise release.ReleaseError("it failed")

    for each in ("build", "check"):
        monkeypatch.setattr(release, each, lambda *_: None)
    monkeypatch.setattr(release, step, fail)
    monkeypatch.setattr(sys, "argv", ["release", "0.2.0"])
    temporary = checkout.parent / f"{checkout.name}-temporary"
    temporary.mkdir()
    monkeypatch.setattr(release.tempfile, "tempdir", str(temporary))
    with pytest.raises(SystemExit, match="it failed"):
        release.main()
    assert git(checkout, "status", "--porcelain") == ""
    assert not (checkout / "dist").exists()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("is_dry", [True, False])
def test_a_release_writes_the_version_and_its_artifacts_a_dry_run_neither(
    release: ModuleType,
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_dry: bool,
) -> None:
    """The files that change are printed either way; nothing is committed or tagged."""
    monkeypatch.setattr(release, "build", lambda copy, artifacts, version: (artifacts / "a.whl").write_text(version))
    monkeypatch.setattr(release, "check", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["release", "0.2.0", *["--dry-run"] * is_dry])
    head = git(checkout, "rev-parse", "HEAD")
    assert release.main() == 0
    assert "4 files change" in capsys.readouterr().out
    assert release.read_version(checkout) == ("0.1.0" if is_dry else "0.2.0")
    artifacts = sorted(path.name for path in checkout.glob("dist/0.2.0/*"))
    assert artifacts == ([] if is_dry else ["SHA256SUMS", "a.whl"])
    assert (git(checkout, "rev-parse", "HEAD"), git(checkout, "tag")) == (head, "")
