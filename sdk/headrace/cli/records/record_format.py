"""Format strings of `headrace consume -f`, with the letters of kcat.

    %t topic        %p partition       %o offset          %T timestamp in milliseconds
    %k key          %K bytes of key    %s value           %S bytes of value     %R its length, 4 bytes big-endian
    %h headers      %% a percent sign  \\n \\r \\t \\0 \\\\ \\xNN

An absent key or value prints nothing and has length -1. Headers are `name=value`, joined by commas.

Pure. A format is compiled once and then applied to each record.
"""

import re
import struct
from collections.abc import Callable, Sequence
from typing import Protocol

LETTERS = """\
  %t topic      %p partition      %o offset     %T timestamp (ms since 1970)
  %k key        %K bytes of key   %s value      %S bytes of value   %R its length, 4 bytes big-endian
  %h headers    %% a percent sign               \\n \\r \\t \\0 \\\\ \\xNN"""

_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\", "'": b"'", '"': b'"'}
_HEX = re.compile(r"[0-9a-fA-F]{2}")
_LENGTH = struct.Struct(">i")


class FormattableRecord(Protocol):
    """Record with the attributes that a format uses; SDK records have them."""

    @property
    def topic(self) -> str:
        """Name of the topic."""

    @property
    def partition(self) -> int:
        """Partition number, from 0."""

    @property
    def offset(self) -> int:
        """Offset in the partition."""

    @property
    def timestamp_ms(self) -> int:
        """Milliseconds since 1970."""

    @property
    def key(self) -> bytes | None:
        """Absent: None."""

    @property
    def value(self) -> bytes | None:
        """Absent: None."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """Names and values, in order."""


class FormatSyntaxError(ValueError):
    """The text is not a valid format. `position` is the index of the invalid character."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        self.text = text
        self.position = position
        self.problem = problem
        super().__init__(f"bad format {text!r}: {problem}")

    def explain(self) -> str:
        """Return the problem, the text with a caret below the position, and the valid letters."""
        shown = "".join(character if character.isprintable() else "?" for character in self.text)
        return f"{self}\n  {shown}\n  {' ' * self.position}^ {self.problem}\nFormats are:\n{LETTERS}"


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(record: FormattableRecord) -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers)


_FIELDS: dict[str, Callable[[FormattableRecord], bytes]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp_ms,
    "k": lambda record: record.key or b"",
    "K": lambda record: b"%d" % _length(record.key),
    "s": lambda record: record.value or b"",
    "S": lambda record: b"%d" % _length(record.value),
    "R": lambda record: _LENGTH.pack(_length(record.value)),
    "h": _headers,
}


def compile_format(text: str) -> Callable[[FormattableRecord], bytes]:
    """Return a function that formats one record, without adding a line end.

    Raises:
        FormatSyntaxError: If `text` has an unknown letter or escape; show `explain()` to the user.
    """
    parts: list[bytes | Callable[[FormattableRecord], bytes]] = []
    index = 0
    while index < len(text):
        character = text[index]
        if character == "%":
            index, part = _percent(text, index)
        elif character == "\\":
            index, part = _escape(text, index)
        else:
            index, part = index + 1, character.encode(errors="surrogateescape")
        if isinstance(part, bytes) and parts and isinstance(parts[-1], bytes):
            parts[-1] += part
        else:
            parts.append(part)

    def write(record: FormattableRecord) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(record) for part in parts)

    return write


def _percent(text: str, index: int) -> tuple[int, bytes | Callable[[FormattableRecord], bytes]]:
    letter = text[index + 1 : index + 2]
    if not letter:
        raise FormatSyntaxError(text, index, "a letter is missing after %; write %% for a percent sign")
    if letter == "%":
        return index + 2, b"%"
    if letter not in _FIELDS:
        raise FormatSyntaxError(text, index + 1, f"unknown letter {letter!r}")
    return index + 2, _FIELDS[letter]


def _escape(text: str, index: int) -> tuple[int, bytes]:
    letter = text[index + 1 : index + 2]
    if letter == "x":
        digits = _HEX.match(text, index + 2)
        if digits is None:
            raise FormatSyntaxError(text, index + 2, "two hexadecimal digits are missing after \\x")
        return index + 4, bytes([int(digits[0], 16)])
    if letter not in _ESCAPES or not letter:
        raise FormatSyntaxError(text, index, "unknown escape; write \\\\ for a backslash")
    return index + 2, _ESCAPES[letter]
