"""Brokers, coordinators and clients of different releases: one minor apart they work, beyond they say why not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import headrace
import headrace.aio
import pytest
from headrace.client.group import membership
from headrace.client.net import bootstrap_client
from headrace.v1 import handshake_pb2
from headrace.wire.errors import UnsupportedVersionError
from headrace.wire.releases import CAPABILITIES, RELEASE
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_devcluster.errors import PartStartError
from headrace_devcluster.service import LocalService
from headrace_server.internal_v1 import replication_pb2 as internal

from tests.integration.replicated import BROKER_SETTINGS, Replicated, follower_at, until

ONE_APART, TWO_APART = "0.2.0", "0.3.1"


@pytest.fixture(scope="module")
def skewed() -> Iterator[Replicated]:
    """Two brokers and two coordinators, of this release as long as nothing else is asked for."""
    spec = LocalClusterSpec(brokers=2, coordinators=2, broker_settings=BROKER_SETTINGS)
    with LocalCluster(spec) as cluster:
        replicated = Replicated(cluster)
        yield replicated
        replicated.close()


@pytest.fixture
def of_release(skewed: Replicated, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Starts a part again as another release; it is of this one again afterwards."""
    changed: list[tuple[LocalService, object]] = []

    def become(part: LocalService, release: str, lacks: str = "") -> None:
        monkeypatch.setenv("HEADRACE_TEST_RELEASE", release)
        monkeypatch.setenv("HEADRACE_TEST_LACKS", lacks)
        changed.append((part, part.spec))
        kind = "broker" if part.name.startswith("broker") else "coordinator"
        part.stop()
        part.spec = dataclasses.replace(part.spec, module=f"tests.integration.other_release_{kind}")
        skewed.cluster.restart(part)

    yield become
    for part, spec in changed:
        part.stop()
        part.spec = spec  # type: ignore[assignment]
        skewed.cluster.restart(part)
    skewed.cluster.wait_until_healthy()


def test_releases_one_minor_apart_make_one_cluster(skewed: Replicated, of_release: Callable[..., None]) -> None:
    """A newer broker and coordinator next to older ones: replicated, consumed by a group, and shown in the metadata."""
    of_release(skewed.cluster.coordinators[1], ONE_APART)
    of_release(skewed.broker(2), ONE_APART)
    skewed.create("apart", [[1, 2], [2, 1]], min_insync_replicas=2)
    with headrace.Producer(bootstrap_servers=skewed.servers, acks="all") as producer:
        for number in range(2):
            producer.send("apart", b"%d" % number, partition=number).result(20)
    with headrace.Consumer(
        "apart", bootstrap_servers=skewed.servers, group_id="apart", auto_offset_reset="earliest"
    ) as consumer:
        seen: list[bytes | None] = []
        until(lambda: seen.extend(record.value for record in consumer.poll(0.2)) or len(seen) == 2, "both records")
    skewed.check_replicas_equal("apart", 2)
    assert {each.broker_id: each.version for each in skewed.admin.describe_cluster().brokers} == {
        1: RELEASE,
        2: ONE_APART,
    }


def test_a_broker_that_does_not_announce_typed_topics_replicates_them(
    skewed: Replicated, of_release: Callable[..., None]
) -> None:
    """Followers copy batches as they are: what they announce takes them out of no in-sync set, and hinders no topic."""
    columns = {"columns": "a int64 required", "min_insync_replicas": 2}
    skewed.create("typed", [[1, 2]], **columns)
    of_release(skewed.broker(2), RELEASE, lacks="typed.1")
    skewed.create("typed-late", [[1, 2]], **columns)
    with headrace.Producer(bootstrap_servers=skewed.servers, acks="all") as producer:
        for topic in ("typed", "typed-late"):
            assert producer.send(topic, {"a": 1}).result(20).offset == 0
            skewed.check_replicas_equal(topic, 1)


@pytest.mark.parametrize("part", ["broker-2", "coordinator-b"])
def test_a_process_two_minor_releases_apart_does_not_start(
    skewed: Replicated, of_release: Callable[..., None], part: str
) -> None:
    """Exit code 2 and one sentence: who is registered, both releases, and what to do."""
    with pytest.raises(PartStartError) as refused:
        of_release(skewed.cluster.part(part), TWO_APART)
    said = " ".join(str(refused.value).split())
    assert "exit code 2" in said
    assert (
        f"error: the registered coordinator-a is of release {RELEASE}, more than one minor release apart from "
        f"{TWO_APART} here Upgrade the older one, one minor release at a time." in said.replace(". Upgrade", " Upgrade")
    )
    assert "Traceback" not in said


def two_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients of this process say that they are of another release."""

    def handshake() -> handshake_pb2.Handshake:
        return handshake_pb2.Handshake(release=TWO_APART, capabilities=CAPABILITIES)

    monkeypatch.setattr(bootstrap_client, "own_handshake", handshake)
    monkeypatch.setattr(membership, "own_handshake", handshake)


def test_a_client_two_minor_releases_apart_is_refused(skewed: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a coordinator and by a broker alike, at its first call, with one sentence; nothing is tried again."""
    two_apart(monkeypatch)
    for servers in (skewed.servers, skewed.broker(1).address):
        with headrace.Admin(bootstrap_servers=servers) as admin:
            with pytest.raises(UnsupportedVersionError) as refused:
                admin.list_topics()
        assert f"is of release {TWO_APART}, more than one minor release apart from {RELEASE}" in str(refused.value)
        assert "Upgrade the older one" in str(refused.value)
        assert not refused.value.retriable
    with headrace.Producer(bootstrap_servers=skewed.servers, max_block_ms=600_000) as producer:
        with pytest.raises(headrace.HeadraceError, match="more than one minor release apart"):
            producer.send("apart", b"").result(30)


def test_a_client_refuses_servers_two_minor_releases_apart(skewed: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the server is the older one and knows of no newer rule, the client says so."""
    monkeypatch.setattr("headrace.wire.releases.RELEASE", TWO_APART)
    with headrace.Admin(bootstrap_servers=skewed.servers) as admin:
        with pytest.raises(UnsupportedVersionError, match=f"coordinator-. at .* is of release {RELEASE}"):
            admin.list_topics()


def test_a_member_that_lacks_a_capability_is_refused(skewed: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat that joins says what its client can do; the coordinator names what is missing."""
    monkeypatch.setattr(
        membership, "own_handshake", lambda: handshake_pb2.Handshake(release=RELEASE, capabilities=["batches.1"])
    )
    with headrace.Consumer("apart", bootstrap_servers=skewed.servers, group_id="lacking") as consumer:
        with pytest.raises(UnsupportedVersionError, match=r"lacks groups\.1"):
            for _ in range(100):
                consumer.poll(0.2)


def test_a_follower_two_minor_releases_apart_is_refused(skewed: Replicated) -> None:
    """The leader ends the stream with a sentence; a follower that lacks chained batches, too."""
    for handshake, sentence in (
        (handshake_pb2.Handshake(release=TWO_APART, capabilities=CAPABILITIES), "more than one minor release apart"),
        (handshake_pb2.Handshake(release=RELEASE), "lacks replication.1"),
    ):
        identity = skewed.identity()
        said = internal.FollowerIdentity(
            cluster_id=identity.cluster_id, generation=identity.generation, broker_id=9, handshake=handshake
        )
        with follower_at(skewed.broker(1).replication_address) as follower:
            follower.challenge()
            follower.send(internal.ReplicaFetchRequest(follower=said))
            refused = follower.end()
        assert isinstance(refused, UnsupportedVersionError)
        assert sentence in refused.message
        assert "broker 9, which follows here," in refused.message
