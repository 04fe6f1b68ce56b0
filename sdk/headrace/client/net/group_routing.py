"""Which coordinator is tried first for a group. Pure; used by members, administrators and the command line."""

import hashlib
from collections.abc import Iterable


def coordinators_for(group_id: str, addresses: Iterable[str]) -> list[str]:
    """Return all addresses, in the order in which to try them for a group.

    Every coordinator answers for every group; all clients begin with the same one, which saves conflicts in etcd. This
    is rendezvous hashing: where an address comes or goes, only the groups that it is first for change their first.
    """

    def weight(address: str) -> tuple[bytes, str]:
        return hashlib.blake2b(f"{address} {group_id}".encode(), digest_size=8).digest(), address

    return sorted(set(addresses), key=weight, reverse=True)
