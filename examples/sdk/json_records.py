"""Send and read objects by serializers, with a custom partitioner: python json_records.py [host:port [topic]]."""

import sys

import headrace


def by_length(topic: str, key: bytes | None, partitions: int) -> int:
    """Return the partition for a key: keys of the same length share one."""
    return len(key or b"") % partitions


def main(cluster: str = "localhost:7170", topic: str = "example-json") -> None:
    """Send objects, read them, and print the error of an invalid one."""
    with headrace.Admin(bootstrap_servers=cluster) as admin:
        admin.create_topic(topic, partitions=2, exist_ok=True)
    settings: headrace.ProducerSettings = {
        "bootstrap_servers": cluster,
        "key_serializer": "str",
        "value_serializer": "json",
        "partitioner": by_length,
    }
    with headrace.Producer(**settings) as producer:
        for name in ("ann", "bert", "cleo"):
            producer.send(topic, {"user": name, "visits": len(name)}, key=name)
        try:
            producer.send(topic, {1, 2}, key="a set is not JSON")
        except headrace.SerializationError as error:
            print("refused:", error)
    with headrace.Reader(topic, bootstrap_servers=cluster, key_deserializer="str", value_deserializer="json") as reader:
        for record in reader:
            print(record.partition, record.key, record.value["visits"])


if __name__ == "__main__":
    main(*sys.argv[1:])
