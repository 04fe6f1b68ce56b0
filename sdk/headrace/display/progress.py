"""Progress of calls that take longer than a second: a line on a terminal, a bar in a notebook.

`HEADRACE_PROGRESS` decides for the process: `on`, `off`, or `auto`, the default, which shows it to people only: in a
notebook, in an interactive Python on a terminal, and in commands on a terminal. The command line, `headrace.fetch`,
readers, tables and bulk sends use it.
"""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Protocol, TextIO

from headrace.display.visible_text import visible

SETTING = "HEADRACE_PROGRESS"
SETTINGS = ("auto", "on", "off")
SHOWN_AFTER_SECONDS = 1.0
BAR_WIDTH = 24
_command: ContextVar[bool | None] = ContextVar("headrace_progress_of_a_command", default=None)
_shown = threading.Lock()
"""Held by the one bar that is shown."""


class Display(Protocol):
    """Where progress is drawn."""

    interval_seconds: float
    """Time between two drawings."""

    def draw(self, text: str, share: float | None) -> None:
        """Draw a line; `share` is from 0 to 1, `None` if the end is not known."""

    def clear(self) -> None:
        """Remove what was drawn, where that is possible."""


class TerminalLine:
    """One line of a terminal, drawn again and again."""

    interval_seconds = 0.1

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def draw(self, text: str, share: float | None) -> None:
        """See `Display`."""
        if share is not None:
            done = round(share * BAR_WIDTH)
            text = f"{'━' * done}{'─' * (BAR_WIDTH - done)} {text}"
        cut = text[: shutil.get_terminal_size().columns - 1]
        self._stream.write(f"\r{cut.encode(self._stream.encoding or 'utf-8', 'replace').decode()}\x1b[K")
        self._stream.flush()

    def clear(self) -> None:
        """See `Display`."""
        self._stream.write("\r\x1b[K")
        self._stream.flush()


class Lines:
    """A line for each drawing, where `on` asks for progress and there is no terminal."""

    interval_seconds = 2.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def draw(self, text: str, share: float | None) -> None:
        """See `Display`."""
        self._stream.write(text + "\n")
        self._stream.flush()

    def clear(self) -> None:
        """See `Display`."""


class NotebookBar:
    """Output of a cell that is replaced, and empty in the end."""

    interval_seconds = 0.25

    def __init__(self) -> None:
        self._handle: Any = None

    def draw(self, text: str, share: float | None) -> None:
        """See `Display`."""
        from html import escape

        value = "" if share is None else f' value="{share:.4f}"'
        self._show(text, f'<progress max="1"{value}></progress> <code>{escape(text)}</code>')

    def clear(self) -> None:
        """See `Display`."""
        self._show("", "")

    def _show(self, text: str, html: str) -> None:
        from IPython.display import display

        data = {"text/plain": text, "text/html": html}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(data, raw=True)


class ProgressBar:
    """Progress of one call; nothing is shown in its first second. For one thread at a time.

    If several calls run, one of them is shown.
    """

    def __init__(
        self, label: str, unit: str, total: int | None, display: Display | None, clock: Callable[[], float]
    ) -> None:
        self._label = visible(label)
        self._unit = unit
        self._total = total
        self._display = display
        self._clock = clock
        self._started = clock()
        self._next = self._started + SHOWN_AFTER_SECONDS
        self._is_shown = False
        self._done = 0

    def add(self, amount: int) -> None:
        """Note that so much more is done."""
        self.reach(self._done + amount)

    def reach(self, done: int, note: str = "") -> None:
        """Note that so much is done since the start; draw it if it is time."""
        self._done = done
        if self._display is None:
            return
        now = self._clock()
        if now < self._next or not (self._is_shown or _shown.acquire(blocking=False)):
            return
        self._is_shown = True
        self._next = now + self._display.interval_seconds
        share = min(1.0, done / self._total) if self._total else None
        text = progress_text(self._label, self._unit, done, self._total, now - self._started, note)
        self._try(self._display.draw, text, share)

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_shown:
            self._is_shown = False
            if self._display is not None:
                self._try(self._display.clear)
            _shown.release()

    def _try(self, draw: Callable[..., None], *arguments: Any) -> None:
        try:
            draw(*arguments)
        except Exception:  # A closed terminal or a notebook's front end must not end the call that is shown.
            self._display = None


def progress_bar(label: str, unit: str, total: int | None = None) -> ProgressBar:
    """Return the progress of a call, to be closed by `with`.

    Args:
        label: what is done.
        unit: what is counted, such as `records`; `bytes` are shown in MB.
        total: amount of the whole call; `None` if it is not known.

    Raises:
        InvalidConfigError: If `HEADRACE_PROGRESS` has another value.
    """
    return ProgressBar(label, unit, total, _display(), time.monotonic)


@contextmanager
def progress_of_a_command(*, shown: bool) -> Iterator[None]:
    """Show progress on a terminal although Python is not interactive; or none at all."""
    token = _command.set(shown)
    try:
        yield
    finally:
        _command.reset(token)


def progress_text(label: str, unit: str, done: int, total: int | None, seconds: float, note: str = "") -> str:
    """Return a line of progress."""
    rate = done / seconds if seconds > 0 else 0.0
    text = f"{label}: {_amount(done, unit)}"
    if total:
        text = f"{label}: {min(100, 100 * done // total)} %, {_amount(done, unit)} of {_amount(total, unit)}"
    text += f" {'MB' if unit == 'bytes' else unit}{', ' if note else ''}{note}, {_amount(int(rate), unit)}/s"
    if total and rate and done < total:
        text += f", {(total - done) / rate:,.0f} s left"
    return text


def _amount(count: int, unit: str) -> str:
    return f"{count / 1e6:,.1f}" if unit == "bytes" else f"{count:,}"


def _display() -> Display | None:
    setting = os.environ.get(SETTING) or "auto"
    if setting not in SETTINGS:
        from headrace.wire.errors import InvalidConfigError

        raise InvalidConfigError(f"{SETTING}={setting!r} is not one of {', '.join(SETTINGS)}", action="Correct it.")
    command = _command.get()
    if setting == "off" or command is False or sys.stderr is None:
        return None
    shell = _shell()
    if shell is not None and getattr(shell, "kernel", None) is not None:
        return NotebookBar()
    if not sys.stderr.isatty():
        return Lines(sys.stderr) if setting == "on" else None
    if setting == "on" or command or shell is not None or hasattr(sys, "ps1"):
        return TerminalLine(sys.stderr)
    return None


def _shell() -> Any:
    """Return the IPython that runs this code, if any; it has a `kernel` in a notebook."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()
