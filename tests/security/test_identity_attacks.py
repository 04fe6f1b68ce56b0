"""What a stranger does to a cluster that requires identities: forged proofs by the thousand, sessions out of order.

`test_attacks.py` has what strangers do to any cluster, `test_planted_secrets.py` where a secret may not appear.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, suppress

import grpc
import pytest
from headrace.v1 import (
    auth_pb2,
    auth_pb2_grpc,
    broker_pb2,
    cluster_pb2,
    cluster_pb2_grpc,
    errors_pb2,
    native_pb2,
    topics_pb2,
)
from headrace.wire.errors import InvalidRequestError
from headrace.wire.frames import MAX_HELLO_BYTES, PREFACE, Kind, MethodCode, frame_head
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_server.handshakes import own_handshake
from prometheus_client.parser import text_string_to_metric_families

from tests.security.conftest import Witness
from tests.security.http2 import END_HEADERS, END_STREAM, HEADERS, Stranger, call_headers, frame
from tests.security.test_attacks import FETCH, bounded, refusal
from tests.security.test_native_attacks import connect, frames

HEARTBEAT = "/headrace.v1.GroupService/Heartbeat"
CONNECTIONS, OF_CONNECTION = 30, 100
"""Connections of a flood, each from an address of its own, and the calls that one may have at once."""
FORGED = (
    "hr1.s1." + "A" * 60,
    "hr1.cluster." + "A" * 60,
    "hrk_" + "0" * 12 + "_" + "0" * 43,
    "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9.",
    "hr1..",
)
"""A session, one of a server, an API key, a JWT without a signature, and nothing."""


@pytest.fixture(scope="module")
def secured() -> Iterator[Witness]:
    """A cluster that requires identities, with its honest client."""
    settings = {"metrics_listen": "127.0.0.1:0"}
    of_coordinator = {**settings, "default_replication_factor": 1}
    spec = LocalClusterSpec(
        brokers=1, coordinators=1, identity=True, broker_settings=settings, coordinator_settings=of_coordinator
    )
    with LocalCluster(spec) as cluster:
        witness = Witness(cluster)
        yield witness
        witness.check()
        witness.producer.close()


@pytest.fixture(scope="module")
def auth(secured: Witness) -> Iterator[auth_pb2_grpc.AuthServiceStub]:
    """`AuthService` as the administrator calls it."""
    with grpc.insecure_channel(secured.address("coordinator")) as channel:
        yield auth_pb2_grpc.AuthServiceStub(channel)


def as_administrator(secured: Witness) -> tuple[tuple[str, str], ...]:
    """Metadata of a call by the administrator."""
    with open(secured.settings["api_key_file"]) as file:
        return (("authorization", f"Bearer {file.read().strip()}"),)


def session_of(secured: Witness) -> str:
    """A session token of the administrator."""
    ((_, bearer),) = as_administrator(secured)
    with grpc.insecure_channel(secured.address("client")) as channel:
        request = auth_pb2.OpenSessionRequest(api_key=bearer.removeprefix("Bearer "))
        return str(auth_pb2_grpc.SessionServiceStub(channel).OpenSession(request, timeout=60).token)


def metrics_page(secured: Witness, listener: str) -> str:
    """The metrics of the coordinator or the broker."""
    part = secured.cluster.coordinators[0] if listener == "coordinator" else secured.cluster.brokers[0]
    return str(part.page("/metrics"))


def unauthenticated(secured: Witness, listener: str) -> float:
    """Calls that a server has refused because of their proof of identity, by its metrics."""
    counted = re.findall(
        r'call_errors_total{code="UNAUTHENTICATED",method="\w+"} (\S+)', metrics_page(secured, listener)
    )
    return sum(map(float, counted))


def log_lines(secured: Witness) -> int:
    """Lines in the logs of all servers."""
    return sum(part.log_file.read_text(errors="replace").count("\n") for part in secured.cluster.parts)


@pytest.mark.parametrize("listener", ["client", "coordinator"])
def test_a_flood_of_forged_tokens_over_grpc(secured: Witness, listener: str) -> None:
    """Each call is refused with a code, without a line in the log, while an honest client works; after 2,000 from all
    addresses connections that waste more are ended.
    """
    path = FETCH if listener == "client" else HEARTBEAT
    before, lines = unauthenticated(secured, listener), log_lines(secured)
    with bounded(secured, cpu_seconds=15.0, mib=32):
        for number in range(CONNECTIONS):
            headers = [call_headers(path, authorization=f"Bearer {each}") for each in FORGED]
            data = b"".join(
                frame(HEADERS, END_HEADERS | END_STREAM, 2 * at + 1, headers[(number + at) % len(FORGED)])
                for at in range(OF_CONNECTION)
            )
            with suppress(ConnectionResetError, BrokenPipeError), Stranger(secured.address(listener)) as stranger:
                stranger.send(data)
                stranger.wait_for_ends(OF_CONNECTION)
            secured.work(1)
    assert 2_000 <= unauthenticated(secured, listener) - before <= CONNECTIONS * OF_CONNECTION
    assert log_lines(secured) - lines < 25


@pytest.mark.native
def test_a_flood_of_forged_hellos(secured: Witness) -> None:
    """Each connection gets the error and ends; no line in the log for each, nothing is kept of them."""
    lines = log_lines(secured)
    with bounded(secured, cpu_seconds=15.0, mib=32):
        for number in range(1_000):
            with closing(connect(secured.address("native"))) as connection:
                connection.sendall(hello(FORGED[number % len(FORGED)]))
                assert list(frames(connection)) == [(Kind.ERROR, "ERROR_CODE_UNAUTHENTICATED")]
    assert log_lines(secured) - lines < 25


@pytest.mark.native
def test_an_address_of_wrong_hellos_is_kept_out(secured: Witness) -> None:
    """After a thousand at once the kernel diverts its connections, as those of calls; others are served."""
    address, source = secured.address("native"), "127.7.7.7"
    log = secured.cluster.brokers[0].log_file
    with bounded(secured, cpu_seconds=30.0, mib=32):
        answered = 0
        while is_answered(address, source) or source not in log.read_text(errors="replace"):
            answered += 1
            assert answered < 5_000
        assert answered >= 1_000
        assert is_answered(address, "127.7.7.8")


def is_answered(address: str, source: str) -> bool:
    """Whether a wrong Hello from there is answered; where it is not, only the time shows it."""
    with closing(connect(address, source=source)) as connection:
        connection.settimeout(1)
        connection.sendall(hello(FORGED[0]))
        try:
            return bool(connection.recv(1))
        except OSError:
            return False


def hello(session: str) -> bytes:
    """The first bytes of a connection of the native protocol."""
    message = native_pb2.Hello(client_id="stranger", handshake=own_handshake(), session=session).SerializeToString()
    return PREFACE + frame_head(Kind.HELLO, message)


def session_frame(token: bytes) -> bytes:
    """A frame that renews a session."""
    return frame_head(Kind.SESSION, token)


def fetch(topic: str) -> bytes:
    """A Fetch that is answered at once."""
    request = broker_pb2.FetchRequest()
    request.topics.add(topic=topics_pb2.TopicRef(name=topic)).partitions.add(partition=0)
    message = request.SerializeToString()
    return frame_head(Kind.REQUEST, message, method=MethodCode.FETCH, correlation=1, timeout_ms=30_000)


WELCOME = (Kind.WELCOME, "")
INVALID = (Kind.ERROR, "ERROR_CODE_INVALID_REQUEST")
UNKNOWN = (Kind.ERROR, "ERROR_CODE_UNAUTHENTICATED")


@pytest.mark.native
def test_sessions_out_of_order_end_their_connection(secured: Witness) -> None:
    """Before the Hello, of a mebibyte, of another cluster, without text, in a Hello that is too large."""
    token = session_of(secured).encode()
    long_hello = hello("A" * (MAX_HELLO_BYTES - 200))
    cases: list[tuple[bytes, list[tuple[Kind, str]]]] = [
        (PREFACE + session_frame(token), [INVALID]),
        (session_frame(token), [INVALID]),
        (hello(token.decode()) + session_frame(b"x" * (1 << 20)), [WELCOME, INVALID]),
        (hello(token.decode()) + session_frame(token[:-1]), [WELCOME, UNKNOWN]),
        (hello(token.decode()) + session_frame(b"\xff\xfe\x00" * 100), [WELCOME, UNKNOWN]),
        (hello(token.decode()) + session_frame(token) + session_frame(FORGED[0].encode()), [WELCOME, UNKNOWN]),
        (hello(token.decode()) + hello(token.decode())[len(PREFACE) :], [WELCOME, INVALID]),
        (hello("A" * MAX_HELLO_BYTES), [INVALID]),
        (long_hello, [UNKNOWN]),
    ]
    with bounded(secured, cpu_seconds=10.0):
        for data, answers in cases:
            with closing(connect(secured.address("native"))) as connection:
                connection.sendall(data)
                assert list(frames(connection)) == answers, data[:40]


@pytest.mark.native
def test_a_session_sent_again_renews_and_an_empty_one_gives_the_identity_up(secured: Witness) -> None:
    """A captured Hello works like its token, and no longer: its session is what counts, not the connection."""
    token = session_of(secured).encode()
    for sent, code in (
        (session_frame(token) * 2, Kind.ANSWER),
        (b"", Kind.ANSWER),
        (session_frame(b""), Kind.ERROR),
    ):
        with closing(connect(secured.address("native"))) as connection:
            connection.sendall(hello(token.decode()) + sent + fetch(secured.topic))
            answers = frames(connection)
            assert next(answers) == WELCOME
            assert next(answers)[0] is code
    with closing(connect(secured.address("native"))) as connection:
        connection.sendall(hello("") + fetch(secured.topic) + session_frame(token) + fetch(secured.topic))
        answers = frames(connection)
        assert [next(answers) for _ in range(2)] == [WELCOME, UNKNOWN]
        assert next(answers)[0] is Kind.ANSWER


ODD_NAMES = (
    *(
        "",
        ".",
        "..",
        "../../etc/passwd",
        "*",
        "a*",
        ":",
        "anonymous",
        "group:a",
        "server:a",
        "🦔",
        "a" * 129,
        "a" * (1 << 20),
    ),
    *(f"a{character}b" for character in " \0\n\t\x1b\x7f\\,=;|'\"`$%&#?!^~<>{}[]()ä\u202e\ufeff\u2028"),
    *(f"a{character}b" for character in "._-@+:/"),
    *("certificate:\0", "certificate:" + "a" * 300, 'certificate:CN=ä, O="x"', "certificate:spiffe://a/b?c#d"),
)


def test_users_with_every_odd_character(secured: Witness, auth: auth_pb2_grpc.AuthServiceStub) -> None:
    """A name is refused with a sentence, or is the user's everywhere: in grants, decisions, metrics and lists."""
    administrator = as_administrator(secured)
    kept = []
    with bounded(secured, cpu_seconds=10.0):
        for name in ODD_NAMES:
            put = auth_pb2.PutUserRequest(user=auth_pb2.User(name=name))
            grant = auth_pb2.PutGrantRequest(
                grant=auth_pb2.Grant(principal=name, role="reader", resource=f"topic:{secured.topic}")
            )
            try:
                auth.PutUser(put, timeout=60, metadata=administrator)
            except grpc.RpcError:
                error = refusal(lambda put=put: auth.PutUser(put, timeout=60, metadata=administrator))
                assert isinstance(error, InvalidRequestError), repr(name[:40])
                assert len(str(error)) < 500
                continue
            auth.PutGrant(grant, timeout=60, metadata=administrator)
            kept.append(name)
        listed = {
            user.name for user in auth.ListUsers(auth_pb2.ListUsersRequest(), timeout=60, metadata=administrator).users
        }
        assert set(kept) <= listed
        assert not (set(ODD_NAMES) - set(kept)) & listed
    assert {f"a{character}b" for character in "._-@+:/"} <= set(kept)
    assert all(re.fullmatch(r"certificate:.+|[a-z._@+:/-]+", name) and name.isprintable() for name in kept)
    own = [name for name in kept if not name.startswith("certificate:")]
    with grpc.insecure_channel(secured.address("coordinator")) as channel:
        for name in own:
            made = auth.CreateApiKey(auth_pb2.CreateApiKeyRequest(user=name), timeout=60, metadata=administrator)
            bearer = (("authorization", f"Bearer {made.secret}"),)
            who = auth_pb2_grpc.SessionServiceStub(channel).WhoAmI(
                auth_pb2.WhoAmIRequest(), timeout=60, metadata=bearer
            )
            assert who.user == name
            request = cluster_pb2.CreateTopicsRequest(topics=[cluster_pb2.NewTopic(name="t")], timeout_ms=1_000)
            stub = cluster_pb2_grpc.ClusterServiceStub(channel)
            (answer,) = stub.CreateTopics(request, timeout=60, metadata=bearer).topics
            assert answer.error.code == errors_pb2.ERROR_CODE_NOT_AUTHORIZED
    counted = {
        sample.labels["user"]
        for family in text_string_to_metric_families(metrics_page(secured, "coordinator"))
        for sample in family.samples
        if sample.name == "headrace_coordinator_refused_calls_total"
    }
    assert set(own) <= counted


def test_the_longer_prefix_adds_to_the_shorter_one_and_does_not_replace_it(
    secured: Witness, auth: auth_pb2_grpc.AuthServiceStub
) -> None:
    """Of grants on prefixes that contain each other each gives its own; taking one away leaves the other whole."""
    administrator = as_administrator(secured)

    def grants(call: str, role: str, resource: str) -> None:
        grant = auth_pb2.Grant(principal="nested", role=role, resource=resource)
        if call == "Put":
            auth.PutGrant(auth_pb2.PutGrantRequest(grant=grant), timeout=60, metadata=administrator)
        else:
            request = auth_pb2.DeleteGrantRequest(principal="nested", role=role, resource=resource)
            auth.DeleteGrant(request, timeout=60, metadata=administrator)

    def rights() -> list[str]:
        found = []
        for topic in ("nested", "nested.a", "nested.a.b"):
            for operation in ("read", "write"):
                request = auth_pb2.CheckAccessRequest(user="nested", operation=operation, resource=f"topic:{topic}")
                if auth.CheckAccess(request, timeout=60, metadata=administrator).allowed:
                    found.append(f"{operation} {topic}")
        return found

    auth.PutUser(auth_pb2.PutUserRequest(user=auth_pb2.User(name="nested")), timeout=60, metadata=administrator)
    grants("Put", "reader", "topic:nested*")
    grants("Put", "writer", "topic:nested.a*")
    grants("Put", "read", "topic:nested.a.b")
    assert rights() == ["read nested", "read nested.a", "write nested.a", "read nested.a.b", "write nested.a.b"]
    grants("Delete", "reader", "topic:nested*")
    assert rights() == ["write nested.a", "read nested.a.b", "write nested.a.b"]
    grants("Delete", "writer", "topic:nested.a*")
    assert rights() == ["read nested.a.b"]
