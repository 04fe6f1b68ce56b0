"""Lines of files and standard input as bytes, in blocks as they arrive.

A pipe is read as soon as it has data (`tail -f log | headrace produce ...`), a file in large blocks. A line ends before
a line feed; a last line without one counts. Memory is bounded by the maximum line length.
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
    """Consecutive lines of one source."""

    # The file's name, or `standard input`.
    source: str
    # Number of the first line, from 1.
    first_line: int
    lines: list[bytes]
    # Bytes read for it, line ends included, for a progress bar.
    read_bytes: int


class LineTooLongError(ValueError):
    """A line is longer than the maximum record."""


def read_blocks(names: Sequence[str]) -> Iterator[LineBlock]:
    """Yield the lines of all files in order; `-` or no names mean standard input.

    Raises:
        OSError: If a file cannot be read, after the files before it.
        LineTooLongError: If a line is too long; names file and line.
    """
    for name in names or (STANDARD_INPUT,):
        with ExitStack() as stack:
            if name == STANDARD_INPUT:
                source, stream = "standard input", sys.stdin.buffer
            else:
                source, stream = name, stack.enter_context(open(name, "rb"))
            yield from _blocks(source, stream)


def total_bytes(names: Sequence[str]) -> int | None:
    """Return the number of bytes to read, or `None` if a source is not a regular file."""
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
