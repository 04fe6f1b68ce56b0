"""`Admin.plan_balance`: descriptions in, a plan out, without a cluster."""

from dataclasses import replace

import pytest
from headrace.client.admin.balance import check_balance, partition_loads, plan_balance
from headrace.client.admin.replication import LogInfo
from headrace.client.admin.rpc import BrokerDescription, PartitionDescription, TopicDescription
from headrace.client.base.errors import ConfigError
from headrace.placement.load import PartitionLoad, ReplicaLoad
from headrace.wire.errors import NotEnoughBrokersError
from headrace.wire.ids import TopicPartition

BROKERS = [BrokerDescription(n, f"b{n}:1", "", "", 5, False, "0.1.0", "ab"[n % 2]) for n in range(4)]


def topic(placement: str, *replicas: tuple[int, ...]) -> TopicDescription:
    partitions = tuple(PartitionDescription(n, each[0], 1, each, each, ()) for n, each in enumerate(replicas))
    return TopicDescription("t", b"t" * 16, partitions, 0, placement=placement)


def log(partition: int, broker_id: int, *, leads: bool, bytes_in: float, leader_epoch: int = 1) -> LogInfo:
    load = ReplicaLoad(bytes_in)
    return LogInfo("t", partition, broker_id, leads, leader_epoch, 0, 0, 0, 0, 10, 1, "", not leads, load=load)


def test_a_changed_placement_is_carried_out_with_other_numbers_of_replicas() -> None:
    """From two replicas in one data center to three in two, and back; by load as well, for a cluster without load."""
    for by in ("replicas", "load"):
        plan = plan_balance(BROKERS, [topic("a:2,b:1", (0, 2))], [], by, 1.2)  # type: ignore[arg-type]
        ((where, target),) = plan.targets.items()
        assert (where, sorted(n % 2 for n in target), {0, 2} <= set(target)) == (
            TopicPartition("t", 0),
            [0, 0, 1],
            True,
        )
        plan = plan_balance(BROKERS, [topic("b:1", target)], [], by, 1.2)  # type: ignore[arg-type]
        assert [n % 2 for n in plan.targets[where]] == [1]
        assert plan_balance(BROKERS, [topic("b:1", plan.targets[where])], [], by, 1.2).moves == ()  # type: ignore[arg-type]


def test_a_placement_without_brokers_is_an_error() -> None:
    """It names partition and data center."""
    with pytest.raises(NotEnoughBrokersError, match="t-0 has 1 replicas and no other broker of data center c"):
        plan_balance(BROKERS, [topic("c:1", (0,))], [], "load", 1.2)


def test_loads_are_those_of_the_latest_leader_and_of_the_mean_follower() -> None:
    """A partition without a leader has none."""
    logs = [
        log(0, 0, leads=True, bytes_in=5, leader_epoch=2),
        log(0, 1, leads=True, bytes_in=7, leader_epoch=3),
        log(0, 2, leads=False, bytes_in=1),
        log(0, 3, leads=False, bytes_in=2),
        log(1, 0, leads=False, bytes_in=9),
    ]
    assert partition_loads(logs) == {TopicPartition("t", 0): PartitionLoad(7, 1.5)}


def test_a_drained_broker_is_no_part_of_the_plan() -> None:
    """It neither receives nor counts."""
    logs = [log(n, 0, leads=True, bytes_in=10) for n in range(4)]
    brokers = [*BROKERS[:2], replace(BROKERS[2], draining=True)]
    plan = plan_balance(brokers, [topic("rack", (0,), (0,), (0,), (0,))], logs, "load", 1.2)
    assert (plan.before, plan.after) == ({0: 40, 1: 0}, {0: 20, 1: 20})
    assert (plan.ratio_before, plan.ratio_after) == (2, 1)


@pytest.mark.parametrize(("by", "max_ratio"), [("weight", 1.2), ("load", 1.0), ("load", float("nan"))])
def test_bad_arguments_are_refused(by: str, max_ratio: float) -> None:
    """With what is allowed."""
    with pytest.raises(ConfigError):
        check_balance(by, max_ratio)
