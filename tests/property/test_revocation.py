"""A server that remembers its callers decides as one that has just started, after every change of users and rights.

So whatever is taken away counts from the next decision on: for remembered tokens, on open connections, and for calls
that wait.
"""

from __future__ import annotations

import random

import pytest
from headrace.v1 import auth_pb2
from headrace.wire.errors import UnauthenticatedError
from headrace_server.identity.gate import Access
from headrace_server.identity.rights import Operation, ResourceKind
from headrace_server.internal_v1 import metadata_pb2

from tests.fakes.open_gate import gate_over
from tests.unit.common.identity.test_gate import KEYS, Known

SEEDS = 4
STEPS = 80
USERS = ("ada", "bob")
GROUPS = ("red", "blue")
QUESTIONS = [
    *((operation, ResourceKind.TOPIC, name) for operation in (Operation.READ, Operation.WRITE) for name in ("a", "ab")),
    (Operation.READ, ResourceKind.GROUP, "a"),
    (Operation.OPERATE, ResourceKind.CLUSTER, ""),
]
LONG_MS = 10_000_000
CHANGES = ("user", "user", "grant", "grant", "ungrant", "role", "delete", "sign", "time", "open", "open")


class World:
    """Keys that change at random, the gate that has seen all of them, and everything that once proved an identity."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.known = Known()
        self.signing = 1
        self.api_keys: list[str] = []
        self.tokens: list[str] = []
        self.waiting: list[Access] = []
        self.decided: set[str] = set()

    def step(self) -> None:
        keys, chance = self.known.keys, self.random
        match chance.choice(
            ("user", "user", "grant", "grant", "ungrant", "role", "delete", "sign", "time", "open", "open")
        ):
            case "user":
                self._put_user()
            case "grant":
                principal = chance.choice((*USERS, *(f"group:{group}" for group in GROUPS)))
                role = chance.choice(("reader", "writer", "operator", "own"))
                resource = chance.choice(("topic:a", "topic:a*", "group:a", "cluster"))
                self.known.grant(principal, role, resource, expires_ms=self._some_time())
            case "ungrant":
                self._delete_one_of("grants/")
            case "role":
                role = auth_pb2.Role(name="own", operations=chance.choice((["read"], ["write"], ["read", "write"])))
                keys.write({KEYS.role("own"): role.SerializeToString()})
            case "delete":
                self._delete_one_of("users/")
            case "sign":
                self._replace_signing_key()
            case "time":
                self.known.clock.advance(chance.choice((1, 1_000, 500_000)))
            case "open":
                self._open()

    def _some_time(self) -> int:
        return self.random.choice((0, 0, self.known.clock.now_ms() + self.random.choice((1, 1_000, LONG_MS))))

    def _put_user(self) -> None:
        """Create a user, or change one: another key, other groups, disabled, or enabled again."""
        name = self.random.choice(USERS)
        groups = self.random.sample(GROUPS, self.random.randint(0, 2))
        disabled = self.random.random() < 0.3
        if name in self.known.gate.view.users and self.random.random() < 0.6:
            user = metadata_pb2.StoredUser()
            user.CopyFrom(self.known.gate.view.users[name])
            user.disabled = disabled
            del user.groups[:]
            user.groups.extend(groups)
            self.known.keys.write({KEYS.user(name): user.SerializeToString()})
        else:
            made = self.known.user(name, expires_ms=self._some_time(), groups=groups, disabled=disabled)
            self.api_keys.append(made)

    def _delete_one_of(self, family: str) -> None:
        found = [key for key in sorted(self.known.keys.key_values) if f"/{family}" in key]
        if found:
            self.known.keys.write({self.random.choice(found): None})

    def _replace_signing_key(self) -> None:
        self.signing += 1
        name = f"s{self.signing}"
        added = metadata_pb2.SigningKey(key_id=name, secret=self.random.randbytes(32), created_ms=self.signing)
        changes: dict[str, bytes | None] = {KEYS.signing_key(name): added.SerializeToString()}
        if self.random.random() < 0.7:
            changes |= {KEYS.signing_key(old): None for old in self.known.gate.view.signing_keys}
        self.known.keys.write(changes)

    def _open(self) -> None:
        """Open a session, and begin a call with it that waits from now on."""
        for api_key in self.random.sample(self.api_keys, min(2, len(self.api_keys))):
            try:
                token, _ = self.known.gate.identification.open_session(
                    self.known.gate.identification.identity_of_api_key(api_key)
                )
            except UnauthenticatedError:
                continue
            self.tokens.append(token)
            self.waiting.append(self.known.access(token))

    def check(self) -> None:
        fresh = gate_over(self.known.keys, self.known.clock, auth_pb2.POSTURE_REQUIRED)
        for token in (*self.api_keys, *self.tokens):
            decided = decisions(fresh, token)
            assert decisions(self.known.gate, token) == decided
            self.decided.add(str(decided))
        for token, waiting in zip(self.tokens, self.waiting, strict=True):
            try:
                waiting.recheck()
            except UnauthenticatedError:
                assert decisions(fresh, token) is None
            else:
                assert answers(waiting) == decisions(fresh, token)
        fresh.view.close()


def decisions(gate, token):
    """Return the user and what it may do; `None` if the token is worth nothing."""
    try:
        return answers(Access(gate, gate.identification.caller(token), "Fetch"))
    except UnauthenticatedError:
        return None


def answers(access):
    return access.caller.name, [access.caller.allows(*question) for question in QUESTIONS]


@pytest.mark.parametrize("block", range(4))
def test_what_is_remembered_of_callers_never_outlives_what_is_known(block):
    """Users disabled, deleted and created again, API keys and grants that end, groups, roles, signing keys, time."""
    decided: set[str] = set()
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        world = World(seed)
        for _ in range(STEPS):
            world.step()
            try:
                world.check()
            except AssertionError as error:
                error.add_note(f"seed {seed}")
                raise
        decided |= world.decided
    assert len(decided) > 10, "too little happened"
