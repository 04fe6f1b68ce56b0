"""Guides do what they say: their commands and Python blocks run in order, on a directory in place of a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"
ELSEWHERE = ("broker-1:7181", "spark")
"""In blocks that need a cluster or Spark."""


def run_commands(lines: str) -> None:
    """Run the commands `headrace` of a block; the others install packages."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    lines = "\n".join(line for line in lines.splitlines() if not line.startswith("pip "))
    done = subprocess.run(
        ["sh", "-ec", lines], env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{lines}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", ["compacted-topics", "directory", "tables", "typed-topics"])
def test_a_guide_runs(page, tmp_path, monkeypatch):
    """From its first block to its last, in one working directory and one interpreter."""
    for package in ("duckdb", "pandas", "pyarrow"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    if page != "directory":
        monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", "dir:log")
    names: dict[str, object] = {"__name__": "__main__"}
    path = GUIDES / f"{page}.md"
    for fence in MarkdownIt("commonmark").parse(path.read_text("utf-8")):
        if fence.type != "fence" or any(word in fence.content for word in ELSEWHERE):
            continue
        if fence.info == "sh":
            run_commands(fence.content)
        elif fence.info == "python":
            assert fence.map is not None
            # Line numbers of a failure are those of the page.
            code = "\n" * (fence.map[0] + 1) + fence.content.replace("100_000", "1_000")
            exec(compile(code, str(path), "exec", dont_inherit=True), names)
