"""A mirror whose workers are on another network than the source: they reach only the addresses published to clients."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import sys
import time
from contextlib import ExitStack, suppress

import headrace
import pytest
from headrace.client.mirror.mirrors import Mirrors
from headrace.client.mirror.rows import MirrorSettings
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_devcluster.ports import ReservedPort
from headrace_devcluster.service import LocalService

from tests.children import running

from .gates import Gate
from .test_promote_directory import batches_of

TOPIC, PARTITIONS, RECORDS = "orders", 2, 500
WAIT = 60
WORKER = [sys.executable, "-m", "tests.integration.relayed_worker", "mirror", "run"]


class PublishedCluster(LocalCluster):
    """Cluster whose processes publish addresses of gates to clients, and their own ones to each other."""

    def __init__(self, spec, stack):
        super().__init__(spec)
        self._stack = stack
        self._ports = []
        self.published = []
        """Addresses of the gates for gRPC."""
        self.own = []
        """Addresses behind them."""

    def _make_part(self, name, module, fixed_port, own):
        listeners = ("", "native_") if module == "headrace_broker" else ("",)
        for listener in listeners:
            self._ports.append(ReservedPort())
            address = f"127.0.0.1:{self._ports[-1]}"
            gate = self._stack.enter_context(Gate(address))
            self.own.append(address)
            own = {**own, f"{listener}listen": address, f"{listener}advertised_address": gate.address}
            if not listener:
                port = self._ports[-1]
                self.published.append(gate.address)
        part = super()._make_part(name, module, fixed_port, own)
        return LocalService(dataclasses.replace(part.spec, port=port))


def until(condition, what):
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


def ends(servers):
    with headrace.Admin(bootstrap_servers=servers) as admin, suppress(headrace.UnknownTopicError):
        return {tp.partition: at.offset for tp, at in admin.list_offsets(TOPIC, "latest").items()}


def test_workers_reach_the_source_by_its_published_addresses_alone(tmp_path):
    """Records, groups, and the answer to `promote --wait`: no call goes to an address of the source's own network."""
    log = tmp_path / "worker.log"
    with ExitStack() as stack:
        source = stack.enter_context(PublishedCluster(LocalClusterSpec(brokers=2, coordinators=2), stack))
        target = stack.enter_context(LocalCluster(LocalClusterSpec(brokers=1, coordinators=1)))
        outside = ",".join(source.published)
        with headrace.Admin(bootstrap_servers=outside) as admin:
            admin.create_topic(TOPIC, PARTITIONS, 2)
            with headrace.Producer(bootstrap_servers=outside) as producer:
                for number in range(RECORDS):
                    producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
            admin.reset_group_offsets("readers", {headrace.TopicPartition(TOPIC, 0): 17})
        trap = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        trap.setblocking(False)
        relays = dict.fromkeys(source.own, f"127.0.0.1:{trap.getsockname()[1]}")
        file = stack.enter_context(log.open("wb"))
        stack.enter_context(
            running(
                [*WORKER, "-b", target.bootstrap_servers],
                env={**os.environ, "HEADRACE_TEST_RELAYS": json.dumps(relays)},
                stdout=file,
                stderr=file,
            )
        )
        wanted = dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS)
        with Mirrors(bootstrap_servers=target.bootstrap_servers) as mirrors:
            mirrors.create("west", MirrorSettings({"bootstrap_servers": outside}, (TOPIC,)))
            until(lambda: ends(target.bootstrap_servers) == wanted, log.read_text)
            until(lambda: mirrors.admin.group_offsets("readers"), log.read_text)
            (promoted,) = mirrors.promote("west", wait=True, timeout=WAIT)
            assert {number: report.lag for number, report in promoted.partitions.items()} == dict.fromkeys(wanted, 0)
        for number in range(PARTITIONS):
            theirs = batches_of(TOPIC, number, wanted[number], bootstrap_servers=outside)
            assert batches_of(TOPIC, number, wanted[number], bootstrap_servers=target.bootstrap_servers) == theirs
        with pytest.raises(BlockingIOError):
            trap.accept()  # No connection came.
