"""A request trace in a topic of a real cluster: made with known parameters, captured, analysed, fitted, replayed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import headrace
import pyarrow.parquet
import pytest
from headrace.cli.bench.distributions import SizeModel, Tail
from headrace.cli.bench.models import POOLS, WorkloadModel, model_of
from headrace.wire.request_trace import RequestOutcome, TableOperation, decode_block
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from spark_jobs.progress import ProgressLine
from spark_jobs.topic_frame import read_topic
from spark_jobs.trace_analysis.requests import TraceCollector, TraceError, chosen_trace, topic_values
from spark_jobs.trace_analysis.summary import summarise
from spark_jobs.workload import local_summary, spark_summary

from tests.integration.replicated import until
from tests.unit.spark_jobs.test_trace_requests import block
from tests.unit.spark_jobs.test_trace_summary import equal

pytest.importorskip("scipy")
pytestmark = pytest.mark.timeout(600)
KNOWN = WorkloadModel(
    operations={"get": 0.9, "put": 0.08, "delete": 0.02},
    hit_rate=0.85,
    keys=300_000,
    zipf_exponent=0.9,
    new_key_rate=0.03,
    key_bytes=SizeModel((), (), Tail("gev", 40.0, 10.0, 0.12), 250, least=1),
    value_bytes=SizeModel(
        tuple(range(15)), (*[0.0] * 2, 0.15, *[0.0] * 11, 0.05), Tail("gpd", 15.0, 300.0, 0.25), 10**6
    ),
    gap_us=Tail("gpd", 0.0, 25.0, 0.2),
)
"""Parameters of none of the study's pools."""


def run(program: list[str], servers: str) -> dict[str, Any]:
    command = [sys.executable, "-m", *program, "-b", servers]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1] if "spark_jobs" in program[0] else ended.stdout)
    return document


def traced(servers: str, topic: str, workload: str, *options: str) -> dict[str, Any]:
    """Send a trace to a topic, as fast as it goes."""
    arguments = ["headrace.cli", "bench", topic, "-w", workload, "--rate", "max", "--output", "json", *options]
    return run(arguments, servers)


def parameters(model: WorkloadModel) -> dict[str, float]:
    """The numbers of a model whose sizes and gaps are fitted, by name."""
    assert model.key_bytes.tail is not None
    assert model.value_bytes.tail is not None
    tails = {"key": model.key_bytes.tail, "value": model.value_bytes.tail, "gap": model.gap_us}
    found = {f"{name}.{part}": getattr(tail, part) for name, tail in tails.items() for part in ("scale", "shape")}
    found["key.location"] = model.key_bytes.tail.location
    found |= {f"value of {size}": model.value_bytes.probabilities[size] for size in (2, 14)}
    found |= {name: getattr(model, name) for name in ("hit_rate", "keys", "zipf_exponent", "new_key_rate")}
    return found | dict(model.operations)


@pytest.fixture
def topic(headrace_cluster: LocalCluster, topic_name: str) -> Iterator[str]:
    with headrace.Admin(bootstrap_servers=headrace_cluster.bootstrap_servers) as admin:
        admin.create_topic(topic_name, partitions=1)
        yield topic_name
        admin.delete_topic(topic_name)


@pytest.mark.slow
def test_the_parameters_of_a_workload_come_back(headrace_cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    """Generate, capture in a topic, fit: all 16 within 5 %; the fitted model is replayed and comes back once more."""
    servers = headrace_cluster.bootstrap_servers
    (tmp_path / "known.json").write_text(KNOWN.as_json())
    model = tmp_path / "known.json"
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(f"{topic}-again", partitions=1)
    for name in (topic, f"{topic}-again"):
        sent = traced(servers, name, f"fitted:{model}", "--trace", "1", "--records", "1500000")
        assert sent["traced_requests"] == 1_500_000
        report = tmp_path / name
        document = run(
            ["spark_jobs.workload", "--local", "--topic", name, "--output", str(report), "--json", "-q"], servers
        )
        assert (document["requests"], document["damaged_records"]) == (1_500_000, 0)
        assert all(fit["describes"] for fit in document["fits"].values()), document["fits"]
        model = report / "model.json"
        assert parameters(model_of(model.read_text())) == pytest.approx(parameters(KNOWN), rel=0.05)
    assert set(pyarrow.parquet.read_table(report / "workload.parquet")["measure"].to_pylist()) >= {
        "composition",
        "popularity",
        "cache size, distances",
        "fit of gap_us",
    }


def test_a_sample_of_the_keys_has_the_same_distributions(
    headrace_cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    """From a tenth of the keys: the exponent, the number of keys, sizes and gaps of all; nothing else is captured."""
    servers = headrace_cluster.bootstrap_servers
    options = ("--trace", "0.1", "--records", "400000", "--keys", "40000")
    traced(servers, topic, "sys", *options)
    arguments = ["spark_jobs.workload", "--local", "--topic", topic, "--output", str(tmp_path), "--json", "-q"]
    document = run(arguments, servers)
    assert document["seen_requests"] == 400_000
    assert document["keys"] < 4_400
    assert document["sampled_fraction"] == pytest.approx(0.1)
    model = model_of((tmp_path / "model.json").read_text())
    assert model.keys == pytest.approx(40_000, rel=0.1)
    assert model.zipf_exponent == pytest.approx(0.99, rel=0.1)
    assert model.gap_us.scale == pytest.approx(POOLS["sys"].gap_us.scale, rel=0.05)
    assert model.hit_rate == pytest.approx(0.987, rel=0.05)


def test_damaged_records_and_unknown_tables_are_told(
    headrace_cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    """What is no block is counted and left out; a table that is not there is named with those that are."""
    servers = headrace_cluster.bootstrap_servers
    with pytest.raises(TraceError, match="has no trace of a table; turn on trace_sample"):
        local_summary(topic, None, None, servers)
    traced(servers, topic, "usr", "--trace", "1", "--records", "9000", "--keys", "500")
    with headrace.Producer(bootstrap_servers=servers) as producer:
        producer.send_many(topic, [b"", b"no block", bytes(300)])
    trace, summary, damaged = local_summary(topic, None, None, servers)
    assert (trace.table, summary.requests, damaged) == (topic, 9_000, 3)
    with pytest.raises(TraceError, match=f"has no trace of the table users; it has {topic}"):
        local_summary(topic, None, "users", servers)


@pytest.mark.slow
def test_spark_counts_what_one_process_counts(jobs, spark_cluster: LocalCluster, topic_name: str) -> None:
    """In parts by key, of a topic of two partitions with two tables and damaged records: the same numbers."""
    servers = spark_cluster.bootstrap_servers
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(topic_name, partitions=2, replication_factor=1)
        admin.create_topic(f"{topic_name}-other", partitions=1, replication_factor=1)
    for name in (topic_name, f"{topic_name}-other"):
        traced(servers, name, "etc", "--trace", "1", "--records", "30000", "--keys", "2000")
    with headrace.Reader(f"{topic_name}-other", bootstrap_servers=servers) as reader:
        others = [record.value for record in reader]
    with headrace.Producer(bootstrap_servers=servers) as producer:
        producer.send_many(topic_name, [*others, b"no block"])
    values = read_topic(jobs, servers, topic_name).select("value")
    with pytest.raises(TraceError, match="2 tables; choose one by --table"):
        spark_summary(jobs, values, None, topic_name, ProgressLine(quiet=True))
    trace, summary, damaged = spark_summary(jobs, values, topic_name, topic_name, ProgressLine(quiet=True))
    local_trace, local, local_damaged = local_summary(topic_name, None, topic_name, servers)
    assert (trace, damaged) == (local_trace, local_damaged)
    assert damaged == 1
    assert summary.reuses.gets == local.gets
    assert equal(summary, local)


@pytest.mark.slow
def test_spark_leaves_out_what_one_process_leaves_out(jobs) -> None:
    """Blocks that were written twice, in any partition, and other tables of the name; damaged records are counted."""
    held = [block(0, 200), block(200, 500), block(0, 9, "orders"), block(0, 200), b"no block", b"no block"]
    held += [block(0, 50, table_id=b"a" * 16), block(50, 150, threshold=1 << 30)]
    values = jobs.createDataFrame([(value,) for value in held], "value BINARY").repartition(3)
    collector = TraceCollector()
    for value in held:
        collector.add(value)
    local = chosen_trace(collector.traces.values(), "users", "a topic")
    trace, summary, damaged = spark_summary(jobs, values, "users", "a topic", ProgressLine(quiet=True))
    assert (trace, trace.repeated_blocks, damaged) == (local, 1, 2)
    assert [other.requests for other in trace.left_out] == [100, 50]
    assert equal(summary, summarise(collector.requests(local)))


@pytest.mark.slow
def test_the_job_runs_with_spark(spark_cluster: LocalCluster, topic_name: str, tmp_path: Path) -> None:
    """As a command with its own Spark; the model is that of the requests."""
    servers = spark_cluster.bootstrap_servers
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(topic_name, partitions=1, replication_factor=1)
    model = replace(POOLS["usr"], keys=2_000)
    (tmp_path / "usr.json").write_text(model.as_json())
    traced(servers, topic_name, f"fitted:{tmp_path / 'usr.json'}", "--trace", "1", "--records", "20000")
    arguments = ["--topic", topic_name, "--output", str(tmp_path / "report"), "--master", "local[2]", "--json", "-q"]
    document = run(["spark_jobs.workload", *arguments], servers)
    assert document["requests"] == 20_000
    found = model_of((tmp_path / "report" / "model.json").read_text())
    assert (found.key_bytes.sizes, found.value_bytes.sizes) == ((16, 21), (2,))
    assert "<svg" in (tmp_path / "report" / "workload.html").read_text()


def test_the_trace_of_a_table_becomes_a_report() -> None:
    """Requests of a real table, traced by its brokers: the report has their numbers, and the topic no key or value."""
    with LocalCluster(LocalClusterSpec(brokers=2, coordinators=1)) as cluster:
        servers = cluster.bootstrap_servers
        with headrace.Admin(bootstrap_servers=servers) as admin:
            config = {"cleanup_policy": "compact", "table": "yes", "trace_sample": "1"}
            admin.create_topic("users", partitions=3, replication_factor=2, config=config)
            until(lambda: "__table_trace" in admin.list_topics(), "the topic of the trace", 60)
        with headrace.Table("users", bootstrap_servers=servers) as table:
            for number in range(100):
                table.put(f"a-secret-key-{number}", {"column": "a secret value"})
            for number in range(150):
                table.get(f"a-secret-key-{number}")
            version = table.put("a-secret-key-0", {"column": "other"})
            with pytest.raises(headrace.VersionConflictError):
                table.put("a-secret-key-0", {"column": "lost"}, if_version=version - 1)
            table.delete("a-secret-key-1")
            assert table.get("a-secret-key-1") is None
            assert len(list(table.scan(prefix="a-secret-key-9"))) == 11
        cluster.broker(1).stop()  # It writes what it has first.
        cluster.restart(cluster.broker(1))
        wanted = 100 + 150 + 4 + 11
        values: list[bytes] = []

        def has_all() -> bool:
            values[:] = [value for value in topic_values(servers, "__table_trace") if value is not None]
            return sum(decode_block(value).requests for value in values) >= wanted

        until(has_all, "the whole trace", 60)
        assert not any(secret in value for value in values for secret in (b"secret", b"column"))
        trace, summary, damaged = local_summary("__table_trace", None, "users", servers)
    assert (trace.table, trace.fraction, trace.seen_requests, trace.dropped_requests) == ("users", 1, wanted, 0)
    assert (summary.requests, damaged) == (wanted, 0)
    assert summary.keys == 150
    operations = [TableOperation.GET, TableOperation.PUT, TableOperation.DELETE, TableOperation.SCAN]
    assert [summary.of_operation(each) for each in operations] == [151, 101, 1, 11]
    assert summary.hits == 100
    gets = summary.operations[TableOperation.GET]
    assert gets[RequestOutcome.MISS_NEVER_WRITTEN] == 50
    assert gets[RequestOutcome.MISS_DELETED] == 1
    assert summary.operations[TableOperation.COMPARE_AND_PUT, RequestOutcome.CONFLICT] == 1
    assert summary.get_latency_us.sum() == 151
