"""One small cluster for the attacks of a run, and what an honest client sees of it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import headrace
import psutil
import pytest
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec


class Witness:
    """An honest client with a topic of its own, among attackers."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.topic = "witness"
        self.sent = 0
        self.settings = {"bootstrap_servers": cluster.bootstrap_servers, **cluster.client_settings}
        with headrace.Admin(**self.settings) as admin:
            admin.create_topic(self.topic, 1, replication_factor=1)
        self.producer = headrace.Producer(**self.settings)

    def address(self, listener: str) -> str:
        """host:port of a listener: `coordinator`, or the broker's `client`, `internal`, `native`, `metrics`."""
        if listener == "coordinator":
            return self.cluster.coordinators[0].address
        ready = json.loads(self.cluster.brokers[0].ready_file.read_text())
        return str(ready["address" if listener == "client" else f"{listener}_address"])

    def processes(self) -> list[psutil.Process]:
        """Broker and coordinator; each is still the one that was started."""
        parts = [*self.cluster.brokers, *self.cluster.coordinators]
        assert all(part.pid is not None for part in parts), "a server has ended"
        return [psutil.Process(part.pid) for part in parts]

    def work(self, count: int = 20) -> None:
        """Send records and have each acknowledged."""
        for _ in range(count):
            self.producer.send(self.topic, b"%d" % self.sent).result(timeout=60)
            self.sent += 1

    def check(self) -> None:
        """All that was acknowledged is there, once, in order."""
        with headrace.Reader(self.topic, **self.settings) as reader:
            assert [int(record.value) for record in reader] == list(range(self.sent))


@pytest.fixture(scope="session")
def witness() -> Iterator[Witness]:
    """The cluster with its honest client: one broker, one coordinator, few places."""
    settings = {"max_waiting_fetches": 8, "metrics_listen": "127.0.0.1:0"}
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1, broker_settings=settings)) as cluster:
        cluster.wait_until_healthy()
        witness = Witness(cluster)
        yield witness
        witness.check()
        witness.producer.close()
