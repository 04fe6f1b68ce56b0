"""`headrace.metrics`: what applications show of their producers and consumers."""

import gc

import headrace
import prometheus_client
from headrace.metrics import ClientCollector
from headrace_devcluster.cluster import LocalCluster

SECONDS = 30


def value(registry, name, **labels):
    return registry.get_sample_value(f"headrace_client_{name}", {key: str(each) for key, each in labels.items()})


def test_a_producer_and_a_consumer_are_shown(headrace_cluster: LocalCluster, topic_name: str):
    """What was sent and failed, how far a consumer is, and nothing of clients that are gone."""
    registry = prometheus_client.CollectorRegistry()
    collector = ClientCollector()
    registry.register(collector)
    settings = {"bootstrap_servers": headrace_cluster.bootstrap_servers}
    with headrace.Admin(**settings) as admin:
        admin.create_topic(topic_name, config={"max_batch_bytes": 4096})
    with (
        headrace.Producer(**settings) as producer,
        headrace.Consumer(topic_name, auto_offset_reset="earliest", **settings) as consumer,
    ):
        collector.watch(producer, "billing")
        collector.watch(consumer)
        for _ in range(5):
            producer.send(topic_name, b"x")
        producer.flush(timeout=SECONDS)
        assert value(registry, "sent_records_total", client="billing") == 5
        assert value(registry, "sent_batches_total", client="billing") >= 1
        assert value(registry, "failed_records_total", client="billing") == 0
        assert value(registry, "buffered_bytes", client="billing") == 0
        read = 0
        while read < 3:
            read += len(consumer.poll(timeout=1.0, max_records=3 - read))
        assert value(registry, "produce_seconds_count", client="billing") >= 1
        assert value(registry, "fetch_seconds_count", client="consumer-1") >= 1
        where = {"client": "consumer-1", "topic": topic_name, "partition": 0}
        assert value(registry, "position", **where) == 3
        assert value(registry, "lag_records", **where) == 2
        assert value(registry, "healthy", client="consumer-1") == 1
        assert value(registry, "assigned_partitions", client="consumer-1") == 1
    assert value(registry, "healthy", client="consumer-1") == 0
    del producer, consumer
    gc.collect()
    assert value(registry, "healthy", client="consumer-1") is None
