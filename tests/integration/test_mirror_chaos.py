"""A mirror between two clusters whose brokers, coordinators and workers are killed, and whose links to the workers are
cut, slow, dead, or dead in one direction, with TLS or without: equal logs at the end.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress

import headrace
import pytest
from headrace.client.mirror.mirrors import Mirrors
from headrace.client.mirror.rows import MirrorSettings
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_devcluster.ports import ReservedPort

from .gates import ANSWERS, REQUESTS, Gate
from .test_promote_directory import batches_of

ROUNDS = int(os.environ.get("HEADRACE_MIRROR_ROUNDS", "6"))
LINK_RUNS = int(os.environ.get("HEADRACE_MIRROR_LINK_RUNS", "2"))
LINK_FAULTS = 4
PARTITIONS = 3
WAIT = 120

pytestmark = pytest.mark.slow


class Workers:
    """Processes of `headrace mirror run`; with `relays`, their connections take these addresses for others."""

    def __init__(self, settings, directory, relays=None):
        self._log = (directory / "workers.log").open("wb")
        self._module = "headrace.cli" if relays is None else "tests.integration.relayed_worker"
        given = {f"HEADRACE_{name.upper()}": value for name, value in settings.items()}
        self._environ = {**os.environ, **given, "HEADRACE_TEST_RELAYS": json.dumps(relays)}
        self._processes = []

    def start(self):
        command = [sys.executable, "-m", self._module, "mirror", "run"]
        self._processes.append(subprocess.Popen(command, stdout=self._log, stderr=self._log, env=self._environ))

    def kill_one(self):
        process = self._processes.pop(0)
        process.kill()
        process.wait()

    def close(self):
        while self._processes:
            self.kill_one()
        self._log.close()


class Sending(threading.Thread):
    """Sends numbered records with acks=all until told to stop."""

    def __init__(self, settings, topic):
        super().__init__(daemon=True)
        self._settings, self._topic = settings, topic
        self._over = threading.Event()
        self.sent = 0

    def run(self):
        with headrace.Producer(**self._settings, linger_ms=20) as producer:
            while not self._over.wait(0.01):
                futures = [
                    producer.send(self._topic, b"%d" % (self.sent + n), partition=(self.sent + n) % PARTITIONS)
                    for n in range(50)
                ]
                for future in futures:
                    future.result(WAIT)
                self.sent += len(futures)

    def stop(self):
        self._over.set()
        self.join(WAIT)
        assert not self.is_alive()


def until(condition, what):
    deadline = time.monotonic() + WAIT
    while True:
        with suppress(headrace.HeadraceError):
            if found := condition():
                return found
        assert time.monotonic() < deadline, what()
        time.sleep(0.2)


def settings_of(cluster):
    """Return the settings of its clients."""
    return {"bootstrap_servers": cluster.bootstrap_servers, **cluster.client_settings}


def ends(cluster, topic):
    with headrace.Admin(**settings_of(cluster)) as admin:
        return {tp.partition: at.offset for tp, at in admin.list_offsets(topic, "latest").items()}


def check_equal(source, target, topic, wanted):
    for number, end in wanted.items():
        theirs = batches_of(topic, number, end, **settings_of(source))
        assert batches_of(topic, number, end, **settings_of(target)) == theirs


def wait_copied(source, target, topic, directory):
    """Wait until the mirror ends where its source does; return these ends by partition."""
    wanted = ends(source, topic)
    until(
        lambda: ends(target, topic) == wanted,
        lambda: (wanted, ends(target, topic), (directory / "workers.log").read_text()),
    )
    return wanted


def test_a_mirror_is_equal_after_kills_on_both_sides(tmp_path):
    """Each round kills a broker or a coordinator of one of the clusters, or a worker, under load."""
    seed = int(os.environ.get("HEADRACE_MIRROR_SEED", str(random.randrange(1 << 30))))
    rng = random.Random(seed)
    print("HEADRACE_MIRROR_SEED =", seed)
    spec = LocalClusterSpec(brokers=3, coordinators=2)
    with LocalCluster(spec) as source, LocalCluster(spec) as target:
        with headrace.Admin(**settings_of(source)) as admin:
            admin.create_topic("orders", PARTITIONS, 3, {"durability": "async"})
        workers = Workers(settings_of(target), tmp_path)
        sending = Sending(settings_of(source), "orders")
        try:
            with Mirrors(**settings_of(target)) as mirrors:
                mirrors.create("west", MirrorSettings(settings_of(source)))
            workers.start()
            workers.start()
            sending.start()
            for _ in range(ROUNDS):
                before = sending.sent
                cluster = rng.choice([source, target])
                part = rng.choice([*cluster.brokers, *cluster.coordinators, None])
                if part is None:
                    workers.kill_one()
                    workers.start()
                else:
                    part.kill()
                    time.sleep(rng.uniform(0, 3))
                    cluster.restart(part)
                until(lambda before=before: sending.sent > before + 100, lambda: "records are sent")
            sending.stop()
            wanted = wait_copied(source, target, "orders", tmp_path)
            assert sum(wanted.values()) == sending.sent
            check_equal(source, target, "orders", wanted)
            with Mirrors(**settings_of(target)) as mirrors:
                began = time.monotonic()
                source.kill()
                mirrors.promote("west")
                with headrace.Producer(**settings_of(target)) as producer:
                    assert producer.send("orders", b"own", partition=0).result(WAIT).offset == wanted[0]
                print("promoted and written after", round(time.monotonic() - began, 2), "s")
            with headrace.Reader("orders", **settings_of(target)) as reader:
                values = sorted(int(record.value) for record in reader if record.value != b"own")
            assert values == list(range(sending.sent))
        finally:
            workers.close()


class LinkedCluster(LocalCluster):
    """Cluster whose brokers keep all their ports, each of which has a gate for workers."""

    def _make_broker(self, broker_id, settings):
        self.native_ports = [*getattr(self, "native_ports", ()), ReservedPort()]
        return super()._make_broker(broker_id, {**settings, "native_listen": f"127.0.0.1:{self.native_ports[-1]}"})

    def gates(self, stack):
        """Return a gate for each address."""
        addresses = [part.address for part in self.parts] + [f"127.0.0.1:{port}" for port in self.native_ports]
        return {address: stack.enter_context(Gate(address)) for address in addresses}


FAULTS = {
    "cut": lambda gate: gate.cut(),
    "dead": lambda gate: gate.shut(),
    "no requests": lambda gate: gate.shut(REQUESTS),
    "no answers": lambda gate: gate.shut(ANSWERS),
    "slow": lambda gate: gate.slow(20_000),
}


def test_a_mirror_is_equal_after_faults_of_its_links(tmp_path):
    """Links of two workers to the source, to the mirror, or to both, fail under load, and a worker may be killed.

    The seed also decides which of the clusters have TLS.
    """
    seed = int(os.environ.get("HEADRACE_MIRROR_SEED", str(random.randrange(1 << 30))))
    rng = random.Random(seed)
    specs = [LocalClusterSpec(brokers=2, coordinators=1, tls=rng.random() < 0.5) for _ in range(2)]
    print("HEADRACE_MIRROR_SEED =", seed, "TLS:", [spec.tls for spec in specs])
    with LinkedCluster(specs[0]) as source, LinkedCluster(specs[1]) as target, ExitStack() as stack:
        links = {"source": source.gates(stack), "mirror": target.gates(stack)}
        relays = {address: gate.address for gates in links.values() for address, gate in gates.items()}
        for run in range(LINK_RUNS):
            topic = f"orders-{run}"
            with headrace.Admin(**settings_of(source)) as admin:
                admin.create_topic(topic, PARTITIONS, 2, {"durability": "async"})
            check_link_run(rng, source, target, links, relays, topic, tmp_path)


def check_link_run(rng, source, target, links, relays, topic, directory):
    """Copy a topic while links fail; then it must be equal."""
    workers = Workers(settings_of(target), directory, relays)
    sending = Sending(settings_of(source), topic)
    try:
        with Mirrors(**settings_of(target)) as mirrors:
            mirrors.create(topic, MirrorSettings(settings_of(source), (topic,)))
        workers.start()
        workers.start()
        sending.start()
        until(lambda: sum(ends(target, topic).values()), lambda: "the first records are copied")
        for _ in range(LINK_FAULTS):
            chosen = rng.choice([["source"], ["mirror"], ["source", "mirror"]])
            fault = rng.choice(list(FAULTS))
            gates = [gate for name in chosen for gate in links[name].values()]
            print(topic, fault, chosen)
            for gate in gates:
                FAULTS[fault](gate)
            if rng.random() < 0.25:
                workers.kill_one()
                workers.start()
            before, more = sending.sent, rng.choice([500, 5_000])
            until(lambda before=before, more=more: sending.sent > before + more, lambda: "records are sent")
            for gate in gates:
                gate.open()
        sending.stop()
        wanted = wait_copied(source, target, topic, directory)
        assert sum(wanted.values()) == sending.sent
        check_equal(source, target, topic, wanted)
        with Mirrors(**settings_of(target)) as mirrors:
            mirrors.promote(topic)
    finally:
        for gate in (gate for gates in links.values() for gate in gates.values()):
            gate.open()
        workers.close()
