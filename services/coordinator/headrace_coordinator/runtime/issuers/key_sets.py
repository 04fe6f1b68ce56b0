"""Public keys of an issuer: a JSON Web Key Set (RFC 7517), and signatures verified by its keys.

Only public parts are read, of keys that may sign by an accepted algorithm; others are ignored, as RFC 7517 (5) wants.
Pure: any thread may use it.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.jwk import ECKey, JWKRegistry, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from joserfc.jwt import decode

from headrace_coordinator.core.identity_rules import ALGORITHMS
from headrace_coordinator.core.issuer_claims import MAX_TOKEN_CHARACTERS, refusal
from headrace_coordinator.runtime.issuers.key_fetch import IssuerKeysError

Key = RSAKey | ECKey | OKPKey

MAX_KEYS = 100
RSA_BITS = (2_048, 8_192)
"""Smaller keys are weak (NIST SP 800-131A), larger ones make every verification slow."""
_KEY_TYPES = {"RS256": "RSA", "ES256": "EC", "EdDSA": "OKP"}
_CURVES = {"EC": "P-256", "OKP": "Ed25519"}
_PUBLIC = ("kty", "kid", "use", "key_ops", "alg", "n", "e", "crv", "x", "y")

assert tuple(_KEY_TYPES) == ALGORITHMS


@dataclass(frozen=True, slots=True)
class KeySet:
    """Keys of an issuer."""

    keys: Mapping[tuple[str, str], Key]
    """By key id, empty if the key has none, and key type."""
    ignored: int = 0
    """Number of keys that were not read."""

    def find(self, algorithm: str, key_id: str | None) -> Key | None:
        """Return the key of a token, or `None`. A token without a key id can only be of a set with one key."""
        key_type = _KEY_TYPES[algorithm]
        if key_id is not None:
            return self.keys.get((key_id, key_type))
        if len(self.keys) != 1:
            return None
        (((_, found_type), key),) = self.keys.items()
        return key if found_type == key_type else None


def read_key_set(content: bytes) -> KeySet:
    """Return the keys in a JSON Web Key Set.

    Raises:
        IssuerKeysError: If the content is none, or has no key that can be used.
    """
    try:
        listed = json.loads(content)["keys"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise IssuerKeysError("it is no JSON Web Key Set") from None
    if not isinstance(listed, list) or len(listed) > MAX_KEYS:
        raise IssuerKeysError(f"its member keys is not a list of at most {MAX_KEYS} keys")
    keys: dict[tuple[str, str], Key] = {}
    for one in listed:
        key = _read_key(one)
        if key is not None:
            keys.setdefault((key.kid or "", key.key_type), key)
    if not keys:
        raise IssuerKeysError(f"none of its {len(listed)} keys can verify {', '.join(_KEY_TYPES)}")
    return KeySet(keys, len(listed) - len(keys))


def verify(token: str, key: Key, algorithm: str) -> dict[str, Any]:
    """Return the claims of a token whose signature is the key's, by exactly this algorithm.

    Raises:
        UnauthenticatedError: If it is not.
    """
    try:
        return decode(token, key, registry=_REGISTRIES[algorithm]).claims
    except (JoseError, ValueError, RecursionError):
        raise refusal("the token's signature is not the issuer's") from None


class _Registry(JWSRegistry):
    """Registry that has only the allowed algorithms, and limits of a whole token, which was checked before."""

    max_header_length = MAX_TOKEN_CHARACTERS
    max_payload_length = MAX_TOKEN_CHARACTERS
    max_signature_length = MAX_TOKEN_CHARACTERS

    def get_alg(self, name: str) -> Any:
        """Return an allowed algorithm, without the warning for the name EdDSA, which issuers still use (RFC 9864)."""
        if name not in (self.allowed or ()) or name not in _KEY_TYPES:
            raise UnsupportedAlgorithmError("the algorithm is not allowed")
        return self.algorithms[name]


_REGISTRIES = {name: _Registry(algorithms=[name], strict_check_header=False) for name in _KEY_TYPES}


def _read_key(found: object) -> Key | None:
    """Return a key that can verify signatures, or `None`."""
    if not isinstance(found, dict) or found.get("use", "sig") != "sig" or found.get("kty") not in _KEY_TYPES.values():
        return None
    public = {name: found[name] for name in _PUBLIC if name in found}
    if _CURVES.get(public["kty"], public.get("crv")) != public.get("crv"):
        return None
    try:
        if public["kty"] == "RSA" and not RSA_BITS[0] <= _bits(public["n"]) <= RSA_BITS[1]:
            return None
        key = JWKRegistry.import_key(public)
        key.check_key_op("verify")
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return key if isinstance(key, RSAKey | ECKey | OKPKey) else None


def _bits(number: str) -> int:
    """Return the size of a number in base64url; 0 if it is none."""
    try:
        content = base64.b64decode(number + "=" * (-len(number) % 4), altchars=b"-_")
    except binascii.Error:
        return 0
    return int.from_bytes(content, "big").bit_length()
