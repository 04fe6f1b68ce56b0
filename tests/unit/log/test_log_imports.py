"""The log is a library below the clients and the services: a process pays only for the one that it uses."""

from __future__ import annotations

import subprocess
import sys

import pytest

SERVICE_MODULES = {"asyncio", "google.protobuf", "grpc", "prometheus_client", "structlog", "typer"}


@pytest.mark.parametrize(
    ("imports", "absent"),
    [
        ("import headrace; headrace.Producer; headrace.Consumer; import headrace.aio", {"headrace.log"}),
        ("import headrace.log", SERVICE_MODULES | {"headrace.client", "headrace.v1"}),
    ],
    ids=["clients", "log"],
)
def test_clients_and_log_do_not_load_each_other(imports: str, absent: set[str]) -> None:
    """The clients do not load the log, and the log loads no client, asyncio, grpc, protobuf or telemetry."""
    script = f"import sys; {imports}\nloaded = {absent!r} & set(sys.modules)\n"
    script += "sys.exit(f'loaded: {loaded}' if loaded else 0)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
