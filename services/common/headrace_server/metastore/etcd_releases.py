"""Supported releases of etcd."""

from __future__ import annotations

import re

from headrace.wire.errors import InvalidConfigError

FIRST_RELEASE = (3, 5)
"""Oldest supported release line. A service does not start on an older one, whose semantics differ."""
FIRST_PRODUCTION_RELEASES = {(3, 5): 28, (3, 6): 9}
"""First patch release of each line with the fixes that a production cluster needs (PROTOCOL, decisions)."""


def check_etcd(version: str) -> None:
    """Check that etcd is not too old; an unreadable version passes.

    Raises:
        InvalidConfigError: If it is older than `FIRST_RELEASE`.
    """
    found = _parts(version)
    if found is not None and found[:2] < FIRST_RELEASE:
        raise InvalidConfigError(
            f"this etcd is of release {version}, and headrace needs 3.5 or later",
            action="Upgrade etcd, one minor release at a time, to 3.5.28, 3.6.9 or later; then start this again.",
        )


def _parts(version: str) -> tuple[int, int, int] | None:
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]))


def is_etcd(version: str) -> bool:
    """Return whether this is the release of an etcd, and not of a store in the process."""
    return _parts(version) is not None


def reports_future_watches(version: str) -> bool:
    """Return whether this release reports the progress of a watch that begins after the newest revision.

    Releases since 3.5.8 do so only once that revision exists; they are assumed if the version cannot be read.
    """
    found = _parts(version)
    return found is not None and found < (3, 5, 8)


def is_production_etcd(version: str) -> bool:
    """Return whether this release of etcd has the fixes that a production cluster needs."""
    found = _parts(version)
    if found is None:
        return False
    major, minor, patch = found
    first = FIRST_PRODUCTION_RELEASES.get((major, minor))
    return patch >= first if first is not None else (major, minor) > max(FIRST_PRODUCTION_RELEASES)
