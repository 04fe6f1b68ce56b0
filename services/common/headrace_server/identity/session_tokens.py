"""Session tokens: `hr1.{key id}.{claims and code}`, signed by HMAC-SHA-256 (RFC 2104) with a key of the cluster. Pure.

Every broker and coordinator verifies one without asking anybody. To its holder a token is opaque. It is worth what its
claims say, for some minutes: `callers` compares them with the users of the moment.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping

from google.protobuf.message import DecodeError

from headrace_server.internal_v1 import metadata_pb2

PREFIX = "hr1."
MAX_TOKEN_CHARACTERS = 3_500
"""Maximum size of a token: the headers of a call and a Hello have little room."""
_CODE_BYTES = 16
_PURPOSE = b"headrace session v1"


class InvalidTokenError(Exception):
    """The text is no token of this cluster; the reason is for the log, not for its sender."""


def sign_session(claims: metadata_pb2.SessionClaims, key_id: str, secret: bytes) -> str:
    """Return the token of a session."""
    content = claims.SerializeToString(deterministic=True)
    return f"{PREFIX}{key_id}.{_encode(content + _code(content, key_id, secret))}"


def key_id_of(token: str) -> str:
    """Return the id of the key by which a token says that it is signed."""
    return token.removeprefix(PREFIX).partition(".")[0]


def read_session(token: str, secrets: Mapping[str, bytes]) -> metadata_pb2.SessionClaims:
    """Return the claims of a token that one of `secrets`, by key id, has signed.

    Raises:
        InvalidTokenError: If none has, or the text is no token.
    """
    if len(token) > MAX_TOKEN_CHARACTERS:
        raise InvalidTokenError(f"{len(token)} characters")
    key_id, _, encoded = token.removeprefix(PREFIX).partition(".")
    secret = secrets.get(key_id)
    if secret is None or not token.startswith(PREFIX):
        raise InvalidTokenError("an unknown signing key")
    try:
        whole = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidTokenError("not in base64url") from None
    if _encode(whole) != encoded:
        raise InvalidTokenError("another form of base64url")  # Each session has one token.
    content, code = whole[:-_CODE_BYTES], whole[-_CODE_BYTES:]
    if not hmac.compare_digest(_code(content, key_id, secret), code):
        raise InvalidTokenError("a wrong code")
    try:
        return metadata_pb2.SessionClaims.FromString(content)
    except DecodeError:
        raise InvalidTokenError("claims of an unknown form") from None


def _encode(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _code(content: bytes, key_id: str, secret: bytes) -> bytes:
    name = key_id.encode()
    message = b"".join((_PURPOSE, len(name).to_bytes(4, "little"), name, content))
    return hmac.digest(secret, message, "sha256")[:_CODE_BYTES]
