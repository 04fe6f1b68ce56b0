"""Commands of `headrace` on a terminal, as a person runs them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.children import running


class Terminal:
    """Other end of the terminal of a command."""

    def __init__(self, descriptor: int, process: subprocess.Popen[Any]) -> None:
        self._descriptor = descriptor
        self._process = process

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._descriptor, keys.encode())

    def interrupt_to(self, end: str) -> str:
        """Press Ctrl-C, and return what is shown until `end` is.

        It is pressed again while nothing is shown: `input` shows its prompt before it waits, and a signal between the
        two is not seen until a key is pressed.
        """
        self._process.send_signal(signal.SIGINT)
        while not select.select([self._descriptor], [], [], 1)[0]:
            self._process.send_signal(signal.SIGINT)
        return self.read_to(end)

    def read_to(self, end: str) -> str:
        """Return what is shown until `end` is."""
        shown = ""
        while end not in shown:
            more = self._read()
            assert more, f"the command ended after: {shown}"
            shown += more
        return shown

    def rest(self) -> str:
        """Return what is shown until the command ends."""
        shown = ""
        while more := self._read():
            shown += more
        return shown

    def _read(self) -> str:
        try:
            return os.read(self._descriptor, 1 << 16).decode().replace("\r\n", "\n")
        except OSError:  # The command has closed it.
            return ""


@contextmanager
def command_on_terminal(*arguments: str) -> Iterator[Terminal]:
    """Run a command with a terminal as its input and output, and check that it ends with 0."""
    ours, theirs = os.openpty()
    try:
        command = [sys.executable, "-m", "headrace.cli", *arguments]
        environment = {**os.environ, "TERM": "dumb", "COLUMNS": "200"}
        with running(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
            os.close(theirs)
            yield Terminal(ours, process)
            assert process.wait(60) == 0
    finally:
        os.close(ours)
