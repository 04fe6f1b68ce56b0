"""Share a topic with the other consumers of a group: python consumer_group.py [host:port [topic]]. Run it twice."""

import sys

import headrace

ORDERS = 100


def main(cluster: str = "localhost:7170", topic: str = "example-group") -> None:
    """Send orders and handle each; records handled by one consumer are not delivered to the next."""
    with headrace.Admin(bootstrap_servers=cluster) as admin:
        admin.create_topic(topic, partitions=4, exist_ok=True)
    with headrace.Producer(bootstrap_servers=cluster) as producer:
        for number in range(ORDERS):
            producer.send(topic, b"%d" % number, key=b"customer-%d" % (number % 10))
    settings: headrace.ConsumerSettings = {
        "bootstrap_servers": cluster,
        "group_id": f"{topic}-billing",
        "auto_offset_reset": "earliest",
    }
    for name, most in (("first", ORDERS // 2), ("second", ORDERS - ORDERS // 2)):
        seen = 0
        with headrace.Consumer(topic, **settings) as consumer:
            for record in consumer:  # never ends by itself
                seen += 1
                assert record.key.startswith(b"customer-")
                if seen == most:
                    break
        print(f"the {name} consumer dealt with {seen}")


if __name__ == "__main__":
    main(*sys.argv[1:])
