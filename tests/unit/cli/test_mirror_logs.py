"""Log lines of `headrace mirror run` as JSON."""

import json
import logging
import sys

from headrace.cli.mirror.json_lines import JsonLines


def record(text, *arguments, exc_info=None):
    made = logging.LogRecord("headrace.mirror", logging.WARNING, "f", 1, text, arguments, exc_info)
    made.created = 1_700_000_000.25
    return made


def test_a_line_has_the_names_of_the_servers_lines():
    """One object a line, with event, level and time in UTC; text from elsewhere breaks no line."""
    line = JsonLines().format(record("mirror %s is not copied: %s", "west", "a\nb"))
    assert "\n" not in line
    assert json.loads(line) == {
        "event": "mirror west is not copied: a\nb",
        "logger": "headrace.mirror",
        "level": "warning",
        "timestamp": "2023-11-14T22:13:20.250000Z",
    }


def test_an_error_has_its_traceback():
    """In the same line."""
    try:
        raise ValueError("seven")
    except ValueError:
        line = JsonLines().format(record("failed", exc_info=sys.exc_info()))
    assert "ValueError: seven" in json.loads(line)["exception"]
    assert "\n" not in line
