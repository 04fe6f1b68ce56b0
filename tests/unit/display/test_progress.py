"""Progress is shown to people only, after a second, one at a time, and never ends the call that it is of."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import headrace
import pyarrow as pa
import pytest
from headrace.cli.main import app
from headrace.display import progress
from headrace.display.progress import (
    Lines,
    NotebookBar,
    ProgressBar,
    TerminalLine,
    progress_bar,
    progress_of_a_command,
    progress_text,
)
from typer.testing import CliRunner

WAIT = 60


class Stream(io.StringIO):
    """Standard error that may claim to be a terminal."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


class Drawn:
    """Display that keeps what is drawn."""

    interval_seconds = 0.5

    def __init__(self) -> None:
        self.drawn: list[object] = []

    def draw(self, text, share):
        self.drawn.append((text, share))

    def clear(self):
        self.drawn.append("cleared")


@pytest.fixture
def clock():
    return SimpleNamespace(now=100.0)


@pytest.fixture
def make(clock):
    def make(display, total=1_000):
        return ProgressBar("read clicks", "records", total, display, lambda: clock.now)

    return make


@pytest.fixture
def at_once(monkeypatch):
    """Show lines of every call, from its first step on."""
    monkeypatch.setenv("HEADRACE_PROGRESS", "on")
    monkeypatch.setattr(progress, "SHOWN_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(Lines, "interval_seconds", 0.0)


def test_nothing_is_shown_in_the_first_second(make, clock):
    """A call that is quick shows nothing, and removes nothing."""
    display = Drawn()
    with make(display) as bar:
        clock.now += 0.99
        bar.add(10)
    assert display.drawn == []


def test_it_is_drawn_at_intervals_and_removed_in_the_end(make, clock):
    display = Drawn()
    with make(display) as bar:
        for _ in range(4):
            clock.now += 0.75
            bar.add(200)
            bar.add(0)
    assert [share for _, share in display.drawn[:-1]] == [0.4, 0.6, 0.8]
    assert display.drawn[-1] == "cleared"


def test_a_line_says_how_much_how_fast_and_how_long():
    assert progress_text("read t", "records", 250_000, 1_000_000, 2.0) == (
        "read t: 25 %, 250,000 of 1,000,000 records, 125,000/s, 6 s left"
    )
    assert progress_text("put", "rows", 5_000, None, 2.0) == "put: 5,000 rows, 2,500/s"
    assert progress_text("produce", "bytes", 5_000_000, None, 2.0, "9 records") == "produce: 5.0 MB, 9 records, 2.5/s"
    assert progress_text("read t", "records", 12, 10, 1.0) == "read t: 100 %, 12 of 10 records, 12/s"
    assert progress_text("read t", "records", 0, 0, 0.0) == "read t: 0 records, 0/s"


def test_one_is_shown_at_a_time(make, clock):
    """A call within a call, or of another thread, does not draw over the line of the first one; the next one does."""
    outer, inner = Drawn(), Drawn()
    with make(outer) as first:
        clock.now += 2
        first.add(1)
        with make(inner) as second:
            clock.now += 2
            second.add(1)
        assert inner.drawn == []
    with make(inner) as second:
        clock.now += 2
        second.add(1)
    assert len(outer.drawn) == len(inner.drawn) == 2


def test_a_display_that_fails_does_not_end_the_call(make, clock):
    """A closed terminal is no reason to lose what was read; and it gives the place to the next one."""

    class Broken(Drawn):
        def draw(self, text, share):
            raise BrokenPipeError

    with make(Broken()) as bar:
        clock.now += 2
        bar.add(1)
        clock.now += 2
        bar.add(1)
    display = Drawn()
    with make(display) as bar:
        clock.now += 2
        bar.add(1)
    assert len(display.drawn) == 2


def test_a_terminal_has_one_line_of_its_width(monkeypatch):
    """The text is cut to the width, without control characters of a name, and removed in the end."""
    monkeypatch.setenv("COLUMNS", "40")
    stream = Stream(is_terminal=True)
    line = TerminalLine(stream)
    line.draw("read clicks: 50 %, 1,000,000 of 2,000,000 records", 0.5)
    text = stream.getvalue()
    assert text.startswith("\r" + "━" * 12 + "─" * 12 + " read clicks")
    assert len(text.removeprefix("\r").removesuffix("\x1b[K")) == 39
    line.clear()
    assert stream.getvalue().endswith("\r\x1b[K")
    assert "\x1b" not in ProgressBar("a\x1b[2J", "rows", 1, None, lambda: 0.0)._label


@pytest.mark.parametrize(
    ("setting", "is_terminal", "is_interactive", "expected"),
    [
        (None, True, True, TerminalLine),
        (None, True, False, None),
        (None, False, True, None),
        ("auto", True, True, TerminalLine),
        ("off", True, True, None),
        ("on", True, False, TerminalLine),
        ("on", False, False, Lines),
    ],
)
def test_who_sees_it(monkeypatch, setting, is_terminal, is_interactive, expected):
    """Without a setting only a person at an interactive Python on a terminal does; the setting forces it."""
    if setting is not None:
        monkeypatch.setenv("HEADRACE_PROGRESS", setting)
    monkeypatch.setattr(sys, "stderr", Stream(is_terminal=is_terminal))
    if is_interactive:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert type(progress._display()) is (expected or type(None))


def test_a_notebook_has_a_bar_of_its_own(monkeypatch):
    """The output is replaced with each step, inert, and empty in the end."""
    shown = []

    def display(data, **options):
        shown.append((data, options))
        return SimpleNamespace(update=lambda data, **options: shown.append((data, options)))

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object())))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    bar = progress._display()
    assert type(bar) is NotebookBar
    bar.draw("read <b>", 0.25)
    bar.draw("read <b>", None)
    bar.clear()
    assert [data["text/html"] for data, _ in shown] == [
        '<progress max="1" value="0.2500"></progress> <code>read &lt;b&gt;</code>',
        '<progress max="1"></progress> <code>read &lt;b&gt;</code>',
        "",
    ]
    assert [options for _, options in shown] == [{"raw": True, "display_id": True}, {"raw": True}, {"raw": True}]


def test_a_wrong_setting_is_refused(monkeypatch):
    monkeypatch.setenv("HEADRACE_PROGRESS", "yes")
    with pytest.raises(headrace.InvalidConfigError, match="HEADRACE_PROGRESS='yes' is not one of auto, on, off"):
        progress_bar("read", "records")


def test_calls_that_show_it(headrace_directory, at_once, capsys):
    """Reads of a range, bulk sends, and reads and bulk writes of a table; the last line has all of it."""
    log = headrace_directory
    log.admin.create_topic("clicks", partitions=2)
    log.admin.create_topic("users", config={"cleanup_policy": "compact", "table": "yes"})
    with log.producer() as producer:
        producer.send_many("clicks", [b"x"] * 50_000, keys=[b"%d" % number for number in range(50_000)])
    assert "send to clicks: 100 %, 50,000 of 50,000 records" in capsys.readouterr().err
    with log.reader("clicks") as reader:
        assert reader.to_arrow(WAIT).num_rows == 50_000
    assert "read clicks: 100 %, 50,000 of 50,000 records" in capsys.readouterr().err
    rows = pa.table({"key": [f"u{number}" for number in range(3_000)], "plan": ["pro"] * 3_000})
    with log.table("users") as users:
        users.put_many(rows)
        assert "put rows into users: 100 %, 3,000 of 3,000 rows" in capsys.readouterr().err
        users.put_many(iter([("u1", {"plan": "free"})]))
        assert "put rows into users: 1 rows" in capsys.readouterr().err
        assert users.to_arrow().num_rows == 3_000
    assert "read users: 3,000 rows" in capsys.readouterr().err


@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_commands_show_it(headrace_directory, tmp_path, at_once, quiet):
    """`headrace produce` of a file shows the bytes of all, and the records; with `--quiet` nothing."""
    headrace_directory.admin.create_topic("lines")
    file = tmp_path / "lines"
    file.write_bytes(b"line\n" * 20_000)
    servers = headrace_directory.bootstrap_servers
    found = CliRunner().invoke(app, ["produce", "lines", str(file), *quiet, "--bootstrap-servers", servers])
    assert found.exit_code == 0, found.output
    assert ("produce to lines: 100 %, 0.1 of 0.1 MB, 20,000 records" in found.stderr) is not bool(quiet)
    assert progress._command.get() is None


def test_a_command_shows_it_on_a_terminal_though_python_is_not_interactive(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Stream(is_terminal=True))
    with progress_of_a_command(shown=True):
        assert type(progress._display()) is TerminalLine
    with progress_of_a_command(shown=False):
        monkeypatch.setenv("HEADRACE_PROGRESS", "on")
        assert progress._display() is None
