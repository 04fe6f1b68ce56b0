"""Who a call is from: sessions, API keys, certificates and the tokens of brokers and coordinators.

One per server process, owned by its `IdentityGate`; belongs to the event loop. Callers are remembered, and compared
with the view whenever that has changed.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Sequence

from headrace.wire.errors import MetastoreUnavailableError, Outcome, UnauthenticatedError

from headrace_server.clock import Clock
from headrace_server.cluster_identity import ClusterIdentity
from headrace_server.identity import api_keys, session_tokens
from headrace_server.identity.callers import (
    ANONYMOUS,
    MAX_SKEW_MS,
    Caller,
    Identity,
    Proof,
    identity_of,
    user_of_certificate,
)
from headrace_server.identity.identity_view import IdentityView
from headrace_server.identity.refused_proofs import RefusedProofs
from headrace_server.identity.session_tokens import InvalidTokenError, key_id_of, read_session, sign_session
from headrace_server.internal_v1 import metadata_pb2

SESSION_MS = 900_000
"""Time for which a session token is valid; for less if its proof expires earlier."""
MIN_SESSION_MS = 30_000
"""Time for which a session is valid whose proof expires now, by a clock that may differ."""
MAX_REMEMBERED_CALLERS = 10_000
STALE_MS = 30_000
"""Age of the view from which an unknown identity may be one that is too new for it."""
SERVER_KEY = "cluster"
"""Name of the keys, derived from the cluster's secrets, that sign the tokens of brokers and coordinators."""


class Identification:
    """See the module."""

    def __init__(self, view: IdentityView, cluster: ClusterIdentity, clock: Clock, server_name: str) -> None:
        """`server_name` is such as `broker-1`."""
        self._view = view
        self._clock = clock
        self._server_name = server_name
        self._first_secrets = (cluster.secret,)
        self._server_keys: tuple[tuple[bytes, ...], dict[str, bytes]] = (), {}
        self._server_token = "", 0, ""
        self._callers: OrderedDict[object, Caller] = OrderedDict()
        self._refused_proofs = RefusedProofs(clock)

    def caller(self, token: str, certificate_names: Sequence[str] = ()) -> Caller:
        """Return the caller with a session token or API key, or else a certificate; `ANONYMOUS` without any.

        Raises:
            UnauthenticatedError: If the token is none of this cluster's, or has ended.
            MetastoreUnavailableError: If it may be newer than what this server knows, because etcd is unavailable.
        """
        if not token and not certificate_names:
            return ANONYMOUS
        key: object = token or tuple(certificate_names)
        found = self._callers.get(key)
        if found is None or self._names_another(found):
            identity = self._read_token(token) if token else self._read_certificate(certificate_names)
            found = self._callers[key] = Caller(identity, None if identity.proof is Proof.SERVER else self._view)
            if len(self._callers) > MAX_REMEMBERED_CALLERS:
                self._callers.popitem(last=False)
        self.check(found)
        return found

    def _names_another(self, caller: Caller) -> bool:
        """Return whether a certificate now identifies another user than when the caller was remembered."""
        if caller.identity.proof is not Proof.CERTIFICATE:
            return False
        caller.refresh(self._clock.now_ms())
        return bool(caller.ended)

    def check(self, caller: Caller) -> None:
        """Compare a caller with what is known now.

        Raises:
            UnauthenticatedError: If it is none any more.
        """
        now_ms = self._clock.now_ms()
        caller.refresh(now_ms)
        if caller.is_server:
            self._check_server(caller.identity, now_ms)
        if caller.ended:
            raise UnauthenticatedError(caller.ended, action="Open a new session.")

    def _check_server(self, identity: Identity, now_ms: int) -> None:
        """Compare a broker's or coordinator's token with the secrets and the time of the moment; raise as `check`.

        A server signs a new token at half of the life of the one before, so that one whose clock is behind by up to
        `SESSION_MS / 2 + MAX_SKEW_MS` is accepted, and one whose clock is ahead by any difference.
        """
        if identity.signing_key not in self.server_keys:
            raise UnauthenticatedError("the cluster's secret was replaced", action="Sign a new token.")
        if now_ms >= identity.expires_ms + MAX_SKEW_MS:
            raise UnauthenticatedError(
                f"the token of {identity.user} has expired",
                action="Compare the clocks of the two servers: each signs a new token every few minutes.",
            )

    @property
    def cluster_secrets(self) -> tuple[bytes, ...]:
        """Secrets by which brokers and coordinators are accepted; this process proves by the first one."""
        return self._view.cluster_secrets or self._first_secrets

    @property
    def server_keys(self) -> dict[str, bytes]:
        """Keys of the tokens of brokers and coordinators by a hash of their secret, the one that signs first."""
        secrets = self.cluster_secrets
        if self._server_keys[0] != secrets:
            keys = {
                hashlib.sha256(secret).hexdigest()[:16]: hmac.digest(secret, b"headrace server tokens v1", "sha256")
                for secret in secrets
            }
            self._server_keys = secrets, keys
        return self._server_keys[1]

    def _read_token(self, token: str) -> Identity:
        if token.startswith(api_keys.PREFIX):
            return self.identity_of_api_key(token)
        try:
            if token.startswith(f"{session_tokens.PREFIX}{SERVER_KEY}."):
                return self._read_server_token(token)
            claims = read_session(token, self._view.signing_secrets)
            if claims.proof == Proof.SERVER:
                raise InvalidTokenError("a server's claims under another key")
            return identity_of(claims, key_id_of(token))
        except (InvalidTokenError, ValueError) as error:
            self._refused_proofs.note("session token", str(error))
            self._check_age()
            raise UnauthenticatedError("the session token is not valid", action="Open a new session.") from None

    def _read_server_token(self, token: str) -> Identity:
        refused = InvalidTokenError("there is no secret")
        for key_hash, key in self.server_keys.items():
            try:
                claims = read_session(token, {SERVER_KEY: key})
            except InvalidTokenError as error:
                refused = error
                continue
            if claims.proof != Proof.SERVER:
                raise InvalidTokenError("a user's claims under the cluster's key")
            return identity_of(claims, key_hash)
        raise refused

    def identity_of_api_key(self, text: str) -> Identity:
        """Return the identity of the holder of an API key.

        Raises:
            UnauthenticatedError: If there is no such key.
            MetastoreUnavailableError: As `caller`.
        """
        api_key = api_keys.parse_api_key(text)
        found = None if api_key is None else self._view.user_of_api_key(api_key.key_id)
        if api_key is None or found is None or not hmac.compare_digest(found[1].sha256, api_key.sha256):
            self._refused_proofs.note("API key", "no such key")
            self._check_age()
            raise UnauthenticatedError(
                "the API key is not valid", action="Check that it is whole and was not deleted, or create a new one."
            )
        return Identity(found[0].name, Proof.API_KEY, api_key.key_id)

    def _read_certificate(self, names: Sequence[str]) -> Identity:
        found = user_of_certificate(self._view, names)
        if found is None:
            raise UnauthenticatedError(
                "the names in the certificate belong to several users",
                action="Let an administrator give them to one user, or use another certificate.",
            )
        return Identity(found[0], Proof.CERTIFICATE, found[1])

    def _check_age(self) -> None:
        age_ms = self._view.source.age_ms()
        if age_ms > STALE_MS:
            raise MetastoreUnavailableError(
                f"the identity is unknown here, and etcd has not been reached for {age_ms // 1000} s",
                outcome=Outcome.NOT_APPLIED,
            )

    # --- sessions ---

    def open_session(self, identity: Identity) -> tuple[str, int]:
        """Return a token for an identity, and the milliseconds for which it is valid.

        Raises:
            UnauthenticatedError: If the identity does not hold.
            MetastoreUnavailableError: If the cluster has no signing key yet.
        """
        self.check(Caller(identity, self._view))
        key = self._view.signing_key(self._clock.now_ms())
        if key is None:
            raise MetastoreUnavailableError(
                "the controller has made no signing key yet", outcome=Outcome.NOT_APPLIED, retry_after_ms=500
            )
        claims = self._claims(identity)
        return sign_session(claims, key.key_id, key.secret), claims.expires_ms - claims.issued_ms

    def server_token(self) -> str:
        """Return a token by which this process calls another server of the cluster, whose `IdentityGate` accepts it."""
        now_ms = self._clock.now_ms()
        token, renew_at_ms, signed_by = self._server_token
        key_hash, key = next(iter(self.server_keys.items()))
        # The second condition is false also if the wall clock was set back.
        if signed_by != key_hash or not now_ms < renew_at_ms <= now_ms + SESSION_MS:
            claims = self._claims(Identity(self._server_name, Proof.SERVER))
            token = sign_session(claims, SERVER_KEY, key)
            self._server_token = token, now_ms + SESSION_MS // 2, key_hash
        return token

    def _claims(self, identity: Identity) -> metadata_pb2.SessionClaims:
        now_ms = self._clock.now_ms()
        expires_ms = now_ms + SESSION_MS
        if identity.expires_ms:
            expires_ms = min(expires_ms, max(identity.expires_ms, now_ms + MIN_SESSION_MS))
        return metadata_pb2.SessionClaims(
            user=identity.user,
            groups=identity.groups,
            proof=identity.proof,
            credential=identity.credential,
            issued_ms=now_ms,
            expires_ms=expires_ms,
        )
