"""Where headrace departs from section 3.2 of the paper: who computes an assignment, and what is on a lease in etcd.

Consumers of a real cluster by the SDK, and the keys as etcd has them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import grpc
import headrace
import pytest
from headrace import TopicPartition
from headrace.groups.assignors import (
    ASSIGNORS,
    DEFAULT_ASSIGNOR,
    AssignableTopic,
    Subscriber,
    assign_range,
    assign_uniform,
)
from headrace.v1 import errors_pb2, groups_pb2, groups_pb2_grpc
from headrace_devcluster.cluster import LocalCluster
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace
from headrace_server.metastore.api import KeyValue

from tests.integration.metastore import connected

SECONDS = 60.0
ASSIGNMENTS, MEMBERS, OFFSETS = "/assignments/", "/members/", "/offsets/"


@pytest.fixture
def servers(headrace_cluster: LocalCluster) -> str:
    """Where the shared cluster is."""
    return headrace_cluster.bootstrap_servers


@pytest.fixture
def topic(servers: str, topic_name: str) -> Iterator[str]:
    """This test's topic, of four partitions; deleted afterwards."""
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(topic_name, partitions=4, replication_factor=1)
        yield topic_name
        admin.delete_topic(topic_name)


def member(servers: str, topic: str, **settings: object) -> headrace.Consumer:
    """A consumer of the group that is called as the topic."""
    return headrace.Consumer(
        topic, bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False,
        **settings,
    )  # fmt: skip


def poll_until_shared(consumers: list[headrace.Consumer], partitions: list[int]) -> None:
    """Poll until each consumer owns its number of partitions."""
    deadline = time.monotonic() + SECONDS
    while [len(each.assignment()) for each in consumers] != partitions:
        assert time.monotonic() < deadline
        for each in consumers:
            each.poll(0.05)


def stored_keys(cluster: LocalCluster, group: str) -> tuple[Keyspace, dict[str, KeyValue]]:
    """The keys of brokers and of a group, by name."""

    async def read() -> tuple[Keyspace, dict[str, KeyValue]]:
        async with connected(cluster.etcd.endpoint) as metastore:
            found = {each.key: each for each in (await metastore.range("/headrace/")).key_values}
        (meta,) = (each for each in found.values() if each.key.endswith("/meta"))
        cluster_name = meta.key.split("/")[2]
        keyspace = Keyspace(cluster_name, metadata_pb2.ClusterMeta.FromString(meta.value).generation)
        wanted = (keyspace.group_prefix(group), keyspace.broker_prefix())
        return keyspace, {name: each for name, each in found.items() if name.startswith(wanted)}

    return asyncio.run(read())


def test_section_3_2_which_registries_are_ephemeral(headrace_cluster: LocalCluster, servers: str, topic: str) -> None:
    """Section 3.2, a departure: the paper's registries of brokers, consumers and ownership are ephemeral.

    Brokers and consumers are on leases here. Ownership is persistent, as offsets are: a coordinator removes it.
    """
    with member(servers, topic) as consumer:
        poll_until_shared([consumer], [4])
        consumer.commit({TopicPartition(topic, 0): 0})
        keyspace, stored = stored_keys(headrace_cluster, topic)
    by_registry = {
        name: [each.lease_id != 0 for key, each in stored.items() if part in key]
        for name, part in (
            ("brokers", keyspace.broker_prefix()), ("consumers", MEMBERS), ("ownership", ASSIGNMENTS),
            ("offsets", OFFSETS),
        )
    }  # fmt: skip
    assert by_registry == {
        "brokers": [True] * len(headrace_cluster.brokers), "consumers": [True], "ownership": [False],
        "offsets": [False],
    }  # fmt: skip


def test_section_3_2_coordinators_compute_one_assignment_for_all(
    headrace_cluster: LocalCluster, servers: str, topic: str
) -> None:
    """Section 3.2, a departure: consumers do not each compute their share.

    One key of etcd has the owners of all partitions and the assignor, and each member's own key is a part of it.
    """
    with member(servers, topic) as first, member(servers, topic) as second:
        poll_until_shared([first, second], [2, 2])
        keyspace, stored = stored_keys(headrace_cluster, topic)
        owned = [{tp.partition for tp in each.assignment()} for each in (first, second)]
    state = metadata_pb2.GroupState.FromString(stored[keyspace.group(topic)].value)
    (shared,) = state.topics
    assert state.assignor == "uniform"
    assert list(shared.owner) == list(shared.target)
    by_member = [{number for number, owner in enumerate(shared.owner) if owner == index} for index in range(2)]
    assert sorted(map(sorted, by_member)) == sorted(map(sorted, owned))
    for index, each in enumerate(state.members):
        key = stored[keyspace.group_assignment(topic, each.member_id)]
        (assigned,) = metadata_pb2.MemberAssignment.FromString(key.value).topics
        assert set(assigned.partitions) == by_member[index]


def test_section_3_2_a_partition_is_granted_after_its_release(servers: str, topic: str) -> None:
    """Section 3.2, a departure: no member claims a partition that another one owns: there is no conflict to retry.

    A member that joins owns nothing while the owner has not finished its callback, and its share directly after it.
    """
    revoked, may_release, stopped = threading.Event(), threading.Event(), threading.Event()

    def release(partitions: list[TopicPartition]) -> None:
        revoked.set()
        assert may_release.wait(SECONDS)

    with member(servers, topic, on_revoked=release) as first:
        poll_until_shared([first], [4])

        def poll() -> None:
            while not stopped.is_set():
                first.poll(0.05)

        polling = threading.Thread(target=poll)
        polling.start()
        try:
            with member(servers, topic) as second:
                deadline = time.monotonic() + SECONDS
                polls_after_request = 0
                while polls_after_request < 40:
                    assert time.monotonic() < deadline
                    second.poll(0.05)
                    polls_after_request += revoked.is_set()
                    assert second.assignment() == []
                may_release.set()
                poll_until_shared([second], [2])
        finally:
            may_release.set()
            stopped.set()
            polling.join(SECONDS)


def test_section_3_2_coordinators_store_the_offsets_of_a_partitions_owner(
    headrace_cluster: LocalCluster, servers: str, topic: str
) -> None:
    """Section 3.2, a departure: a consumer does not write its offset itself; a coordinator rejects one of no owner.

    The stored offset is that of the next record to read, where the paper's is that of the last consumed one.
    """
    where = TopicPartition(topic, 0)
    with headrace.Producer(bootstrap_servers=servers) as producer:
        producer.send_many(topic, [b"0", b"1", b"2"], partition=0).result(SECONDS)
    with member(servers, topic) as first, member(servers, topic) as second:
        poll_until_shared([first, second], [2, 2])
        keyspace, stored = stored_keys(headrace_cluster, topic)
        group = metadata_pb2.GroupState.FromString(stored[keyspace.group(topic)].value)
        (shared,) = group.topics
        codes = {}
        with grpc.insecure_channel(headrace_cluster.coordinators[0].address) as channel:
            for index, each in enumerate(group.members):
                is_owner = index == shared.owner[0]
                request = groups_pb2.CommitOffsetsRequest(
                    group_id=topic, member_id=each.member_id, member_epoch=each.member_epoch, commit_number=1
                )
                place = request.topics.add(topic_id=shared.topic_id).partitions.add(partition=0, leader_epoch=-1)
                place.offset = 2 if is_owner else 1
                answer = groups_pb2_grpc.GroupServiceStub(channel).CommitOffsets(request, timeout=SECONDS)
                error = answer.topics[0].partitions[0].error
                codes[is_owner] = errors_pb2.ErrorCode.Name(error.code)
        assert codes == {True: "ERROR_CODE_UNSPECIFIED", False: "ERROR_CODE_NOT_OWNER"}
    with headrace.Admin(bootstrap_servers=servers) as admin:
        assert admin.group_offsets(topic)[where].offset == 2
    with member(servers, topic) as consumer:
        assert next(iter(consumer)).value == b"2"


def test_section_3_2_no_partition_is_left_over() -> None:
    """Section 3.2, a departure: algorithm 1 as printed leaves a remainder without an owner; `range` does not.

    The default is `uniform`: when a third member joins two, the first two keep what balance allows, and `range` would
    move partitions between them.
    """
    topics = [AssignableTopic(b"t", "t", 12)]
    of_seven = [AssignableTopic(b"t", "t", 7)]
    two = [Subscriber(bytes([n]), str(n), frozenset({b"t"})) for n in range(2)]
    three = [*two, Subscriber(b"\x02", "2", frozenset({b"t"}))]
    printed = [number for index in range(3) for number in range(index * (7 // 3), (index + 1) * (7 // 3))]
    assert printed == list(range(6)), "the last partition has no owner by the printed algorithm"
    for assign in (assign_range, assign_uniform):
        assert sorted(number for _, number in assign(three, of_seven, {})) == list(range(7))
    moved = {}
    for assign in (assign_range, assign_uniform):
        before = assign(two, topics, {})
        after = assign(three, topics, before)
        moved[assign] = sum(before[each] != after[each] for each in before)
    assert moved == {assign_uniform: 4, assign_range: 6}
    assert ASSIGNORS[DEFAULT_ASSIGNOR] is assign_uniform
