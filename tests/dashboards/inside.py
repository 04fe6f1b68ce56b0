"""The part of `make test-dashboards` that runs in namespaces of its own: gets ready, then runs the tests.

As `tests.containers.inside`: Chromium, Prometheus and Node packages are fetched in the machine's network, the tests run
where there is only loopback.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.containers.packages import UnavailableError, fetch_tools, lay_over
from tests.containers.tier import UNAVAILABLE

STATE = "HEADRACE_TEST_DASHBOARDS"  # Where the tests find the page; without it, pytest collects none of them.
TOOLS = ("chromium", "fonts-inter", "prometheus")
SOURCE = Path(__file__).resolve().parent


def main() -> int:
    """Make the page, then run pytest with the arguments given; return its exit code, or UNAVAILABLE."""
    cache, state, *arguments = sys.argv[1:]
    try:
        tools = fetch_tools(Path(cache), TOOLS)
        lay_over([tools], Path(state))
        bundle(Path(cache), Path(state))
    except UnavailableError as error:
        print(error, file=sys.stderr)
        return UNAVAILABLE
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-s", "-rs", *arguments]
    within = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *pytest]
    return subprocess.call(within, env={**os.environ, STATE: state, "FONTCONFIG_PATH": str(tools / "etc/fonts")})


def bundle(cache: Path, state: Path) -> None:
    """Install the packages of package-lock.json below `cache`, once, and make bundle.js in `state` of draw.jsx."""
    lock = (SOURCE / "package-lock.json").read_bytes()
    packages = cache / f"node-{hashlib.sha256(lock).hexdigest()[:12]}"
    if not packages.exists():
        partial = cache / "node.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(SOURCE / name, partial)
        _run(["npm", "ci", "--ignore-scripts", "--legacy-peer-deps", "--no-audit", "--no-fund"], partial)
        partial.rename(packages)
    shutil.copy(SOURCE / "draw.jsx", packages)
    options = ["--bundle", "--minify", "--loader:.svg=dataurl", '--define:process.env.NODE_ENV="production"']
    _run(["node_modules/.bin/esbuild", "draw.jsx", *options, f"--outfile={state / 'bundle.js'}"], packages)
    (state / "index.html").write_text(
        '<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="bundle.css"><body><div id="board"></div>'
        '<script src="board.js"></script><script src="bundle.js"></script>'
    )


def _run(command: list[str], directory: Path) -> None:
    run = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise UnavailableError(f"{' '.join(command[:2])} failed ({run.returncode}):\n{run.stderr[-3000:]}")


if __name__ == "__main__":
    sys.exit(main())
