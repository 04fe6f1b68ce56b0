"""Programs that the container tier needs, taken from Debian packages and unpacked, not installed.

Asks apt for what this machine lacks, dependencies too, and unpacks it into a folder of ours; what is installed is used
as it is. Called by `tests.containers.inside`, as root, where the registry of packages can be reached.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

# The engine, what builds images without one, and what makes a file system of Debian packages.
TOOLS = (
    "docker.io", "containerd", "runc", "tini", "iptables", "iproute2",
    "buildah", "golang-github-containers-common", "mmdebstrap",
)  # fmt: skip
# The packages in the substitutes of upstream's images.
CONTENTS = ("prometheus", "prometheus-alertmanager", "busybox-static")

# Where engine and buildah keep things whatever they are told.
WRITTEN_TO = ("/run", "/var/lib")

APT = ("apt-get", "-q", "-y", "-o", "APT::Sandbox::User=root", "-o", "DPkg::Lock::Timeout=60")


class UnavailableError(Exception):
    """The tier cannot run on this machine; the message says why and what would help."""


def fetch_tools(cache: Path, names: tuple[str, ...] = TOOLS) -> Path:
    """Unpack these packages and what they need below `cache`, once; return where."""
    root, complete = cache / "tools", cache / "tools.complete"
    if not complete.exists() or complete.read_text("ascii") != " ".join(names):
        shutil.rmtree(root, ignore_errors=True)
        complete.unlink(missing_ok=True)
        debs = _empty(cache / "debs")
        (debs / "partial").mkdir()
        _apt("install", "--download-only", "--no-install-recommends", "-o", f"Dir::Cache::archives={debs}", *names)
        _unpack(debs, root)
        for name in ("bin", "sbin", "lib"):  # Some packages still write outside of /usr.
            if (root / name).is_dir():
                shutil.copytree(root / name, root / "usr" / name, symlinks=True, dirs_exist_ok=True)
        for name in ("iptables", "ip6tables"):  # What update-alternatives would have made.
            for suffix in ("", "-save", "-restore"):
                if (root / "usr/sbin/xtables-nft-multi").exists():
                    (root / f"usr/sbin/{name}{suffix}").symlink_to("xtables-nft-multi")
        complete.write_text(" ".join(names), "ascii")
    return root


def lay_over(roots: list[Path], state: Path) -> None:
    """Let the unpacked tools appear in /usr, in this mount namespace alone: each finds its libraries where it looks.

    Tools start others with environments of their own, so that a path in a variable would not reach all of them. What
    they write where no option leads elsewhere, as the sockets of containers below /run, goes to `state`.
    """
    layers = [str(root / "usr") for root in roots if (root / "usr").exists()]
    _overlay("/usr", f"lowerdir={':'.join([*layers, '/usr'])}")
    for place in WRITTEN_TO:
        upper, work = (state / f"{kind}{place.replace('/', '-')}" for kind in ("upper", "work"))
        upper.mkdir()
        work.mkdir()
        _overlay(place, f"lowerdir={place},upperdir={upper},workdir={work}")


def _overlay(place: str, options: str) -> None:
    subprocess.run(["mount", "-t", "overlay", "headrace-tests", "-o", options, place], check=True)


def fetch_contents(cache: Path) -> Path:
    """Unpack CONTENTS below `cache`, once, without what they depend on; return where."""
    root = cache / "contents"
    if not (cache / "contents.complete").exists():
        shutil.rmtree(root, ignore_errors=True)
        debs = _empty(cache / "debs")
        _apt("download", *CONTENTS, directory=debs)
        _unpack(debs, root)
        (cache / "contents.complete").touch()
    return root


def _apt(*arguments: str, directory: Path | None = None) -> None:
    """Call apt; where it knows no such package, renew its lists and call again."""
    run = subprocess.run([*APT, *arguments], cwd=directory, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        subprocess.run([*APT, "update"], capture_output=True, check=False)
        run = subprocess.run([*APT, *arguments], cwd=directory, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise UnavailableError(f"apt-get {' '.join(arguments)} failed:\n{run.stderr.strip()}")


def _unpack(debs: Path, root: Path) -> None:
    root.mkdir()
    for deb in sorted(debs.glob("*.deb")):
        subprocess.run(["dpkg", "-x", deb, root], check=True)
    shutil.rmtree(debs)


def _empty(directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory
