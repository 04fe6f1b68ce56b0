"""A cluster on three etcd members loses their leader: processes that stop meanwhile shut down cleanly."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from headrace_devcluster.cluster import LocalCluster
from headrace_devcluster.cluster_health import describe_cluster
from headrace_devcluster.etcd import Etcd
from headrace_devcluster.service import LocalService
from headrace_server.keys import ROOT

from tests.integration.metastore import connected

LEASE_MS = 600_000
"""So long that nothing leaves because its lease has ended."""


@pytest.fixture(params=["killed", "silent"])
def lose(request: pytest.FixtureRequest) -> Iterator[Callable[[Etcd], None]]:
    """Takes a member away: its process ends, or keeps its connections and says nothing more."""
    lost: list[Etcd] = []

    def take(member: Etcd) -> None:
        lost.append(member)
        (member.kill if request.param == "killed" else member.pause)()

    yield take
    for member in lost:
        member.resume()


@pytest.fixture
def cluster(own_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    """Two brokers, two coordinators, three members of etcd."""
    settings = {"lease_ttl_ms": LEASE_MS}
    return own_cluster(brokers=2, etcd_members=3, broker_settings=settings, coordinator_settings=settings)


def registered(members: list[Etcd]) -> set[str]:
    """What is registered in etcd now: `live/ID` and `coord/ID`."""

    async def ask() -> set[str]:
        async with connected(*[member.endpoint for member in members]) as store:
            found = await store.range(ROOT)
        names = ["/".join(each.key.split("/")[-2:]) for each in found.key_values]
        return {name for name in names if name.startswith(("brokers/", "coordinators/"))}

    return asyncio.run(ask())


def lose_leader_and_stop(cluster: LocalCluster, lose: Callable[[Etcd], None], part: LocalService) -> set[str]:
    """The part is told to stop as the member goes that leads; what is registered when its process has ended."""
    (leader,) = (member for member in cluster.etcd_members if member.is_leader())
    others = [member for member in cluster.etcd_members if member is not leader]
    assert registered(others) == {"brokers/1", "brokers/2", "coordinators/a", "coordinators/b"}
    lose(leader)
    assert part.stop() == 0, part.log_tail()
    return registered(others)


def test_a_broker_that_stops_meanwhile_leaves_at_once(cluster: LocalCluster, lose: Callable[[Etcd], None]) -> None:
    """Its registration does not stay until the lease ends: leaders would wait for a follower that is gone."""
    assert lose_leader_and_stop(cluster, lose, cluster.broker(1)) == {"brokers/2", "coordinators/a", "coordinators/b"}


def test_a_controller_that_stops_meanwhile_leaves_at_once(cluster: LocalCluster, lose: Callable[[Etcd], None]) -> None:
    """Another one is elected, and not only when the lease ends."""
    controller = describe_cluster(cluster.coordinator("a").address).controller_id
    (other,) = {"a", "b"} - {controller}
    left = lose_leader_and_stop(cluster, lose, cluster.coordinator(controller))
    assert left == {"brokers/1", "brokers/2", f"coordinators/{other}"}
    cluster.wait_until_healthy()
