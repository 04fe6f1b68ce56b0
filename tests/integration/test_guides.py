"""Guides do what they say: their commands and Python blocks run in order."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import headrace
import pytest
from headrace.client.schemas.registry import SchemaRegistry, SchemaRegistryError
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


def run_guide(page: str, replacements: Mapping[str, str]) -> None:
    """Run the blocks of a guide from its first to its last, in the working directory and one interpreter."""
    names: dict[str, object] = {"__name__": "__main__"}
    path = GUIDES / f"{page}.md"
    before = None
    for token in MarkdownIt("commonmark").parse(path.read_text("utf-8")):
        code = token.content
        for shown, actual in replacements.items():
            code = code.replace(shown, actual)
        if token.type != "fence":
            before = token if token.type == "inline" else before
            continue
        if any(word in code for word in ELSEWHERE):
            continue
        if token.info == "sh":
            run_commands(code)
        elif token.info == "json" and before is not None and (file := re.match(r"`(\w+\.avsc)` has", before.content)):
            Path(file[1]).write_text(code, "utf-8")
        elif token.info == "python":
            assert token.map is not None
            # Line numbers of a failure are those of the page.
            exec(compile("\n" * (token.map[0] + 1) + code, str(path), "exec", dont_inherit=True), names)


@pytest.mark.parametrize("page", ["compacted-topics", "directory", "tables", "typed-topics"])
def test_a_guide_runs(page, tmp_path, monkeypatch):
    """On a directory in place of a cluster."""
    for package in ("duckdb", "pandas", "pyarrow"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    if page != "directory":
        monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", "dir:log")
    run_guide(page, {"100_000": "1_000"})


@pytest.mark.parametrize("page", ["from-a-kafka-client", "schemas"])
def test_a_guide_runs_on_a_cluster(page, headrace_cluster, tmp_path, monkeypatch, capsys):
    """Pages with groups of consumers and schemas; what they create is removed."""
    pytest.importorskip("fastavro")
    servers, registry = headrace_cluster.bootstrap_servers, headrace_cluster.schema_registry_urls[0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", servers)
    monkeypatch.setenv("HEADRACE_SCHEMA_REGISTRY_URL", registry)
    try:
        run_guide(page, {"localhost:7170": servers, "http://localhost:7370": registry})
    finally:
        with headrace.Admin() as admin:
            for name in set(admin.list_topics()) & {"orders", "orders-dead"}:
                admin.delete_topic(name)
            for group in {group.group_id for group in admin.list_groups()} & {"billing", "mail"}:
                admin.delete_groups([group])
        for permanent in ("false", "true"):
            with contextlib.suppress(SchemaRegistryError):
                SchemaRegistry(registry).request("DELETE", f"/subjects/orders-value?permanent={permanent}")
    shown = {"from-a-kafka-client": ["charge b'a book'", "mail b'a book'"], "schemas": ["tea"]}
    assert capsys.readouterr().out.splitlines()[: len(shown[page])] == shown[page]
