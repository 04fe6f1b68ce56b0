"""The part of `make test-kubernetes` that runs in namespaces of its own: gets ready, then runs the tests.

As `tests.containers.inside`: programs are fetched and images made in the machine's network, the tests and the whole
Kubernetes cluster run in network namespaces where there is nothing but what they start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import yaml

from tests.containers.images import ROOT, Builder
from tests.containers.packages import UnavailableError, fetch_contents, fetch_tools, lay_over
from tests.containers.tier import UNAVAILABLE
from tests.go_programs import ETCD
from tests.kubernetes.machines import PAUSE
from tests.kubernetes.programs import fetch_programs

STATE = "HEADRACE_TEST_KUBERNETES"  # Where the tests find the images; without it, pytest collects none of them.
DEFINITIONS = "HEADRACE_TEST_KUBERNETES_CRDS"
# What a node needs besides an engine: plug-ins that give pods their network, and a file system for volumes.
PACKAGES = ("containernetworking-plugins", "xfsprogs")
CHART = ROOT / "deploy" / "helm" / "headrace"


def image_names() -> dict[str, str]:
    """The images that the chart's values name, without any of ours."""
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    version = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))["appVersion"]
    etcd = values["etcd"]["bundled"]["image"]
    return {"headrace": f"{values['image']['repository']}:{version}", "etcd": f"{etcd['repository']}:{etcd['tag']}"}


def main() -> int:
    """Make what the cluster needs, then run pytest with the arguments given; return its exit code, or UNAVAILABLE."""
    cache, state, *arguments = sys.argv[1:]
    begun = time.monotonic()
    try:
        programs = fetch_programs(Path(cache))
        containers = ROOT / ".headrace" / "containers"
        containers.mkdir(parents=True, exist_ok=True)
        lay_over([fetch_tools(containers), fetch_tools(Path(cache), PACKAGES)], Path(state))
        contents = fetch_contents(containers)
    except UnavailableError as error:
        print(error, file=sys.stderr)
        return UNAVAILABLE
    os.environ["HEADRACE_ETCD"] = str(programs.servers / "etcd")  # In the chart's image, and below the API server.
    print(f"etcd {ETCD}, built from its Go modules", flush=True)
    Builder(containers, Path(state)).make_for_chart(contents, pause=PAUSE, **image_names())
    print(f"programs and images made in {time.monotonic() - begun:.0f} s", flush=True)
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-s", "-rs", *arguments]
    within = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *pytest]
    environ = {STATE: state, DEFINITIONS: str(programs.definitions), "PATH": programs.path()}
    return subprocess.call(within, env={**os.environ, **environ})


if __name__ == "__main__":
    sys.exit(main())
