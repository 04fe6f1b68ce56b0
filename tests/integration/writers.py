"""Programs that write and print what was acknowledged, while what holds the partitions is killed.

That is a broker of a cluster, which the program outlives; of a directory it is the program itself, which is started
again and continues with what it finds.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.integration.on_directory import LocalDirectory, used_elsewhere
from tests.integration.replicated import until

EXIT_SECONDS = 60
PROLOGUE = """
import json, os, sys, threading, headrace
servers, name = sys.argv[1:]
ends, errors = threading.Event(), []
def acknowledge(*words):  # One write a line: threads share the output.
    os.write(1, (json.dumps(words) + "\\n").encode())
def run(*targets):
    def guarded(target):
        try:
            target()
        except BaseException as error:
            errors.append(error)
            raise
    threads = [threading.Thread(target=guarded, args=[target]) for target in targets]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    ends.set()
    for thread in threads:
        thread.join()
    sys.exit(len(errors))
"""


class Writer:
    """One such program, in as many lives as it takes."""

    def __init__(self, cluster: Any, code: str, name: str) -> None:
        """`code` follows `PROLOGUE`; it gets the servers and the name of a topic or table, and ends with its input."""
        self._cluster = cluster
        self._command = [sys.executable, "-c", PROLOGUE + code, cluster.bootstrap_servers, name]
        self.lines: list[str] = []
        """What was acknowledged."""
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._reading = threading.Thread(target=self._read, args=[self._process])
        self._reading.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.append(line)

    def wait_for_more(self, count: int) -> None:
        """Wait until as many more lines have come."""
        wanted = len(self.lines) + count
        until(lambda: len(self.lines) >= wanted or self._process.poll() is not None, "what is written")
        assert self._process.poll() is None, "the program has ended"

    def kill_holders(self, count: int) -> None:
        """Kill each holder of the partitions once while records are written, and start it again."""
        brokers = [None] * 3 if isinstance(self._cluster, LocalDirectory) else self._cluster.brokers
        for broker in brokers:
            self.wait_for_more(count)
            if broker is None:
                self.kill()
                self._start()
            else:
                broker.kill()
                self._cluster.restart(broker)
        self.wait_for_more(count)

    def finish(self) -> None:
        """Let it end by itself; it must not have failed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(EXIT_SECONDS) == 0
        self._reading.join()

    def kill(self) -> None:
        """Kill it, if it runs."""
        self._process.kill()
        self._process.wait()
        self._reading.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


@contextmanager
def writing(cluster: Any, code: str, name: str) -> Iterator[Writer]:
    """Run a program that has a directory to itself; it is killed at the end of the block if it still runs."""
    with used_elsewhere(cluster):
        writer = Writer(cluster, code, name)
        try:
            yield writer
        finally:
            writer.kill()
