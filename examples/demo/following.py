"""Reading side: a separate consumer that follows all partitions during the writes, as Arrow columns."""

from __future__ import annotations

import threading
import time

import headrace
import pyarrow  # noqa: F401  (to_arrow would import it while the first records wait)

from examples.demo.ledger import Ledger

POLL_SECONDS = 0.2
STALL_SECONDS = 30.0
"""Time without a record after the last send, after which missing records count as lost."""


class TopicFollower(threading.Thread):
    """Independent reader. `ledger` may be read after the thread has ended."""

    def __init__(self, name: str, bootstrap_servers: str, topics: dict[str, int], stop: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self.ledger = Ledger(topics)
        self.error: BaseException | None = None
        self.started = threading.Event()
        """Set when it reads, so that latencies do not include the connection setup."""
        self._topics = topics
        self._bootstrap_servers = bootstrap_servers
        self._stop_now = stop
        self._wanted: int | None = None

    def expect(self, records: int) -> None:
        """Set the total record count, after which the reader ends."""
        self._wanted = records

    def run(self) -> None:
        """Read until all expected records have arrived, no more arrive, or the demo is stopped."""
        try:
            with headrace.Consumer(
                *self._topics,
                bootstrap_servers=self._bootstrap_servers,
                auto_offset_reset="earliest",
                client_id=f"demo-{self.name.replace(' ', '-')}",
            ) as consumer:
                self.started.set()
                self._follow(consumer)
        except BaseException as error:
            self.error = error
        finally:
            self.started.set()

    def _follow(self, consumer: headrace.Consumer) -> None:
        last_ns = time.monotonic_ns()
        while not self._stop_now.is_set():
            batch = consumer.poll(timeout=POLL_SECONDS)
            at_ns = time.monotonic_ns()
            for where, part in batch.by_partition().items():
                last_ns = at_ns
                table = part.to_arrow()
                offset = table["offset"][0].as_py()
                for values in table["value"].chunks:
                    self.ledger.partitions[where].add_arrow(values, offset, at_ns)
                    offset += len(values)
            if self._wanted is not None:
                if self.ledger.records() >= self._wanted:
                    return
                if at_ns - last_ns > STALL_SECONDS * 1e9:
                    return
