"""Sessions: which proofs a broker and a coordinator accept, and what callers learn about themselves."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from headrace.v1 import auth_pb2
from headrace.wire.errors import (
    HeadraceError,
    InvalidRequestError,
    MetastoreUnavailableError,
    UnauthenticatedError,
)
from headrace_server.identity import session_service
from headrace_server.identity.api_keys import make_api_key, parse_api_key
from headrace_server.identity.callers import ANONYMOUS, MAX_SKEW_MS, Identity, Proof
from headrace_server.identity.gate import Access, set_access
from headrace_server.identity.identification import MIN_SESSION_MS, SESSION_MS
from headrace_server.identity.session_service import SessionServicer
from headrace_server.internal_v1 import metadata_pb2

from tests.fakes.open_gate import open_access
from tests.unit.common.identity.test_gate import KEYS, Known


class Context:
    """A call over a connection whose client has a certificate with these names, the common name first."""

    def __init__(self, *names):
        self._names = [name.encode() for name in names]

    def time_remaining(self):
        return 10.0

    def peer(self):
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self):
        return ()

    def auth_context(self):
        common, *others = self._names or [None]
        return {"x509_common_name": [common], "x509_subject_alternative_name": others} if common else {}


class Issuer:
    """A verifier that accepts one token."""

    expires_ms = 0

    async def verify(self, token):
        if token != "good":
            raise UnauthenticatedError("no token")
        return Identity("sso:ada", Proof.TOKEN, "sso", ("team",), expires_ms=self.expires_ms)


class Server(Known):
    """A broker or, with a verifier, a coordinator."""

    def __init__(self, tokens=None, coordinators=()):
        super().__init__()
        lives = {name: SimpleNamespace(live=SimpleNamespace(address=f"{name}:1")) for name in coordinators}
        view = SimpleNamespace(coordinators=lives)
        self.servicer = SessionServicer(self.gate, view, self.clock, None, tokens)

    async def open(self, *names, **proof):
        method = SessionServicer.OpenSession.__wrapped__
        return await method(self.servicer, auth_pb2.OpenSessionRequest(**proof), Context(*names))

    async def who_am_i(self, token="", *names):
        caller = self.gate.identification.caller(token, names) if token or names else ANONYMOUS
        set_access(Access(self.gate, caller, "WhoAmI"))
        return await SessionServicer.WhoAmI.__wrapped__(self.servicer, auth_pb2.WhoAmIRequest(), Context())


@pytest.fixture
def accept_issuer():
    def accept(server):
        issuer = auth_pb2.Issuer(name="sso", issuer="i")
        server.keys.write({KEYS.issuer("sso"): issuer.SerializeToString()})

    return accept


@pytest.fixture(autouse=True)
def _access_of_other_tests():
    yield
    set_access(open_access())


async def test_an_api_key_opens_a_session():
    server = Server()
    api_key = server.user("ada", groups=["team"])
    answer = await server.open(api_key=api_key)
    assert (answer.user, answer.lifetime_ms, [*answer.coordinators]) == ("ada", SESSION_MS, [])
    server.grant("group:team", "reader", "topic:x")
    server.grant("ada", "writer", "topic:y", expires_ms=server.clock.now_ms())
    found = await server.who_am_i(answer.token)
    assert (found.user, [*found.groups], found.identified_by) == ("ada", ["team"], "API key")
    assert [grant.role for grant in found.grants] == ["reader"]
    assert (found.remaining_ms, found.posture) == (SESSION_MS, auth_pb2.POSTURE_REQUIRED)


async def test_a_key_that_another_server_has_just_created_is_waited_for():
    """This server's view is behind by some milliseconds; what stays unknown is refused."""
    server = Server()
    new = make_api_key()
    opening = asyncio.create_task(server.open(api_key=new))
    await asyncio.sleep(0)
    assert not opening.done()
    parsed = parse_api_key(new)
    user = metadata_pb2.StoredUser(name="ada")
    user.api_keys.add(key_id=parsed.key_id, sha256=parsed.sha256)
    server.keys.write({KEYS.user("ada"): user.SerializeToString()})
    assert (await opening).user == "ada"


async def test_few_calls_wait_for_new_keys(monkeypatch):
    """An invented key beyond them is refused at once."""
    server = Server()
    monkeypatch.setattr(session_service, "MAX_WAITING", 0)
    monkeypatch.setattr(session_service, "LOOK_SECONDS", 1_000.0)
    with pytest.raises(UnauthenticatedError):
        await server.open(api_key=make_api_key())


async def test_what_is_no_api_key_opens_none():
    """Also that of a disabled user, and one that has expired."""
    server = Server()
    disabled, expired = server.user("ada", disabled=True), server.user("bob", expires_ms=server.clock.now_ms())
    for api_key in (disabled, expired, disabled[:-1] + "x", "hrk_x", "", "x" * 60_000):
        with pytest.raises(UnauthenticatedError) as failure:
            await server.open(api_key=api_key)
        assert not api_key or api_key not in str(failure.value)


async def test_a_broker_refers_a_token_to_the_coordinators():
    answer = await Server(coordinators=["b", "a"]).open(jwt="good")
    assert ([*answer.coordinators], answer.token) == (["a:1", "b:1"], "")
    with pytest.raises(MetastoreUnavailableError) as failure:
        await Server().open(jwt="good")
    assert failure.value.retriable


async def test_a_coordinator_accepts_the_tokens_of_an_issuer(accept_issuer):
    server = Server(Issuer())
    with pytest.raises(UnauthenticatedError, match="issuer sso is not accepted any more"):
        await server.open(jwt="good")
    accept_issuer(server)
    answer = await server.open(jwt="good")
    found = await server.who_am_i(answer.token)
    assert (found.user, [*found.groups], found.identified_by) == ("sso:ada", ["team"], "token")
    with pytest.raises(UnauthenticatedError, match="no token"):
        await server.open(jwt="bad")


@pytest.mark.parametrize(
    ("left_ms", "lifetime_ms"),
    [
        (10 * SESSION_MS, SESSION_MS),
        (SESSION_MS // 2, SESSION_MS // 2),
        (1, MIN_SESSION_MS),
        (1 - MAX_SKEW_MS, MIN_SESSION_MS),
    ],
)
async def test_a_session_ends_with_its_token(accept_issuer, left_ms, lifetime_ms):
    """A token of five minutes gives no session of fifteen; one that is accepted late gives a moment."""
    issuer = Issuer()
    server = Server(issuer)
    accept_issuer(server)
    issuer.expires_ms = server.clock.now_ms() + left_ms
    assert (await server.open(jwt="good")).lifetime_ms == lifetime_ms


async def test_the_certificate_of_the_connection_opens_a_session():
    """By its name; a user that has the name in its list is that user, and the names of two users are no proof."""
    server = Server()
    answer = await server.open("ada", "spiffe://x/ada", certificate=auth_pb2.CertificateProof())
    assert answer.user == "certificate:spiffe://x/ada"
    server.user("ada", certificate_names=["spiffe://x/ada"])
    server.user("bob", certificate_names=["bob"])
    answer = await server.open("ada", "spiffe://x/ada", certificate=auth_pb2.CertificateProof())
    assert (await server.who_am_i(answer.token)).identified_by == "certificate"
    assert answer.user == "ada"
    for names in ((), ("bob", "spiffe://x/ada")):
        with pytest.raises(UnauthenticatedError):
            await server.open(*names, certificate=auth_pb2.CertificateProof())


async def test_a_request_without_a_proof_is_invalid():
    for fields in ({}, {"client_id": "x" * 257, "api_key": "y"}):
        with pytest.raises(InvalidRequestError):
            await Server().open(**fields)


async def test_a_cluster_without_a_signing_key_asks_to_wait():
    """The controller makes one at once: the client tries again."""
    server = Server()
    api_key = server.user()
    server.keys.write({KEYS.signing_key("s1"): None})
    with pytest.raises(HeadraceError) as failure:
        await server.open(api_key=api_key)
    assert failure.value.retriable


async def test_a_caller_without_an_identity_learns_the_posture():
    found = await Server().who_am_i()
    assert (found.user, found.identified_by, found.remaining_ms) == ("", "", 0)
    assert found.posture == auth_pb2.POSTURE_REQUIRED


async def test_an_api_key_that_is_sent_itself_has_no_end():
    server = Server()
    found = await server.who_am_i(server.user())
    assert (found.identified_by, found.remaining_ms) == ("API key", 0)
