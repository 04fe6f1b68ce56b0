"""Inspect and change a cluster: python admin.py [host:port [topic]]."""

import sys

import headrace


def main(cluster: str = "localhost:7170", topic: str = "example-admin") -> None:
    """Create a topic, alter and describe it, delete its records, delete it."""
    with headrace.Admin(bootstrap_servers=cluster) as admin:
        print("brokers", [broker.broker_id for broker in admin.describe_cluster().brokers])
        admin.create_topic(topic, partitions=1, config={"retention_ms": 86_400_000}, exist_ok=True)
        admin.alter_config(topic, {"retention_ms": 3_600_000})
        print("retention_ms", admin.describe_config(topic)["retention_ms"].value)
        admin.create_partitions(topic, 2)
        with headrace.Producer(bootstrap_servers=cluster) as producer:
            producer.send(topic, b"x", partition=0).result(timeout=60)
        print("deleted up to", admin.delete_records(topic, {0: -1})[0].log_start_offset)
        print("latest", admin.list_offsets(topic, "latest")[headrace.TopicPartition(topic, 0)].offset)
        admin.delete_topic(topic)
        print("deleted", topic not in admin.list_topics())


if __name__ == "__main__":
    main(*sys.argv[1:])
