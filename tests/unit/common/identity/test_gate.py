"""The gate: who a call is from, whether it is served, and that what changes counts from the next decision on."""

import contextlib
import sys

import pytest
from headrace.v1 import auth_pb2, topics_pb2
from headrace.wire.errors import (
    MetastoreUnavailableError,
    NotAuthorizedError,
    ThrottledError,
    UnauthenticatedError,
    UnknownTopicIdError,
)
from headrace_server.identity.api_keys import make_api_key, parse_api_key
from headrace_server.identity.callers import ANONYMOUS, MAX_SKEW_MS, Identity, Proof
from headrace_server.identity.gate import Access, set_access
from headrace_server.identity.identification import SESSION_MS, STALE_MS
from headrace_server.identity.quotas import EVERY_USER, Use
from headrace_server.identity.refused_proofs import LOG_MS
from headrace_server.identity.rights import Operation, ResourceKind
from headrace_server.identity.topic_access import resolve_topic
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace
from headrace_server.methods import METHODS
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from tests.fakes.manual_clock import ManualClock
from tests.fakes.open_gate import gate_over, open_access
from tests.fakes.written_keys import WrittenKeys

KEYS = Keyspace("c", 1)
READ, WRITE, DESCRIBE, ADMIN = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ADMIN
TOPIC, CLUSTER = ResourceKind.TOPIC, ResourceKind.CLUSTER


class Known:
    """Keys of a cluster with users, and its gate."""

    def __init__(self, posture=auth_pb2.POSTURE_REQUIRED):
        self.keys = WrittenKeys()
        self.clock = ManualClock()
        self.registry = CollectorRegistry()
        self.gate = gate_over(self.keys, self.clock, posture, self.registry)
        signing = metadata_pb2.SigningKey(key_id="s1", secret=b"x" * 32, created_ms=1)
        self.keys.write({KEYS.signing_key("s1"): signing.SerializeToString()})

    def user(self, name="ada", *, expires_ms=0, **fields):
        """Write a user with a new API key, and return the key."""
        text = make_api_key()
        parsed = parse_api_key(text)
        user = metadata_pb2.StoredUser(name=name, **fields)
        user.api_keys.add(key_id=parsed.key_id, sha256=parsed.sha256, expires_ms=expires_ms)
        self.keys.write({KEYS.user(name): user.SerializeToString()})
        return text

    def grant(self, principal, role, resource, **fields):
        """Write a grant, and return the key of it."""
        key = KEYS.grant(principal, role, resource)
        grant = auth_pb2.Grant(principal=principal, role=role, resource=resource, **fields)
        self.keys.write({key: grant.SerializeToString()})
        return key

    def session(self, api_key):
        """Open a session, and return its token."""
        token, lifetime_ms = self.gate.identification.open_session(
            self.gate.identification.identity_of_api_key(api_key)
        )
        assert lifetime_ms == SESSION_MS
        return token

    def access(self, token):
        return Access(self.gate, self.gate.identification.caller(token), "Produce")

    def counted(self, name, **labels):
        return self.registry.get_sample_value(f"x_{name}_total", labels)


@pytest.fixture
def known():
    return Known()


@pytest.mark.parametrize("is_exchanged", [False, True])
def test_an_api_key_identifies_its_user_directly_and_by_a_session(known, is_exchanged):
    """Other languages may send the key itself; the SDK exchanges it."""
    api_key = known.user()
    known.grant("ada", "writer", "topic:clicks")
    access = known.access(known.session(api_key) if is_exchanged else api_key)
    assert access.caller.name == "ada"
    assert access.allows(WRITE, TOPIC, "clicks")
    assert not access.allows(READ, TOPIC, "clicks")
    assert not access.allows(WRITE, TOPIC, "click")
    assert not access.allows(DESCRIBE, CLUSTER)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda token: token[:-1] + ("A" if token[-1] != "A" else "B"),
        lambda token: token.replace("s1.", "s2."),
        lambda token: token[:40],
        lambda token: token + "é",
        lambda token: "hr1.cluster." + token.rpartition(".")[2],
        lambda token: token * 40,
        lambda _: "hrk_000000000000_" + "0" * 43,
        lambda _: "Bearer",
        lambda _: "hr1..",
    ],
)
def test_another_token_is_refused(known, spoil):
    """Whatever is not what this cluster signed."""
    with pytest.raises(UnauthenticatedError, match="is not valid"):
        known.gate.identification.caller(spoil(known.session(known.user())))


def test_a_flood_of_wrong_tokens_and_keys_is_a_line_in_ten_seconds(known):
    """With their number, and with nothing of what was sent."""
    forged = ["hr1.s1." + "A" * 60, "hrk_000000000000_" + "0" * 43]
    with capture_logs() as lines:
        for at in range(1_000):
            with pytest.raises(UnauthenticatedError):
                known.gate.identification.caller(forged[at % 2])
        known.clock.advance(LOG_MS)
        with pytest.raises(UnauthenticatedError):
            known.gate.identification.caller(forged[1])
    assert lines == [
        {"event": "identity_refused", "log_level": "info", "proof": proof, "cause": cause, "count": count}
        for proof, cause, count in (("session token", "a wrong code", 1), ("API key", "no such key", 1_000))
    ]


def test_a_deleted_key_ends_its_sessions_and_another_key_does_not(known):
    """At the next decision, on whatever connection."""
    access = known.access(known.session(known.user()))
    other = known.access(known.session(known.user("bob")))
    known.user()  # a new key in the place of the other one
    with pytest.raises(UnauthenticatedError, match="the API key was deleted"):
        access.recheck()
    other.recheck()


def test_a_session_ends_with_the_key_that_signed_it(known):
    """Also one that the gate has remembered: what a leaked key signed is worth nothing when the key is removed."""
    api_key = known.user()
    token = known.session(api_key)
    access = known.access(token)
    other = metadata_pb2.SigningKey(key_id="s2", secret=b"y" * 32, created_ms=2)
    known.keys.write({KEYS.signing_key("s2"): other.SerializeToString(), KEYS.signing_key("s1"): None})
    with pytest.raises(UnauthenticatedError, match="signed the session was removed"):
        access.recheck()
    with pytest.raises(UnauthenticatedError):
        known.gate.identification.caller(token)
    assert known.gate.identification.caller(known.session(api_key)).name == "ada"


def test_a_disabled_user_is_nobody_until_enabled(known):
    """Its sessions are valid again then."""
    api_key = known.user()
    access = known.access(known.session(api_key))
    stored = metadata_pb2.StoredUser.FromString(known.keys.get(KEYS.user("ada")).value)
    stored.disabled = True
    known.keys.write({KEYS.user("ada"): stored.SerializeToString()})
    with pytest.raises(UnauthenticatedError, match="user ada is disabled"):
        access.recheck()
    with pytest.raises(UnauthenticatedError, match="user ada is disabled"):
        known.session(api_key)
    stored.disabled = False
    known.keys.write({KEYS.user("ada"): stored.SerializeToString()})
    access.recheck()


def test_a_session_ends_and_begins_within_the_skew_of_clocks(known):
    """Another server's clock may differ by a minute."""
    token = known.session(known.user())
    access = known.access(token)
    known.clock.advance(SESSION_MS + MAX_SKEW_MS - 1)
    access.recheck()
    known.clock.advance(1)
    with pytest.raises(UnauthenticatedError, match="expired"):
        access.recheck()


def test_a_session_of_a_server_whose_clock_is_ahead_begins_later(known):
    """After two minutes of difference, when it is less than one."""
    token = known.session(known.user())
    known.clock.set_wall(-2 * MAX_SKEW_MS)
    with pytest.raises(UnauthenticatedError, match="begins in the future"):
        known.access(token)
    known.clock.advance(MAX_SKEW_MS)
    known.access(token)


def test_an_expired_key_and_an_expired_grant_count_no_more(known):
    """Both by the server's clock, without a write."""
    now_ms = known.clock.now_ms()
    api_key = known.user(expires_ms=now_ms + 10_000)
    known.grant("ada", "reader", "topic:a", expires_ms=now_ms + 5_000)
    access = known.access(api_key)
    assert access.allows(READ, TOPIC, "a")
    known.clock.advance(5_000)
    access.recheck()
    assert not access.allows(READ, TOPIC, "a")
    known.clock.advance(5_000)
    with pytest.raises(UnauthenticatedError, match="the API key has expired"):
        access.recheck()


def test_a_grant_that_is_taken_away_counts_at_once(known):
    """And one of a group, and one to another user with the same prefix of the name does not matter."""
    access = known.access(known.user(groups=["team"]))
    known.grant("adam", "admin", "cluster")
    key = known.grant("group:team", "reader", "topic:team.*")
    access.recheck()
    assert access.allows(READ, TOPIC, "team.a")
    assert not access.allows(READ, TOPIC, "tea")
    known.keys.write({key: None})
    access.recheck()
    assert not access.allows(READ, TOPIC, "team.a")


def test_an_administrator_may_do_everything_and_an_operator_reads_nothing(known):
    known.grant("ada", "admin", "cluster")
    known.grant("bob", "operator", "cluster")
    ada, bob = known.access(known.user()), known.access(known.user("bob"))
    assert ada.allows(READ, TOPIC, "__audit")
    assert not ada.allows(WRITE, TOPIC, "__audit")
    assert ada.allows(ADMIN, CLUSTER)
    assert bob.allows(Operation.OPERATE, CLUSTER)
    assert bob.allows(DESCRIBE, TOPIC, "a")
    assert not bob.allows(READ, TOPIC, "a")
    assert not bob.allows(DESCRIBE, TOPIC, "__audit")


@pytest.mark.parametrize("resource", [None, "topic:x", "topic:x*", "cluster"])
def test_a_decision_keeps_no_name(known, resource):
    """A caller without any right names what it likes, a megabyte in each call. So does one with a right to a prefix,
    in each of its sessions.
    """
    if resource is not None:
        known.grant("ada", "reader", resource)
    access = known.access(known.user())
    name = "".join(["x"] * 1_000)  # A new text: a constant has no count of references.
    references = sys.getrefcount(name)
    for caller in (access.caller, ANONYMOUS):
        caller.allows(READ, TOPIC, name)
        caller.allows(WRITE, ResourceKind.GROUP, name)
        caller.allows_all(READ, TOPIC, name)
    assert sys.getrefcount(name) == references


def test_a_certificate_identifies_one_user_or_itself(known):
    """Names are matched exactly; those of two users identify neither."""
    known.user(certificate_names=["billing.example.org"])
    known.user("bob", certificate_names=["spiffe://x/bob"])
    caller = known.gate.identification.caller
    assert caller("", ["cn", "billing.example.org"]).name == "ada"
    assert caller("", ["cn", "other.example.org"]).name == "certificate:other.example.org"
    assert caller("", ["cn", "a", "spiffe://x/a"]).name == "certificate:spiffe://x/a"
    assert caller("", ["cn"]).name == "certificate:cn"
    with pytest.raises(UnauthenticatedError, match="several users"):
        caller("", ["billing.example.org", "spiffe://x/bob"])


def test_a_certificate_is_refused_by_disabling_its_user(known):
    """Also one that is remembered, and that no user had before: there is no other revocation."""
    caller = known.gate.identification.caller("", ["cn"])
    access = Access(known.gate, caller, "Produce")
    access.recheck()
    user = metadata_pb2.StoredUser(name="certificate:cn", disabled=True)
    known.keys.write({KEYS.user(user.name): user.SerializeToString()})
    with pytest.raises(UnauthenticatedError, match="user certificate:cn is disabled"):
        access.recheck()
    with pytest.raises(UnauthenticatedError, match="user certificate:cn is disabled"):
        known.gate.identification.caller("", ["cn"])


def test_a_server_is_known_by_the_cluster_secret_alone(known):
    """A session of the same name is no server, and no session is signed by that key."""
    server = known.gate.identification.caller(known.gate.identification.server_token())
    assert server.is_server
    assert server.allows(WRITE, TOPIC, "__audit")
    token, _ = known.gate.identification.open_session(Identity("certificate:x", Proof.CERTIFICATE, "x"))
    assert not known.gate.identification.caller(token).is_server
    other = gate_over(known.keys, known.clock, auth_pb2.POSTURE_REQUIRED)
    other.identification._first_secrets = (b"y" * 32,)
    with pytest.raises(UnauthenticatedError):
        known.gate.identification.caller(other.identification.server_token())


@pytest.mark.parametrize("is_remembered", [False, True])
def test_a_token_of_a_server_expires_as_a_session(known, is_remembered):
    """One that leaked, such as in a core dump, is worth nothing after 16 minutes, for calls that wait, too."""
    token = known.gate.identification.server_token()
    if is_remembered:
        access = known.access(token)
    known.clock.advance(SESSION_MS + MAX_SKEW_MS - 1)
    known.access(known.gate.identification.server_token()).recheck()
    if is_remembered:
        access.recheck()
    known.clock.advance(1)
    with pytest.raises(UnauthenticatedError, match="token of broker-1 has expired"):
        known.access(token)
    if is_remembered:
        with pytest.raises(UnauthenticatedError, match="token of broker-1 has expired"):
            access.recheck()


@pytest.mark.parametrize("ahead_ms", [3_600_000, MAX_SKEW_MS, -MAX_SKEW_MS, -(SESSION_MS // 2 + MAX_SKEW_MS) + 1])
def test_servers_whose_clocks_differ_accept_each_other(known, ahead_ms):
    """Shortly before a server signs a new token, too. Its clock is ahead by any difference, or behind by minutes."""
    clock = ManualClock()
    other = gate_over(known.keys, clock, auth_pb2.POSTURE_REQUIRED)
    other.identification.server_token()
    clock.set_wall(ahead_ms)
    for by_ms in (0, SESSION_MS // 2 - 1, 1):
        clock.advance(by_ms)
        known.clock.advance(by_ms)
        assert known.access(other.identification.server_token()).caller.is_server


def test_two_secrets_of_the_cluster_are_accepted_while_one_is_replaced(known):
    """Remembered tokens of the old one end with it."""
    (old,) = known.gate.identification.cluster_secrets
    before = known.gate.identification.server_token()
    assert known.gate.identification.caller(before).is_server

    def write(**secrets):
        known.keys.write({KEYS.cluster_secrets(): metadata_pb2.ClusterSecrets(**secrets).SerializeToString()})

    write(used=old, next=b"n" * 32)
    assert known.gate.identification.server_token() == before
    write(used=b"n" * 32, previous=old)
    after = known.gate.identification.server_token()
    assert after != before
    assert known.gate.identification.caller(before).is_server
    assert known.gate.identification.caller(after).is_server
    write(used=b"n" * 32)
    assert known.gate.identification.server_token() == after
    assert known.gate.identification.caller(after).is_server
    for _ in range(2):
        with pytest.raises(UnauthenticatedError):
            known.gate.identification.caller(before)


async def test_the_quota_of_every_user_does_not_apply_to_servers(known):
    """Else one for strangers would hold what brokers and coordinators ask of each other."""
    quota = auth_pb2.Quota(user=EVERY_USER, requests_per_second=1)
    known.keys.write({KEYS.quota(EVERY_USER): quota.SerializeToString()})
    for token, is_held in (("", True), (known.user(), True), (known.gate.identification.server_token(), False)):
        access = known.access(token)
        for _ in range(40):
            access.charge(Use.REQUEST)
        assert access.owes(Use.REQUEST) == is_held
        if is_held:
            with pytest.raises(ThrottledError):
                access.check_quota(Use.REQUEST)
        else:
            access.check_quota(Use.REQUEST)


async def test_callers_without_an_identity_have_the_quota_by_address():
    """Else one stranger would use what all of them have."""
    known, row = Known(auth_pb2.POSTURE_OPEN), METHODS["/headrace.v1.BrokerService/Fetch"]
    quota = auth_pb2.Quota(user=EVERY_USER, requests_per_second=1)
    known.keys.write({KEYS.quota(EVERY_USER): quota.SerializeToString()})
    access = known.gate.admit(ANONYMOUS, "Fetch", row, "10.0.0.1")
    for _ in range(40):
        access.charge(Use.REQUEST)
    with pytest.raises(ThrottledError, match=r"10\.0\.0\.1 without an identity"):
        known.gate.admit(ANONYMOUS, "Fetch", row, "10.0.0.1")
    known.gate.admit(ANONYMOUS, "Fetch", row, "10.0.0.2")


def test_no_identity_is_refused_only_where_one_is_required():
    """`observe` counts what `required` refuses."""
    for posture, refused, observed in (
        (auth_pb2.POSTURE_OPEN, None, None),
        (auth_pb2.POSTURE_OBSERVE, None, 1.0),
        (auth_pb2.POSTURE_REQUIRED, 1.0, None),
    ):
        known = Known(posture)
        try:
            known.gate.admit(ANONYMOUS, "Fetch", METHODS["/headrace.v1.BrokerService/Fetch"])
        except UnauthenticatedError:
            assert posture == auth_pb2.POSTURE_REQUIRED
        assert known.counted("refused_calls", user="anonymous", method="Fetch") == refused
        assert known.counted("observed_refusals", user="anonymous", method="Fetch", right="identity") == observed
        known.gate.admit(ANONYMOUS, "Check", METHODS["/grpc.health.v1.Health/Check"])


@pytest.mark.parametrize("posture", [auth_pb2.POSTURE_OPEN, auth_pb2.POSTURE_OBSERVE, auth_pb2.POSTURE_REQUIRED])
def test_users_and_grants_are_written_by_administrators_whatever_the_posture(posture):
    """An administrator made while the cluster was open would be one after it is closed."""
    known = Known(posture)
    row = METHODS["/headrace.v1.AuthService/PutGrant"]
    with pytest.raises(UnauthenticatedError):
        known.gate.admit(ANONYMOUS, "PutGrant", row)
    developer = known.gate.identification.caller(known.user())
    known.grant("ada", "developer", "cluster")
    with pytest.raises(NotAuthorizedError, match="ada has no grant of admin for cluster"):
        known.gate.admit(developer, "PutGrant", row)
    known.grant("ada", "admin", "cluster")
    developer.refresh(known.clock.now_ms())
    known.gate.admit(developer, "PutGrant", row)


def test_a_proof_that_is_not_accepted_is_counted_and_in_the_audit_log(known):
    """Without a name, since no user is proven."""
    with pytest.raises(UnauthenticatedError):
        known.gate.identify("hrk_invented", (), "GetMetadata", "10.0.0.9")
    assert known.counted("refused_calls", user="anonymous", method="GetMetadata") == 1.0
    (event,) = known.gate.audit_log.take(10)
    assert (event.kind, event.error, event.address, event.user) == ("refusal", "UNAUTHENTICATED", "10.0.0.9", "")
    assert event.reason == "the API key is not valid"


def test_a_session_that_ended_is_counted_and_in_the_audit_log(known):
    """Also at the next call of a connection that has identified itself before, as in the native protocol."""
    row = METHODS["/headrace.v1.BrokerService/Fetch"]
    caller = known.gate.identify(known.session(known.user()), (), "Hello", "10.0.0.9")
    known.user()  # a new key in the place of the other one
    with pytest.raises(UnauthenticatedError, match="the API key was deleted"):
        known.gate.admit(caller, "Fetch", row, "10.0.0.9")
    assert known.counted("refused_calls", user="ada", method="Fetch") == 1.0
    (event,) = known.gate.audit_log.take(10)
    assert (event.kind, event.error, event.address, event.user) == ("refusal", "UNAUTHENTICATED", "10.0.0.9", "ada")


def test_what_would_be_refused_is_counted_by_user_method_and_right():
    known = Known(auth_pb2.POSTURE_OBSERVE)
    access = known.access(known.user())
    access.require(WRITE, TOPIC, "clicks")
    assert access.sees(TOPIC, "clicks")
    labels = {"user": "ada", "method": "Produce", "right": "write topic:clicks"}
    assert known.counted("observed_refusals", **labels) == 1.0


def test_the_posture_in_etcd_counts_where_it_is_stricter():
    """Settings are the least."""
    known = Known(auth_pb2.POSTURE_OBSERVE)
    for stored, in_force in ((auth_pb2.POSTURE_REQUIRED, auth_pb2.POSTURE_REQUIRED), (auth_pb2.POSTURE_OPEN, 2)):
        known.keys.write({KEYS.posture(): metadata_pb2.StoredPosture(posture=stored).SerializeToString()})
        assert known.gate.posture == in_force


def test_an_unknown_identity_while_etcd_is_away_may_be_new(known):
    """Its owner is told to try again, not that it is wrong; known ones are served."""
    token, api_key = known.session(known.user()), make_api_key()
    known.keys.age_ms = lambda: STALE_MS + 1
    known.gate.identification.caller(token)
    with pytest.raises(MetastoreUnavailableError, match="etcd has not been reached for 30 s"):
        known.gate.identification.identity_of_api_key(api_key)
    with pytest.raises(MetastoreUnavailableError):
        known.gate.identification.caller("hr1.new.AAAA")


@pytest.mark.parametrize(
    ("method", "posture", "age_ms", "is_refused"),
    [
        ("BrokerService/DeleteRecords", auth_pb2.POSTURE_REQUIRED, 300_001, True),
        ("BrokerService/DeleteRecords", auth_pb2.POSTURE_REQUIRED, 300_000, False),
        ("BrokerService/DeleteRecords", auth_pb2.POSTURE_OBSERVE, 300_001, False),
        ("BrokerService/Produce", auth_pb2.POSTURE_REQUIRED, 300_001, False),
        ("ClusterService/DescribeCluster", auth_pb2.POSTURE_REQUIRED, 300_001, False),
    ],
)
def test_acts_are_refused_once_rights_are_old(method, posture, age_ms, is_refused):
    """An administrator whose right was taken away meanwhile deletes nothing at a server that etcd does not reach."""
    known = Known(posture)
    row = METHODS[f"/headrace.v1.{method}"]
    known.grant("ada", "admin", "cluster")
    ada, server = (
        known.gate.identification.caller(known.user()),
        known.gate.identification.caller(known.gate.identification.server_token()),
    )
    known.keys.age_ms = lambda: age_ms
    with pytest.raises(MetastoreUnavailableError, match="300 s") if is_refused else contextlib.nullcontext():
        known.gate.admit(ada, method, row)
    known.gate.admit(server, method, row)


class Topics:
    """A view with one topic."""

    def __init__(self, topic):
        self.topic = topic

    def resolve(self, reference):
        if reference.name in ("", self.topic.name):
            return self.topic
        raise AssertionError("looked up")


class Named:
    name = "secret"


def test_what_may_not_be_described_looks_as_what_does_not_exist(known):
    """By name the right is decided before the look-up; by id it is an unknown id."""
    known.grant("ada", "monitor", "topic:seen")
    set_access(known.access(known.user()))
    try:
        with pytest.raises(NotAuthorizedError, match="ada has no grant of read for topic missing"):
            resolve_topic(Topics(Named), topics_pb2.TopicRef(name="missing"), READ)
        with pytest.raises(NotAuthorizedError, match="ada has no grant of read for topic secret"):
            resolve_topic(Topics(Named), topics_pb2.TopicRef(name="secret"), READ)
        with pytest.raises(UnknownTopicIdError):
            resolve_topic(Topics(Named), topics_pb2.TopicRef(topic_id=bytes(16)), READ)
        Named.name = "seen"
        with pytest.raises(NotAuthorizedError, match="read for topic seen"):
            resolve_topic(Topics(Named), topics_pb2.TopicRef(topic_id=bytes(16)), READ)
        assert known.counted("refused_calls", user="ada", method="Produce") == 4.0
    finally:
        Named.name = "secret"
        set_access(open_access())


def test_a_value_of_a_newer_release_gives_no_right(known):
    """An undecodable grant or user, and a role that is not known."""
    access = known.access(known.user())
    known.keys.write({KEYS.grant("ada", "admin", "cluster"): b"\xff"})
    known.grant("ada", "curator", "cluster")
    known.grant("ada", "reader", "stream:x")
    access.recheck()
    assert not access.allows(DESCRIBE, CLUSTER)
    role = auth_pb2.Role(name="curator", operations=["describe", "fly"])
    known.keys.write({KEYS.role("curator"): role.SerializeToString()})
    access.recheck()
    assert access.allows(DESCRIBE, CLUSTER)
