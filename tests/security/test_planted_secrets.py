"""Secrets planted in a real cluster are in none of its texts: logs at debug level, errors, metrics, dumps, reprs,
spans, answers of the schema registry, files of a load.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import logging
import sys
import tarfile
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import headrace
import headrace.aio
import pytest
from headrace.cli.common.session import SdkClients
from headrace.cli.main import run
from headrace.v1 import auth_pb2, auth_pb2_grpc, cluster_pb2, cluster_pb2_grpc
from headrace.wire.errors import HeadraceError, UnknownTopicError, from_rpc_error
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_devcluster.etcd_user import USER
from headrace_devcluster.session_check import find_refusal
from headrace_server.cluster_identity import read_or_create
from headrace_server.identity.api_keys import make_api_key
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.etcd_login import EtcdLogin

from tests.integration.metastore import connected
from tests.otlp_receiver import OtlpReceiver
from tests.security.conftest import Witness
from tests.security.test_identity_attacks import hello, session_frame
from tests.security.test_native_attacks import connect, frames

pytestmark = pytest.mark.native
SECONDS = 30.0
PAGES = ("/metrics", "/metrics/detail", "/health/readiness", "/health/liveness", "/health/startup")
COMMANDS = (
    ("cluster", "dump", "--output", "json"),
    ("cluster", "dump"),
    ("cluster", "health"),
    ("cluster", "describe", "--output", "json"),
    ("doctor", "--output", "json"),
    ("auth", "whoami"),
    ("auth", "check", "--output", "json"),
    ("user", "list", "--output", "json"),
    ("user", "key", "create", "canary", "--output", "yaml"),
    ("topic", "create", "denied"),
    ("mirror", "list"),
    ("mirror", "status", "west"),
    ("mirror", "create", "west", "--source", "127.0.0.1:1", "--source-setting", "api_key_file=/keys/west"),
    ("mirror", "list", "--output", "json"),
    ("mirror", "status", "west", "--output", "json"),
)
TRACEPARENT = ("traceparent", f"00-{'4b' * 16}-{'00f067aa' * 2}-01")
"""Metadata of a call whose caller is in a sampled trace."""


@dataclass
class Planted:
    """A cluster, its secrets by name, and what it and its clients have written."""

    witness: Witness
    receiver: OtlpReceiver
    secrets: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)

    def plant(self, name: str, secret: str) -> str:
        """Keep a piece near the end of a text, where all of them are secret, so that a piece of it is found, too."""
        self.secrets[name] = (secret[-30:-6].encode(),)
        return secret

    def plant_bytes(self, name: str, secret: bytes) -> None:
        """Keep the forms in which bytes are printed."""
        inner = [base64.b64encode(bytes(skipped) + secret)[4:-4] for skipped in range(3)]
        safe = [each.replace(b"+", b"-").replace(b"/", b"_") for each in inner]
        self.secrets[name] = (secret, secret.hex().encode(), repr(secret)[2:-1].encode(), *inner, *safe)

    def found(self) -> list[str]:
        """Secrets and the texts that have them."""
        return [
            f"{name} in {where}"
            for where, text in self.texts.items()
            for name, forms in self.secrets.items()
            if any(form in text for form in forms)
        ]


def texts_of(error: BaseException) -> bytes:
    """All that a program may print of an error."""
    return "\n".join((str(error), repr(error), *traceback.format_exception(error))).encode()


@pytest.fixture(scope="module")
def planted() -> Iterator[Planted]:
    """A cluster that logs each call, with the administrator's API key, a user's, and what etcd has."""
    with OtlpReceiver() as receiver:
        settings = {"metrics_listen": "127.0.0.1:0", "log_level": "debug", "otlp_endpoint": receiver.endpoint}
        of_coordinator = {**settings, "default_replication_factor": 1}
        spec = LocalClusterSpec(
            brokers=1, coordinators=1, identity=True, broker_settings=settings, coordinator_settings=of_coordinator
        )
        yield from planted_in(spec, receiver)


def planted_in(spec: LocalClusterSpec, receiver: OtlpReceiver) -> Iterator[Planted]:
    """The cluster of the fixture, whose spans a receiver takes."""
    with LocalCluster(spec) as cluster:
        witness = Witness(cluster)
        found = Planted(witness, receiver)
        with open(witness.settings["api_key_file"]) as file:
            found.plant("the administrator's API key", file.read().strip())
        asyncio.run(plant_of_etcd(found))
        yield found
        witness.producer.close()


async def plant_of_etcd(planted: Planted) -> None:
    """Plant the cluster's secret, the keys that sign sessions, and the passwords of etcd's users."""
    cluster = planted.witness.cluster
    password_file = cluster.directory / "etcd.password"
    for file in (password_file, cluster.directory / "etcd-root.password"):
        planted.plant(file.name, file.read_text())
    async with connected(cluster.etcd.endpoint, login=EtcdLogin(USER, str(password_file))) as metastore:
        identity = await read_or_create(metastore, "headrace", "unused")
        planted.plant_bytes("the cluster's secret", identity.secret)
        keys = await metastore.range(identity.keyspace.signing_key_prefix())
        assert keys.key_values
        for number, each in enumerate(keys.key_values):
            key = metadata_pb2.SigningKey.FromString(each.value)
            planted.plant_bytes(f"signing key {number}", key.secret)


def call_with_everything(planted: Planted, key: str, user_id: str) -> None:
    """Send right and wrong proofs in every place that takes one."""
    wrong = planted.plant("a wrong secret of a right key", f"hrk_{user_id}_{make_api_key()[-43:]}")
    jwt = planted.plant("a JWT", "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhZGEifQ." + "c2VjcmV0" * 8)
    with grpc.insecure_channel(planted.witness.address("coordinator")) as channel:
        sessions = auth_pb2_grpc.SessionServiceStub(channel)
        opened = sessions.OpenSession(auth_pb2.OpenSessionRequest(api_key=key), timeout=SECONDS)
        token = planted.plant("a session token", opened.token)
        bearer = (("authorization", f"Bearer {token}"), TRACEPARENT)
        who = sessions.WhoAmI(auth_pb2.WhoAmIRequest(), timeout=SECONDS, metadata=bearer)
        planted.texts["the answer to who am I"] = str(who).encode()
        for request in (auth_pb2.OpenSessionRequest(api_key=wrong), auth_pb2.OpenSessionRequest(jwt=jwt)):
            with pytest.raises(grpc.RpcError) as refused:
                sessions.OpenSession(request, timeout=SECONDS)
            planted.texts[f"refused {request.WhichOneof('proof')}"] = texts_of(from_rpc_error(refused.value))
        for text in (wrong, jwt, token[:-1], token + "A"):
            with pytest.raises(grpc.RpcError) as refused:
                cluster_pb2_grpc.ClusterServiceStub(channel).GetMetadata(
                    cluster_pb2.GetMetadataRequest(),
                    timeout=SECONDS,
                    metadata=(("authorization", f"Bearer {text}"), TRACEPARENT),
                )
            planted.texts[f"refused token of {len(text)}"] = texts_of(refused.value)
    call_registry(planted, key, wrong, token, jwt)
    # A server logs the first refusal in ten seconds: the coordinator that of a key, the broker that of a token.
    for data in (hello(token[:-1]), hello(token) + session_frame(wrong.encode()), hello(wrong), hello(jwt)):
        with closing(connect(planted.witness.address("native"))) as connection:
            connection.sendall(data)
            assert "ERROR_CODE_UNAUTHENTICATED" in [code for _, code in frames(connection)]


def call_registry(planted: Planted, key: str, *wrong: str) -> None:
    """Ask the schema registry in each way in which it takes a proof, with a schema that is none."""
    (url,) = planted.witness.cluster.schema_registry_urls
    for number, secret in enumerate((key, *wrong)):
        basic = base64.b64encode(f"canary:{secret}".encode()).decode()
        planted.plant(f"basic authentication {number}", basic)
        for header in (f"Bearer {secret}", f"Basic {basic}"):
            request = urllib.request.Request(f"{url}/subjects/x/versions", b'{"schema": "{"}')
            request.add_header("Authorization", header)
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=SECONDS)
            planted.texts[f"the registry's answer to {number}, {header[:6]}"] = refused.value.read()


def use_clients(planted: Planted, settings: dict[str, str]) -> None:
    """Write and read as a user, be refused, and print the clients."""
    topic = planted.witness.topic
    for transport in ("native", "grpc"):
        mine = {**settings, "transport": transport}
        with (
            headrace.Producer(**mine) as producer,
            headrace.Consumer(topic, group_id="canary", auto_offset_reset="earliest", **mine) as consumer,
            headrace.Admin(**mine) as admin,
        ):
            producer.send(topic, b"x").result(timeout=SECONDS)
            assert next(iter(consumer)).value
            reader = headrace.Reader(topic, **mine)
            with reader:
                assert next(iter(reader)).value
            with pytest.raises(HeadraceError) as refused:
                admin.delete_topic(topic)
            planted.texts[f"a refused act, {transport}"] = texts_of(refused.value)
            clients = (producer, consumer, reader, admin)
            planted.texts[f"clients, {transport}"] = "".join(f"{each!r} {each}" for each in clients).encode()
        planted.texts[f"asyncio clients, {transport}"] = asyncio.run(asyncio_clients(mine))


async def asyncio_clients(settings: dict[str, str]) -> bytes:
    """What asyncio clients look like."""
    async with headrace.aio.Admin(**settings) as admin, headrace.aio.Producer(**settings) as producer:
        await admin.list_topics()
        return f"{admin!r} {admin} {producer!r} {producer}".encode()


def run_commands(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[bytes], directory: Path
) -> None:
    """Let the administrator run commands, and a stranger with a wrong API key the same."""
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", planted.witness.settings["bootstrap_servers"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    with open(planted.witness.settings["api_key_file"]) as file:
        administrator = file.read().strip()
    wrong = planted.plant("an API key on the command line's environment", make_api_key())
    for who, key in (("administrator", administrator), ("stranger", wrong)):
        monkeypatch.setenv("HEADRACE_API_KEY", key)
        for command in COMMANDS:
            run(command, SdkClients())
            out, err = capture.readouterr()
            planted.texts[f"{' '.join(command)} of {who}"] = out + err
        load(planted, who, directory, capture)
        write_bundle(planted, who, directory)
        planted.texts[f"the output of doctor bundle of {who}"] = b"".join(capture.readouterr())


def load(planted: Planted, who: str, directory: Path, capture: pytest.CaptureFixture[bytes]) -> None:
    """Load the topic into a table of files, whose rows of positions and metadata are texts, too."""
    table = directory / f"table of {who}"
    run(("load", planted.witness.topic, "--to", str(table)), SdkClients())
    planted.texts[f"the output of load of {who}"] = b"".join(capture.readouterr())
    for file in table.rglob("*"):
        if file.is_file():
            planted.texts[f"{file.name} of {who}"] = file.read_bytes()


def write_bundle(planted: Planted, who: str, directory: Path) -> None:
    """Let `headrace doctor bundle` write all that it finds, with logs and metrics of each process."""
    archive = directory / f"{who}.tar.gz"
    parts = planted.witness.cluster.parts
    options = [word for part in parts for word in ("--metrics", part.metrics_address)]
    options += ["--logs", str(parts[0].log_file.parent), "--out", str(archive)]
    run(("doctor", "bundle", *options), SdkClients())
    with tarfile.open(archive) as opened:
        for entry in opened.getmembers():
            content = opened.extractfile(entry)
            assert content is not None
            planted.texts[f"{entry.name} of {who}"] = content.read()


def read_audit_log(witness: Witness) -> bytes:
    """The audit log, once it has the acts of the test."""
    deadline = time.monotonic() + SECONDS
    text = b""
    while b"CreateApiKey" not in text or b"refusal" not in text:
        assert time.monotonic() < deadline, text
        time.sleep(0.1)
        with (
            contextlib.suppress(UnknownTopicError),  # The controller creates the topic soon after its start.
            headrace.Reader("__audit", **witness.settings) as reader,
        ):
            text = b"\n".join(record.value or b"" for record in reader)
    return text


def test_no_planted_secret_is_printed(
    planted: Planted,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """API keys, session tokens, JWTs, the cluster's secret and signing keys; right ones and wrong ones."""
    caplog.set_level(logging.DEBUG)
    witness = planted.witness
    with headrace.Admin(**witness.settings) as admin:
        admin.create_user("canary")
        made = admin.create_api_key("canary")
        key = planted.plant("a user's API key", made.secret)
        planted.texts["the answer that has an API key"] = repr(made).encode()
        for role, resource in (("reader", "topic:*"), ("writer", "topic:*"), ("reader", "group:*")):
            admin.grant("canary", role, resource)
    deadline = time.monotonic() + SECONDS
    servers = [witness.address(listener) for listener in ("coordinator", "client")]
    while refusal := find_refusal(servers, None, key):  # The broker hears of a new key by itself.
        assert time.monotonic() < deadline, refusal
        time.sleep(0.05)
    use_clients(planted, {"bootstrap_servers": witness.settings["bootstrap_servers"], "api_key": key})
    call_with_everything(planted, key, key.split("_")[1])
    run_commands(planted, monkeypatch, capsysbinary, tmp_path)
    for part in witness.cluster.parts:
        for path in PAGES:
            with contextlib.suppress(urllib.error.HTTPError):
                planted.texts[f"{part.name} {path}"] = part.page(path).encode()
        planted.texts[f"the log of {part.name}"] = part.log_file.read_bytes()
    planted.texts["the audit log"] = read_audit_log(witness)
    planted.receiver.wait_for(lambda spans: len(spans) >= 5)  # Of the calls with TRACEPARENT.
    planted.texts["spans"] = b"".join(planted.receiver.bodies)
    planted.texts["the log of the clients"] = caplog.text.encode()
    for where in ("cluster dump of administrator", "user list --output json of administrator"):
        assert key.split("_")[1].encode() in planted.texts[where], f"{where} has no API keys"
    for name in ("grants.json", "quotas.json", "metadata.json", "processes.json", "logs/broker-1.log"):
        assert planted.texts[f"headrace-bundle/{name} of administrator"]
    assert any(name.startswith("headrace-bundle/metrics/") for name in planted.texts)
    for part in witness.cluster.parts:
        assert b"call_answered" in planted.texts[f"the log of {part.name}"]
        assert b"identity_refused" in planted.texts[f"the log of {part.name}"]
    assert planted.found() == []
