"""Files and standard input as lines of bytes, in blocks as they come.

A pipe is read as soon as it has something (`tail -f log | headrace produce ...`), a file in large blocks. A line is
everything up to a line feed, which is not part of it; a last line without one counts. Memory is bounded by the longest
line allowed.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import BinaryIO, NamedTuple

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 32 << 20
STANDARD_INPUT = "-"


class LineBlock(NamedTuple):
    """Some consecutive lines of one source."""

    # The file's name, or `standard input`.
    source: str
    # Of the first line, counted from 1.
    first_line: int
    lines: list[bytes]
    # Bytes read for it, line ends included: what a progress bar counts.
    read_bytes: int


class LineTooLongError(ValueError):
    """A line is longer than any record may be."""


def read_blocks(names: Sequence[str]) -> Iterator[LineBlock]:
    """The lines of all files, in order; `-` and no name at all are standard input.

    Raises:
        OSError: a file cannot be read; the files before it have been given.
        LineTooLongError: names file and line.
    """
    for name in names or (STANDARD_INPUT,):
        with ExitStack() as stack:
            if name == STANDARD_INPUT:
                source, stream = "standard input", sys.stdin.buffer
            else:
                source, stream = name, stack.enter_context(open(name, "rb"))
            yield from _blocks(source, stream)


def total_bytes(names: Sequence[str]) -> int | None:
    """How many bytes there are to read; None when one of the sources is no regular file."""
    try:
        if not names or any(name == STANDARD_INPUT or not os.path.isfile(name) for name in names):
            return None
        return sum(os.path.getsize(name) for name in names)
    except OSError:
        return None


def _blocks(source: str, stream: BinaryIO) -> Iterator[LineBlock]:
    next_line, rest = 1, b""
    read = getattr(stream, "read1", stream.read)
    while block := read(BLOCK_BYTES):
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        if max(map(len, lines), default=0) > MAX_LINE_BYTES or len(rest) > MAX_LINE_BYTES:
            raise LineTooLongError(f"{source}: a line from line {next_line} on is longer than {MAX_LINE_BYTES} bytes")
        if lines:
            yield LineBlock(source, next_line, lines, len(block))
            next_line += len(lines)
    if rest:
        yield LineBlock(source, next_line, [rest], 0)
