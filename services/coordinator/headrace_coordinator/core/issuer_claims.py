"""Claims of a JSON Web Token (RFC 7519) against an issuer's rules. Pure.

Of a token whose signature is not verified yet, only `read_unverified` is used: it selects the issuer and the key. Its
size is bounded before anything is parsed. No reason contains the token or a part of it other than the values of `iss`,
`alg` and `kid`, shortened.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headrace.v1 import auth_pb2
from headrace.wire.errors import UnauthenticatedError

from headrace_coordinator.core.identity_rules import ALGORITHMS, MAX_GROUPS, MAX_NAME_CHARACTERS

MAX_TOKEN_CHARACTERS = 16 << 10
MAX_HEADER_CHARACTERS = 4 << 10
MAX_SKEW_SECONDS = 60
"""Difference between the clocks of the issuer and a coordinator that a token survives."""
MAX_GROUP_BYTES = 2_000
"""All groups together: they travel in the session token."""
_LATEST_SECONDS = 253_402_300_799
"""End of the year 9999, the last one that can be shown."""


@dataclass(frozen=True, slots=True)
class Unverified:
    """What selects the key of a token. Its sender chose it."""

    issuer: str
    algorithm: str
    key_id: str | None


@dataclass(frozen=True, slots=True)
class Claims:
    """Claims of a verified token."""

    user: str
    groups: tuple[str, ...]
    expires_ms: int


def read_unverified(token: str) -> Unverified:
    """Return the issuer, algorithm and key id of a token in compact serialization.

    Raises:
        UnauthenticatedError: If it is too large or is no signed token.
    """
    if len(token) > MAX_TOKEN_CHARACTERS:
        raise refusal(f"the token has {len(token)} characters, more than {MAX_TOKEN_CHARACTERS}")
    parts = token.split(".")
    if len(parts) != 3 or len(parts[0]) > MAX_HEADER_CHARACTERS:
        raise refusal("the text is no signed JSON Web Token in compact form")
    header, claims = _read_part(parts[0]), _read_part(parts[1])
    issuer, algorithm, key_id = claims.get("iss"), header.get("alg"), header.get("kid")
    if not isinstance(issuer, str):
        raise refusal("the token's claim iss is not one string")
    if not isinstance(algorithm, str):
        raise refusal("the token's header names no algorithm")
    if key_id is not None and not isinstance(key_id, str):
        raise refusal("the key id in the token's header is not a string")
    return Unverified(issuer, algorithm, key_id)


def find_issuer(issuers: Iterable[auth_pb2.Issuer], unverified: Unverified) -> auth_pb2.Issuer:
    """Return the issuer of a token, which also accepts the algorithm.

    Raises:
        UnauthenticatedError: If there is none.
    """
    found = next((issuer for issuer in issuers if issuer.issuer == unverified.issuer), None)
    if found is None:
        raise refusal(
            f"the token's issuer {unverified.issuer[:256]!r} is not accepted here",
            action="Use a token of another issuer, or ask an administrator to add this one.",
        )
    algorithms = found.algorithms or ALGORITHMS
    if unverified.algorithm not in algorithms:
        raise refusal(
            f"the token is signed by {unverified.algorithm[:16]!r}, and issuer {found.name} accepts "
            f"{', '.join(algorithms)}"
        )
    return found


def check_claims(
    claims: Mapping[str, Any], issuer: auth_pb2.Issuer, now_ms: int, is_used_group: Callable[[str], bool]
) -> Claims:
    """Return who a token names, whose signature was verified; `is_used_group` is whether any grant names a group.

    Raises:
        UnauthenticatedError: If a claim is missing, malformed or not accepted now.
    """
    if claims.get("iss") != issuer.issuer:
        raise refusal("the token's claim iss is not one string")
    _check_audience(claims.get("aud"), issuer)
    expires_seconds = _check_times(claims, now_ms / 1000)
    return Claims(
        _user(claims, issuer),
        _groups(claims, issuer, is_used_group),
        min(round(expires_seconds), _LATEST_SECONDS) * 1000,
    )


def refusal(reason: str, *, action: str = "Get a new token from the issuer.") -> UnauthenticatedError:
    """Return the error for a token."""
    return UnauthenticatedError(reason, action=action)


def _read_part(part: str) -> dict[str, Any]:
    try:
        content = base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
        found = json.loads(content)
    except (binascii.Error, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise refusal("the text is no signed JSON Web Token in compact form")
    return found


def _check_audience(audience: object, issuer: auth_pb2.Issuer) -> None:
    if audience != issuer.audience and not (isinstance(audience, list) and issuer.audience in audience):
        raise refusal(
            f"the token is not for this cluster: its claim aud lacks {issuer.audience!r}",
            action="Ask the issuer for a token with this audience.",
        )


def _check_times(claims: Mapping[str, Any], now_seconds: float) -> float:
    expires = _time(claims, "exp")
    if expires is None:
        raise refusal("the token does not expire: it has no claim exp")
    if now_seconds >= expires + MAX_SKEW_SECONDS:
        raise refusal(f"the token expired on {_show(expires)}, {round(now_seconds - expires)} s ago")
    for name in ("nbf", "iat"):
        begins = _time(claims, name)
        if begins is not None and now_seconds < begins - MAX_SKEW_SECONDS:
            raise refusal(
                f"the token is not valid before {_show(begins)}, by its claim {name}, {round(begins - now_seconds)} s "
                "from now",
                action="Compare the clocks of the issuer and of this cluster.",
            )
    return expires


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    """Return a claim in seconds since 1970; NaN and infinity, which JSON parsers accept, are no times."""
    found = claims.get(name)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise refusal(f"the token's claim {name} is no time")
    return float(found)


def _show(seconds: float) -> str:
    shown = datetime.fromtimestamp(max(0.0, min(seconds, _LATEST_SECONDS)), UTC)
    return f"{shown:%Y-%m-%d at %H:%M:%S} UTC"


def _user(claims: Mapping[str, Any], issuer: auth_pb2.Issuer) -> str:
    claim = issuer.user_claim or "sub"
    found = claims.get(claim)
    if not isinstance(found, str) or not found:
        raise refusal(f"the token has no name of a user: its claim {claim} is not a text")
    name = f"{issuer.name}:{found}"
    if len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
        raise refusal(
            f"the token's claim {claim} is no name of a user: it is too long or has characters that cannot be printed"
        )
    return name


def _groups(
    claims: Mapping[str, Any], issuer: auth_pb2.Issuer, is_used_group: Callable[[str], bool]
) -> tuple[str, ...]:
    """Return the groups that matter: one that no grant names gives no right, and a token may list hundreds."""
    if not issuer.groups_claim:
        return ()
    found = claims.get(issuer.groups_claim)
    listed = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    used = dict.fromkeys(group for group in listed if isinstance(group, str) and is_used_group(group))
    total = sum(len(group.encode()) for group in used)
    if len(used) > MAX_GROUPS or total > MAX_GROUP_BYTES:
        raise refusal(
            f"the token names {len(used)} groups that have grants, {total} bytes; at most {MAX_GROUPS} and "
            f"{MAX_GROUP_BYTES} are accepted",
            action="Let the issuer list fewer groups, or grant to fewer of them.",
        )
    return tuple(used)
