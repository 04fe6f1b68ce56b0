"""Read records as they arrive, and from an offset: python consume.py [host:port [topic]]."""

import sys

import headrace


def main(cluster: str = "localhost:7170", topic: str = "example-consume") -> None:
    """Send a hundred records, read them one by one, then the last ten again."""
    with headrace.Admin(bootstrap_servers=cluster) as admin:
        admin.create_topic(topic, partitions=1, exist_ok=True)
    with headrace.Producer(bootstrap_servers=cluster) as producer:
        producer.send_many(topic, [b"%d" % number for number in range(100)])
    where = headrace.TopicPartition(topic, 0)
    with headrace.Consumer(topic, bootstrap_servers=cluster, auto_offset_reset="earliest") as consumer:
        for record in consumer:  # never ends by itself
            if record.value == b"99":
                break
        end = consumer.position(where)
        consumer.seek(where, end - 10)
        again = consumer.poll(timeout=60, max_records=10)
        print("read up to", end, "and again", [record.value for record in again])


if __name__ == "__main__":
    main(*sys.argv[1:])
