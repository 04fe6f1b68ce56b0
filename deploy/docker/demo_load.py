"""Steady load for the profile `demo` of docker-compose.yml: a producer, a group of two consumers, a line every 10 s.

python demo_load.py --bootstrap-servers localhost:7170 --records-per-second 2000; SIGTERM or Ctrl-C stops it cleanly.
"""

import argparse
import random
import signal
import threading
import time

import headrace

TOPIC, GROUP, PARTITIONS = "demo-clicks", "demo-reports", 6
PAGES = ("/", "/search", "/item", "/basket", "/help")
REPORT_SECONDS = 10.0
ROUND_SECONDS = 0.1


class Counts:
    """Numbers of produced and consumed records; each is written by one thread."""

    def __init__(self) -> None:
        self.sent = 0
        self.received = [0, 0]


def produce(client: dict[str, str], rate: float, stop: threading.Event, counts: Counts) -> None:
    """Send `rate` records per second of recurring users until `stop` is set."""
    draw = random.Random(1)
    with headrace.Producer(**client, client_id="demo-producer", return_futures=False) as producer:
        begun = time.monotonic()
        while not stop.wait(ROUND_SECONDS):
            for _ in range(round((time.monotonic() - begun) * rate) - counts.sent):
                user = draw.randrange(1_000)
                producer.send(
                    TOPIC, f"GET {draw.choice(PAGES)} {draw.randrange(10**6)}".encode(), key=b"user-%d" % user
                )
                counts.sent += 1


def consume(client: dict[str, str], number: int, stop: threading.Event, counts: Counts) -> None:
    """Consume as a member of the group until `stop` is set."""
    settings = {"group_id": GROUP, "client_id": f"demo-consumer-{number}", "auto_offset_reset": "earliest"}
    with headrace.Consumer(TOPIC, **client, **settings) as consumer:
        while not stop.is_set():
            counts.received[number] += len(consumer.poll(timeout=0.5))


def main() -> None:
    """Run until a signal arrives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", default="localhost:7170")
    parser.add_argument("--api-key-file", default="", help="file with the API key of a user that may create topics")
    parser.add_argument("--records-per-second", type=float, default=2_000)
    arguments = parser.parse_args()
    client = {"bootstrap_servers": arguments.bootstrap_servers, "api_key_file": arguments.api_key_file}
    stop, counts = threading.Event(), Counts()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with headrace.Admin(**client) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS, exist_ok=True)
    threads = [threading.Thread(target=produce, args=(client, arguments.records_per_second, stop, counts))]
    threads += [threading.Thread(target=consume, args=(client, number, stop, counts)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    while not stop.wait(REPORT_SECONDS) and all(thread.is_alive() for thread in threads):
        print(f"sent {counts.sent:,}; read {sum(counts.received):,}", flush=True)
    stop.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
