"""`python -m headrace_devcluster demo`: what `make demo` runs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import headrace
import typer
from rich.console import Console

from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_devcluster.demo.feeding import ACTIVITY, BUFFER_BYTES, METRICS, TOPICS, MetricsFeed, feed
from headrace_devcluster.demo.following import Follower
from headrace_devcluster.demo.ledger import Ledger
from headrace_devcluster.demo.report import TopicReport, as_json, compare, show
from headrace_devcluster.demo.sources import Chunk, log_lines, page_views

RECORDS = 1_000_000
READERS = 2
PROGRESS_SECONDS = 1.0
LEADERS_TIMEOUT_SECONDS = 30.0
LEADERS_POLL_SECONDS = 0.05


def demo(
    log: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, readable=True, help="Send this file's lines, once each.")
    ] = None,
    records: Annotated[int | None, typer.Option(min=1, help=f"Page views to make up. [default: {RECORDS}]")] = None,
    brokers: Annotated[int, typer.Option(min=1, max=9, help="How many brokers.")] = 3,
    seed: Annotated[int, typer.Option(help="Of the made-up page views.")] = 1,
    as_json_text: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Start a cluster, send log data through it, read it back twice, check it. Exit code 1: a check failed."""
    if log is not None and records is not None:
        raise typer.BadParameter("--records is for made-up page views; --log sends the file's lines, all of them")
    console = Console(stderr=as_json_text)
    source = f"the lines of {log}" if log else f"{records or RECORDS:,} made-up page views"
    _explain(console, source, brokers)
    started = time.monotonic()
    with LocalCluster(LocalClusterSpec(brokers=brokers)) as cluster:
        seconds = time.monotonic() - started
        parts = f"etcd, {len(cluster.coordinators)} coordinators, {brokers} brokers"
        console.print(f"The cluster is up after {seconds:.1f} s: {parts}.", highlight=False)
        chunks = log_lines(log, TOPICS[ACTIVITY]) if log else page_views(records or RECORDS, TOPICS[ACTIVITY], seed)
        reports = run_demo(cluster.bootstrap_servers, chunks, console)
    if as_json_text:
        print(json.dumps(as_json(reports, cluster=parts, source=source), indent=2))
    else:
        show(reports, console)
    if any(report.problems for report in reports):
        raise typer.Exit(1)


def run_demo(bootstrap_servers: str, chunks: Iterator[Chunk], console: Console) -> list[TopicReport]:
    """Make the topics, send, follow, compare, on a cluster that runs and does not have these topics.

    Raises:
        HeadraceError: something did not work at all; what is merely wrong is in the reports.
    """
    stop = threading.Event()
    with headrace.Admin(bootstrap_servers=bootstrap_servers) as admin:
        for topic, partitions in TOPICS.items():
            admin.create_topic(topic, partitions=partitions)
            _wait_until_led(admin, topic)
        followers = [Follower(f"reader {n + 1}", bootstrap_servers, TOPICS, stop) for n in range(READERS)]
        for follower in followers:
            follower.start()
        try:
            for follower in followers:
                follower.started.wait()
            sent = Ledger(TOPICS)
            progress = threading.Thread(target=_show_progress, args=(console, sent, followers, stop), daemon=True)
            progress.start()
            acknowledged_ns, metrics = _send_all(bootstrap_servers, chunks, sent, stop)
            for follower in followers:
                follower.expect(sent.records())
            for follower in followers:
                follower.join()
        finally:
            stop.set()
            for follower in followers:
                follower.join()
        for failed in (follower.error for follower in followers):
            if failed is not None:
                raise failed
        ledgers = [follower.ledger for follower in followers]
        key_bytes = {METRICS: metrics.key_bytes}
        return [
            _report(
                admin, topic, sent, ledgers, acknowledged_ns=acknowledged_ns[topic], key_bytes=key_bytes.get(topic, 0)
            )
            for topic in TOPICS
        ]


def _wait_until_led(admin: headrace.Admin, topic: str) -> None:
    """Return when every partition answers, so that the figures are of sending and not of a topic's first moments.

    Raises:
        HeadraceError: a partition does not answer in time, or for a reason that time does not mend.
    """
    deadline = time.monotonic() + LEADERS_TIMEOUT_SECONDS
    while True:
        try:
            admin.list_offsets(topic)
            return
        except headrace.HeadraceError as error:
            new = error.code == headrace.ErrorCode.UNKNOWN_TOPIC_ID  # The broker has not heard of the topic yet.
            if not (error.retriable or new) or time.monotonic() > deadline:
                raise
            time.sleep(LEADERS_POLL_SECONDS)


def _send_all(
    bootstrap_servers: str, chunks: Iterator[Chunk], sent: Ledger, stop: threading.Event
) -> tuple[dict[str, int], MetricsFeed]:
    """Send both topics; answers when (ns) the last record of each was acknowledged."""
    with headrace.Producer(
        bootstrap_servers=bootstrap_servers, acks="all", buffer_memory=BUFFER_BYTES, client_id="demo-producer"
    ) as producer:
        metrics = MetricsFeed(producer)
        metrics.start()
        try:
            activity_ns = feed(producer, chunks, sent, stop)
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
) -> TopicReport:
    logs = [log for log in admin.describe_logs(topic) if log.is_leader]
    return compare(
        topic,
        sent,
        readers,
        acknowledged_ns=acknowledged_ns,
        end_offsets={log.partition: log.high_watermark for log in logs},
        stored_bytes=sum(log.size_bytes for log in logs),
        key_bytes=key_bytes,
    )


def _explain(console: Console, source: str, brokers: int) -> None:
    for line in (
        f"A real cluster starts on this machine: etcd, two coordinators, {brokers} brokers. Nothing of it is kept.",
        "Through two topics of several partitions, with acks=all, go",
        f"  - user activity: {source}",
        "  - operational metrics: processors, memory, disks and networks of this machine, from /proc",
        "Two independent readers follow while they are written; then counts, order and checksums are compared.",
    ):
        console.print(line, highlight=False, soft_wrap=True)


def _show_progress(console: Console, sent: Ledger, followers: Sequence[Follower], stop: threading.Event) -> None:
    while not stop.wait(PROGRESS_SECONDS):
        read = ", ".join(f"{follower.ledger.records():,}" for follower in followers)
        console.print(f"  sent {sent.records():,}; read {read}", highlight=False)
