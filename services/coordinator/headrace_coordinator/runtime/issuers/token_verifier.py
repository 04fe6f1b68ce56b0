"""Verifies JSON Web Tokens of the accepted issuers: `TokenVerifier` of `SessionService` at coordinators.

The order bounds what a stranger's token costs: its size, then issuer, algorithm and key id, then the signature, and
the claims last. Belongs to the event loop, on which a verification takes about a tenth of a millisecond.
"""

from __future__ import annotations

from headrace_server.clock import Clock
from headrace_server.identity.callers import Identity, Proof
from headrace_server.identity.identity_view import GROUP_PREFIX, IdentityView

from headrace_coordinator.core.issuer_claims import check_claims, find_issuer, read_unverified, refusal
from headrace_coordinator.runtime.issuers.issuer_keys import IssuerKeys


class IssuerTokens:
    """Verifier of one coordinator."""

    def __init__(self, view: IdentityView, keys: IssuerKeys, clock: Clock) -> None:
        self._view = view
        self._keys = keys
        self._clock = clock

    async def verify(self, token: str) -> Identity:
        """See `TokenVerifier`."""
        unverified = read_unverified(token)
        issuer = find_issuer(self._view.issuers.values(), unverified)
        key = await self._keys.find(issuer, unverified.algorithm, unverified.key_id)
        if key is None:
            shown = "no key id" if unverified.key_id is None else f"key id {unverified.key_id[:64]!r}"
            raise refusal(f"the token has {shown}, by which issuer {issuer.name} has no key for {unverified.algorithm}")
        from headrace_coordinator.runtime.issuers.key_sets import verify  # Imported before, with the keys.

        claims = check_claims(
            verify(token, key, unverified.algorithm),
            issuer,
            self._clock.now_ms(),
            lambda group: self._view.has_grants(GROUP_PREFIX + group),
        )
        return Identity(claims.user, Proof.TOKEN, issuer.name, claims.groups, expires_ms=claims.expires_ms)
