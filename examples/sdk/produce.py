"""Send records and print their partitions and offsets: python produce.py [host:port [topic]]."""

import sys

import headrace


def main(cluster: str = "localhost:7170", topic: str = "example-produce") -> None:
    """Create the topic and send ten records, the last one with a key and a header."""
    with headrace.Admin(bootstrap_servers=cluster) as admin:
        admin.create_topic(topic, partitions=3, exist_ok=True)
    with headrace.Producer(bootstrap_servers=cluster) as producer:
        futures = [producer.send(topic, b"value %d" % number) for number in range(9)]
        futures.append(producer.send(topic, b"last", key=b"user-1", headers=[("trace", b"42")]))
        for future in futures:
            where = future.result(timeout=60)
            print(f"{where.topic}-{where.partition} offset {where.offset}")


if __name__ == "__main__":
    main(*sys.argv[1:])
