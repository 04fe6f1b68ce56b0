"""Problems of a partition, with the names that `partition list --problem` accepts. Pure."""

import enum
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.client.admin.rpc import PartitionDescription


class PartitionProblem(enum.StrEnum):
    """Problems, the most severe first."""

    OFFLINE = "offline"
    UNDER_MIN_IN_SYNC = "under_min_in_sync"
    UNDER_REPLICATED = "under_replicated"
    UNCLEAN = "unclean"
    MOVING = "moving"
    NOT_PREFERRED = "not_preferred"


MEANINGS: dict[PartitionProblem, str] = {
    PartitionProblem.OFFLINE: "no leader: neither writable nor readable",
    PartitionProblem.UNDER_MIN_IN_SYNC: "fewer replicas in sync than min_insync_replicas: acks=all is refused",
    PartitionProblem.UNDER_REPLICATED: "not all replicas in sync",
    PartitionProblem.UNCLEAN: "led after an unclean election, or by a sole replica after a crash: may lack records",
    PartitionProblem.MOVING: "replicas are moving",
    PartitionProblem.NOT_PREFERRED: "not led by the preferred replica, which could lead",
}


def problems_of(partition: "PartitionDescription", able: Collection[int]) -> list[PartitionProblem]:
    """Return all problems of a partition, the most severe first.

    Args:
        partition: the partition.
        able: the brokers that may lead: registered and not draining.
    """
    preferred = (partition.target_replicas or (-1,))[0]
    led = partition.leader_id >= 0
    holds = {
        PartitionProblem.OFFLINE: not led,
        PartitionProblem.UNDER_MIN_IN_SYNC: led and len(partition.in_sync_replicas) < partition.min_insync_replicas,
        PartitionProblem.UNDER_REPLICATED: led and bool(missing_replicas(partition)),
        PartitionProblem.UNCLEAN: partition.unclean,
        PartitionProblem.MOVING: bool(partition.adding_replicas or partition.removing_replicas),
        PartitionProblem.NOT_PREFERRED: led
        and partition.leader_id != preferred
        and preferred in able
        and preferred in partition.in_sync_replicas,
    }
    return [problem for problem in PartitionProblem if holds[problem]]


def missing_replicas(partition: "PartitionDescription") -> set[int]:
    """Return the replicas that should be in sync and are not, without those that a move is adding."""
    return set(partition.replicas) - set(partition.in_sync_replicas) - set(partition.adding_replicas)
