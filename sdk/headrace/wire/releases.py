"""Compatibility of releases: what each side of a connection sends about itself, and when it refuses its peer.

Clients and servers, members and coordinators, followers and leaders exchange a `Handshake`; every broker and
coordinator registers its own in etcd. Two releases work together if they are at most one minor release apart, so that
a cluster is upgraded process by process; `tests/golden` keeps the requests of each release. A capability is a feature
with the number of its form: a side that needs one refuses a peer without it, whatever its release. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from headrace import __version__
from headrace.wire.errors import UnsupportedVersionError

RELEASE = __version__
"""Of this code; every distribution of the repository has the same."""
CAPABILITIES = ("batches.1", "groups.1", "replication.1")
"""What this release can do."""
CLIENT_NEEDS = ("batches.1",)
"""Clients of servers, and servers of clients: the form of a record batch."""
MEMBER_NEEDS = ("groups.1",)
"""Coordinators of the members of groups: owned partitions in heartbeats."""
REPLICA_NEEDS = ("replication.1",)
"""Followers of leaders, and leaders of followers: chained batches."""

_RELEASE = re.compile(r"(\d+)\.(\d+)\.\d+")
_UPGRADE = "Upgrade the older one, one minor release at a time."


def check_peer(who: str, release: str, capabilities: Collection[str], needs: Collection[str] = ()) -> None:
    """Refuse a peer that this release does not work with; a peer that sends no release is accepted.

    Raises:
        UnsupportedVersionError: it is more than one minor release apart, or lacks a capability of `needs`.
    """
    if not release:
        return
    if not _are_close(release, RELEASE):
        raise UnsupportedVersionError(
            f"{who} is of release {release[:32]}, more than one minor release apart from {RELEASE} here",
            action=_UPGRADE,
        )
    missing = [need for need in needs if need not in capabilities]
    if missing:
        raise UnsupportedVersionError(
            f"{who}, of release {release[:32]}, lacks {', '.join(missing)}, which {RELEASE} here needs", action=_UPGRADE
        )


def are_close(releases: Collection[str]) -> bool:
    """Return whether all of these releases work together."""
    return all(_are_close(one, other) for one in releases for other in releases)


def _are_close(one: str, other: str) -> bool:
    ours, theirs = _RELEASE.match(one), _RELEASE.match(other)
    if ours is None or theirs is None:
        return one == other
    return ours[1] == theirs[1] and abs(int(ours[2]) - int(theirs[2])) <= 1
