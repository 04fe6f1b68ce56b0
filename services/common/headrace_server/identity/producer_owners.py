"""Owners of producer ids: an id that a coordinator draws for a user contains a tag of that user. Pure.

    bits    content
    62      0: drawn by a coordinator, 1: chosen by its user, as Spark writers do
    46..61  tag of the user for whom it was drawn; 0: for a caller without an identity
    0..45   random

So every leader recognizes the owner by itself, after a change of leader or a restart, too, and nothing is stored. Two
users of a cluster have one tag, and may use each other's ids, once in 65,535 pairs; a user chooses its tag only by
choosing its name. The first epoch is random, too, so that ids and epochs together are one of 2^62 for each user (H53).
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from headrace.wire.ids import OWN_PRODUCER_IDS

_TAG_BITS = 16
_RANDOM_BITS = 46
assert 1 << (_TAG_BITS + _RANDOM_BITS) == OWN_PRODUCER_IDS


@lru_cache(maxsize=10_000)
def tag_of(user: str, cluster_id: str) -> int:
    """Return the tag of a user, 1 to 65535; 0 without a user. It remains when the cluster's secret changes."""
    if not user:
        return 0
    digest = hashlib.blake2b(user.encode(), key=cluster_id.encode()[: hashlib.blake2b.MAX_KEY_SIZE], digest_size=8)
    return 1 + int.from_bytes(digest.digest(), "big") % ((1 << _TAG_BITS) - 1)


def place_producer(tag: int, drawn: int) -> tuple[int, int]:
    """Return the producer id and first epoch of the user with `tag`, from a random number below `OWN_PRODUCER_IDS`."""
    return tag << _RANDOM_BITS | drawn % (1 << _RANDOM_BITS), 1 + (drawn >> _RANDOM_BITS)


def owner_tag(producer_id: int) -> int:
    """Return the tag of the user whose id it is; 0 means that it has no owner."""
    return producer_id >> _RANDOM_BITS if 0 <= producer_id < OWN_PRODUCER_IDS else 0
