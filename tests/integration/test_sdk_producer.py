"""The blocking producer on a real cluster: what is acknowledged is there, once and in order, also through a kill -9."""

import json

import headrace
import pytest
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from tests.integration.replicated import until
from tests.integration.writers import writing

WAIT = 60


@pytest.fixture(scope="module", params=[False, True], ids=["processes", "single"])
def one_broker(request):
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1, single=request.param)) as cluster:
        yield cluster


def read_values(cluster, topic):
    with headrace.Reader(topic, bootstrap_servers=cluster.bootstrap_servers) as reader:
        return [record.value for record in reader]


def create(cluster, topic):
    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=1)


@pytest.mark.parametrize("acks", ["all", 1])
def test_futures_name_the_offsets_that_a_reader_finds(one_broker, acks):
    topic = f"futures-{acks}"
    create(one_broker, topic)
    with headrace.Producer(bootstrap_servers=one_broker.bootstrap_servers, acks=acks) as producer:
        futures = [producer.send(topic, b"%d" % number) for number in range(5000)]
        assert [future.result(WAIT).offset for future in futures] == list(range(5000))
    values = [b"%d" % number for number in range(5000)]
    if acks == 1:
        until(lambda: read_values(one_broker, topic) == values, "what may be acknowledged before it is committed")
    assert read_values(one_broker, topic) == values


SEND = """
with headrace.Reader(name, bootstrap_servers=servers) as reader:
    sent = len(list(reader))
producer = headrace.Producer(bootstrap_servers=servers, batch_records=50, linger_ms=0)
def send():
    global sent
    while not ends.is_set():
        futures = [(number, producer.send(name, b"%d" % number)) for number in range(sent, sent + 500)]
        sent += len(futures)
        for number, future in futures:
            acknowledge(number, future.result(60).offset)
    producer.close()
run(send)
"""


def test_a_broker_killed_while_it_takes_records_loses_and_doubles_nothing(one_broker):
    """kill -9 during produce, restarted: every record is there once, in order, at the offset of its future."""
    create(one_broker, "killed")
    with writing(one_broker, SEND, "killed") as writer:
        writer.kill_holders(1_000)
        writer.finish()
    values = read_values(one_broker, "killed")
    assert values == [b"%d" % number for number in range(len(values))]
    acknowledged = [json.loads(line) for line in writer.lines]
    assert all(number < len(values) and offset in (-1, number) for number, offset in acknowledged)
