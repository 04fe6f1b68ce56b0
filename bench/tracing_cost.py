"""`python -m bench.tracing_cost`: what tracing costs `send`, `send_many` and handlers, at several shares of sampling.

One producer on a real cluster runs the same load without OpenTelemetry (its modules are hidden: what a program without
the extra has), and with a tracer provider that samples 0 %, 1 % and 100 % of the traces. Spans go to a process that
takes them, by OpenTelemetry's own exporter; brokers export theirs, too. A round runs each twice, in a drawn order and
then in the reverse of it, so that a drift of the machine cancels out. A second run without it shows what is noise.
Printed are medians over the rounds of the ratios to the first run without it in the same round: of records per second,
and of CPU time per record of this process and the brokers, which other load on the machine disturbs less, with the
interval that has the median with a probability of 95 % (bootstrap).
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import headrace
import typer
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from rich.console import Console
from rich.table import Table

from bench.load import PAPER_BYTES

SHARES = {"without": None, "without, again": None, "0 %": 0.0, "1 %": 0.01, "100 %": 1.0}
VALUE = bytes(PAPER_BYTES)
DRAWS = 2_000
KEPT_BYTES = 64 << 20
"""Of a topic and of a segment: rounds fill the disk otherwise."""


class _Sink(BaseHTTPRequestHandler):
    """Takes spans and drops them."""

    def do_POST(self) -> None:
        """Take a request."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write no line a request."""


def _serve(told: Connection) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Sink)
    told.send(server.server_address[1])
    server.serve_forever()


@contextlib.contextmanager
def sink() -> Iterator[str]:
    """Run the process that takes the spans; yield its URL."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.kill()


def provider_for(share: float | None, endpoint: str) -> TracerProvider | None:
    """Return the provider that samples this share of the traces; `None` for `None`."""
    if share is None:
        return None
    provider = TracerProvider(ParentBased(TraceIdRatioBased(share)))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{endpoint}/v1/traces")))
    return provider


@contextlib.contextmanager
def traced(provider: TracerProvider | None) -> Iterator[None]:
    """Trace by this provider in the block; `None` hides OpenTelemetry."""
    if provider is None:
        hidden = sys.modules.pop("opentelemetry.trace")
        try:
            yield
        finally:
            sys.modules["opentelemetry.trace"] = hidden
        return
    before, trace._TRACER_PROVIDER = trace._TRACER_PROVIDER, provider
    try:
        yield
    finally:
        trace._TRACER_PROVIDER = before
        provider.force_flush()


Run = Callable[[int], tuple[float, float]]
"""Moves a number of records; returns the seconds of the wall and of the CPUs."""


class Clock:
    """Wall time, and CPU time of this process and the brokers, between `start` and `stop`."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._pids = [os.getpid(), *(broker.pid for broker in cluster.brokers if broker.pid is not None)]
        self._started = self._used = 0.0

    def _cpu_seconds(self) -> float:
        # psutil counts in steps of 10 ms, which is much of a short run.
        files = (file for pid in self._pids for file in Path(f"/proc/{pid}/task").glob("*/schedstat"))
        return sum(int(file.read_text().split()[0]) for file in files) / 1e9

    def start(self) -> None:
        """Begin."""
        self._used, self._started = self._cpu_seconds(), time.perf_counter()

    def stop(self) -> tuple[float, float]:
        """Return the seconds since `start`."""
        return time.perf_counter() - self._started, self._cpu_seconds() - self._used


def sending(name: str, servers: str, topic: str, clock: Clock, stack: contextlib.ExitStack) -> Run:
    """Return a run that sends records with a producer of its own, which stays."""
    producer = stack.enter_context(headrace.Producer(bootstrap_servers=servers))
    keys = [b"%d" % number for number in range(1_000)]
    values = [VALUE] * 10_000

    def run(records: int) -> tuple[float, float]:
        clock.start()
        if name == "send":
            for _ in range(records):
                producer.send(topic, VALUE)
        elif name == "send, keys":
            for number in range(records):
                producer.send(topic, VALUE, keys[number % 1_000])
        else:
            for _ in range(records // len(values)):
                producer.send_many(topic, values)
        producer.flush()
        return clock.stop()

    return run


def handling(servers: str, topic: str, clock: Clock, stack: contextlib.ExitStack) -> Run:
    """Return a run that handles records, which it sends before under the same sampling; from the first handler on."""
    producer = stack.enter_context(headrace.Producer(bootstrap_servers=servers))
    group = f"bench-{random.getrandbits(64):x}"

    def run(records: int) -> tuple[float, float]:
        producer.send_many(topic, [VALUE] * records)
        producer.flush()
        left, found = records, (0.0, 0.0)
        with headrace.Consumer(
            topic, bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest"
        ) as consumer:

            def count(_record: headrace.Record) -> None:
                nonlocal left, found
                if left == records:
                    clock.start()
                left -= 1
                if not left:
                    found = clock.stop()
                    consumer.stop()

            consumer.run(count, concurrency=1, handle_signals=False)
        return found

    return run


LOADS = {"send": 100_000, "send, keys": 100_000, "send_many": 500_000, "handler": 10_000}


def measure(
    cluster: LocalCluster, endpoint: str, name: str, shares: Sequence[str], rounds: int, scale: float
) -> list[dict[str, Any]]:
    """Return one row for each share."""
    records = max(10_000, round(LOADS[name] * scale / 10_000) * 10_000)
    servers, clock = cluster.bootstrap_servers, Clock(cluster)
    seconds: dict[str, list[float]] = {share: [] for share in shares}
    costs: dict[str, list[float]] = {share: [] for share in shares}
    providers = {share: provider_for(SHARES[share], endpoint) for share in shares}
    topic = f"bench-{random.getrandbits(64):x}"
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(topic, config={"retention_bytes": KEPT_BYTES, "segment_bytes": KEPT_BYTES})
    with contextlib.ExitStack() as stack:
        for provider in filter(None, providers.values()):
            stack.callback(provider.shutdown)
        # One producer for all: of two alike, one is often some percent faster, by where its objects are in memory.
        run = (handling if name == "handler" else partial(sending, name))(servers, topic, clock, stack)
        for turn in range(rounds + 1):  # The first one warms up.
            order = random.sample(shares, len(shares))
            found = dict.fromkeys(SHARES, (0.0, 0.0))
            for share in order + order[::-1]:
                gc.collect()
                with traced(providers[share]):
                    took, cost = run(records)
                found[share] = found[share][0] + took, found[share][1] + cost
            for share in shares if turn else ():
                seconds[share].append(found[share][0] / 2)
                costs[share].append(found[share][1] / 2)
    return [
        {
            "load": name,
            "sampled": share,
            "records/s": round(records / statistics.median(seconds[share])),
            "rate": round(ratio(seconds["without"], seconds[share]), 3),
            "CPU us": round(statistics.median(costs[share]) / records * 1e6, 2),
            "CPU": round(ratio(costs[share], costs["without"]), 3),
            "95 %": "{:.3f} to {:.3f}".format(*interval(costs[share], costs["without"])),
        }
        for share in shares
    ]


def ratio(above: list[float], below: list[float]) -> float:
    """Return the median of the ratios of the rounds."""
    return statistics.median(one / other for one, other in zip(above, below, strict=True))


def interval(above: list[float], below: list[float]) -> tuple[float, float]:
    """Return bounds of the median of the ratios, at 95 %, from medians of ratios that are drawn again."""
    ratios = [one / other for one, other in zip(above, below, strict=True)]
    medians = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    return medians[round(DRAWS * 0.025)], medians[round(DRAWS * 0.975)]


def main(
    rounds: Annotated[int, typer.Option(help="Rounds, each with every share twice.")] = 20,
    scale: Annotated[float, typer.Option(help="Share of the usual number of records.")] = 1.0,
    load: Annotated[list[str] | None, typer.Option(help="Only these loads.")] = None,
    sampled: Annotated[list[str] | None, typer.Option(help="Only these shares, such as '1 %'.")] = None,
    brokers: Annotated[int, typer.Option(help="Brokers; topics have as many replicas, up to three.")] = 3,
) -> None:
    """Measure and print."""
    shares = [share for share in SHARES if share == "without" or not sampled or share in sampled]
    table = Table("load", "sampled", "records/s", "rate", "CPU us", "CPU", "95 %")
    with sink() as endpoint:
        settings = {"otlp_endpoint": endpoint, "retention_interval_ms": 1_000}
        with LocalCluster(LocalClusterSpec(brokers=brokers, coordinators=1, broker_settings=settings)) as cluster:
            for name in load or LOADS:
                for row in measure(cluster, endpoint, name, shares, rounds, scale):
                    table.add_row(*(str(value) for value in row.values()))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
