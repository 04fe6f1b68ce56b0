"""Common parts of commands that wait: polling until a timeout, a screen that is redrawn, a rate and an ETA.

On a terminal each report replaces the previous one. Otherwise, as in a pipe or a log, a report is printed if it differs
from the previous one; `--output json` then prints one document per line, `yaml` a stream of documents.
"""

import itertools
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Annotated

import typer

from headrace.cli.common.rendering import OutputFormat, Report, duration_text, json_document, render
from headrace.cli.common.session import write_out

Interval = Annotated[float, typer.Option("--interval", min=0.01, metavar="SECONDS", help="Interval between two polls.")]
WaitTimeout = Annotated[
    float | None,
    typer.Option("--wait-timeout", min=0.0, metavar="SECONDS", help="Maximum time to wait; the default is no limit."),
]

HOME_AND_CLEAR = "\x1b[H\x1b[J"
CLEAR_SCREEN = "\x1b[2J"
RATE_WINDOW_S = 15.0
"""Time window of a rate."""
LONGEST_SLEEP_S = 1.0
"""Longest time for which a Ctrl-C may go unnoticed."""


def rounds(interval: float, wait_timeout: float | None) -> Iterator[float]:
    """Yield the seconds since the start, at once and after each interval, for the last time at the timeout."""
    started = time.monotonic()
    for _ in itertools.count():
        elapsed = time.monotonic() - started
        yield elapsed
        left = interval if wait_timeout is None else min(interval, wait_timeout - (time.monotonic() - started))
        if left <= 0:
            return
        pause(left)


def pause(seconds: float) -> None:
    """Sleep, at most a second at once.

    A Ctrl-C that arrives between Python's last look for signals and the system call does not interrupt that sleep: it
    is noticed after it.
    """
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        time.sleep(min(left, LONGEST_SLEEP_S))


class Screen:
    """Output of successive reports. Owned by one command."""

    def __init__(self, output: OutputFormat) -> None:
        self._output = output
        self._is_document = output in (OutputFormat.JSON, OutputFormat.YAML)
        self._redraws = sys.stdout.isatty() and not self._is_document
        self._last: str | None = None

    @property
    def is_redrawn(self) -> bool:
        """Whether a report replaces the previous one."""
        return self._redraws

    def draw(self, report: Report) -> None:
        """Draw a report, unless it is the same as before."""
        if self._output is OutputFormat.JSON:
            text = json_document(report.document) + "\n"
        else:
            text = render(report, self._output)
        if text == self._last:
            return
        first, self._last = self._last is None, text
        if self._redraws:
            write_out((CLEAR_SCREEN if first else "") + HOME_AND_CLEAR + text)
        elif self._output is OutputFormat.YAML:
            write_out("---\n" + text)
        else:
            write_out(text)


class RateWindow:
    """Rate of progress, from the amounts done at given times. Owned by one command; has no clock."""

    def __init__(self, window_s: float = RATE_WINDOW_S) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, float]] = deque()

    def add(self, at: float, done: float) -> None:
        """Record the amount `done` at a time in seconds. A lower amount than before restarts the window."""
        if self._seen and done < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((at, done))
        while len(self._seen) > 2 and self._seen[0][0] < at - self._window_s:
            self._seen.popleft()

    @property
    def per_second(self) -> float | None:
        """Rate per second; `None` with too few observations."""
        if len(self._seen) < 2 or self._seen[-1][0] <= self._seen[0][0]:
            return None
        (start, first), (end, last) = self._seen[0], self._seen[-1]
        return (last - first) / (end - start)

    def seconds_for(self, rest: float) -> float | None:
        """Return the seconds that `rest` takes at this rate, or `None` if unknown."""
        rate = self.per_second
        if rest <= 0:
            return 0.0
        return rest / rate if rate else None


def eta_text(seconds: float | None) -> str:
    """Return a remaining time as text, in whole seconds; `-` if it is unknown."""
    return "-" if seconds is None else duration_text(max(0, round(seconds)) * 1000).replace("0ms", "0s")
