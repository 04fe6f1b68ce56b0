"""Tokens of issuers, verified by keys that are read by https or from a file: forged, replaced, away, slow, huge."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import time

import pytest
from headrace.v1 import auth_pb2
from headrace.wire.errors import MetastoreUnavailableError, UnauthenticatedError
from headrace_coordinator.runtime.issuers.issuer_keys import MISS_MS, REFRESH_MS, IssuerKeys
from headrace_coordinator.runtime.issuers.key_fetch import DISCOVERY, MAX_BYTES, IssuerKeysError, KeyFetcher
from headrace_coordinator.runtime.issuers.key_sets import read_key_set
from headrace_coordinator.runtime.issuers.token_verifier import IssuerTokens
from headrace_server.identity.callers import Identity, Proof
from headrace_server.identity.identity_view import IdentityView
from headrace_server.keys import Keyspace
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from tests.fakes.manual_clock import ManualClock
from tests.fakes.written_keys import WrittenKeys
from tests.unit.coordinator.issuer_parts import (
    AUDIENCE,
    ISSUER,
    KEYS,
    KUBERNETES_KEYS,
    NOW,
    IssuerServer,
    claims,
    encode,
    key_set,
    make_key,
    token,
)

KEYSPACE = Keyspace("c", 1)
ES256 = KEYS["ES256"]
GOOD = key_set(*KEYS.values())


class Verifier:
    """A coordinator's verifier, with issuers that a test writes."""

    def __init__(self, timeout_seconds=5.0):
        self.written = WrittenKeys()
        self.clock = ManualClock()
        self.view = IdentityView(KEYSPACE, self.written)
        self.fetcher = KeyFetcher(timeout_seconds=timeout_seconds)
        self.keys = IssuerKeys(self.view, self.fetcher, self.clock)
        self.tokens = IssuerTokens(self.view, self.keys, self.clock)

    def accept(self, keys_url, name="sso", **fields):
        issuer = auth_pb2.Issuer(
            **{"name": name, "issuer": ISSUER, "audience": AUDIENCE, "keys_url": keys_url} | fields
        )
        self.written.write({KEYSPACE.issuer(name): issuer.SerializeToString()})

    async def verify(self, text):
        return await self.tokens.verify(text)

    async def refused(self, text, reason=""):
        with pytest.raises(UnauthenticatedError, match=reason) as failure:
            await self.verify(text)
        for part in text.split("."):
            assert len(part) < 12 or part[:12] not in str(failure.value)

    async def unavailable(self, text, reason=""):
        with pytest.raises(MetastoreUnavailableError, match=reason) as failure:
            await self.verify(text)
        assert failure.value.retriable
        return failure.value


@pytest.fixture(scope="module")
def issuer_server(tmp_path_factory):
    server = IssuerServer(tmp_path_factory.mktemp("issuer"))
    yield server
    server.close()


@pytest.fixture
def server(issuer_server):
    issuer_server.answers.clear()
    issuer_server.asked.clear()
    issuer_server.answers["/keys"] = GOOD
    return issuer_server


@pytest.fixture
def verifier():
    return _verifier()


@contextlib.asynccontextmanager
async def _verifier(**options):
    found = Verifier(**options)
    try:
        yield found
    finally:
        for entry in found.keys._entries.values():
            entry.cancel()
        found.fetcher.close()


@pytest.mark.parametrize("algorithm", [*KEYS])
async def test_each_algorithm_is_accepted_by_its_key(verifier, server, algorithm):
    verifier.accept(server.url(), keys_ca_pem=server.ca_pem)
    identity = await verifier.verify(token(KEYS[algorithm], algorithm))
    assert identity == Identity("sso:ada", Proof.TOKEN, "sso", (), expires_ms=(NOW + 600) * 1000)


async def test_groups_count_if_a_grant_names_them(verifier, server):
    verifier.accept(server.url(), keys_ca_pem=server.ca_pem, groups_claim="roles")
    grant = auth_pb2.Grant(principal="group:team", role="reader", resource="topic:x")
    verifier.written.write({KEYSPACE.grant("group:team", "reader", "topic:x"): grant.SerializeToString()})
    assert (await verifier.verify(token(roles=["other", "team"]))).groups == ("team",)


async def test_forged_tokens_are_refused(verifier, server):
    """Without a signature, with the public key as the secret of an HMAC, signed by another key, changed afterwards."""
    verifier.accept(server.url(), keys_ca_pem=server.ca_pem)
    await verifier.verify(token())
    body = encode(claims())
    for algorithm in ("none", "None", "NONE", "nOnE"):
        for key_id in ({}, {"kid": ES256.kid}):
            await verifier.refused(f"{encode({'alg': algorithm} | key_id)}.{body}.", "is signed by")
    await verifier.refused(f"{encode({'alg': 'ES256', 'kid': ES256.kid})}.{body}.", "signature is not the issuer's")
    for public in (KEYS["RS256"].as_pem(private=False), json.dumps(KEYS["RS256"].as_dict(private=False)).encode()):
        signed = f"{encode({'alg': 'HS256', 'kid': KEYS['RS256'].kid})}.{body}"
        code = hmac.digest(public, signed.encode(), "sha256")
        await verifier.refused(f"{signed}.{encode(code)}", "signed by 'HS256'")
    await verifier.refused(token(make_key("ES256", ES256.kid)), "signature is not the issuer's")
    head, _, signature = token().split(".")
    await verifier.refused(f"{head}.{encode(claims(sub='root'))}.{signature}", "signature is not the issuer's")
    await verifier.refused(f"{head}.{body}.{signature[:-4]}AAAA", "signature is not the issuer's")


async def test_a_header_cannot_bring_its_own_key(verifier, server):
    """`jwk`, `jku` and `x5c` are ignored: keys are those of the issuer's set (CVE-2018-0114 and its kind)."""
    verifier.accept(server.url(), keys_ca_pem=server.ca_pem)
    own = make_key("ES256", "own")
    for header in ({"jwk": own.as_dict(private=False)}, {"jku": server.url("/own")}):
        await verifier.refused(token(own, header=header), "key id 'own'")
        await verifier.refused(token(own, header=header | {"kid": ES256.kid}), "signature is not the issuer's")
    assert "/own" not in server.asked


async def test_a_key_verifies_by_its_own_algorithm_only(verifier, server):
    """The id of a key of another type finds none, and one that says its algorithm is used for no other."""
    server.answers["/keys"] = key_set(KEYS["RS256"], alg="RS512")
    verifier.accept(server.url(), keys_ca_pem=server.ca_pem)
    await verifier.refused(token(KEYS["RS256"], "RS256"), "signature is not the issuer's")
    await verifier.refused(token(ES256, header={"kid": KEYS["RS256"].kid}), "has no key for ES256")


async def test_a_token_without_a_key_id_needs_a_set_of_one_key(verifier, server):
    verifier.accept(server.url(), keys_ca_pem=server.ca_pem)
    anonymous = token(header={"kid": None})
    await verifier.refused(anonymous, "the token has no key id")
    server.answers["/one"] = key_set(ES256)
    verifier.accept(server.url("/one"), keys_ca_pem=server.ca_pem)
    await verifier.verify(anonymous)
    await verifier.refused(token(KEYS["RS256"], "RS256", header={"kid": None}), "the token has no key id")


@pytest.mark.parametrize("size", [16_385, 1 << 20])
async def test_a_huge_token_asks_nobody(verifier, server, size):
    verifier.accept(server.url(), keys_ca_pem=server.ca_pem)
    await verifier.refused(token().ljust(size, "A"), f"has {size} characters")
    await verifier.refused(token(iss="https://stranger"), "'https://stranger' is not accepted")
    await verifier.refused(token(iss=[ISSUER, "https://stranger"]), "iss is not one string")
    assert server.asked == []


async def test_claims_are_checked_after_the_signature(verifier, server):
    """A stranger does not learn the audience."""
    verifier.accept(server.url(), keys_ca_pem=server.ca_pem)
    forged = token(make_key("ES256", ES256.kid), aud="other")
    await verifier.refused(forged, "signature is not the issuer's")
    await verifier.refused(token(aud="other"), f"lacks '{AUDIENCE}'")
    await verifier.refused(token(exp=NOW - 61), "expired on")
    await verifier.refused(token(nbf=NOW + 61), "not valid before")


# --- keys that change ---


async def test_a_new_key_is_read_for_the_first_token_that_names_it(verifier, server):
    """At most once in ten seconds, whatever key ids strangers invent; and the keys that vanish are gone then."""
    server.answers["/keys"] = key_set(ES256)
    verifier.accept(server.url(), keys_ca_pem=server.ca_pem)
    await verifier.verify(token())
    new = make_key("ES256", "new")
    server.answers["/keys"] = key_set(new)
    await verifier.refused(token(new), "has no key for ES256")
    assert len(server.asked) == 1
    verifier.clock.advance(MISS_MS)
    for _ in range(20):
        await verifier.refused(token(ES256, header={"kid": "invented"}), "'invented'")
    assert len(server.asked) == 2
    await verifier.verify(token(new))
    await verifier.refused(token(), "has no key for ES256")


async def test_keys_are_refreshed_and_kept_while_the_issuer_is_away(verifier, server):
    """Every five minutes; of an outage users notice nothing, and a vanished key is gone at the next refresh."""
    verifier.accept(server.url(), keys_ca_pem=server.ca_pem)
    await verifier.verify(token())
    entry = verifier.keys._entries["sso"]
    assert not entry.is_due()
    verifier.clock.advance(REFRESH_MS)
    assert entry.is_due()
    for answer in (503, b"<html>", b'{"keys": []}', b"x" * (MAX_BYTES + 1), server.url("/keys")):
        server.answers["/keys"] = answer
        verifier.clock.advance(MISS_MS)
        assert entry.is_due()
        await asyncio.wait([entry.start()])
        assert entry.failure
        assert not entry.is_due()
        await verifier.verify(token())
    server.answers["/keys"] = key_set(make_key("ES256", "new"))
    verifier.clock.advance(MISS_MS)
    await asyncio.wait([entry.start()])
    await verifier.refused(token(), "has no key")


async def test_authorities_may_have_comments_in_any_language(verifier, server):
    """`ssl` takes text from memory as ASCII only."""
    verifier.accept(server.url(), keys_ca_pem=f"# CA der Firma M\u00fcller\n{server.ca_pem}")
    await verifier.verify(token())


@pytest.mark.parametrize("text", ["\u00fc\u00fc", "\n", "# comment"])
async def test_authorities_without_a_certificate_do_not_mean_the_public_ones(verifier, server, text):
    verifier.accept(server.url(), keys_ca_pem=text)
    await verifier.unavailable(token(), "keys_ca_pem of issuer sso is no certificate in PEM")
    assert server.asked == []


async def test_the_background_reads_what_is_due(verifier, server):
    """Without a token, at the start; each key set once."""
    verifier.accept(server.url(), keys_ca_pem=server.ca_pem)
    running = asyncio.create_task(verifier.keys.run())
    await asyncio.sleep(0)
    await asyncio.wait([verifier.keys._entries["sso"].start()])
    assert verifier.keys._entries["sso"].keys
    running.cancel()
    await asyncio.wait([running])
    assert server.asked == ["/keys"]


async def test_an_issuer_that_changes_starts_anew(verifier, server):
    """Keys of the old address are not those of the new one."""
    verifier.accept(server.url(), keys_ca_pem=server.ca_pem)
    await verifier.verify(token())
    verifier.accept(server.url("/none"), keys_ca_pem=server.ca_pem)
    await verifier.unavailable(token(), "answers with status 404")


async def test_a_file_is_read_again_when_it_changes(verifier, tmp_path):
    path = tmp_path / "keys.json"
    verifier.accept(str(path))
    await verifier.unavailable(token(), "cannot read .*No such file")
    path.write_bytes(key_set(ES256))
    await verifier.verify(token())
    new = make_key("ES256", "new")
    partial = tmp_path / "partial"
    partial.write_bytes(key_set(new))
    os.replace(partial, path)
    await verifier.verify(token(new))
    await verifier.refused(token(), "has no key")
    path.unlink()
    await verifier.verify(token(new))


# --- issuers that cannot be read ---


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (404, "answers with status 404"),
        (b"", "no JSON Web Key Set"),
        (b"[" * 100_000, "no JSON Web Key Set"),
        (b'{"keys": {}}', "not a list"),
        (b'{"keys": []}', "none of its 0 keys"),
        (b'{"keys": [1, null, {"kty": "oct", "k": "AAAA"}, {"kty": "RSA"}, {"kty": [1]}]}', "none of its 5 keys"),
        (b"x" * (MAX_BYTES + 1), f"more than {MAX_BYTES} bytes"),
        ("http://127.0.0.1:1/keys", "refers to 'http://127.0.0.1:1/keys', which is no https URL"),
        ("file:///etc/passwd", "which is no https URL"),
        ("//[", "is no URL"),
        ("/keys", "redirects more than 3 times"),
    ],
)
async def test_keys_that_cannot_be_read_are_an_error_that_passes(verifier, server, answer, reason):
    """It says why, and is retriable; the next try is ten seconds later."""
    server.answers["/keys"] = answer
    verifier.accept(server.url(), keys_ca_pem=server.ca_pem)
    await verifier.unavailable(token(), reason)
    asked = len(server.asked)
    await verifier.unavailable(token(), reason)
    assert len(server.asked) == asked
    server.answers["/keys"] = GOOD
    verifier.clock.advance(MISS_MS)
    await verifier.verify(token())


async def test_the_api_server_of_kubernetes_sends_its_keys(verifier, server):
    """It answers 406 if the media type of a key set is not accepted."""
    server.answers[KUBERNETES_KEYS] = GOOD
    verifier.accept(server.url(KUBERNETES_KEYS), keys_ca_pem=server.ca_pem)
    await verifier.verify(token())


async def test_redirects_are_followed_by_https(verifier, server):
    server.answers |= {"/a": "/b", "/b": server.url("/c"), "/c": "/keys"}
    verifier.accept(server.url("/a"), keys_ca_pem=server.ca_pem)
    await verifier.verify(token())


async def test_nobody_listens_or_without_the_right_authority(verifier, server):
    """The public authorities have not signed the test's certificate, nor a name that is not in it."""
    verifier.accept(server.url())
    await verifier.unavailable(token(), "certificate verify failed|self.signed certificate|unable to get")
    verifier.accept(server.url().replace("127.0.0.1", "127.0.0.2"), keys_ca_pem=server.ca_pem)
    await verifier.unavailable(token(), "cannot be read")
    verifier.accept("https://127.0.0.1:1/keys", keys_ca_pem=server.ca_pem)
    await verifier.unavailable(token(), "Connection refused")


async def test_a_slow_issuer_holds_nothing_up(server):
    """A byte at a time, for ever: the read ends in time, its thread too, and the event loop goes round meanwhile."""
    async with _verifier(timeout_seconds=0.5) as verifier:
        server.answers["/keys"] = "slow"
        verifier.accept(server.url(), keys_ca_pem=server.ca_pem)
        started, longest = time.monotonic(), 0.0
        waiting = asyncio.create_task(verifier.unavailable(token(), "did not answer within 0.5 s|the time is over"))
        while not waiting.done():
            before = time.monotonic()
            await asyncio.sleep(0.001)
            longest = max(longest, time.monotonic() - before)
        await waiting
        assert time.monotonic() - started < 20
        assert longest < 0.4
        threads = verifier.fetcher._threads
        verifier.fetcher.close()
        await asyncio.to_thread(threads.shutdown, wait=True)


async def test_the_configuration_of_an_openid_provider_names_its_keys(verifier, server):
    """Of this issuer, and by https."""
    configuration = {"issuer": ISSUER, "jwks_uri": server.url("/keys")}
    server.answers[DISCOVERY] = json.dumps(configuration).encode()
    verifier.accept(server.url(DISCOVERY), keys_ca_pem=server.ca_pem)
    await verifier.verify(token())
    for changes, reason in (
        ({"issuer": "https://other"}, "is of issuer 'https://other'"),
        ({"jwks_uri": server.url("/keys", "http")}, "which is no https URL"),
        ({"jwks_uri": 7}, "which is no https URL"),
    ):
        server.answers[DISCOVERY] = json.dumps(configuration | changes).encode()
        verifier.accept(server.url(DISCOVERY), keys_ca_pem=server.ca_pem, user_claim=reason[:5])
        await verifier.unavailable(token(), reason)
    server.answers[DISCOVERY] = b"[]"
    verifier.accept(server.url(DISCOVERY), keys_ca_pem=server.ca_pem, user_claim="x")
    await verifier.unavailable(token(), "no configuration of an OpenID provider")


def test_keys_that_cannot_sign_are_ignored():
    """Weak or huge RSA keys, other curves, keys of encryption, symmetric ones; private parts are not kept."""
    weak = {"kty": "RSA", "n": encode((1 << 1_023).to_bytes(128, "big")), "e": "AQAB", "kid": "weak"}
    huge = {"kty": "RSA", "n": encode((1 << 16_383).to_bytes(2_048, "big")), "e": "AQAB", "kid": "huge"}
    others = [
        weak,
        huge,
        ECKey.generate_key("P-384").as_dict(private=False),
        OKPKey.generate_key("Ed448").as_dict(private=False),
        RSAKey.generate_key(2_048).as_dict(private=False, use="enc"),
        RSAKey.generate_key(2_048).as_dict(private=False, key_ops=["encrypt"]),
        OctKey.generate_key(256).as_dict(),
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
    ]
    found = read_key_set(json.dumps({"keys": [*others, ES256.as_dict(private=True)]}).encode())
    assert [key_id for key_id, _ in found.keys] == [ES256.kid]
    assert found.ignored == len(others)
    assert not found.find("ES256", ES256.kid).is_private
    with pytest.raises(IssuerKeysError, match="none of its 8 keys"):
        read_key_set(json.dumps({"keys": others}).encode())
