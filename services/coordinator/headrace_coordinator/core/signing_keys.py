"""When signing keys of session tokens are added and removed. Pure.

Every broker and coordinator signs by the newest key, once all have had time to see it. A key verifies until the last
session that it signed has ended: for a while after its successor was added.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass

from headrace_server.identity.callers import MAX_SKEW_MS
from headrace_server.identity.identification import SESSION_MS
from headrace_server.identity.identity_view import SIGNS_AFTER_MS
from headrace_server.internal_v1 import metadata_pb2

ROTATION_MS = 86_400_000
KEPT_MS = 2 * SESSION_MS + MAX_SKEW_MS
"""Time for which a key verifies after its successor was added: a session, and as long until the successor signs."""

assert SIGNS_AFTER_MS <= SESSION_MS


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """What to do now."""

    add: bool
    remove: tuple[str, ...]
    """Ids of keys that no valid session is signed by."""


def plan_keys(keys: Collection[metadata_pb2.SigningKey], now_ms: int) -> KeyPlan:
    """Return which keys to add and remove. The newest one always stays, whatever its age; `now_ms` is wall time."""
    ordered = sorted(keys, key=lambda key: (key.created_ms, key.key_id))
    add = not ordered or now_ms - ordered[-1].created_ms >= ROTATION_MS
    old = [key.key_id for key, successor in itertools.pairwise(ordered) if now_ms - successor.created_ms >= KEPT_MS]
    return KeyPlan(add, tuple(old))
