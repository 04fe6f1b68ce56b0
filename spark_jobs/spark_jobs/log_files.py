"""Log files as a source with positions: detection of new bytes in files. No Spark.

A file is identified by its first line, not by its name, so that a grown file is continued and a rotated one is not
loaded again. A last line without a line end is still being written and is left for the next run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from spark_jobs.access_lines import MAX_LINE_BYTES, identity_of

SPLIT_BYTES = 32 << 20
"""Maximum bytes that one task reads."""


class LogFileError(Exception):
    """A file cannot be loaded; the message has the reason."""


@dataclass(frozen=True, slots=True)
class NewPart:
    """New bytes of one file."""

    path: Path
    identity: str
    start: int
    end: int
    """End offset, exclusive, after the last complete line."""

    def splits(self) -> list[tuple[str, int, int, str]]:
        """Return parts for tasks: path, start, end, identity."""
        cuts = [*range(self.start, self.end, SPLIT_BYTES), self.end]
        return [(str(self.path), start, end, self.identity) for start, end in pairwise(cuts)]


def new_parts(paths: Iterable[Path], positions: Mapping[str, int]) -> list[NewPart]:
    """Compare files with a table's positions, and return the new parts.

    Args:
        paths: the files.
        positions: number of loaded bytes by identity of the file.

    Raises:
        LogFileError: If a file cannot be read, is shorter than its loaded part, or has the first line of another one.
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
    """Return a file's identity, empty while it has no complete line, and the end of its last complete line."""
    with path.open("rb") as file:
        identity = identity_of(file)
        if not identity:
            return "", 0
        size = file.seek(0, os.SEEK_END)
        end = size
        while end > 0:
            begin = max(0, end - MAX_LINE_BYTES)
            file.seek(begin)
            last = file.read(end - begin).rfind(b"\n")
            if last >= 0:
                return identity, begin + last + 1
            end = begin
    return "", 0
