"""`headrace bench` as a process against a real cluster: each workload arrives as it was told, Ctrl-C ends it."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import headrace
import pytest
from headrace.wire.partitioning import partition_for_key
from headrace_devcluster.cluster import LocalCluster

from tests.children import running

PARTITIONS = 3


@pytest.fixture
def topic(headrace_cluster: LocalCluster, topic_name: str) -> str:
    """An empty topic of three partitions."""
    with headrace.Admin(bootstrap_servers=headrace_cluster.bootstrap_servers) as admin:
        admin.create_topic(topic_name, partitions=PARTITIONS)
    return topic_name


def command(cluster: LocalCluster, topic: str, *arguments: str) -> list[str]:
    program = [sys.executable, "-m", "headrace.cli", "bench", topic, *arguments]
    return [*program, "--output", "json", "-b", cluster.bootstrap_servers]


def bench(cluster: LocalCluster, topic: str, *arguments: str) -> dict[str, Any]:
    ended = subprocess.run(command(cluster, topic, *arguments), capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


def stored(cluster: LocalCluster, topic: str) -> list[headrace.Record]:
    with headrace.Reader(topic, bootstrap_servers=cluster.bootstrap_servers) as reader:
        return list(reader)


def test_the_workload_of_the_paper_arrives(headrace_cluster: LocalCluster, topic: str) -> None:
    """Values of the size, no keys; what is told is what is there."""
    document = bench(headrace_cluster, topic, "--records", "20000", "--value-bytes", "100")
    records = stored(headrace_cluster, topic)
    assert (document["records"], document["bytes"], document["failed_records"]) == (20_000, 2_000_000, 0)
    assert (len(records), {len(record.value) for record in records}, {record.key for record in records}) == (
        20_000,
        {100},
        {None},
    )


def test_the_workload_of_a_key_value_store_arrives(headrace_cluster: LocalCluster, topic: str) -> None:
    """Each key is where the partitioner has it; records were acknowledged, and it is told after how long."""
    document = bench(headrace_cluster, topic, "-w", "etc", "--rate", "20000", "--records", "5000", "--keys", "500")
    records = stored(headrace_cluster, topic)
    assert sum(len(record.key) + len(record.value) for record in records) == document["bytes"]
    assert all(partition_for_key(record.key, PARTITIONS) == record.partition for record in records)
    assert (len(records), document["records"]) == (5_000, 5_000)
    assert 0 < document["acknowledged_ms"]["p50"] <= document["acknowledged_ms"]["p99"]
    assert document["seconds"] >= 0.2


def test_a_file_arrives_in_its_own_time(headrace_cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    """A second of records at twice its speed takes half a second; keys, values and headers are those of the file."""
    lines = [{"key": f"k{n % 7}", "value": f"v{n}", "timestamp_ms": 10 * n, "headers": {"n": "1"}} for n in range(101)]
    (tmp_path / "log").write_text("".join(json.dumps(line) + "\n" for line in lines))
    document = bench(headrace_cluster, topic, str(tmp_path / "log"), "-w", "replay", "--speed", "2")
    assert document["records"] == 101
    assert document["seconds"] >= 0.5
    records = stored(headrace_cluster, topic)
    assert sorted((record.key, record.value) for record in records) == sorted(
        (f"k{n % 7}".encode(), b"v%d" % n) for n in range(101)
    )
    assert {record.headers for record in records} == {(("n", b"1"),)}


def test_ctrl_c_tells_what_was_sent(headrace_cluster: LocalCluster, topic: str) -> None:
    """Everything that is counted is in the log; exit code 130, no traceback."""
    arguments = command(headrace_cluster, topic, "--rate", "2000", "--seconds", "600")
    with running(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 30
        while not stored(headrace_cluster, topic):
            assert time.monotonic() < deadline, "nothing was sent"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")
    assert json.loads(out)["records"] == len(stored(headrace_cluster, topic)) > 0
