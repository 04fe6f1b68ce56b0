"""Handle records concurrently, with a dead-letter topic: python run_handlers.py [host:port [topic]]."""

import sys
import threading

import headrace

ORDERS = 100


def main(cluster: str = "localhost:7170", topic: str = "example-run") -> None:
    """Send orders, one of them invalid; handle them on eight threads, in order for each customer."""
    dead = f"{topic}-dead"
    with headrace.Admin(bootstrap_servers=cluster) as admin:
        admin.create_topic(topic, partitions=4, exist_ok=True)
        admin.create_topic(dead, partitions=1, exist_ok=True)
    with headrace.Producer(bootstrap_servers=cluster) as producer:
        for number in range(ORDERS):
            value = b"ten" if number == 10 else b"%d" % number
            producer.send(topic, value, key=b"customer-%d" % (number % 10))
    total, handled, lock = 0, 0, threading.Lock()
    settings: headrace.ConsumerSettings = {
        "bootstrap_servers": cluster,
        "group_id": f"{topic}-billing",
        "auto_offset_reset": "earliest",
    }
    with headrace.Consumer(topic, **settings) as consumer:

        def handle(record: headrace.Record) -> None:
            nonlocal total, handled
            amount = int(record.value)
            with lock:
                total += amount
                handled += 1
                if handled == ORDERS - 1:
                    consumer.stop()

        retry = headrace.RetryPolicy(attempts=3, backoff_ms=10)
        summary = consumer.run(handle, concurrency=8, ordering="key", retry=retry, dead_letter=dead)
    print(f"handled {summary.handled}, their sum is {total}, dead letters: {summary.dead_letters}")
    with headrace.Reader(dead, bootstrap_servers=cluster) as reader:
        for letter in reader:
            print(letter.value, dict(letter.headers)["headrace.dead_letter.error"].decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
