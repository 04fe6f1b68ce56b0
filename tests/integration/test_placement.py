"""Placement by data center on real processes: where replicas are, and the loss of a whole data center under load."""

import time
from collections import Counter
from collections.abc import Callable, Iterator

import headrace
import pytest
from headrace.client.admin.balance import BalancePlan
from headrace.wire.errors import InvalidRequestError, NotEnoughBrokersError
from headrace_devcluster.cluster import LocalCluster

from tests.integration.replicated import BROKER_SETTINGS, Follower, Replicated, Writer, until

PARTITIONS = 4
WAIT_SECONDS = 60.0
CENTERS = {1: "east", 2: "east", 3: "west", 4: "west"}


@pytest.fixture
def two_centers(own_cluster: Callable[..., LocalCluster]) -> Iterator[Replicated]:
    """Two brokers in each of two data centers, in racks of the same names."""
    cluster = own_cluster(
        brokers=4,
        coordinators=1,
        broker_settings=BROKER_SETTINGS,
        racks=("east/r1", "east/r2", "west/r1", "west/r2"),
    )
    replicated = Replicated(cluster)
    yield replicated
    replicated.close()


def test_loss_of_a_data_center_under_load_loses_nothing_acknowledged(two_centers: Replicated) -> None:
    """I1, I15, I20, I21: kill -9 of all its brokers at once; the others lead and take writes, and are copied back."""
    admin = two_centers.admin
    config = {"placement": "east:2,west:2", "min_insync_replicas": 2}
    admin.create_topic("both", partitions=PARTITIONS, config=config)
    two_centers.wait_in_sync("both")
    assert admin.describe_topic("both").placement == "east:2,west:2"
    leaders = Counter(each.leader_id for each in admin.describe_topic("both").partitions)
    assert leaders == dict.fromkeys(CENTERS, 1)
    with Writer(two_centers.servers, "both", PARTITIONS) as writer:
        writer.wait_for(1_000)
        killed_at = time.monotonic()
        for broker_id in (1, 2):
            two_centers.broker(broker_id).kill()
        for number in range(PARTITIONS):
            two_centers.wait_for("both", lambda part: part.leader_id in (3, 4), "a leader in the other one", number)
        writer.wait_for(1_000)
        print(f"longest time without an acknowledgement: {writer.longest_gap(killed_at - 1):.2f} s")
        for broker_id in (1, 2):
            two_centers.cluster.restart(two_centers.broker(broker_id))
        two_centers.wait_in_sync("both", CENTERS)
        writer.wait_for(1_000)
    writer.check(two_centers)
    two_centers.check_replicas_equal("both", PARTITIONS)


def test_reads_from_replicas_stay_in_the_data_center(two_centers: Replicated) -> None:
    """A table whose client names its data center is read there, and elsewhere once all of it is gone."""
    config = {"placement": "east:2,west:2", "cleanup_policy": "compact", "table": "yes"}
    two_centers.admin.create_topic("near", partitions=2, config=config)
    two_centers.wait_in_sync("near")

    def hits(*broker_ids: int) -> float:
        return sum(two_centers.metric(each, "table_hits_total") for each in broker_ids)

    with headrace.Table("near", bootstrap_servers=two_centers.servers, client_data_center="west") as users:
        newest = users.put("u1", {"name": "Ada"})
        east, west = hits(1, 2), hits(3, 4)
        for _ in range(40):
            row = users.get("u1", consistency="replica", min_offset=newest + 1)
            assert row is not None
            assert row["name"] == "Ada"
        assert (hits(1, 2), hits(3, 4)) == (east, west + 40)
        for broker_id in (3, 4):
            two_centers.broker(broker_id).kill()
        row = users.get("u1", consistency="replica", min_offset=newest + 1)
        assert row is not None
        assert row["name"] == "Ada"


def test_a_consumer_reads_the_replica_of_its_data_center(two_centers: Replicated) -> None:
    """Not that of the rack of the same name in the other one, which leads; the nearest one of two."""
    two_centers.create("close", [[1, 3, 4]], min_insync_replicas=2)
    seen = 0

    def fetched() -> list[float]:
        return [two_centers.metric(each, "fetched_bytes_total") for each in CENTERS]

    with (
        headrace.Producer(bootstrap_servers=two_centers.servers) as producer,
        headrace.Consumer(
            "close",
            bootstrap_servers=two_centers.servers,
            auto_offset_reset="earliest",
            client_data_center="west",
            client_rack="r1",
        ) as consumer,
    ):

        def read_from() -> list[int]:
            """Return the brokers from which some more records come."""
            nonlocal seen
            before, end = fetched(), seen + 100
            producer.send_many("close", [b"x"] * 100, partition=0)
            producer.flush(WAIT_SECONDS)
            while seen < end:
                seen += len(consumer.poll(WAIT_SECONDS))
            return [each for each, more, less in zip(CENTERS, fetched(), before, strict=True) if more > less]

        until(lambda: read_from() == [3], "reading at broker 3")


def test_moves_and_new_partitions_keep_the_numbers_of_the_placement(two_centers: Replicated) -> None:
    """Requests against it are refused, with the numbers; a data center without brokers is named."""
    admin = two_centers.admin
    assert {each.broker_id: each.data_center for each in admin.describe_cluster().brokers} == CENTERS
    admin.create_topic("kept", partitions=2, config={"placement": "east:1,west:2"})
    admin.create_partitions("kept", 5)
    for each in admin.describe_topic("kept").partitions:
        assert Counter(CENTERS[broker_id] for broker_id in each.replicas) == {"east": 1, "west": 2}
    kept = headrace.TopicPartition("kept", 0)
    (refused,) = admin.reassign_partitions({kept: [1, 2, 3]})
    assert isinstance(refused.error, InvalidRequestError)
    assert "are east:2,west:1 by data center, and the topic has placement = east:1,west:2" in str(refused.error)
    present = admin.describe_topic("kept").partitions[0].replicas
    other = 3 - next(each for each in present if each < 3)
    (accepted,) = admin.reassign_partitions({kept: [other, 4, 3]})
    assert accepted.error is None
    until(lambda: admin.describe_topic("kept").partitions[0].replicas == (other, 4, 3), "the end of the move")
    with pytest.raises(NotEnoughBrokersError, match=r"0 brokers of data center north .*: east, west"):
        admin.create_topic("far", config={"placement": "north:1,east:1"}, timeout=1)
    with pytest.raises(NotEnoughBrokersError, match="2 brokers of data center east"):
        admin.alter_config("kept", {"placement": "east:3"})
    admin.alter_config("kept", {"placement": "east:1,west:1"})
    plan = admin.plan_balance()
    assert all(each.error is None for each in admin.reassign_partitions(plan.targets))
    until(lambda: not admin.list_reassignments(), "the end of the moves")
    described = admin.describe_topic("kept")
    assert described.replication_factor == 2
    for each in described.partitions:
        assert sorted(CENTERS[broker_id] for broker_id in each.replicas) == ["east", "west"]
    assert admin.plan_balance().moves == ()


def is_even(admin: headrace.Admin) -> bool:
    """Whether the loads are within the limit. If others disturbed the measurement, another plan is carried out."""
    plan = admin.plan_balance("load", max_ratio=1.3)
    if plan.moves:
        admin.reassign_partitions(plan.targets)
        until(lambda: not admin.list_reassignments(), "the end of the moves")
        admin.elect_leaders()
    return not plan.moves


def test_one_plan_by_measured_load_evens_the_brokers_under_it(own_cluster: Callable[..., LocalCluster]) -> None:
    """Of three brokers one leads all, under a producer and a consumer; the loads then measured are within the limit."""
    cluster = own_cluster(coordinators=1, broker_settings=BROKER_SETTINGS | {"load_window_ms": 1_000})
    replicated = Replicated(cluster)
    admin = replicated.admin
    replicated.create("busy", [[1, 2, 3]] * 6)
    with Follower(replicated.servers, "busy", 6) as follower:
        with Writer(replicated.servers, "busy", 6) as writer:
            plan = until(lambda: plan_of_leader(admin), "a measured load of all replicas")
            leader = next(log for log in admin.describe_logs("busy") if log.is_leader)
            assert min(leader.load.bytes_in, leader.load.bytes_out, leader.load.requests) > 0
            print(f"{plan.ratio_before:.2f} -> {plan.ratio_after:.2f} by {len(plan.moves)} moves")
            assert plan.ratio_after <= 1.2
            assert all(each.error is None for each in admin.reassign_partitions(plan.targets))
            until(lambda: not admin.list_reassignments(), "the end of the moves")
            admin.elect_leaders()
            until(lambda: is_even(admin), "an even load")
            writer.wait_for(200)
        follower.wait_for(len(writer.futures))
    writer.check(replicated)
    follower.check(writer)
    replicated.close()


def plan_of_leader(admin: headrace.Admin) -> BalancePlan | None:
    """Return a plan by load once that of broker 1, which leads all, is measured, and the largest."""
    plan = admin.plan_balance("load")
    return plan if plan.ratio_before > 1.4 and plan.before[1] == max(plan.before.values()) else None


def test_a_new_broker_takes_its_share_by_itself_under_load(own_cluster: Callable[..., LocalCluster]) -> None:
    """With `fill_bytes_per_second`: a third of the replicas moves to the third broker, and nothing is lost."""
    settings = {"fill_bytes_per_second": 100 << 20}
    cluster = own_cluster(brokers=2, coordinators=1, broker_settings=BROKER_SETTINGS, coordinator_settings=settings)
    replicated = Replicated(cluster)
    admin = replicated.admin
    admin.create_topic("grown", partitions=12, replication_factor=2)

    def held() -> Counter[int]:
        parts = admin.describe_topic("grown").partitions
        return Counter(broker_id for each in parts for broker_id in each.replicas)

    assert held() == {1: 12, 2: 12}
    with Writer(replicated.servers, "grown", 12) as writer:
        writer.wait_for(200)
        cluster.add_broker()
        until(lambda: held() == dict.fromkeys((1, 2, 3), 8), "an even number of replicas")
        writer.wait_for(200)
    writer.check(replicated)
    replicated.check_replicas_equal("grown", 12)
    replicated.close()
