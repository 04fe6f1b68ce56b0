"""Quotas on a real cluster, over both protocols: users get their rates, others are not held, and clients live with it.

Bounds are from above alone, so that a slow machine fails no test.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from headrace import Admin, HeadraceError, Producer, Reader, TopicPartition
from headrace.v1 import (
    auth_pb2,
    auth_pb2_grpc,
    cluster_pb2,
    cluster_pb2_grpc,
    groups_pb2,
    groups_pb2_grpc,
    topics_pb2,
)
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from tests.integration.replicated import until

SECONDS = 60.0
RATE = 400_000
"""Bytes per second of the users with a quota."""
MEASURED_SECONDS = 4
TOLERANCE = 1.1
VALUE = bytes(10_000)
BATCH_BYTES = 20_000
HELD_REFUSED = 'headrace_coordinator_quota_held_seconds_total{quota="changes_per_minute",user="refused"}'


class Metered:
    """The cluster, and users with quotas."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.servers = cluster.bootstrap_servers
        self.admin = Admin(
            bootstrap_servers=self.servers, api_key=Path(cluster.client_settings["api_key_file"]).read_text().strip()
        )

    def user(self, name: str, **bounds: int) -> dict[str, Any]:
        """Create a user that may do what clients do, with a quota; return the settings of its clients."""
        self.admin.create_user(name)
        key = self.admin.create_api_key(name)
        self.admin.grant(name, "developer", "cluster")
        if bounds:
            self.admin.put_quota(name, **bounds)
        return {"bootstrap_servers": self.servers, "api_key": key.secret}

    def held_seconds(self, user: str, quota: str) -> float:
        """Return the time for which the broker has held answers."""
        name = f'headrace_broker_quota_held_seconds_total{{quota="{quota}",user="{user}"}}'
        return self.cluster.brokers[0].metrics().get(name, 0.0)


@pytest.fixture(scope="module")
def metered() -> Iterator[Metered]:
    spec = LocalClusterSpec(
        brokers=1,
        coordinators=1,
        identity=True,
        broker_settings={"metrics_listen": "127.0.0.1:0"},
        coordinator_settings={"default_replication_factor": 1, "metrics_listen": "127.0.0.1:0"},
    )
    with LocalCluster(spec) as cluster:
        made = Metered(cluster)
        yield made
        made.admin.close()


def produce(producer: Any, topic: str, size_bytes: int) -> None:
    """Send values and wait until all are acknowledged."""
    for _ in range(size_bytes // len(VALUE)):
        producer.send(topic, VALUE)
    producer.flush(timeout=SECONDS)


@pytest.mark.parametrize("transport", [pytest.param("native", marks=pytest.mark.native), "grpc"])
def test_a_producer_gets_its_rate(metered: Metered, transport: str) -> None:
    """It uses what it may use at once first; from then on the acknowledgements come at its rate, and none is lost."""
    name, topic = f"writer-{transport}", f"written-{transport}"
    metered.admin.create_topic(topic)
    slow = metered.user(name, produce_bytes_per_second=RATE) | {"transport": transport}
    fast = metered.user(f"other-{name}") | {"transport": transport}
    with Producer(**slow, batch_bytes=BATCH_BYTES) as producer, Producer(**fast, batch_bytes=BATCH_BYTES) as other:
        produce(producer, topic, 2 * RATE)
        until(lambda: metered.held_seconds(name, "produce_bytes_per_second"), "an answer that is held")
        began = time.monotonic()
        produce(producer, topic, MEASURED_SECONDS * RATE)
        elapsed = time.monotonic() - began
        produce(other, topic, 2 * RATE)
    assert MEASURED_SECONDS * RATE / elapsed <= TOLERANCE * RATE
    assert metered.held_seconds(f"other-{name}", "produce_bytes_per_second") == 0
    with Reader(topic, **fast) as reader:
        assert sum(1 for _ in reader) == (2 + MEASURED_SECONDS + 2) * RATE // len(VALUE)


@pytest.mark.parametrize("transport", [pytest.param("native", marks=pytest.mark.native), "grpc"])
def test_a_reader_gets_its_rate(metered: Metered, transport: str) -> None:
    """The same for what is fetched, in responses that are small compared with the quota."""
    name, topic = f"reader-{transport}", f"read-{transport}"
    metered.admin.create_topic(topic)
    others = metered.user(f"other-{name}") | {"transport": transport}
    slow = metered.user(name, fetch_bytes_per_second=RATE) | {"transport": transport}
    total = (3 + MEASURED_SECONDS) * RATE
    with Producer(**others, batch_bytes=BATCH_BYTES) as producer:
        produce(producer, topic, total)
    read = 0
    began = None
    with Reader(topic, **slow, fetch_max_bytes=2 * BATCH_BYTES) as reader:
        for record in reader:
            read += len(record.value)
            if began is None and read >= 3 * RATE:
                began = time.monotonic()
                before = read
    assert began is not None
    assert read == total
    assert (read - before) / (time.monotonic() - began) <= TOLERANCE * RATE
    assert metered.held_seconds(name, "fetch_bytes_per_second") > 0
    with Reader(topic, **others) as reader:
        assert sum(len(record.value) for record in reader) == total
    assert metered.held_seconds(f"other-{name}", "fetch_bytes_per_second") == 0


@pytest.mark.parametrize("transport", [pytest.param("native", marks=pytest.mark.native), "grpc"])
def test_requests_are_held_beyond_their_rate(metered: Metered, transport: str) -> None:
    """A producer of one record at a time: each is a request."""
    name, topic, rate = f"caller-{transport}", f"called-{transport}", 20
    metered.admin.create_topic(topic)
    settings = metered.user(name, requests_per_second=rate) | {"transport": transport, "linger_ms": 0}
    with Producer(**settings) as producer:
        for _ in range(2 * rate):
            producer.send(topic, b"1").result(timeout=SECONDS)
        began = time.monotonic()
        for _ in range(3 * rate):
            producer.send(topic, b"2").result(timeout=SECONDS)
        elapsed = time.monotonic() - began
    assert 3 * rate / elapsed <= TOLERANCE * rate
    assert metered.held_seconds(name, "requests_per_second") > 0


def test_changes_are_held_beyond_their_rate(metered: Metered) -> None:
    """A request counts once, and once more for each partition that it creates. The user's other calls, and those about
    identity, are not held.
    """
    settings = metered.user("maker", changes_per_minute=60)
    with Admin(**settings) as admin:
        admin.create_topic("made", partitions=60)
        began = time.monotonic()
        admin.create_partitions("made", 61)
        assert time.monotonic() - began >= 0.5
        with contextlib.suppress(HeadraceError):  # The answer is held for seconds.
            admin.create_topic("made-later", partitions=40, timeout=0.5)
        with pytest.raises(HeadraceError, match="maker has used its changes per minute"):
            admin.create_topic("refused", validate_only=True, timeout=0.5)
        began = time.monotonic()
        admin.list_topics()
        assert time.monotonic() - began < 5
    metered.admin.delete_quota("maker")


def test_partitions_that_are_not_created_are_no_changes(metered: Metered) -> None:
    """Else one request that is refused for its number of partitions would lock its user out for minutes."""
    settings = metered.user("refused", changes_per_minute=60)
    with Admin(**settings) as admin:
        admin.create_topic("checked", partitions=900, validate_only=True)
        for partitions in (1_000_000, 1_000):
            with pytest.raises(HeadraceError):
                admin.create_topic("checked", partitions=partitions, replication_factor=9)
        admin.create_topic("checked", partitions=1)
        with pytest.raises(HeadraceError, match="exists"):
            admin.create_topic("checked", partitions=900)
        with pytest.raises(HeadraceError):
            admin.create_partitions("checked", 1_000_000)
        admin.create_partitions("checked", 900, validate_only=True)
        began = time.monotonic()
        admin.create_partitions("checked", 2)
        assert time.monotonic() - began < 5
    assert metered.cluster.coordinators[0].metrics().get(HELD_REFUSED, 0.0) == 0
    metered.admin.delete_quota("refused")


@pytest.mark.parametrize("kind", ["topics", "groups"])
def test_each_topic_and_group_that_a_request_deletes_is_a_change(metered: Metered, kind: str) -> None:
    """Else one request could delete thousands at the price of one."""
    name = f"deleter-{kind}"
    settings = metered.user(name, changes_per_minute=6)
    names = [f"{name}-{number}" for number in range(10)]
    for each in names:
        metered.admin.create_topic(each)
        if kind == "groups":
            metered.admin.reset_group_offsets(each, {TopicPartition(each, 0): 0})
    bearer = (("authorization", f"Bearer {settings['api_key']}"),)
    with grpc.insecure_channel(metered.cluster.coordinators[0].address) as channel:
        with contextlib.suppress(grpc.RpcError):  # The answer is held for seconds.
            if kind == "groups":
                request = groups_pb2.DeleteGroupsRequest(group_ids=names)
                groups_pb2_grpc.GroupServiceStub(channel).DeleteGroups(request, timeout=2, metadata=bearer)
            else:
                wanted = cluster_pb2.DeleteTopicsRequest(topics=[topics_pb2.TopicRef(name=each) for each in names])
                cluster_pb2_grpc.ClusterServiceStub(channel).DeleteTopics(wanted, timeout=2, metadata=bearer)
        with Admin(**settings) as admin, pytest.raises(HeadraceError, match="has used its changes per minute"):
            admin.create_topic("refused", validate_only=True, timeout=0.5)


def test_quotas_are_on_by_default(metered: Metered) -> None:
    """The default is listed as such, applies where no quota sets a bound, and is switched off at run time."""
    default, *_ = metered.admin.list_quotas()
    assert (default.user, default.is_default, default.changes_per_minute) == ("*", True, 20_000)
    metered.admin.put_quota("*", changes_per_minute=0)
    listed = metered.admin.list_quotas()
    assert (listed[0], listed[1].is_default, listed[1].changes_per_minute) == (default, False, 0)
    assert listed[1].requests_per_second is None
    metered.admin.delete_quota("*")


def test_strangers_do_not_keep_users_from_opening_sessions(metered: Metered) -> None:
    """What anybody may ask is not charged to the quota that callers without an identity have at their address."""
    settings = metered.user("late", requests_per_second=1_000)
    metered.admin.put_quota("*", requests_per_second=1)
    with grpc.insecure_channel(metered.servers.partition(",")[0]) as channel:
        ask = auth_pb2_grpc.SessionServiceStub(channel).WhoAmI
        asked = [ask.future(auth_pb2.WhoAmIRequest(), timeout=SECONDS) for _ in range(60)]
        assert all(each.exception(timeout=SECONDS) is None for each in asked)
    with Admin(**settings, request_timeout_ms=20_000) as admin:
        assert admin.who_am_i().user == "late"
        admin.list_topics()
    metered.admin.delete_quota("*")


@pytest.mark.native
def test_a_client_beyond_the_connections_uses_grpc(metered: Metered, caplog: pytest.LogCaptureFixture) -> None:
    """The log says why. One that must use the native protocol waits until another one has closed."""
    metered.admin.create_topic("connected")
    settings = metered.user("many", connections=1)
    with Producer(**settings) as first:
        first.send("connected", b"1").result(timeout=SECONDS)
        with caplog.at_level(logging.WARNING, "headrace.client"), Producer(**settings) as second:
            second.send("connected", b"2").result(timeout=SECONDS)
        assert "many has 1 connections" in caplog.text
        waiting = Producer(**settings, transport="native")
        sent = waiting.send("connected", b"3")
        first.send("connected", b"4").result(timeout=SECONDS)
        assert not sent.done()
    with waiting:
        sent.result(timeout=SECONDS)
