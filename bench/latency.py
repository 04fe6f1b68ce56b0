"""Latency from end to end at a fixed rate, open loop: what is due is sent whatever became of what went before.

Every record says when it was due, and its latency counts from then, so that a stall of sender, broker or reader is paid
for by all that it held up. The reader is a process of its own (`python -m bench.latency`), so that it does not share an
interpreter with the sender; both use the monotonic clock, which is one for all processes of a machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import headrace

from bench.case import Sample
from bench.stage import Stage

SECONDS = 5.0
WARM_SECONDS = 1.0
STAMP_BYTES = 8
TICK_SECONDS = 0.0005


@dataclass(frozen=True, slots=True)
class Latency:
    """One rate and one promise; called, it measures them once."""

    rate: int = 10_000
    linger_ms: int = 0
    acks: str | int = 1
    replication: int = 1
    durability: str = "async"

    def __call__(self, stage: Stage) -> Sample:
        """Send for a few seconds, and give what the reader saw."""
        count = round(self.rate * (WARM_SECONDS + SECONDS))
        with (
            stage.topic(brokers=self.replication, replication=self.replication, durability=self.durability) as target,
            headrace.Producer(
                bootstrap_servers=target.bootstrap_servers, acks=self.acks, linger_ms=self.linger_ms, receipts=False
            ) as sender,
        ):
            sender.send(target.topic, bytes(STAMP_BYTES))
            sender.flush(30)
            command = [sys.executable, "-m", "bench.latency", target.bootstrap_servers, target.topic, str(count)]
            with reader(command) as result:
                send_open_loop(lambda value: sender.send(target.topic, value), self.rate, count)
                sender.flush(60)
                return Sample(result())


@contextmanager
def reader(command: Sequence[str]) -> Iterator[Callable[[], dict[str, float]]]:
    """A process that prints a line when it reads, and its figures at the end; gives what waits for these."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        if ready != "ready\n":
            raise RuntimeError(f"{command[:4]} said {ready!r} in place of `ready`")

        def result() -> dict[str, float]:
            output, _ = process.communicate(timeout=60)
            found: dict[str, float] = json.loads(output)
            return found

        yield result
    finally:
        process.kill()
        process.wait()


def send_open_loop(send: Callable[[bytes], object], rate: int, count: int) -> None:
    """Send `count` values of 200 bytes, each as soon as it is due, stamped with when that was."""
    rest = bytes(200 - STAMP_BYTES)
    gap_ns, started, sent = 1_000_000_000 // rate, time.monotonic_ns(), 0
    while sent < count:
        due = min(count, (time.monotonic_ns() - started) // gap_ns + 1)
        for number in range(sent, due):
            send((started + number * gap_ns).to_bytes(STAMP_BYTES, "little") + rest)
        sent = max(sent, due)
        time.sleep(TICK_SECONDS)


def figures_of(waits_ms: Sequence[float]) -> dict[str, float]:
    """Percentiles of what records waited, those of the first second left out."""
    counted = sorted(waits_ms[round(len(waits_ms) * WARM_SECONDS / (WARM_SECONDS + SECONDS)) :])
    return {
        "p50_ms": counted[len(counted) // 2],
        "p99_ms": counted[int(len(counted) * 0.99)],
        "p999_ms": counted[int(len(counted) * 0.999)],
        "max_ms": counted[-1],
    }


def read(bootstrap_servers: str, topic: str, count: int) -> None:
    """Read the records of one measurement and print the figures."""
    waits = []
    with headrace.Consumer(topic, bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest") as consumer:
        records = iter(consumer)
        next(records)
        print("ready", flush=True)
        for record in islice(records, count):
            waits.append((time.monotonic_ns() - int.from_bytes(record.value[:STAMP_BYTES], "little")) / 1e6)
    print(json.dumps(figures_of(waits)))


if __name__ == "__main__":
    read(sys.argv[1], sys.argv[2], int(sys.argv[3]))
