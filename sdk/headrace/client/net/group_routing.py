"""Preferred coordinator of a group. Pure; used by members, administrators and the command line."""

import hashlib
from collections.abc import Iterable


def coordinators_for(group_id: str, addresses: Iterable[str]) -> list[str]:
    """Return all addresses, in the order in which to try them for a group.

    Every coordinator can serve every group; all clients start with the same one, which avoids conflicts in etcd. This
    is rendezvous hashing: if an address is added or removed, only the groups that prefer it change their preference.
    """

    def weight(address: str) -> tuple[bytes, str]:
        return hashlib.blake2b(f"{address} {group_id}".encode(), digest_size=8).digest(), address

    return sorted(set(addresses), key=weight, reverse=True)
