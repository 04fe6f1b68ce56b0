"""The paper's sentences about consumer groups: sections 3.1, 3.2 and 3.3, on a real cluster by the SDK."""

import time
from collections.abc import Iterator

import headrace
import pytest
from headrace import TopicPartition
from headrace_devcluster.cluster import LocalCluster

SECONDS = 30.0


@pytest.fixture
def servers(headrace_cluster: LocalCluster) -> str:
    """Where the shared cluster is."""
    return headrace_cluster.bootstrap_servers


@pytest.fixture
def topic(servers: str, topic_name: str) -> Iterator[str]:
    """This test's topic, of two partitions; deleted afterwards."""
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(topic_name, partitions=2, replication_factor=1)
        yield topic_name
        admin.delete_topic(topic_name)


def member(servers: str, topic: str, group: str) -> headrace.Consumer:
    """A consumer of a group, which acknowledges only what it is told to."""
    return headrace.Consumer(
        topic, bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    )


def test_section_3_2_one_consumer_of_a_group_and_every_group(servers: str, topic: str) -> None:
    """Section 3.2: each message goes to one of a group's consumers, by its partition; each group gets all messages."""
    with (
        member(servers, topic, f"{topic}-a") as first,
        member(servers, topic, f"{topic}-a") as second,
        member(servers, topic, f"{topic}-b") as other,
        headrace.Producer(bootstrap_servers=servers) as producer,
    ):
        members = (first, second, other)
        received: dict[headrace.Consumer, list[bytes]] = {each: [] for each in members}
        deadline = time.monotonic() + SECONDS
        sent: list[bytes] = []
        while sum(map(len, received.values())) < 2 * max(1, len(sent)):
            assert time.monotonic() < deadline
            for each in members:
                received[each] += [record.value for record in each.poll(0.05)]
            if not sent and [len(each.assignment()) for each in members] == [1, 1, 2]:
                for partition in range(2):
                    part = [b"%d-%d" % (partition, number) for number in range(100)]
                    producer.send_many(topic, part, partition=partition)
                    sent += part
    assert sorted(received[other]) == sorted(sent)
    assert sorted(received[first] + received[second]) == sorted(sent)
    for each in (first, second):
        assert len({value[:1] for value in received[each]}) == 1, "a partition is one consumer's"


def test_section_3_3_at_least_once_from_the_last_acknowledged_offset(servers: str, topic: str) -> None:
    """Sections 3.1 and 3.3: an offset acknowledges all before it; what was read behind it comes again, in order."""
    where = TopicPartition(topic, 0)
    with headrace.Producer(bootstrap_servers=servers) as producer:
        producer.send_many(topic, [b"%d" % number for number in range(50)], partition=0)
    with member(servers, topic, topic) as consumer:
        records = iter(consumer)
        assert [next(records).offset for _ in range(50)] == list(range(50))
        consumer.commit({where: 30})
    with member(servers, topic, topic) as consumer:
        records = iter(consumer)
        assert [next(records).offset for _ in range(20)] == list(range(30, 50))
