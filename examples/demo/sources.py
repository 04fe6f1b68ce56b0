"""User activity: the lines of a file, or generated page views with a realistic skew.

Both yield chunks of `(partition, values)`: records of one user or client address go to one partition, so that its order
is kept. A `DemoLoad` has a known size, so the demo can act in its middle.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from headrace.cli.bench.distributions import Popularity

CHUNK_RECORDS = 12_000
CHUNK_BYTES = 2 << 20
LEAST_CHUNKS = 8
"""A small load has smaller chunks, so that it has a middle, too."""

USERS = 50_000
PAGES = 4_000
USER_SKEW = 0.9
PAGE_SKEW = 1.1
"""Exponents of Zipf's law: a few users and pages make most of the traffic."""
SESSION_VIEWS = 8
"""Average page views per session."""
MEAN_DWELL_MS = 20_000.0
START_MS = 1_700_000_000_000

Chunk = list[tuple[int, list[bytes]]]


@dataclass(frozen=True, slots=True)
class DemoLoad:
    """Records to send."""

    description: str
    """Description for people."""
    chunks: Iterator[Chunk]
    size: int
    """Upper bound of the total size, in the unit of `measure`."""
    measure: Callable[[list[bytes]], int]
    """Function that returns the size of some values."""

    def interrupted(self, interrupt: Callable[[], None]) -> Iterator[Chunk]:
        """Yield the chunks; call `interrupt` once, after half of the load or at the end."""
        passed, called = 0, False
        for chunk in self.chunks:
            if not called and passed * 2 >= self.size:
                called = True
                interrupt()
            yield chunk
            passed += sum(self.measure(values) for _, values in chunk)
        if not called:
            interrupt()


def load_of_lines(path: Path, partitions: int) -> DemoLoad:
    """Return the lines of a file as a load.

    Raises:
        OSError: If the file cannot be read.
    """

    def measure(values: list[bytes]) -> int:
        return sum(map(len, values)) + len(values)

    return DemoLoad(f"the lines of {path}", log_lines(path, partitions), path.stat().st_size, measure)


def load_of_views(records: int, partitions: int, seed: int) -> DemoLoad:
    """Return generated page views as a load."""
    return DemoLoad(f"{records:,} made-up page views", page_views(records, partitions, seed), records, len)


_SECTIONS = (b"news", b"jobs", b"people", b"search", b"help")
_AGENTS = (b"Firefox/128.0", b"Chrome/126.0", b"Safari/17.5", b"headrace-bot/1.0")
_VIEW = (
    b'{"at_ms":%d,"user":"u%d","session":"s%d-%d","page":"/%b/%d","referrer":"/%b/%d","status":%d,'
    b'"dwell_ms":%d,"bytes":%d,"agent":"%b"}'
)


def log_lines(path: Path, partitions: int) -> Iterator[Chunk]:
    """Yield each line of a file once, without line end, partitioned by its first word.

    Raises:
        OSError: If the file cannot be read.
    """
    chunk_bytes = min(CHUNK_BYTES, path.stat().st_size // LEAST_CHUNKS + 1)
    with path.open("rb") as file:
        while lines := file.readlines(chunk_bytes):
            parts: list[list[bytes]] = [[] for _ in range(partitions)]
            for line in lines:
                parts[zlib.crc32(line.split(b" ", 1)[0]) % partitions].append(line.removesuffix(b"\n"))
            yield [(partition, values) for partition, values in enumerate(parts) if values]


def page_views(records: int, partitions: int, seed: int) -> Iterator[Chunk]:
    """Yield generated page views as JSON lines of about 190 bytes; deterministic for the same arguments."""
    random = np.random.default_rng(seed)
    users, pages = Popularity(USERS, USER_SKEW), Popularity(PAGES, PAGE_SKEW)
    sessions = np.zeros(USERS, dtype=np.int64)
    last_page = np.zeros(USERS, dtype=np.int64)
    at_ms = START_MS
    chunk_records = min(CHUNK_RECORDS, records // LEAST_CHUNKS + 1)
    for first in range(0, records, chunk_records):
        count = min(chunk_records, records - first)
        user = users.ranks(random.random(count))
        # By partition, then by time: the order of sending.
        order = np.argsort(user % partitions, kind="stable")
        when = at_ms + np.sort(random.integers(0, count, count))
        at_ms += count
        user, when = user[order], when[order]
        page = pages.ranks(random.random(count))
        sessions[user[random.random(count) < 1 / SESSION_VIEWS]] += 1
        referrer = last_page[user]
        last_page[user] = page
        columns = (
            when.tolist(),
            user.tolist(),
            user.tolist(),
            sessions[user].tolist(),
            _pick(_SECTIONS, page),
            page.tolist(),
            _pick(_SECTIONS, referrer),
            referrer.tolist(),
            np.where(random.random(count) < 0.98, 200, 404).tolist(),
            random.exponential(MEAN_DWELL_MS, count).astype(np.int64).tolist(),
            random.integers(2_000, 90_000, count).tolist(),
            _pick(_AGENTS, user),
        )
        values = list(map(_VIEW.__mod__, zip(*columns, strict=True)))
        ends = np.cumsum(np.bincount(user % partitions, minlength=partitions)).tolist()
        starts = [0, *ends[:-1]]
        yield [(n, values[start:end]) for n, (start, end) in enumerate(zip(starts, ends, strict=True)) if end > start]


def _pick(words: tuple[bytes, ...], numbers: npt.NDArray[np.int64]) -> list[bytes]:
    return [words[number] for number in (numbers % len(words)).tolist()]
