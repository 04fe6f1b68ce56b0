"""Cases of end-to-end latency at a fixed rate, open loop.

The reader is a separate process (`python -m bench.latency`), so that it shares no interpreter with the sender.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Literal, cast

import headrace

from bench.case import Sample
from bench.children import guarded
from bench.load import Transport
from bench.open_loop import (
    STAMP_BYTES,
    after_warm_up,
    pauses_ms,
    percentiles,
    record_count,
    send_open_loop,
    waited_ms,
)
from bench.stage import Stage

RESULT_SECONDS = 60
USUAL_RATE = 10_000


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency at one rate with one setting of acks and durability; a call measures it once."""

    rate: int = USUAL_RATE
    linger_ms: int = 0
    acks: Literal["all", 0, 1] = 1
    replication: int = 1
    durability: str = "async"
    transport: Transport = "native"

    def __call__(self, stage: Stage) -> Sample:
        """Send for a few seconds, and return the reader's figures."""
        with (
            stage.topic(
                brokers=self.replication,
                replication=self.replication,
                durability=self.durability,
            ) as target,
            headrace.Producer(
                bootstrap_servers=target.bootstrap_servers,
                acks=self.acks,
                linger_ms=self.linger_ms,
                transport=self.transport,
                return_futures=False,
            ) as sender,
        ):
            sender.send(target.topic, bytes(STAMP_BYTES))
            sender.flush(RESULT_SECONDS)
            arguments = [target.bootstrap_servers, target.topic, str(record_count(self.rate)), self.transport]
            with reader(guarded([sys.executable, "-m", "bench.latency", *arguments])) as result:
                send_open_loop(lambda value: sender.send(target.topic, value), self.rate)
                sender.flush(RESULT_SECONDS)
                return Sample(result())


def pauses(_: Stage) -> Sample:
    """Measure the machine's own pauses at the same rate: a program on each core that only reads the clock."""
    cores = len(os.sched_getaffinity(0))
    with multiprocessing.get_context("spawn").Pool(cores) as programs:
        waits = programs.map(pauses_ms, [USUAL_RATE] * cores, chunksize=1)
    found = [percentiles(after_warm_up(core)) for core in waits]
    return Sample({name: max(figures[name] for figures in found) for name in found[0]})


@contextmanager
def reader(command: Sequence[str]) -> Iterator[Callable[[], dict[str, float]]]:
    """Start a process that prints `ready` and later its figures; yield a function that waits for the figures."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        if ready != "ready\n":
            raise RuntimeError(f"{command[:4]} said {ready!r} in place of `ready`")

        def result() -> dict[str, float]:
            output, _ = process.communicate(timeout=RESULT_SECONDS)
            found: dict[str, float] = json.loads(output)
            return found

        yield result
    finally:
        process.kill()
        process.wait()


def read(bootstrap_servers: str, topic: str, count: int, transport: Transport) -> None:
    """Read the records of one measurement and print the figures."""
    with headrace.Consumer(
        topic, bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest", transport=transport
    ) as consumer:
        records = iter(consumer)
        next(records)
        print("ready", flush=True)
        waits = [waited_ms(record.value) for record in islice(records, count)]
    print(json.dumps(percentiles(after_warm_up(waits))))


if __name__ == "__main__":
    read(sys.argv[1], sys.argv[2], int(sys.argv[3]), cast("Transport", sys.argv[4]))
