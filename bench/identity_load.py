"""`python -m bench.identity_load`: what a user notices of a greedy one, of wrong tokens, and of etcd's absence.

A cluster of two brokers that requires identities. The user is the neighbour of `bench.connections`, a producer that
sends 100 records per second, one at a time, to the first broker. Next to it, in processes of their own: a user that
produces all it can to the second broker, without and with a quota to the first one; forged session tokens from many
addresses, over both protocols (`bench.forged_tokens`).
The second broker shares nothing but the machine with the first one: what the neighbour notices of a greedy user there
is the scheduler's share, and what it notices of one on its own broker is that and the broker's. A core that is kept
busy is the least of the machine's shares. Then etcd is killed for a while. Prints a line of JSON for each case, and
one with the ratios of the neighbour's p99.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import headrace
import typer
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from bench.connections import TOPIC, Neighbour, burn, strangers
from bench.forged_tokens import call_with_forged, greet_with_forged
from bench.open_loop import percentiles
from bench.processor import processor_seconds

GREEDY_TOPICS = ("greedy", "greedy-elsewhere")
"""On the broker of the neighbour's topic, and on the other one."""
KEPT = {"durability": "async", "segment_bytes": 64 << 20, "retention_bytes": 256 << 20}
"""A greedy user writes a few hundred MB each second: its topics must not fill the disk."""
VALUE = bytes(1_000)
FORGERS = (1, 200)
"""Addresses from which forged tokens come."""
QUOTA_BYTES = 1_000_000
QUOTA_WARM_UP_SECONDS = 5.0
"""After it what a user that was idle may use at once is used."""
COST_ROUNDS, COST_RECORDS = 15, 2_000


def grab(address: str, _count: int, pipe: Connection) -> None:
    """Produce as much as possible until told; report the records. `address` also has the API key and the topic."""
    servers, api_key, topic = address.split()
    producer = headrace.Producer(bootstrap_servers=servers, api_key=api_key, return_futures=False)
    count = 0
    pipe.send(None)
    while not pipe.poll():
        for _ in range(1_000):
            producer.send(topic, VALUE)
        count += 1_000
    pipe.send(count)


def grab_what_is_left(address: str, count: int, pipe: Connection) -> None:
    """Produce as much as possible by processor time that is idle otherwise: what is noticed is the broker's.

    Linux shares processors between sessions before it looks at policies: this process gets a session of its own.
    """
    os.setsid()
    with contextlib.suppress(OSError):  # Groups by session may be switched off.
        Path("/proc/self/autogroup").write_text("19", "ascii")
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    grab(address, count, pipe)


class Measured:
    """The cluster with its users."""

    def __init__(self, cluster: LocalCluster, seconds: float, rounds: int) -> None:
        self.cluster = cluster
        self.seconds = seconds
        self.rounds = rounds
        self.servers = cluster.bootstrap_servers
        administrator: dict[str, Any] = dict(cluster.client_settings)
        self.admin = headrace.Admin(bootstrap_servers=self.servers, **administrator)
        for broker_id, topic in enumerate(GREEDY_TOPICS, start=1):
            self.admin.create_topic(topic, config=KEPT, assignments=[[broker_id]])
        self.key = self._user("quiet", TOPIC)
        key = self._user("greedy", "greedy*")
        self.greedy, self.elsewhere = (f"{self.servers} {key} {topic}" for topic in GREEDY_TOPICS)
        self.neighbour = Neighbour(cluster, api_key=self.key)
        self.pids = [broker.pid or 0 for broker in cluster.brokers]

    def _user(self, name: str, topic: str) -> str:
        self.admin.create_user(name)
        self.admin.grant(name, "writer", f"topic:{topic}")
        return str(self.admin.create_api_key(name).secret)

    def next_to(self, work: Any, address: str, count: int = 0) -> dict[str, Any]:
        """Return the neighbour's latencies next to `work`, and what that did, with the brokers' CPU time."""
        with strangers(work, address, count) as pipe:
            pipe.recv()
            started, before = time.monotonic(), self._used()
            found: dict[str, Any] = {"neighbour": self.neighbour.work(self.seconds)}
            used, took = self._used() - before, time.monotonic() - started
            pipe.send(None)
            done = pipe.recv()
        found["broker_cores"] = round(used / took, 3)
        if done:
            found["per_s"] = round(done / took)
            found["broker_us_each"] = round(used / done * 1e6, 1)
        return found

    def _used(self) -> float:
        return sum(map(processor_seconds, self.pids))

    def measure_neighbours(self) -> Iterator[dict[str, Any]]:
        """Yield the cases in which others load the broker; `broker_us_each` includes the neighbour's part."""
        waits: dict[str, list[float]] = {}
        for _ in range(self.rounds):
            alone = self.neighbour.work(self.seconds)
            waits.setdefault("alone", []).append(alone["p99_ms"])
            yield {"case": "alone", "neighbour": alone}
            for case, work, address in (
                ("a busy core", burn, ""),
                ("a greedy user of another broker", grab, self.elsewhere),
                ("a greedy user", grab, self.greedy),
                ("a greedy user of what is left", grab_what_is_left, self.greedy),
                ("a greedy user of what is left of another broker", grab_what_is_left, self.elsewhere),
            ):
                found = self.next_to(work, address)
                waits.setdefault(case, []).append(found["neighbour"]["p99_ms"])
                yield {"case": f"next to {case}", **found}
        median = {case: statistics.median(values) for case, values in waits.items()}
        for greedy in ("a greedy user", "a greedy user of what is left"):
            ratios = {
                f"of_{case.replace(' ', '_')}": round(median[greedy] / median[case], 2)
                for case in ("alone", "a busy core", f"{greedy} of another broker")
            }
            yield {"case": f"p99 next to {greedy}, ratio of the medians", **ratios}
        self.admin.put_quota("greedy", produce_bytes_per_second=QUOTA_BYTES)
        yield self.measure_quota()
        yield {"case": f"next to a greedy user with a quota of {QUOTA_BYTES} B/s", **self.next_to(grab, self.greedy)}
        yield from self.measure_forged()
        yield {"case": "alone again", "neighbour": self.neighbour.work(self.seconds)}

    def measure_forged(self) -> Iterator[dict[str, Any]]:
        """Yield the cases of wrong tokens, sent as fast as they are refused, up to 10,000 a second."""
        broker = self.cluster.brokers[0]
        native = json.loads(broker.ready_file.read_text())["native_address"]
        for protocol, work, address in (
            ("gRPC", call_with_forged, broker.address),
            ("the native protocol", greet_with_forged, native),
        ):
            for count in FORGERS:
                found = self.next_to(work, address, count)
                yield {"case": f"next to forged tokens over {protocol} from {count} addresses", **found}

    def measure_quota(self) -> dict[str, Any]:
        """Return the rate at which records of a user with a quota, that sends all it can, are acknowledged."""
        servers, api_key, topic = self.greedy.split()
        producer = headrace.Producer(
            bootstrap_servers=servers, api_key=api_key, return_futures=False, batch_bytes=100_000, buffer_memory=400_000
        )

        def send_for(seconds: float) -> int:
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                producer.send(topic, VALUE)
            return producer.stats().sent_records

        started, before = time.monotonic() + QUOTA_WARM_UP_SECONDS, send_for(QUOTA_WARM_UP_SECONDS)
        sent = send_for(self.seconds) - before
        rate = sent * len(VALUE) / (time.monotonic() - started)
        producer.close()
        return {
            "case": f"a quota of {QUOTA_BYTES} B/s",
            "bytes_per_s": round(rate),
            "ratio": round(rate / QUOTA_BYTES, 3),
        }

    def measure_produces(self) -> dict[str, Any]:
        """Return what a Produce of one record costs with identities, next to a cluster without, in CPU time."""
        spec = LocalClusterSpec(brokers=1, coordinators=1)
        with LocalCluster(spec) as plain, contextlib.closing(Neighbour(plain)) as other:
            pids = [self.pids[0], plain.brokers[0].pid or 0]
            costs: list[list[float]] = [[], []]
            for number in range(2 * COST_ROUNDS):
                at = number % 2
                neighbour = (self.neighbour, other)[at]
                before = processor_seconds(pids[at]) + time.process_time()
                neighbour.send(COST_RECORDS)
                costs[at].append(processor_seconds(pids[at]) + time.process_time() - before)
        closed, plain_cost = (min(each) / COST_RECORDS * 1e6 for each in costs)  # Other load only adds.
        return {
            "case": "a Produce of one record, broker and client", "us_with_identity": round(closed, 1),
            "us_without": round(plain_cost, 1), "ratio": round(closed / plain_cost, 3),
        }  # fmt: skip

    def measure_absence(self, seconds: float) -> dict[str, Any]:
        """Return what works while etcd is killed: the open producer, new sessions of a known key, an unknown key."""
        unknown = "hrk_" + "0" * 12 + "_" + "0" * 43
        waits: list[float] = []
        failed, errors, sessions = 0, {}, 0
        self.cluster.etcd.kill()
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            waits.append(self.neighbour.work(2.0)["p99_ms"])
            for name, key in (("known", self.key), ("unknown", unknown)):
                try:
                    with headrace.Producer(bootstrap_servers=self.servers, api_key=key) as producer:
                        producer.send(TOPIC, VALUE).result(timeout=20)
                    sessions += 1
                except headrace.HeadraceError as error:
                    failed += name == "known"
                    errors[f"{name}: {type(error).__name__}"] = str(error)[:200]
        self.cluster.restart_etcd()
        return {
            "case": f"etcd away for {seconds:g} s", "worst_p99_ms": percentiles(waits)["max_ms"],
            "new_sessions": sessions, "failed_of_the_known_user": failed, "errors": errors,
        }  # fmt: skip

    def close(self) -> None:
        """Close the clients."""
        self.neighbour.close()
        self.admin.close()


def main(
    seconds: Annotated[float, typer.Option(help="Duration of each measurement in seconds.", min=1)] = 20.0,
    rounds: Annotated[int, typer.Option(help="Times that the greedy users are measured.", min=1)] = 3,
    absence: Annotated[float, typer.Option(help="Seconds for which etcd is away.", min=0)] = 60.0,
) -> None:
    """Measure what one user notices of others, of strangers, and of etcd's absence."""
    spec = LocalClusterSpec(brokers=2, coordinators=1, identity=True, broker_settings={"retention_interval_ms": 500})
    with LocalCluster(spec) as cluster:
        measured = Measured(cluster, seconds, rounds)
        print(json.dumps({"load_average": os.getloadavg()[0], "processors": os.cpu_count()}), flush=True)
        for found in measured.measure_neighbours():
            print(json.dumps(found), flush=True)
        print(json.dumps(measured.measure_produces()), flush=True)
        if absence:
            print(json.dumps(measured.measure_absence(absence)), flush=True)
        measured.close()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # As Ctrl-C: stops the cluster and removes its directory.
    typer.run(main)
