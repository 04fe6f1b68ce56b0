"""Parser of Apache's combined log format. Pure, except for reading file ranges; runs in Spark's Python workers.

    LogFormat "%h %l %u %t \"%r\" %>s %b \"%{Referer}i\" \"%{User-agent}i\"" combined

A malformed line also becomes a row, with the name of the first invalid field. The module imports nothing of
`spark_jobs`, so that it can be sent to workers that do not have the package.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, BinaryIO, NamedTuple

_QUOTED = r'"(?P<{}>(?:[^"\\]|\\.)*)"'
_FIELDS = (
    ("client", r"(?P<client>\S+)"),
    ("ident", r"\S+"),
    ("user", r"(?P<user>.*?)"),
    ("time", r"\[(?P<time>[^\]]+)\]"),
    ("request", _QUOTED.format("request")),
    ("status", r"(?P<status>\d{3})"),
    ("bytes", r"(?P<bytes>\d+|-)"),
    ("referrer", _QUOTED.format("referrer")),
    ("agent", _QUOTED.format("agent")),
)
_LINE = re.compile(" ".join(pattern for _, pattern in _FIELDS) + r"\s*", re.ASCII)
_TIME = re.compile(r"(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d):(\d\d):(\d\d) ([+-])(\d\d)(\d\d)", re.ASCII)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_REQUEST = re.compile(r"([A-Z]+) (\S+)(?: (HTTP/[\d.]+))?", re.ASCII)

MAX_LINE_BYTES = 1 << 20
BATCH_ROWS = 10_000

GOOD = "good"
BAD = "bad"
COLUMNS = (
    "origin STRING, position BIGINT, quality STRING, client STRING, user STRING, at TIMESTAMP, method STRING, "
    "path STRING, protocol STRING, status INT, bytes BIGINT, referrer STRING, agent STRING, line BINARY, reason STRING"
)
"""Columns of a row. `line` and `reason` are set for malformed lines, those between `quality` and them for others."""


class AccessLine(NamedTuple):
    """Parsed line."""

    client: str
    user: str | None
    at: datetime
    method: str | None
    """`None` if the request is not HTTP; then `path` is the whole request."""
    path: str
    protocol: str | None
    status: int
    bytes: int
    """Size of the response body; `-` in the log is 0."""
    referrer: str | None
    agent: str | None


class AccessLineError(ValueError):
    """The line is not in the combined format; the message names the first invalid field."""


def parse_line(line: bytes) -> AccessLine:
    """Parse one line.

    Raises:
        AccessLineError: If it is malformed.
    """
    text = line.decode("utf-8", "backslashreplace")
    found = _LINE.fullmatch(text)
    if found is None:
        raise AccessLineError(_first_wrong_field(text))
    at = _time_of(found["time"])
    if at is None:
        raise AccessLineError("time")
    request = _REQUEST.fullmatch(found["request"])
    method, path, protocol = request.groups() if request else (None, found["request"], None)
    sent = found["bytes"]
    return AccessLine(
        found["client"],
        _or_none(found["user"]),
        at,
        method,
        path,
        protocol,
        int(found["status"]),
        0 if sent == "-" else int(sent),
        _or_none(found["referrer"]),
        _or_none(found["agent"]),
    )


def _first_wrong_field(text: str) -> str:
    """Return the name of the first invalid field."""
    if not text.strip():
        return "empty line"
    for count in range(len(_FIELDS), 0, -1):
        if re.match(" ".join(pattern for _, pattern in _FIELDS[:count]) + "(?: |$)", text, re.ASCII):
            return _FIELDS[count][0] if count < len(_FIELDS) else "end of line"
    return _FIELDS[0][0]


def _time_of(text: str) -> datetime | None:
    found = _TIME.fullmatch(text)
    if found is None or found[2] not in _MONTHS:
        return None
    day, year, hour, minute, second = (int(found[group]) for group in (1, 3, 4, 5, 6))
    offset = timedelta(hours=int(found[8]), minutes=int(found[9]))
    try:
        zone = timezone(offset if found[7] == "+" else -offset)
        # A leap second counts as the second before it.
        month = _MONTHS.index(found[2]) + 1
        return datetime(year, month, day, hour, minute, min(second, 59), tzinfo=zone).astimezone(UTC)
    except ValueError:
        return None


def _or_none(text: str) -> str | None:
    return None if text in {"-", ""} else text


def row_of(origin: str, position: int, line: bytes) -> tuple[Any, ...]:
    """Return the row of COLUMNS for a line, well-formed or not."""
    try:
        parsed = parse_line(line)
    except AccessLineError as error:
        return (origin, position, BAD, *[None] * len(AccessLine._fields), line, str(error))
    return (origin, position, GOOD, *parsed, None, None)


class ReplacedFileError(Exception):
    """Another file has the name now, or the file was cut."""


def identity_of(file: BinaryIO) -> str:
    """Return the identity of a file, which it has by its first line; empty if there is none."""
    file.seek(0)
    first = file.readline(MAX_LINE_BYTES)
    return hashlib.sha256(first).hexdigest()[:32] if first else ""


def lines_of(path: str, start: int, end: int, identity: str) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that begin in a range of bytes, with their offsets and without line ends.

    `end` is the end of a line; `start` may be inside a line, which then belongs to the previous range.

    Raises:
        ReplacedFileError: If the file has not this identity or ends in the range, before or after its lines were read.
    """
    with open(path, "rb") as file:
        _check_same(file, end, identity)
        position = start
        file.seek(max(0, start - 1))
        if start:
            position += len(file.readline()) - 1
        while position < end:
            line = file.readline()
            if not line:
                break
            yield position, line.rstrip(b"\r\n")
            position += len(line)
        _check_same(file, end, identity)


def _check_same(file: BinaryIO, end: int, identity: str) -> None:
    if identity_of(file) != identity or file.seek(0, os.SEEK_END) < end:
        raise ReplacedFileError(
            f"{file.name} was rotated or cut while the job read it; run the job again, with the rotated file, too"
        )


def batches_of(rows: Iterable[tuple[Any, ...]], schema: Any) -> Iterator[Any]:
    """Yield rows as Arrow batches."""
    import pyarrow

    waiting: list[tuple[Any, ...]] = []

    def batch() -> Any:
        columns = [pyarrow.array(column, type=entry.type) for column, entry in zip(zip(*waiting), schema)]  # noqa: B905
        return pyarrow.RecordBatch.from_arrays(columns, schema=schema)

    for row in rows:
        waiting.append(row)
        if len(waiting) == BATCH_ROWS:
            yield batch()
            waiting.clear()
    if waiting:
        yield batch()
