"""Text of other clients cannot steer a terminal: no escape, no forged line, no reordered text reaches it."""

import io
import json
import sys
from typing import Any

import pytest
import yaml
from headrace.cli.common.rendering import Column, Facts, Note, OutputFormat, Report, TableSection, render
from headrace.cli.common.session import report_error
from headrace.cli.records.consume import RecordSink
from headrace.display.visible_text import visible
from headrace.wire.errors import InvalidRequestError

HOSTILE = "app\x1b[2J\x1b]0;owned\x07\nPARTITION  forged\x9b31m\u202etxt\u2028\x7f"
"""Escapes of 7 and 8 bits, a forged line, a right-to-left override, a line separator."""


def hostile_report() -> Report:
    """Return a report that shows the text in every place that a report has."""
    row = {"client_id": HOSTILE, "owned": [HOSTILE], "labels": {HOSTILE: HOSTILE}}
    columns = [Column("CLIENT", "client_id"), Column("OWNED", "owned"), Column("LABELS", "labels", wide=True)]
    return Report(
        {"rows": [row]}, (TableSection(columns, [row]), Facts([(HOSTILE, HOSTILE)]), Note("group " + HOSTILE))
    )


@pytest.mark.parametrize("output", OutputFormat)
def test_report_with_hostile_text_prints_only_printable_lines(output: OutputFormat) -> None:
    """Every line of every format is printable, and the documents still hold the text as it was."""
    text = render(hostile_report(), output)
    assert all(line.isprintable() for line in text.split("\n"))
    if output is OutputFormat.JSON:
        assert json.loads(text) == hostile_report().document
    if output is OutputFormat.YAML:
        assert yaml.safe_load(text) == hostile_report().document


def test_table_with_hostile_text_has_no_forged_line() -> None:
    """A line end inside a cell is shown, not obeyed."""
    row = {"client_id": "app\nforged", "owned": 1}
    text = render(
        Report(None, (TableSection([Column("CLIENT", "client_id"), Column("OWNED", "owned")], [row]),)),
        OutputFormat.TABLE,
    )
    assert text.splitlines()[1].split() == ["app\\nforged", "1"]


class Terminal(io.TextIOWrapper):
    """Standard output that claims to be a terminal, or not."""

    def __init__(self, is_terminal: bool) -> None:
        self.raw_bytes = io.BytesIO()
        super().__init__(self.raw_bytes)
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize("is_terminal", [True, False])
def test_raw_values_are_escaped_on_a_terminal_only(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`consume` writes values as they are into a pipe, and escapes control characters on a terminal."""
    stdout = Terminal(is_terminal)
    monkeypatch.setattr(sys, "stdout", stdout)
    sink = RecordSink(b"", lambda values: b"".join(value + b"\n" for value in values), limit=None)
    sink.write([b"red \x1b[31m\t\xff", b"next"])
    expected = b"red \\x1b[31m\t\\xff\nnext\n" if is_terminal else b"red \x1b[31m\t\xff\nnext\n"
    assert stdout.raw_bytes.getvalue() == expected


def test_error_with_hostile_text_is_one_printable_line(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error names what a server or another client sent, as one line without escapes, with a traceback too."""
    for debug in ("0", "1"):
        monkeypatch.setenv("HEADRACE_DEBUG", debug)
        report_error(InvalidRequestError("the group " + HOSTILE))
        lines = capsys.readouterr().err.split("\n")
        assert all(line.isprintable() for line in lines)
        assert lines[-2].startswith("headrace: the group app\\x1b[2J")


def test_printable_text_stays_as_it_is() -> None:
    """Letters of any language are not escaped."""
    assert visible("Grüße, 日本語 ✓") == "Grüße, 日本語 ✓"
