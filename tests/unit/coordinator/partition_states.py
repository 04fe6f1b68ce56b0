"""Keys of partitions that tests of the controller's decisions begin with."""

from headrace_server.partition_state import PartitionState, Replica, check_shape

A, B, C, D = Replica(1, 10), Replica(2, 20), Replica(3, 30), Replica(4, 40)


def state(**fields):
    defaults = {
        "replicas": (1, 2, 3),
        "leader": A,
        "leader_epoch": 5,
        "in_sync": (A, B, C),
        "min_insync_replicas": 2,
        "partition_epoch": 9,
    }
    found = PartitionState(**defaults | fields)
    check_shape(found)
    return found
