"""The trace of a record, and the span of a job, seen in the real OpenTelemetry Collector, built from Go modules."""

import base64
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import headrace
import pytest
from google.protobuf.json_format import ParseDict
from headrace_devcluster.cluster import LocalCluster
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.integration.traced import PRODUCE, SECRET, STAGES, TOPIC, application, check_trace, send_and_handle
from tests.otlp_receiver import ReceivedSpan, spans_of

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).parent / "otelcol"
JOB = Path(__file__).parent / "traced_job.py"
CONFIG = """
receivers:
  otlp:
    protocols:
      http:
        endpoint: {endpoint}
exporters:
  file:
    path: {file}
    flush_interval: 100ms
service:
  telemetry:
    metrics:
      level: none
  pipelines:
    traces:
      receivers: [otlp]
      exporters: [file]
"""
BUILD_SECONDS = 1_500

pytestmark = [pytest.mark.slow, pytest.mark.timeout(BUILD_SECONDS + 300)]


@pytest.fixture(scope="module")
def otelcol() -> Path:
    """The collector's program; built once for these sources, for minutes."""
    if shutil.which("go") is None:
        pytest.skip("the collector is built with Go, which is not installed")
    sources = sorted(SOURCE.iterdir())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    program = ROOT / "build" / f"otelcol-{digest}"
    if not program.exists():
        program.parent.mkdir(exist_ok=True)
        part = program.with_suffix(f".{os.getpid()}")
        subprocess.run(["go", "build", "-o", str(part), "."], cwd=SOURCE, check=True, timeout=BUILD_SECONDS)
        part.rename(program)
    return program


@pytest.fixture
def collector(otelcol: Path, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A running collector: its endpoint, and the file to which it writes what it gets."""
    endpoint, file, config = f"127.0.0.1:{free_port()}", tmp_path / "traces.json", tmp_path / "otelcol.yaml"
    config.write_text(CONFIG.format(endpoint=endpoint, file=file))
    with (tmp_path / "otelcol.log").open("w") as log:
        process = subprocess.Popen([otelcol, "--config", config], stderr=log, stdout=log)
    try:
        deadline = time.monotonic() + 60
        while not is_listening(endpoint):
            assert process.poll() is None, (tmp_path / "otelcol.log").read_text()
            assert time.monotonic() < deadline
        yield f"http://{endpoint}", file
    finally:
        process.terminate()
        process.wait(30)


def free_port() -> int:
    """Return a port that the kernel has just found free: the collector does not tell which one it chose."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def is_listening(endpoint: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{endpoint}/", timeout=1):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def read_spans(file: Path) -> list[ReceivedSpan]:
    """Return the spans that the collector has written: OTLP as JSON, in which ids are hexadecimal."""

    def with_bytes(found: object) -> object:
        if isinstance(found, dict):
            return {
                key: base64.b64encode(bytes.fromhex(value)).decode()
                if key in ("traceId", "spanId", "parentSpanId") and isinstance(value, str)
                else with_bytes(value)
                for key, value in found.items()
            }
        return [with_bytes(each) for each in found] if isinstance(found, list) else found

    lines = file.read_text().splitlines() if file.exists() else []
    spans: list[ReceivedSpan] = []
    for line in lines:
        if line.endswith("}"):
            request = ParseDict(with_bytes(json.loads(line)), ExportTraceServiceRequest(), ignore_unknown_fields=True)
            spans += spans_of(request)
    return spans


def wait_for_spans(file: Path, names: set[str], chosen: Callable[[ReceivedSpan], bool]) -> list[ReceivedSpan]:
    """Return the chosen spans once there are these."""
    deadline = time.monotonic() + 120
    spans: list[ReceivedSpan] = []
    while not names <= {span.name for span in spans}:
        assert time.monotonic() < deadline, sorted(span.name for span in spans)
        spans = [span for span in read_spans(file) if chosen(span)]
    return spans


def test_the_collector_has_one_trace_from_the_send_to_the_handler(
    collector: tuple[str, Path], own_cluster: Callable[..., LocalCluster]
) -> None:
    """As application, broker and handler sent it, and nothing of the record."""
    endpoint, file = collector
    cluster = own_cluster(brokers=3, coordinators=1, broker_settings={"otlp_endpoint": endpoint})
    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic(TOPIC)
    with application(endpoint) as provider:
        trace_id = send_and_handle(cluster, provider, "auto")
    wanted = {"checkout", f"send {TOPIC}", PRODUCE, f"process {TOPIC}", "send mail", *STAGES}
    spans = wait_for_spans(file, wanted, lambda span: span.trace_id == trace_id)
    check_trace(spans, "grpc" if os.environ.get("HEADRACE_TEST_TRANSPORT") == "grpc" else "headrace")
    assert SECRET.decode() not in file.read_text()


def test_the_collector_has_the_commit_of_a_spark_job(
    collector: tuple[str, Path], own_cluster: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    """As the job's own process sent it, with the number of its records."""
    endpoint, file = collector
    cluster = own_cluster(brokers=1, coordinators=1)
    servers = cluster.bootstrap_servers
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(TOPIC)
    with headrace.Producer(bootstrap_servers=servers) as producer:
        producer.send_many(TOPIC, [SECRET] * 10)
    job = ["spark_jobs.load", "--topic", TOPIC, "--table", str(tmp_path / "table"), "-b", servers]
    command = [sys.executable, str(JOB), endpoint, *job, "--master", "local[1]", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-5_000:]
    (span,) = wait_for_spans(file, {f"process {TOPIC}"}, lambda span: span.name == f"process {TOPIC}")
    assert span.attributes["messaging.batch.message_count"] == 10
    assert SECRET.decode() not in file.read_text()
