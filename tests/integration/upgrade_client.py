"""A producer and a member of a group by whatever SDK is on the path: `python upgrade_client.py SERVERS TOPIC NAME`.

It sends records `NAME-0`, `NAME-1`, ... to all partitions, and reads. After the line `stop` on stdin it stops sending
and prints how many it sent, which failed, and the slowest; after `end` it leaves the group and prints what it read. It
runs with the SDK of older releases, too, and so uses what all of them have.
"""

import json
import sys
import threading
import time

import headrace

GROUP = "upgraded"
PAUSE_SECONDS = 0.005
WAIT_SECONDS = 60


def send(servers: str, topic: str, name: str, stop: threading.Event) -> None:
    """Send until `stop`, then print the outcome."""
    waits: list[float] = []
    failed: list[str] = []
    count = 0
    with headrace.Producer(bootstrap_servers=servers, acks="all", linger_ms=0) as producer:
        while not stop.wait(PAUSE_SECONDS):
            began = time.monotonic()
            try:
                producer.send(topic, f"{name}-{count}".encode(), key=b"%d" % count).result(WAIT_SECONDS)
            except headrace.HeadraceError as error:
                failed.append(f"{count}: {error}")
            waits.append(time.monotonic() - began)
            count += 1
    p99 = sorted(waits)[int(len(waits) * 0.99)]
    print(json.dumps({"sent": count, "failed": failed, "p99_s": p99, "longest_s": max(waits)}), flush=True)


def main(servers: str, topic: str, name: str) -> None:
    """Run until the lines on stdin have come."""
    stop, end = threading.Event(), threading.Event()
    sender = threading.Thread(target=send, args=(servers, topic, name, stop), daemon=True)

    def obey() -> None:
        for line in sys.stdin:
            {"stop": stop, "end": end}[line.strip()].set()

    threading.Thread(target=obey, daemon=True).start()
    values: list[str] = []
    with headrace.Consumer(
        topic,
        bootstrap_servers=servers,
        group_id=GROUP,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=200,
    ) as consumer:
        sender.start()
        while not end.is_set():
            values += [record.value.decode() for record in consumer.poll(0.1)]
    sender.join(WAIT_SECONDS)
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
