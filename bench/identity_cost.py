"""`python -m bench.identity_cost`: cost of a decision, of tokens, good and forged, without a server.

Users and grants are as many as asked, in a view as a broker has it, with one caller each. Each step is repeated and
its minimum CPU time counts, so that other load matters little; memory is what the process uses more than before.
"""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import psutil
import typer
from headrace.v1 import auth_pb2
from headrace.wire.errors import UnauthenticatedError
from headrace_coordinator.core.issuer_claims import check_claims, find_issuer, read_unverified
from headrace_coordinator.runtime.issuers.key_sets import KeySet, read_key_set, verify
from headrace_server.clock import SystemClock
from headrace_server.cluster_identity import ClusterIdentity
from headrace_server.identity.api_keys import make_api_key, parse_api_key
from headrace_server.identity.callers import Caller, Identity, Proof
from headrace_server.identity.decision_counts import DecisionCounts
from headrace_server.identity.gate import IdentityGate
from headrace_server.identity.identity_view import IdentityView
from headrace_server.identity.rights import Operation, ResourceKind
from headrace_server.identity.session_tokens import read_session, sign_session
from headrace_server.instruments import CommonMetrics
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace
from headrace_server.metastore.api import KeyValue
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey
from prometheus_client import CollectorRegistry
from rich.console import Console
from rich.table import Table

KEYS = Keyspace("bench", 1)
NOW_MS = 1_700_000_000_000


class Written:
    """Keys of etcd, written before the view reads them."""

    revision = 1

    def __init__(self) -> None:
        self._key_values: dict[str, KeyValue] = {}
        self._callback: Callable[..., None] = lambda *_: None

    def put(self, key: str, value: bytes) -> None:
        """Add a key."""
        self._key_values[key] = KeyValue(key, value, 1, 1, 1, 0)

    def age_ms(self) -> int:
        """Return 0."""
        return 0

    def get(self, key: str) -> KeyValue | None:
        """See `KeySource`."""
        return self._key_values.get(key)

    def items(self, prefix: str) -> list[KeyValue]:
        """See `KeySource`."""
        return [found for key, found in sorted(self._key_values.items()) if key.startswith(prefix)]

    def subscribe(self, callback: Callable[..., None]) -> Callable[[], None]:
        """Tell one subscriber of `change`."""
        self._callback = callback
        return lambda: None

    def change(self, key: str) -> None:
        """Tell the subscriber that a key has changed."""
        self._callback(self.revision, [key])


def write_users(users: int, grants: int) -> Written:
    """Return the keys of users with an API key each, and of grants to them on topics and prefixes."""
    keys = Written()
    for number in range(users):
        api_key = parse_api_key(make_api_key())
        assert api_key is not None, "it was made a moment ago"
        user = metadata_pb2.StoredUser(name=f"user-{number}")
        user.api_keys.add(key_id=api_key.key_id, sha256=api_key.sha256)
        keys.put(KEYS.user(user.name), user.SerializeToString())
    for number in range(grants):
        resource = f"topic:team-{number}.*" if number % 2 else f"topic:topic-{number}"
        grant = auth_pb2.Grant(principal=f"user-{number % users}", role="writer", resource=resource)
        keys.put(KEYS.grant(grant.principal, grant.role, resource), grant.SerializeToString())
    return keys


def least_us(work: Callable[[Any], Any], inputs: list[Any], repeat: int) -> float:
    """Return the minimum over the repetitions of the mean CPU time of `work` per input, in microseconds."""
    times = []
    for _ in range(repeat):
        started = time.thread_time_ns()
        for one in inputs:
            work(one)
        times.append(time.thread_time_ns() - started)
    return min(times) / len(inputs) / 1_000


def resident_bytes() -> int:
    """Return the memory of this process."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def measure_decisions(users: int, grants: int, repeat: int) -> dict[str, float]:
    """Return the costs of decisions about all users in turn."""
    keys = write_users(users, grants)
    before = resident_bytes()
    view = IdentityView(KEYS, keys)
    of_view = resident_bytes()
    callers = [
        Caller(Identity(user.name, Proof.API_KEY, user.api_keys[0].key_id), view) for user in view.users.values()
    ]
    first_us = least_us(lambda caller: caller.refresh(NOW_MS), callers, 1)
    pairs = [(caller, f"topic-{number}") for number, caller in enumerate(callers)]
    new_us = least_us(lambda pair: pair[0].allows(Operation.WRITE, ResourceKind.TOPIC, pair[1]), pairs, 1)
    of_callers = resident_bytes()
    random.Random(1).shuffle(pairs)

    def decide(pair: tuple[Caller, str]) -> bool:
        pair[0].refresh(NOW_MS)
        return pair[0].allows(Operation.WRITE, ResourceKind.TOPIC, pair[1])

    decision_us = least_us(decide, pairs, repeat)
    topics = range(0, grants, 2)
    changed = [KEYS.grant(f"user-{number % users}", "writer", f"topic:topic-{number}") for number in topics]
    change_us = least_us(keys.change, changed, 1) if changed else 0.0
    return {
        "decision, us": decision_us,
        "change of a grant, us": change_us,
        "decision after a change, us": least_us(decide, pairs, 1),
        "decision about a topic for the first time, us": new_us,
        "first decision of a caller, us": first_us,
        "view of users and grants, MiB": (of_view - before) / (1 << 20),
        "callers with their rights, MiB": (of_callers - of_view) / (1 << 20),
    }


def measure_tokens(repeat: int) -> dict[str, float]:
    """Return the costs of one session token and of one token of an issuer."""
    claims = metadata_pb2.SessionClaims(
        user="user-1", proof=1, credential="k" * 12, issued_ms=NOW_MS, expires_ms=NOW_MS
    )
    secrets = {"k1": b"s" * 32}
    token = sign_session(claims, "k1", secrets["k1"])
    found = {"session token read, us": least_us(lambda text: read_session(text, secrets), [token] * 1_000, repeat)}
    issuer = auth_pb2.Issuer(name="sso", issuer="https://login.example", audience="headrace")
    body = {"iss": issuer.issuer, "aud": issuer.audience, "sub": "user-1", "exp": NOW_MS // 1_000 + 600}
    for algorithm, key in (
        ("ES256", ECKey.generate_key("P-256", {"kid": "k"})),
        ("RS256", RSAKey.generate_key(2_048, {"kid": "k"})),
    ):
        keys = read_key_set(json.dumps({"keys": [key.as_dict(private=False)]}).encode())
        text = jwt.encode({"alg": algorithm, "kid": "k"}, body, key)
        found[f"token of an issuer verified, {algorithm}, us"] = least_us(
            partial(_verify, keys=keys, issuer=issuer), [text] * 200, repeat
        )
    return found


def _verify(text: str, keys: KeySet, issuer: auth_pb2.Issuer) -> None:
    unverified = read_unverified(text)
    find_issuer([issuer], unverified)
    key = keys.find(unverified.algorithm, unverified.key_id)
    assert key is not None, "the set has it"
    check_claims(verify(text, key, unverified.algorithm), issuer, NOW_MS, lambda group: False)


def measure_refusals(users: int, repeat: int) -> dict[str, float]:
    """Return the costs of refusing proofs that are none, each another one, with their counts and audit events."""
    keys = write_users(users, 0)
    signing = metadata_pb2.SigningKey(key_id="k1", secret=b"s" * 32, created_ms=NOW_MS)
    keys.put(KEYS.signing_key("k1"), signing.SerializeToString())
    metrics = CommonMetrics("bench", CollectorRegistry())
    counts = DecisionCounts(metrics.refused_calls, metrics.observed_refusals, metrics.quota_held_seconds)
    gate = IdentityGate(
        IdentityView(KEYS, keys), ClusterIdentity("bench", "id", 1, bytes(32)), SystemClock(), counts, "broker-1",
        metrics.audit_events_lost, least_posture=auth_pb2.POSTURE_REQUIRED,
    )  # fmt: skip
    claims = [metadata_pb2.SessionClaims(user=f"user-{number}", proof=1) for number in range(1_000)]
    forged = [sign_session(claim, "k1", b"forged") for claim in claims]

    def refuse(text: str) -> None:
        try:
            gate.identify(text, (), "Fetch", "10.0.0.1")
        except UnauthenticatedError:
            return
        raise AssertionError("it was accepted")

    return {
        "forged session token refused, us": least_us(refuse, forged, repeat),
        "unknown API key refused, us": least_us(refuse, [make_api_key() for _ in forged], repeat),
    }


def main(
    users: Annotated[int, typer.Option("--users", min=1, help="Users, each with an API key.")] = 10_000,
    grants: Annotated[int, typer.Option("--grants", min=0, help="Grants, to the users in turn.")] = 10_000,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Repetitions; the fastest counts.")] = 20,
) -> None:
    """Print the cost of each step."""
    table = Table("step", "cost")
    table.columns[1].justify = "right"
    found = measure_decisions(users, grants, repeat) | measure_tokens(repeat) | measure_refusals(users, repeat)
    for step, cost in found.items():
        table.add_row(step, f"{cost:.2f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
