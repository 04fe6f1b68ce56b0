"""A mirror between two clusters of three, whose brokers, coordinators and workers are killed: equal logs at the end."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from contextlib import suppress

import headrace
import pytest
from headrace.client.mirror.mirrors import Mirrors
from headrace.client.mirror.rows import MirrorSettings
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from .test_promote_directory import batches_of

ROUNDS = int(os.environ.get("HEADRACE_MIRROR_ROUNDS", "6"))
PARTITIONS = 3
WAIT = 120

pytestmark = pytest.mark.slow


class Workers:
    """Processes of `headrace mirror run`."""

    def __init__(self, servers, directory):
        self._servers = servers
        self._log = (directory / "workers.log").open("wb")
        self._processes = []

    def start(self):
        command = [sys.executable, "-m", "headrace.cli", "mirror", "run", "-b", self._servers]
        self._processes.append(subprocess.Popen(command, stdout=self._log, stderr=self._log))

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

    def __init__(self, servers, topic):
        super().__init__(daemon=True)
        self._servers, self._topic = servers, topic
        self._over = threading.Event()
        self.sent = 0

    def run(self):
        with headrace.Producer(bootstrap_servers=self._servers, linger_ms=20) as producer:
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


def ends(servers, topic):
    with headrace.Admin(bootstrap_servers=servers) as admin:
        return {tp.partition: at.offset for tp, at in admin.list_offsets(topic, "latest").items()}


def test_a_mirror_is_equal_after_kills_on_both_sides(tmp_path):
    """Each round kills a broker or a coordinator of one of the clusters, or a worker, under load."""
    seed = int(os.environ.get("HEADRACE_MIRROR_SEED", str(random.randrange(1 << 30))))
    rng = random.Random(seed)
    print("HEADRACE_MIRROR_SEED =", seed)
    spec = LocalClusterSpec(brokers=3, coordinators=2)
    with LocalCluster(spec) as source, LocalCluster(spec) as target:
        with headrace.Admin(bootstrap_servers=source.bootstrap_servers) as admin:
            admin.create_topic("orders", PARTITIONS, 3, {"durability": "async"})
        workers = Workers(target.bootstrap_servers, tmp_path)
        sending = Sending(source.bootstrap_servers, "orders")
        try:
            with Mirrors(bootstrap_servers=target.bootstrap_servers) as mirrors:
                mirrors.create("west", MirrorSettings({"bootstrap_servers": source.bootstrap_servers}))
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
            wanted = ends(source.bootstrap_servers, "orders")
            assert sum(wanted.values()) == sending.sent
            until(
                lambda: ends(target.bootstrap_servers, "orders") == wanted,
                lambda: (wanted, ends(target.bootstrap_servers, "orders"), (tmp_path / "workers.log").read_text()),
            )
            for number, end in wanted.items():
                theirs = batches_of("orders", number, end, bootstrap_servers=source.bootstrap_servers)
                assert batches_of("orders", number, end, bootstrap_servers=target.bootstrap_servers) == theirs
            with Mirrors(bootstrap_servers=target.bootstrap_servers) as mirrors:
                began = time.monotonic()
                source.kill()
                mirrors.promote("west")
                with headrace.Producer(bootstrap_servers=target.bootstrap_servers) as producer:
                    assert producer.send("orders", b"own", partition=0).result(WAIT).offset == wanted[0]
                print("promoted and written after", round(time.monotonic() - began, 2), "s")
            with headrace.Reader("orders", bootstrap_servers=target.bootstrap_servers) as reader:
                values = sorted(int(record.value) for record in reader if record.value != b"own")
            assert values == list(range(sending.sent))
        finally:
            workers.close()
