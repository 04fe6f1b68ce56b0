"""Log files as a source with positions: which bytes of which file are new. No Spark.

A file is known by its first line, and not by its name: so a file that has grown is continued, and one that was rotated
to another name is not loaded again. A last line without an end is still being written; it is left for the next time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

SPLIT_BYTES = 32 << 20
"""The most that one task reads."""
MAX_LINE_BYTES = 1 << 20


class LogFileError(Exception):
    """A file cannot be loaded; the message says why."""


@dataclass(frozen=True, slots=True)
class NewPart:
    """What is new in one file."""

    path: Path
    identity: str
    start: int
    end: int
    """Exclusive: behind the last line that is complete."""

    def splits(self) -> list[tuple[str, int, int]]:
        """Divide it over tasks: path, start, end."""
        cuts = [*range(self.start, self.end, SPLIT_BYTES), self.end]
        return [(str(self.path), start, end) for start, end in pairwise(cuts)]


def new_parts(paths: Iterable[Path], positions: Mapping[str, int]) -> list[NewPart]:
    """Compare files with a table's positions.

    Args:
        paths: the files.
        positions: identity -> the bytes of it that are in the table.

    Raises:
        LogFileError: a file cannot be read, is shorter than what was loaded of it, or begins as another one does.
    """
    found: dict[str, NewPart] = {}
    for path in paths:
        try:
            identity, end = _describe(path)
        except OSError as error:
            raise LogFileError(f"{path} cannot be read: {error.strerror}") from None
        if not identity:
            continue
        start = positions.get(identity, 0)
        if end < start:
            raise LogFileError(f"{path} ends at byte {end}, and {start} bytes of it were loaded: it was cut")
        if identity in found:
            raise LogFileError(f"{path} and {found[identity].path} begin with the same line; give one of them")
        found[identity] = NewPart(path.absolute(), identity, start, end)
    return list(found.values())


def _describe(path: Path) -> tuple[str, int]:
    """Return a file's identity, empty while it has no complete line, and where its last complete line ends."""
    with path.open("rb") as file:
        first = file.readline(MAX_LINE_BYTES)
        if not first:
            return "", 0
        size = file.seek(0, os.SEEK_END)
        end = size
        while end > 0:
            begin = max(0, end - MAX_LINE_BYTES)
            file.seek(begin)
            last = file.read(end - begin).rfind(b"\n")
            if last >= 0:
                return hashlib.sha256(first).hexdigest()[:32], begin + last + 1
            end = begin
    return "", 0
