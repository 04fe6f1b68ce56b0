"""The `headrace` command against a real cluster: round trip, dry runs, exit codes; signals and pipes of a process."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace as sdk
import pytest
from headrace.cli.common.session import SdkClients
from headrace.cli.main import run
from headrace_devcluster.cluster import LocalCluster

from tests.children import running

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def headrace(
    headrace_cluster: LocalCluster, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Runs a command line to its end, in this process, which is a second quicker; stdin as text."""

    def start(*arguments: str, stdin: str = "", bootstrap: str = "") -> subprocess.CompletedProcess[str]:
        monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", bootstrap or headrace_cluster.bootstrap_servers)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = run(arguments, SdkClients())
        captured = capsysbinary.readouterr()
        return subprocess.CompletedProcess(arguments, code, captured.out.decode(), captured.err.decode())

    return start


def ok(ended: subprocess.CompletedProcess[str]) -> str:
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture
def topic(headrace: Run, topic_name: str) -> str:
    """A topic of one partition with a setting of its own."""
    ok(headrace("topic", "create", topic_name, "-p", "1", "--config", "retention_ms=86400000"))
    return topic_name


def test_round_trip(headrace: Run, topic: str, tmp_path: Path) -> None:
    """A file in, each offset form out, described, altered, dumped, deleted."""
    (tmp_path / "lines").write_text("".join(f"line {number}\n" for number in range(100)))
    before_ms = time.time_ns() // 1_000_000 - 1000
    assert "produced 100 records" in headrace("produce", topic, str(tmp_path / "lines")).stderr
    every = [f"line {number}" for number in range(100)]
    forms: dict[tuple[str, ...], list[str]] = {
        ("-e",): every,
        ("-e", "-o", "start"): every,
        ("-e", "-o", "end"): [],
        ("-e", "-o", "-5"): every[-5:],
        ("-e", "-o", "+95"): every[95:],
        ("-e", "-o", "98"): every[98:],
        ("-o", "5:10"): every[5:10],
        ("-o", "start:end"): every,
        ("-e", "-o", f"@{before_ms}"): every,
        ("-e", "-o", "@-1h"): every,
        ("-o", "@-1h:@-30m"): [],
        ("-o", "@2020-01-01:@2020-01-02T00:00:00Z"): [],
        ("-n", "3", "-o", "start"): every[:3],
        ("--last", "4"): every[-4:],
    }
    for form, expected in forms.items():
        assert ok(headrace("consume", topic, *form)).splitlines() == expected, form
    described = json.loads(ok(headrace("topic", "describe", topic, "--output", "json")))
    assert described["partitions"][0]["high_watermark"] == 100
    assert described["configs"]["retention_ms"]["value"] == "86400000"
    ok(headrace("topic", "alter", topic, "--config", "retention_ms=3600000", "--partitions", "2"))
    described = json.loads(ok(headrace("topic", "describe", topic, "--output", "json")))
    assert (len(described["partitions"]), described["configs"]["retention_ms"]["value"]) == (2, "3600000")
    keys = [entry["key"] for entry in json.loads(ok(headrace("cluster", "dump", "--output", "json")))]
    assert any(topic in key for key in keys)
    ok(headrace("topic", "delete", topic))
    assert headrace("topic", "describe", topic).returncode == 4


def test_json_lines_survive_the_way_through_the_cluster(headrace: Run, topic: str) -> None:
    """Keys, headers, timestamps, nulls and bytes that are not UTF-8 come back as they went in."""
    now_ms = time.time_ns() // 1_000_000
    lines: list[dict[str, Any]] = [
        {"key": "k", "value": "ä", "headers": [{"key": "h", "value": {"base64": "/w=="}}], "timestamp_ms": now_ms},
        {"key": None, "value": None, "headers": [], "timestamp_ms": now_ms - 5},
        {"key": {"base64": "AP8="}, "value": "", "headers": [], "timestamp_ms": now_ms + 5},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    ok(headrace("produce", topic, "--input", "json", "--compression", "gzip", stdin=text))
    out = ok(headrace("consume", topic, "-e", "--output", "json"))
    back = [json.loads(line) for line in out.splitlines()]
    assert [{name: each[name] for name in lines[0]} for each in back] == lines
    assert ok(headrace("consume", topic, "-e", "-f", r"%o:%k:%S\n", "-n", "2")) == "0:k:2\n1::-1\n"


def test_dry_runs_change_nothing(headrace: Run, headrace_cluster: LocalCluster, topic: str) -> None:
    """What etcd keeps and what the log holds are the same before and after."""
    with sdk.Admin(bootstrap_servers=headrace_cluster.bootstrap_servers) as admin:

        def state() -> object:
            mine = [(entry.key, entry.mod_revision) for entry in admin.dump() if topic in entry.key]
            return mine, admin.list_offsets(topic), admin.list_topics()

        before = state()
        ok(headrace("topic", "create", f"{topic}-new", "--dry-run"))
        ok(headrace("topic", "alter", topic, "-p", "5", "--config", "retention_ms=1000", "--dry-run"))
        ok(headrace("topic", "delete", topic, "--dry-run"))
        ok(headrace("produce", topic, "--dry-run", stdin="a\nb\n"))
        assert state() == before
    assert headrace("topic", "create", topic, "--dry-run").returncode == 7
    assert headrace("topic", "alter", topic, "--config", "retentoin_ms=1", "--dry-run").returncode == 1


def test_the_cluster_described(headrace: Run, headrace_cluster: LocalCluster) -> None:
    """Brokers, coordinators and health as they are."""
    brokers = json.loads(ok(headrace("broker", "list", "--output", "json")))
    assert [each["address"] for each in brokers] == [broker.address for broker in headrace_cluster.brokers]
    described = json.loads(ok(headrace("cluster", "describe", "--output", "json")))
    assert len(described["coordinators"]) == len(headrace_cluster.coordinators)
    assert json.loads(ok(headrace("cluster", "health", "--output", "json")))["problems"] == []


def test_an_unreachable_cluster_names_each_address_and_its_cause(headrace: Run) -> None:
    """Exit code 3 and one line with both addresses, whatever gRPC has to say."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))  # Bound and not listening: refused, and the port stays taken.
        second.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in (first, second)]
        command = [sys.executable, "-m", "headrace.cli", "topic", "list", "--timeout", "3", "-b", ",".join(addresses)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (3, "", 1)
    assert all(f"{address}: " in ended.stderr for address in addresses)
    assert ended.stderr.lower().count("refused") == 2
    assert headrace("topic", "list", bootstrap="nonsense").returncode == 2


def test_a_reader_that_goes_away_is_no_error(headrace: Run, headrace_cluster: LocalCluster, topic: str) -> None:
    """`headrace consume | head -1` says nothing on stderr."""
    ok(headrace("produce", topic, stdin="a long enough line\n" * 50_000))
    arguments = [sys.executable, "-m", "headrace.cli", "consume", topic, "-e", "-b", headrace_cluster.bootstrap_servers]
    with running(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 141


def test_ctrl_c_ends_a_follower_at_once(headrace: Run, headrace_cluster: LocalCluster, topic: str) -> None:
    """It printed what there was; exit code 130, no traceback."""
    ok(headrace("produce", topic, stdin="first\n"))
    arguments = [sys.executable, "-m", "headrace.cli", "consume", topic, "-o", "start"]
    arguments += ["-b", headrace_cluster.bootstrap_servers]
    with running(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"first\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert process.stderr.read() == b""


def test_ctrl_c_ends_watching_at_once(headrace_cluster: LocalCluster) -> None:
    """On a terminal the picture stays as it was last drawn; exit code 130, no traceback."""
    arguments = [sys.executable, "-m", "headrace.cli", "cluster", "health", "--watch", "--interval", "60"]
    ours, theirs = os.openpty()
    try:
        with running(
            [*arguments, "-b", headrace_cluster.bootstrap_servers], stdout=theirs, stderr=subprocess.PIPE
        ) as process:
            assert process.stderr is not None
            seen = b""
            while b"partitions" not in seen:
                seen += os.read(ours, 4096)
            assert seen.startswith(b"\x1b[2J\x1b[H\x1b[J")
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 130
            assert process.stderr.read() == b""
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_dead_broker_is_named_with_what_to_do(headrace: Run, own_cluster: Callable[..., LocalCluster]) -> None:
    """Exit code 5: which partitions have no leader, which broker to bring back."""
    cluster = own_cluster(brokers=2, coordinators=1, broker_settings={"lease_ttl_ms": 2000})
    servers = cluster.bootstrap_servers
    ok(headrace("topic", "create", "clicks", "-p", "4", "--replication-factor", "1", bootstrap=servers))
    cluster.broker(2).kill()
    deadline = time.monotonic() + 30
    problems: list[dict[str, str]] = []

    def is_named(problem: dict[str, str]) -> bool:
        """Not while the broker still has its lease: then it is the controller that is waited for."""
        return problem["check"] == "offline_partitions" and "Bring back broker 2" in problem["action"]

    while not any(map(is_named, problems)):
        assert time.monotonic() < deadline, f"the dead broker was not noticed: {problems}"
        ended = headrace("cluster", "health", "--output", "json", "--timeout", "2", bootstrap=servers)
        problems = json.loads(ended.stdout or "{}").get("problems", [])
    assert ended.returncode == 5
    (offline,) = (each for each in problems if each["check"] == "offline_partitions")
    assert "clicks-" in offline["found"]
