"""Compatibility of releases: the handshake of each side of a connection, and the refusal of incompatible peers.

Clients and servers, members and coordinators, followers and leaders exchange a `Handshake`; every broker and
coordinator registers its own in etcd. Two releases are compatible if they are at most one minor release apart, so that
a cluster can be upgraded process by process; `tests/golden` has the requests of each release. A capability is a feature
with the number of its format: a side that needs one refuses a peer without it, whatever its release. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from headrace import __version__
from headrace.wire.errors import UnsupportedVersionError

RELEASE = __version__
"""Release of this code; every distribution of the repository has the same."""
CAPABILITIES = ("batches.1", "groups.1", "replication.1", "typed.1")
"""Capabilities of this release. `typed.1` is needed by none: followers copy batches of rows as any other."""
CLIENT_NEEDS = ("batches.1",)
"""Needed by clients and servers from each other: the format of a record batch."""
MEMBER_NEEDS = ("groups.1",)
"""Needed by coordinators from group members: owned partitions in heartbeats."""
REPLICA_NEEDS = ("replication.1",)
"""Needed by followers and leaders from each other: chained batches."""

_RELEASE = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})\.[0-9]")
_UPGRADE = "Upgrade the older one, one minor release at a time."


def check_peer(who: str, release: str, capabilities: Collection[str], needs: Collection[str] = ()) -> None:
    """Refuse a peer that is incompatible with this release; a peer that sends no release is accepted.

    Raises:
        UnsupportedVersionError: If it is more than one minor release apart, or lacks a capability of `needs`.
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
    """Return whether all of these releases are compatible."""
    return all(_are_close(one, other) for one in releases for other in releases)


def _are_close(one: str, other: str) -> bool:
    ours, theirs = _RELEASE.match(one), _RELEASE.match(other)
    if ours is None or theirs is None:
        return one == other
    return ours[1] == theirs[1] and abs(int(ours[2]) - int(theirs[2])) <= 1
