"""`make release VERSION=x.y.z`: build and check all release artifacts of the last commit in dist/x.y.z.

`__version__` in sdk/headrace/__init__.py is the version. The distributions take it from there when they are built; the
files of `DERIVED` are not built; they contain copies that this program writes and tests/unit/workspace compares.

The build runs in a copy of the commit. The checkout gets the new version and the artifacts only after all checks pass,
so a failed or interrupted release leaves nothing behind. Nothing is pushed, tagged or uploaded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from packaging.metadata import Metadata
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path("sdk/headrace/__init__.py")
SOURCE_PATTERN = re.compile(r'(?<=^__version__ = ")[^"]+', re.MULTILINE)
DERIVED = {
    "deploy/docker/Dockerfile": re.compile(r"(?<=^ARG VERSION=)\S+", re.MULTILINE),
    "deploy/helm/headrace/Chart.yaml": re.compile(r"(?:(?<=^version: )|(?<=^appVersion: ))\S+", re.MULTILINE),
    "docs/guides/installing.md": re.compile(r"(?:(?<=/headrace:)|(?<=image\.tag=))\d+\.\d+\.\d+\S*"),
}
"""Files with copies of the version."""
CHART = "deploy/helm/headrace"
DISTRIBUTIONS = {
    "headrace": "sdk",
    "headrace-server": "services",
    "headrace-devcluster": "services/devcluster",
    "headrace-spark-jobs": "spark_jobs",
}
IN_THE_IMAGE = ("headrace", "headrace-server")
"""Distributions whose dependencies requirements-image.lock locks."""


class ReleaseError(Exception):
    """Failed release; the message has the reason."""


def main() -> int:
    """Build and check a release, then write the version and artifacts into the checkout unless `--dry-run` is set."""
    parser = argparse.ArgumentParser(prog="make release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("version", metavar="VERSION", help="x.y.z, or x.y.zrc1")
    parser.add_argument("--dry-run", action="store_true", help="build and check everything, and keep nothing")
    options = parser.parse_args()
    target = ROOT / "dist" / options.version
    try:
        check_may_release(options.version)
        with tempfile.TemporaryDirectory(prefix="headrace-release-") as directory:
            copy, artifacts = Path(directory, "source"), Path(directory, "artifacts")
            export(copy)
            changed = write_version(copy, options.version)
            artifacts.mkdir()
            build(copy, artifacts, options.version)
            check(copy, artifacts, options.version, Path(directory, "venv"))
            write_sums(artifacts)
            print(f"{len(changed)} files change: {', '.join(changed) or 'none'}")
            for path in sorted(artifacts.iterdir()):
                print(f"{path.stat().st_size:>10,}  {path.name}")
            if options.dry_run:
                print("dry run: nothing was kept")
                return 0
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(artifacts, target)
            write_version(ROOT, options.version)
    except ReleaseError as error:
        sys.exit(f"release: {error}")
    print(f"{target.relative_to(ROOT)} is built and checked. Nothing was pushed. Next, by hand:")
    print("  make golden proto-baseline && make test")
    print(f"  git add --all && git commit --message 'release: {options.version}' && git tag v{options.version}")
    return 0


def read_version(root: Path) -> str:
    """Return the version of a checkout."""
    found = SOURCE_PATTERN.search((root / SOURCE).read_text("utf-8"))
    assert found, f"{SOURCE} has no __version__"
    return found[0]


def write_version(root: Path, version: str) -> list[str]:
    """Write the version and its copies; return the paths of the files that changed."""
    changed = []
    for path, pattern in {str(SOURCE): SOURCE_PATTERN, **DERIVED}.items():
        text = (root / path).read_text("utf-8")
        written, count = pattern.subn(version, text)
        if not count:
            raise ReleaseError(f"{path} names no version where it should")
        if written != text:
            (root / path).write_text(written, "utf-8")
            changed.append(path)
    return changed


def check_may_release(version: str) -> None:
    """Reject an invalid or lower version, uncommitted changes, a tag of another commit, a missing changelog."""
    if not re.fullmatch(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(rc[1-9]\d*)?", version):
        raise ReleaseError(f"{version!r} is no version: VERSION=x.y.z, or x.y.zrc1")
    if Version(version) < Version(read_version(ROOT)):
        raise ReleaseError(f"{version} is older than {read_version(ROOT)}, the version of this checkout")
    if changes := run("git", "status", "--porcelain").strip():
        raise ReleaseError(f"commit first; these changes would not be in the release:\n{changes}")
    if run("git", "tag", "--list", f"v{version}").strip() and f"v{version}" not in run(
        "git", "tag", "--points-at", "HEAD"
    ):
        raise ReleaseError(f"v{version} is the tag of another commit")
    final = version.partition("rc")[0]
    if not re.search(
        rf"^## .*(?<![\d.]){re.escape(final)}(?![\d.])", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    ):
        raise ReleaseError(f"CHANGELOG.md has no heading that names {final}")


def export(copy: Path) -> None:
    """Write the files of the last commit to `copy`, without other files of the checkout."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    copy.mkdir()
    subprocess.run(["tar", "--extract"], cwd=copy, input=archive, check=True)


def build(copy: Path, artifacts: Path, version: str) -> None:
    """Build the sdists and wheels from them, the chart, the bill of materials and the list of the image's tags.

    Archives have the commit's time, so that builds of the same commit are identical.
    """
    environment = {"SOURCE_DATE_EPOCH": run("git", "log", "-1", "--format=%ct").strip()}
    bin_ = Path(sys.executable).parent
    for folder in DISTRIBUTIONS.values():
        command = [
            str(bin_ / "uv"),
            "build",
            "--quiet",
            "--offline",
            "--no-build-isolation",
            "--python",
            sys.executable,
        ]
        run(*command, "--no-create-gitignore", "--out-dir", str(artifacts), folder, cwd=copy, environment=environment)
    package_chart(copy / CHART, artifacts)
    run(sys.executable, "tools/sbom.py", str(artifacts / "headrace.cdx.json"), cwd=copy)
    tags = [version] if Version(version).is_prerelease else [version, version.rpartition(".")[0]]
    (artifacts / "image-tags.txt").write_text("".join(f"headrace:{tag}\n" for tag in tags))


def package_chart(chart: Path, artifacts: Path) -> None:
    """Package the chart with Helm's library, as `helm package` does."""
    import helm_python

    helm_python.package(chart, destination=artifacts)


def check(copy: Path, artifacts: Path, version: str, venv: Path) -> None:
    """Check that the artifacts are complete, have the right metadata, and run in an empty environment."""
    names = {path.name for path in artifacts.iterdir()}
    stems = {name: f"{name.replace('-', '_')}-{version}" for name in DISTRIBUTIONS}
    expected = {f"{stem}{end}" for stem in stems.values() for end in (".tar.gz", "-py3-none-any.whl")}
    expected |= {f"headrace-{version}.tgz", "headrace.cdx.json", "image-tags.txt"}
    if names != expected:
        raise ReleaseError(f"built {sorted(names - expected)} too many, and not {sorted(expected - names)}")
    for name, stem in stems.items():
        for path, text in metadata_of(artifacts, stem):
            metadata = Metadata.from_email(text, validate=True)
            if (metadata.name, str(metadata.version)) != (name, version):
                raise ReleaseError(f"{path.name} calls itself {metadata.name} {metadata.version}")
    component = json.loads((artifacts / "headrace.cdx.json").read_text())["metadata"]["component"]
    if (component["name"], component.get("version")) != ("headrace", version):
        raise ReleaseError(f"the bill of materials is of {component['name']} {component.get('version')}")
    uv = [str(Path(sys.executable).parent / "uv")]
    run(*uv, "venv", "--quiet", "--python", sys.executable, str(venv))
    install = [*uv, "pip", "install", "--quiet", "--python", str(venv)]
    run(*install, "setuptools", "--constraint", "requirements-bootstrap.lock", cwd=copy)
    # etcd3 is published as source only; the setuptools pinned in the bootstrap lock builds it.
    locked = ["--require-hashes", "--requirement", "requirements-image.lock"]
    run(*install, "--no-build-isolation-package", "etcd3", *locked, cwd=copy)
    wheels = [str(artifacts / f"{stems[name]}-py3-none-any.whl") for name in IN_THE_IMAGE]
    run(*install, "--offline", "--no-deps", *wheels)
    run(*uv, "pip", "check", "--python", str(venv))
    said = json.loads(run(str(venv / "bin/headrace"), "version", "--output", "json"))
    if said["headrace"] != version:
        raise ReleaseError(f"`headrace version` says {said['headrace']}")
    for program in ("headrace-broker", "headrace-coordinator"):
        run(str(venv / "bin" / program), "--help")


def metadata_of(artifacts: Path, stem: str) -> Iterator[tuple[Path, bytes]]:
    """Yield the metadata of a distribution's sdist and wheel."""
    sdist, wheel = artifacts / f"{stem}.tar.gz", artifacts / f"{stem}-py3-none-any.whl"
    with tarfile.open(sdist) as archive:
        file = archive.extractfile(f"{stem}/PKG-INFO")
        assert file is not None
        yield sdist, file.read()
    with zipfile.ZipFile(wheel) as contents:
        yield wheel, contents.read(f"{stem}.dist-info/METADATA")


def write_sums(artifacts: Path) -> None:
    """Write SHA256SUMS, for `sha256sum --check`."""
    files = sorted(artifacts.iterdir())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (artifacts / "SHA256SUMS").write_text("".join(lines))


def run(*command: str, cwd: Path | None = None, environment: dict[str, str] | None = None) -> str:
    """Run a program and return its output.

    Raises:
        ReleaseError: If it fails; the message has its output.
    """
    variables = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS")
    }
    done = subprocess.run(
        command, cwd=cwd or ROOT, env=variables | (environment or {}), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)} failed (exit code {done.returncode}):\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
