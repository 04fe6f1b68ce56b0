"""Programs that are published as Go modules alone: built here, by a program of a few lines that calls them.

They are kept with what they were made of, and Go keeps its own cache, for the runs that follow.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from textwrap import dedent

from tests.containers.packages import UnavailableError

# What the chart names as its etcd's image; its tools are not there in that release.
ETCD, ETCD_TOOLS = "3.6.9", "3.6.10"
ETCD_MAIN = dedent(
    """\
    package main

    import (
    \t"os"

    \t"go.etcd.io/etcd/server/v3/etcdmain"
    )

    func main() {
    \tetcdmain.Main(os.Args)
    }
    """
)
ETCDCTL_MAIN = dedent(
    """\
    package main

    import "go.etcd.io/etcd/etcdctl/v3/ctlv3"

    func main() {
    \tctlv3.MustStart()
    }
    """
)
ETCDUTL_MAIN = dedent(
    """\
    package main

    import (
    \t"os"

    \t"github.com/spf13/cobra"
    \t"go.etcd.io/etcd/etcdutl/v3/etcdutl"
    )

    func main() {
    \troot := &cobra.Command{Use: "etcdutl"}
    \troot.AddCommand(etcdutl.NewSnapshotCommand())
    \tif root.Execute() != nil {
    \t\tos.Exit(1)
    \t}
    }
    """
)


def build_program(program: Path, main: str, requirement: str, *, replaced: dict[str, str], flags: str = "") -> None:
    """Build a program of one file, `main`, with the module that it requires, unless it was built so.

    Raises:
        UnavailableError: Go or its module proxy is missing.
    """
    lines = [
        f"module headrace.test/{program.name}",
        "go 1.25.0",
        f"require {requirement}",
        *(f"replace {name} => {name} {version}" for name, version in replaced.items()),
    ]
    source = program.with_name(f"{program.name}.source")
    made_of = hashlib.sha256("\n".join([*lines, main, flags]).encode()).hexdigest()
    stamp = source / "made-of"
    if program.exists() and stamp.exists() and stamp.read_text("ascii") == made_of:
        return
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    (source / "go.mod").write_text("\n\n".join(lines) + "\n", "utf-8")
    (source / "main.go").write_text(main, "utf-8")
    print(f"building {requirement}, which takes minutes the first time", flush=True)
    run_go(["build", "-mod=mod", "-trimpath", "-ldflags", f"-s -w {flags}", "-o", str(program), "."], source)
    stamp.write_text(made_of, "ascii")


def run_go(arguments: list[str], directory: Path) -> str:
    """Run a command of Go and return its output. Raises as `build_program`."""
    if shutil.which("go") is None:
        raise UnavailableError("go not found: Kubernetes and etcd are built from Go modules, with Go 1.25 or later")
    environ = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -p=2"}
    run = subprocess.run(["go", *arguments], cwd=directory, env=environ, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise UnavailableError(f"go {arguments[0]} failed: {run.stderr.strip()[-2000:]}")
    return run.stdout


def build_etcd(directory: Path) -> Path:
    """Build etcd, etcdctl and etcdutl in `directory`, which takes minutes the first time; return the path of etcd.

    Raises:
        UnavailableError: As `build_program`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    build_program(directory / "etcd", ETCD_MAIN, f"go.etcd.io/etcd/server/v3 v{ETCD}", replaced={})
    build_program(directory / "etcdctl", ETCDCTL_MAIN, f"go.etcd.io/etcd/etcdctl/v3 v{ETCD_TOOLS}", replaced={})
    build_program(directory / "etcdutl", ETCDUTL_MAIN, f"go.etcd.io/etcd/etcdutl/v3 v{ETCD_TOOLS}", replaced={})
    return directory / "etcd"
