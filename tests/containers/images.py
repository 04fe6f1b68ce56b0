"""The images of docker-compose.yml, made without a registry of images and without an engine.

headrace's own image is built from the real Dockerfile. The upstream images that Dockerfile and compose file name are
substitutes under the same names, from Debian's packages and the etcd of the tests, so that both files are used as they
are. What a stand-in is not: see STAND_INS. Called by `tests.containers.inside` while packages can be fetched.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from headrace_devcluster.etcd_program import find_etcd

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = Path(sys.executable).parent / "docker-compose"
DEBIAN = "trixie"
HEADRACE = "headrace:local"
PYTHON = "docker.io/library/python:3.13-slim-trixie"
SMALL = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")  # What upstream's slim images leave out.
UNPRIVILEGED = "65534:65534"
# pip's settings that say where packages come from; the rest of a machine's is no business of a build.
SOURCES = ("index-url", "extra-index-url", "trusted-host", "proxy", "cert", "client-cert")


@dataclass(frozen=True, slots=True)
class StandIn:
    """An image under an upstream name, and in what it differs from it."""

    service: str
    """The service of docker-compose.yml whose image it is."""
    differs: str
    """What it has in place of upstream's."""


STAND_INS = (
    StandIn("etcd", "the etcd that the tests run on"),
    StandIn("prometheus", "Debian's Prometheus and a busybox"),
    StandIn("alertmanager", "Debian's Alertmanager and a busybox"),
)


def image_of(service: str) -> str:
    """The image that docker-compose.yml names for a service."""
    command = [str(COMPOSE), "--file", str(ROOT / "docker-compose.yml"), "--profile", "*", "config", "--format", "json"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return str(json.loads(run.stdout)["services"][service]["image"])


class Builder:
    """Makes images with buildah, in a storage of its own below `state`; archives for the engine go to `archives`."""

    def __init__(self, cache: Path, state: Path) -> None:
        self._cache, self._state = cache, state
        self.archives = state / "archives"
        self.archives.mkdir()
        policy = state / "policy.json"
        policy.write_text(json.dumps({"default": [{"type": "insecureAcceptAnything"}]}))
        self._environ = {**os.environ, "CONTAINERS_REGISTRIES_CONF": str(state / "registries.conf")}
        (state / "registries.conf").write_text('unqualified-search-registries = ["docker.io"]\n')
        self._policy = ["--signature-policy", str(policy)]
        storage = [f"--root={state / 'storage'}", f"--runroot={state / 'storage-run'}", "--storage-driver=overlay"]
        self._command = ["buildah", *storage]

    def make_all(self, contents: Path) -> None:
        """Make every image of docker-compose.yml and leave an archive of each."""
        base = self._python()
        for stand_in in STAND_INS:
            name = image_of(stand_in.service)
            self._commit(name, self._contents(stand_in.service, base, contents), **self._settings(stand_in.service))
            self._archive(name)
        self._build(HEADRACE)
        self._archive(HEADRACE)

    def make_for_chart(self, contents: Path, *, headrace: str, etcd: str, pause: str) -> None:
        """Make the images of the chart under the names that it has for them, and what holds a pod's namespaces."""
        self._python()
        self._commit(etcd, self._contents("etcd", Path(), contents), **self._settings("etcd"))
        sleep = json.dumps(["/bin/sleep", str(2**31 - 1)])
        self._commit(pause, {contents / "bin/busybox": "/bin/sleep"}, entrypoint=sleep, user=UNPRIVILEGED)
        self._build(headrace)
        for name in (etcd, pause, headrace):
            self._archive(name)

    def _python(self) -> Path:
        """The base that the Dockerfile names; returns its file system."""
        base = self._debian()
        self._commit(PYTHON, {base: "/"}, env="PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", cmd="python3")
        return base

    def _debian(self) -> Path:
        """A small Debian with its Python, as a tar file, kept from run to run."""
        command = [
            "mmdebstrap", "--quiet", "--variant=minbase", "--include=python3,python3-venv,usr-is-merged",
            *(f"--dpkgopt=path-exclude={path}" for path in SMALL),
            "--aptopt=Apt::Install-Recommends false",
            *(f"--aptopt={line}" for line in self._apt_settings()),
            # It came for a merge that a new system has behind it, and brings all of Perl.
            '--customize-hook=chroot "$1" apt-get -q -y purge usrmerge perl "^perl-modules" "^libperl5"',
            '--customize-hook=ln -s /usr/bin/python3 "$1/usr/local/bin/python"',
            '--customize-hook=ln -s /usr/bin/python3 "$1/usr/local/bin/python3"',
            DEBIAN,
        ]  # fmt: skip
        path = self._cache / f"debian-{hashlib.sha256(' '.join(command).encode()).hexdigest()[:12]}.tar"
        if not path.exists():
            partial = path.with_suffix(".partial.tar")
            self._run([*command, str(partial), *self._sources()], "a Debian")
            partial.rename(path)
        return path

    def _sources(self) -> list[str]:
        """The machine's own lists of Debian packages, of the release DEBIAN, as files."""
        files = [*Path("/etc/apt/sources.list.d").glob("debian.sources"), Path("/etc/apt/sources.list")]
        machine = platform.freedesktop_os_release()["VERSION_CODENAME"]
        sources = []
        for file in (file for file in files if file.exists()):
            path = self._state / file.name
            path.write_text(re.sub(rf"\b{machine}\b", DEBIAN, file.read_text("utf-8")), "utf-8")
            sources.append(str(path))
        return sources

    def _apt_settings(self) -> list[str]:
        """How apt reaches its packages on this machine: proxies, and what it checks."""
        lines = self._run(["apt-config", "dump"], "apt-config").splitlines()
        return [line for line in lines if re.match(r"Acquire::(https?::|Check-)", line)]

    def _contents(self, service: str, base: Path, contents: Path) -> dict[Path, str]:
        """What is copied where, in order."""
        if service == "etcd":
            etcd = find_etcd().resolve()
            return {etcd.with_name(name): f"/usr/local/bin/{name}" for name in ("etcd", "etcdctl", "etcdutl")}
        program = contents / "usr/bin" / {"alertmanager": "prometheus-alertmanager"}.get(service, service)
        shared = contents / "usr/share/prometheus"  # Pages and templates, at the paths that Debian's programs know.
        return {
            base: "/",
            shared: "/usr/share/prometheus",
            program: f"/bin/{service}",
            contents / "bin/busybox": "/bin/wget",
        }

    def _settings(self, service: str) -> dict[str, str]:
        if service == "etcd":
            return {"env": "PATH=/usr/local/bin"}
        data = {"prometheus": "/prometheus", "alertmanager": "/alertmanager"}[service]
        return {"entrypoint": json.dumps([f"/bin/{service}"]), "user": UNPRIVILEGED, "directory": data}

    def _commit(self, name: str, files: dict[Path, str], directory: str = "", **config: str) -> None:
        container = self._buildah("from", "scratch").strip()
        for source, target in files.items():
            self._buildah("add", "--quiet", container, str(source), target)
        if directory:
            data = self._state / "data"
            data.mkdir(exist_ok=True)
            self._buildah("add", "--quiet", f"--chown={UNPRIVILEGED}", container, str(data), directory)
        self._buildah("config", *(f"--{key}={value}" for key, value in config.items()), container)
        self._buildah("commit", *self._policy, "--quiet", "--rm", container, name)

    def _build(self, name: str) -> None:
        """The real Dockerfile, as `docker build` would, with this machine's way to the registry of packages."""
        mounts = [f"--volume={source}:{target}:ro" for source, target in self._pip_settings().items()]
        self._buildah(
            "build-using-dockerfile", *self._policy, "--network=host", "--isolation=chroot", "--pull-never",
            "--format=docker", *mounts, f"--file={ROOT / 'deploy/docker/Dockerfile'}", f"--tag={name}", str(ROOT),
        )  # fmt: skip

    def _pip_settings(self) -> dict[str, str]:
        """What tells pip on this machine where packages are, as files for the build alone."""
        run = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
        )
        found: dict[str, str] = {}
        for line in run.stdout.splitlines():
            name, _, value = line.partition("=")
            key = name.rpartition(".")[2]
            if key in SOURCES and (name.startswith(":env:") or key not in found):
                found[key] = value.strip("'\"")
        path = self._state / "pip.conf"
        path.write_text("\n".join(["[global]", *(f"{key} = {value}" for key, value in found.items())]) + "\n")
        files = {str(path): "/etc/pip.conf"}
        return files | {found[key]: found[key] for key in ("cert", "client-cert") if key in found}

    def _archive(self, name: str) -> None:
        self._buildah("push", *self._policy, "--quiet", name, f"docker-archive:{self._archive_of(name)}:{name}")

    def _archive_of(self, name: str) -> Path:
        return self.archives / f"{name.rpartition('/')[2].partition(':')[0]}.tar"

    def _buildah(self, *arguments: str) -> str:
        return self._run([*self._command, *arguments], f"buildah {arguments[0]}")

    def _run(self, command: list[str], what: str) -> str:
        run = subprocess.run(command, env=self._environ, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise RuntimeError(f"{what} failed ({run.returncode}):\n{run.stdout[-6000:]}{run.stderr[-6000:]}")
        return run.stdout
