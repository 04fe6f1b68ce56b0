"""API keys: `hrk_{id}_{secret}`, of which only the id and a hash are stored. Pure, except for the random characters.

The secret has 256 random bits, so that a plain SHA-256 protects it: no attacker can try all, and checking one costs
less than a microsecond, whatever a stranger sends.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from typing import NamedTuple

PREFIX = "hrk_"
_ALPHABET = string.ascii_letters + string.digits
_ID_CHARACTERS = 12
_SECRET_CHARACTERS = 43
"""43 of 62 characters are 256 bits."""
_FORM = re.compile(r"hrk_([a-zA-Z0-9]{12})_([a-zA-Z0-9]{43,128})\Z", re.ASCII)


class ApiKey(NamedTuple):
    """Parsed API key."""

    key_id: str
    sha256: bytes
    """Of the whole key."""


def make_api_key() -> str:
    """Return a new key."""
    key_id, secret = _draw(_ID_CHARACTERS), _draw(_SECRET_CHARACTERS)
    return f"{PREFIX}{key_id}_{secret}"


def parse_api_key(text: str) -> ApiKey | None:
    """Return a key's id and hash, or `None` if the text is no API key."""
    found = _FORM.match(text)
    return None if found is None else ApiKey(found[1], hashlib.sha256(text.encode()).digest())


def _draw(characters: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(characters))
