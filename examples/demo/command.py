"""`python -m examples.demo`: the command of `make demo`."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import headrace
import typer
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_devcluster.etcd_program import EtcdNotFoundError, find_etcd
from rich.console import Console

from examples.demo import offline
from examples.demo.failover import AcknowledgementTimes, Failover, FailoverReport, all_in_sync
from examples.demo.feeding import ACTIVITY, BUFFER_BYTES, METRICS, TOPICS, MetricsFeed, feed
from examples.demo.following import TopicFollower
from examples.demo.ledger import Ledger
from examples.demo.report import DemoTopicReport, as_json, compare, show
from examples.demo.sources import Chunk, DemoLoad, load_of_lines, load_of_views
from examples.demo.waiting import wait_until

RECORDS = 1_000_000
READERS = 2
REPLICAS = 3
MIN_INSYNC_REPLICAS = 2
LEASE_TTL_MS = 3_000
"""Shorter than the default, which shortens the wait after the kill."""
PROGRESS_SECONDS = 1.0
TABLE = Path(".headrace", "demo-table")


def demo(
    log: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, readable=True, help="Send the lines of this file.")
    ] = None,
    records: Annotated[
        int | None, typer.Option(min=1, help=f"Number of generated page views. [default: {RECORDS}]")
    ] = None,
    brokers: Annotated[int, typer.Option(min=1, max=9, help="Number of brokers; --kill needs three.")] = 3,
    single: Annotated[
        bool,
        typer.Option(
            "--single",
            help="Use a cluster in one process, without etcd and without a kill; the default where no etcd is.",
        ),
    ] = False,
    kill: Annotated[bool, typer.Option("--kill/--no-kill", help="Whether to kill a leader during the run.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of the generated page views.")] = 1,
    spark: Annotated[
        bool,
        typer.Option(
            "--spark/--no-spark", help="Whether to load the user activity into a table with Spark at the end."
        ),
    ] = True,
    table: Annotated[
        Path, typer.Option(file_okay=False, help="Directory of that table; existing contents are replaced.")
    ] = TABLE,
    as_json_text: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Start a cluster, send log data through it, kill a broker meanwhile, read the data back twice, check it, load it
    into a table and query it.

    Exit code 1 means that a check failed.
    """
    if log is not None and records is not None:
        raise typer.BadParameter("--records is for made-up page views; --log sends the file's lines, all of them")
    partitions = TOPICS[ACTIVITY]
    load = load_of_lines(log, partitions) if log else load_of_views(records or RECORDS, partitions, seed)
    console = Console(stderr=as_json_text)
    if not single:
        try:
            find_etcd()
        except EtcdNotFoundError as error:
            console.print(f"There is no etcd here ({error.message}): the demo uses one process.", highlight=False)
            single = True
    brokers = 1 if single else brokers
    kill = kill and brokers >= REPLICAS
    _explain(console, load.description, brokers, single=single, kill=kill)
    loaded: dict[str, Any] | None = None
    started = time.monotonic()
    broker_settings = {"lease_ttl_ms": LEASE_TTL_MS, "metrics_listen": "127.0.0.1:0"}
    with LocalCluster(LocalClusterSpec(brokers=brokers, single=single, broker_settings=broker_settings)) as cluster:
        seconds = time.monotonic() - started
        parts = "one process" if single else f"etcd, {len(cluster.coordinators)} coordinators, {brokers} brokers"
        console.print(f"The cluster is up after {seconds:.1f} s: {parts}.", highlight=False)
        reports, failover = run_demo(cluster, load, console, kill=kill)
        if not as_json_text:
            show(reports, failover, console)
        if spark:
            loaded = _load(cluster, table, offline.OF_LINES if log else offline.OF_VIEWS, console)
    wrong = [] if loaded is None else offline.problems(loaded, reports[0].records)
    for problem in wrong:
        console.print(f"[red]WRONG[/red] {problem}", highlight=False)
    if as_json_text:
        document = as_json(reports, failover, cluster=parts, source=load.description, table=loaded)
        document["ok"] = document["ok"] and not wrong
        print(json.dumps(document, indent=2))
    if wrong or any(report.problems for report in reports):
        raise typer.Exit(1)


def _load(cluster: LocalCluster, table: Path, questions: offline.Questions, console: Console) -> dict[str, Any] | None:
    """Load the user activity while the cluster runs; `None` means that no load job is installed."""
    if not offline.is_installed():
        console.print("Spark is left out: `pip install ./spark_jobs`, in a clone, brings its job.", highlight=False)
        return None
    console.print(f"Spark starts, and loads {ACTIVITY} into a table by hour.", highlight=False)
    started = time.monotonic()
    loaded = offline.load(cluster.bootstrap_servers, table.absolute(), questions)
    offline.show(loaded, questions, time.monotonic() - started, console)
    return loaded


def run_demo(
    cluster: LocalCluster, load: DemoLoad, console: Console, *, kill: bool
) -> tuple[list[DemoTopicReport], FailoverReport | None]:
    """Create the topics, send, follow, kill and compare on a running cluster without these topics.

    Raises:
        HeadraceError: If the demo cannot run; wrong results are in the reports.
    """
    stop = threading.Event()
    acknowledgements = AcknowledgementTimes(TOPICS)
    failover = None
    if kill:
        failover = Failover(cluster, list(TOPICS), acknowledgements, console, lease_ttl_ms=LEASE_TTL_MS, stop=stop)
    servers = cluster.bootstrap_servers
    with headrace.Admin(bootstrap_servers=servers) as admin:
        _create_topics(admin, len(cluster.brokers), stop)
        followers = [TopicFollower(f"reader {n + 1}", servers, TOPICS, stop) for n in range(READERS)]
        threads: list[TopicFollower | Failover] = [*followers, *([failover] if failover else [])]
        for thread in threads:
            thread.start()
        try:
            for follower in followers:
                follower.started.wait()
            sent = Ledger(TOPICS)
            progress = threading.Thread(target=_show_progress, args=(console, sent, followers, stop), daemon=True)
            progress.start()
            chunks = load.interrupted(failover.strike) if failover else load.chunks
            acknowledged_ns, metrics = _send_all(servers, chunks, sent, acknowledgements, stop)
            if failover:
                failover.all_sent()
            for follower in followers:
                follower.expect(sent.records())
            for thread in threads:
                thread.join()
            _raise_first_error(threads)
            wait_until(lambda: all_in_sync(admin, list(TOPICS)), "all replicas in sync", stop)
        finally:
            stop.set()
            for follower in followers:
                follower.join()
            if failover:
                failover.end()
        ledgers = [follower.ledger for follower in followers]
        key_bytes = {METRICS: metrics.key_bytes}
        reports = [
            _report(
                admin, topic, sent, ledgers, acknowledged_ns=acknowledged_ns[topic], key_bytes=key_bytes.get(topic, 0)
            )
            for topic in TOPICS
        ]
    return reports, failover.report if failover else None


def _raise_first_error(threads: Sequence[TopicFollower | Failover]) -> None:
    for thread in threads:
        if thread.error is not None:
            raise thread.error


def _create_topics(admin: headrace.Admin, brokers: int, stop: threading.Event) -> None:
    """Create the topics. Return when every partition responds, so that the figures do not include their creation.

    Raises:
        HeadraceError: If a partition does not respond in time, or its error is not retriable.
    """
    replicas = min(REPLICAS, brokers)
    config = {"min_insync_replicas": MIN_INSYNC_REPLICAS} if replicas == REPLICAS else None

    def answers(topic: str) -> bool:
        try:
            admin.list_offsets(topic)
        except headrace.HeadraceError as error:
            new = error.code == headrace.ErrorCode.UNKNOWN_TOPIC_ID  # The broker does not have the topic yet.
            if not (error.retriable or new):
                raise
            return False
        return True

    for topic, partitions in TOPICS.items():
        admin.create_topic(topic, partitions=partitions, replication_factor=replicas, config=config)
        wait_until(lambda topic=topic: answers(topic), f"an answer of every partition of {topic}", stop)  # type: ignore[misc]


def _send_all(
    bootstrap_servers: str,
    chunks: Iterator[Chunk],
    sent: Ledger,
    acknowledgements: AcknowledgementTimes,
    stop: threading.Event,
) -> tuple[dict[str, int], MetricsFeed]:
    """Send both topics; return the times (ns) at which the last record of each was acknowledged."""
    with headrace.Producer(
        bootstrap_servers=bootstrap_servers, acks="all", buffer_memory=BUFFER_BYTES, client_id="demo-producer"
    ) as producer:
        metrics = MetricsFeed(producer, acknowledgements)
        metrics.start()
        try:
            activity_ns = feed(producer, chunks, sent, acknowledgements, stop)
        finally:
            metrics.finish()
        if metrics.error is not None:
            raise metrics.error
        producer.flush(timeout=60)
        metrics_ns = time.monotonic_ns()
        metrics.enter_into(sent)
    return {ACTIVITY: activity_ns, METRICS: metrics_ns}, metrics


def _report(
    admin: headrace.Admin,
    topic: str,
    sent: Ledger,
    readers: Sequence[Ledger],
    *,
    acknowledged_ns: int,
    key_bytes: int,
) -> DemoTopicReport:
    logs = admin.describe_logs(topic)
    leaders = [log for log in logs if log.is_leader]
    return compare(
        topic,
        sent,
        readers,
        acknowledged_ns=acknowledged_ns,
        end_offsets={log.partition: log.high_watermark for log in leaders},
        stored_bytes=sum(log.size_bytes for log in leaders),
        key_bytes=key_bytes,
        replica_end_offsets={
            leader.partition: [log.log_end_offset for log in logs if log.partition == leader.partition]
            for leader in leaders
        },
    )


def _explain(console: Console, source: str, brokers: int, *, single: bool, kill: bool) -> None:
    copies = f"{REPLICAS} replicas, {MIN_INSYNC_REPLICAS} of them in sync" if brokers >= REPLICAS else "acks=all"
    kind = (
        "one process with a broker, a coordinator and their metastore, without etcd"
        if single
        else f"etcd, two coordinators, {brokers} brokers"
    )
    lines = [
        f"A real cluster starts on this machine: {kind}. Nothing of it is kept.",
        f"Through two topics of several partitions, with acks=all and {copies}, go",
        f"  - user activity: {source}",
        "  - operational metrics: processors, memory, disks and networks of this machine, from /proc",
        "Two independent readers follow while they are written; then counts, order and checksums are compared.",
    ]
    if kill:
        lines.append(
            f"In the middle `kill -9` ends a broker that leads. Its lease ({LEASE_TTL_MS / 1000:g} s here, else 10 s) "
            "runs out, then others lead."
        )
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def _show_progress(console: Console, sent: Ledger, followers: Sequence[TopicFollower], stop: threading.Event) -> None:
    shown = ""
    while not stop.wait(PROGRESS_SECONDS):
        read = ", ".join(f"{follower.ledger.records():,}" for follower in followers)
        line = f"  sent {sent.records():,}; read {read}"
        if line != shown:
            console.print(line, highlight=False)
        shown = line
