"""The two listeners of a broker, and TLS among real processes: clients, command line, brokers, coordinators, etcd."""

import asyncio
import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta

import grpc
import headrace
import headrace.aio
import pytest
from headrace.v1 import broker_pb2, broker_pb2_grpc
from headrace.wire.errors import InvalidRequestError, NotAuthorizedError, TransportError, from_rpc_error
from headrace_devcluster.certificates import Authority
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_server.internal_v1 import replication_pb2 as internal

from tests.integration.hand_streams import HandStream
from tests.integration.replicated import LOCAL_CHANNEL, until

# One cluster with TLS for all of them: they run in one worker, in order.
METRICS = {"metrics_listen": "127.0.0.1:0"}


@pytest.fixture(scope="module")
def tls_cluster():
    spec = LocalClusterSpec(tls=True, brokers=2, coordinators=1, broker_settings=METRICS, coordinator_settings=METRICS)
    with LocalCluster(spec) as cluster:
        yield cluster


def settings_of(cluster, **changed):
    return {"bootstrap_servers": cluster.bootstrap_servers, **cluster.client_settings, **changed}


def error_of_call(address, authority, paths):
    """What ends a call to the internal listener; `paths`: the certificate that is shown.

    One that is let in has no token of the cluster, and is told so.
    """
    shown = (None, None) if paths is None else (paths.key_file.read_bytes(), paths.cert_file.read_bytes())
    credentials = grpc.ssl_channel_credentials(authority.read_bytes(), *shown)
    with grpc.secure_channel(address, credentials, options=LOCAL_CHANNEL) as channel:
        try:
            broker_pb2_grpc.BrokerServiceStub(channel).DescribeLogs(broker_pb2.DescribeLogsRequest(), timeout=10)
        except grpc.RpcError as error:
            found = from_rpc_error(error)
            return None if "this listener is for brokers and coordinators" in found.message else found
    raise AssertionError("a caller without the cluster's secret was served")


def error_of_stream(address, authority, paths):
    """The same of a follower's stream, for TLS errors as gRPC has them; one that is let in names no follower."""
    context = ssl.create_default_context(cafile=authority)
    if paths is not None:
        context.load_cert_chain(paths.cert_file, paths.key_file)
    try:
        with contextlib.closing(HandStream(address, context)) as stream:
            stream.send(internal.ReplicaFetchRequest())
            while isinstance(found := stream.answers.get(timeout=20), bytes):
                pass
    except OSError as error:
        return TransportError(f"{error}")
    if isinstance(found, InvalidRequestError):  # It was asked who follows.
        return None
    return TransportError("the connection was closed") if found is None else found


LISTENERS = [("internal_address", error_of_call), ("replication_address", error_of_stream)]


def serial_at(address):
    """The serial number of the certificate that a new connection is shown."""
    from cryptography import x509

    host, _, port = address.rpartition(":")
    return x509.load_pem_x509_certificate(ssl.get_server_certificate((host, int(port))).encode()).serial_number


def serial_in(paths):
    from cryptography import x509

    return x509.load_pem_x509_certificate(paths.cert_file.read_bytes()).serial_number


def metric(part, name):
    return {
        sample.split('"')[1]: value for sample, value in part.metrics().items() if sample.startswith(name + '{use="')
    }


@pytest.mark.native
def test_followers_learn_that_an_address_is_that_of_clients(headrace_cluster):
    """And which setting is wrong."""
    with contextlib.closing(HandStream(native_address(headrace_cluster))) as stream:
        refused = stream.answers.get(timeout=20)
    assert isinstance(refused, InvalidRequestError)
    assert "replication_advertised_address" in refused.action


@pytest.mark.parametrize("transport", [pytest.param("native", marks=pytest.mark.native), "grpc"])
def test_records_go_through_a_cluster_with_tls_everywhere(tls_cluster, topic_name, transport):
    """With TLS to clients, among brokers and to etcd, what all acknowledged is read, blocking and with asyncio."""
    large, by_transport = b"large" * 60_000, {"transport": transport}
    with headrace.Admin(**settings_of(tls_cluster)) as admin:
        admin.create_topic(topic_name, partitions=2, replication_factor=2)
    with headrace.Producer(**settings_of(tls_cluster, acks="all", **by_transport)) as producer:
        producer.send(topic_name, large, partition=0).result(timeout=20)
    with headrace.Reader(topic_name, **settings_of(tls_cluster, **by_transport)) as reader:
        assert [record.value for record in reader] == [large]

    async def go_on():
        async with headrace.aio.Producer(**settings_of(tls_cluster, **by_transport)) as producer:
            await producer.send_and_wait(topic_name, large, partition=0)
        async with headrace.aio.Reader(
            topic_name, start="earliest", end="current", **settings_of(tls_cluster, **by_transport)
        ) as reader:
            return [record.value async for record in reader]

    assert asyncio.run(go_on()) == [large, large]


def bad_clients(cluster, directory):
    services, users = cluster.certificates.services, cluster.certificates.users
    none = {"ssl_certfile": "", "ssl_keyfile": ""}
    stranger = Authority(directory, "stranger").issue("client", hosts=())
    yield {"security_protocol": "PLAINTEXT", "ssl_cafile": "", **none}, "security_protocol='SSL'"
    yield none, "Set ssl_certfile and ssl_keyfile"
    yield {"ssl_cafile": str(users.ca_file)}, "Set ssl_cafile"
    yield {"ssl_server_name": "elsewhere.example"}, "certificate is not for this address"
    yield (
        {"ssl_certfile": str(stranger.cert_file), "ssl_keyfile": str(stranger.key_file)},
        "does not accept this client",
    )
    old = users.issue("old", hosts=(), until=datetime.now(UTC) - timedelta(days=1))
    yield {"ssl_certfile": str(old.cert_file), "ssl_keyfile": str(old.key_file)}, "has expired"
    yield {"ssl_certfile": str(services.directory / "none.pem")}, "cannot be read"


def test_a_refused_client_gets_cause_and_remedy(tls_cluster, tmp_path):
    """Without TLS, without a certificate, another authority's, another name, not accepted, expired, not there."""
    for changed, sentence in bad_clients(tls_cluster, tmp_path):
        with pytest.raises(headrace.HeadraceError, match=sentence):
            with headrace.Admin(**settings_of(tls_cluster, **changed)) as admin:
                admin.describe_cluster()


def test_a_client_with_tls_gets_an_error_from_a_server_without(tls_cluster, headrace_cluster):
    """Asyncio, too; and a producer does not retry an error that no retry can fix."""
    plain = {"bootstrap_servers": headrace_cluster.bootstrap_servers}

    async def ask():
        async with headrace.aio.Admin(**settings_of(tls_cluster, **plain)) as admin:
            await admin.describe_cluster()

    with pytest.raises(headrace.NoBrokersAvailableError, match="uses plain text"):
        asyncio.run(ask())
    with headrace.Producer(**settings_of(tls_cluster, **plain, max_block_ms=600_000)) as producer:
        with pytest.raises(headrace.NoBrokersAvailableError, match="uses plain text"):
            producer.send("topic", b"value").result(timeout=20)


def run_command(cluster, command=("cluster", "describe"), **changed):
    own = {f"HEADRACE_{name.upper()}": value for name, value in settings_of(cluster, **changed).items() if value}
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "GRPC_V"))}
    arguments = [sys.executable, "-m", "headrace.cli", *command, "--output", "json"]
    return subprocess.run(arguments, env={**environ, **own}, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_line_speaks_tls_by_its_environment(tls_cluster):
    """With the four variables it answers; with the wrong authority it says so in one line on stderr."""
    answered = run_command(tls_cluster)
    assert answered.returncode == 0, answered.stderr
    refused = run_command(tls_cluster, ssl_cafile=str(tls_cluster.certificates.users.ca_file))
    assert refused.returncode == 3
    assert "Set ssl_cafile" in refused.stderr
    assert refused.stderr.count("\n") == 1


def certificate_findings(answered):
    found = [row for row in json.loads(answered.stdout)["findings"] if row["check"] == "certificate"]
    return {(row["where"], row["found"].partition(" ")[0]): row for row in found}


def test_doctor_tells_when_the_certificates_of_every_process_end(tls_cluster):
    """Of brokers and coordinators, for clients, each other and etcd, authorities too; one that ends soon is a warning
    that names subject and file, and replaced it is none.
    """
    part = tls_cluster.coordinators[0]
    issue = tls_cluster.certificates.services.issue
    for other in tls_cluster.parts:
        issue(other.name, until=datetime.now(UTC) + timedelta(days=90))
    soon = issue(part.name, until=datetime.now(UTC) + timedelta(days=7, minutes=5))
    where = (part.name, "tls_cert_file")

    def look(status, words):
        found = certificate_findings(run_command(tls_cluster, command=("doctor",)))
        return found if found[where]["status"] == status and words in found[where]["found"] else None

    found = until(lambda: look("warning", "(CN=coordinator-a) ends in 7 days"), "the certificate that ends soon")
    assert str(soon.cert_file) in found[where]["action"]
    for other in tls_cluster.parts:
        uses = {use for name, use in found if name == other.name}
        assert {"tls_cert_file", "tls_ca_file", "internal_tls_ca_file"} <= uses, uses
    issue(part.name, until=datetime.now(UTC) + timedelta(days=90))
    until(lambda: look("ok", "89 days"), "the certificate that was renewed")


@pytest.mark.parametrize(("listener", "error_of"), LISTENERS)
def test_the_internal_listeners_serve_services_alone(tls_cluster, listener, error_of):
    """No certificate and a client's certificate end the handshake; a service's is let in."""
    certificates, address = tls_cluster.certificates, getattr(tls_cluster.broker(1), listener)
    authority = certificates.services.ca_file
    for paths in (None, certificates.client):
        error = error_of(address, authority, paths)
        assert isinstance(error, TransportError), error
    assert error_of(address, authority, certificates.services.issue("peer")) is None


def native_address(cluster):
    """Where the first broker serves the native protocol."""
    return json.loads(cluster.broker(1).ready_file.read_text())["native_address"]


@pytest.mark.parametrize("is_native", [False, pytest.param(True, marks=pytest.mark.native)])
def test_older_versions_of_tls_are_refused(tls_cluster, is_native):
    """TLS 1.1 ends the handshake, 1.2 does not."""
    address = native_address(tls_cluster) if is_native else tls_cluster.broker(1).address
    host, _, port = address.rpartition(":")

    def connect(version):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        client = tls_cluster.certificates.client
        context.load_cert_chain(client.cert_file, client.key_file)
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.set_alpn_protocols(["h2"])
        context.minimum_version = context.maximum_version = version
        with socket.create_connection((host, int(port)), 10) as plain, context.wrap_socket(plain) as wrapped:
            return wrapped.version()

    with pytest.warns(DeprecationWarning, match="TLSv1_1"), pytest.raises((ssl.SSLError, OSError)):
        connect(ssl.TLSVersion.TLSv1_1)
    assert connect(ssl.TLSVersion.TLSv1_2) == "TLSv1.2"


def test_new_certificates_come_in_force_without_a_lost_record(tls_cluster, topic_name):
    """Every file is replaced while a producer sends: new connections see the new one, no send fails, replicas agree;
    a broken file changes nothing but the metric and the log.
    """
    certificates, broker = tls_cluster.certificates, tls_cluster.broker(1)
    expiry, refused = "headrace_broker_certificate_expiry_timestamp_seconds", "headrace_broker_certificate_refused"
    with headrace.Admin(**settings_of(tls_cluster)) as admin:
        admin.create_topic(topic_name, partitions=1, replication_factor=2)
    stop = threading.Event()
    with headrace.Producer(**settings_of(tls_cluster, acks="all", linger_ms=0)) as producer:
        sent = []

        def send():
            while not stop.is_set():
                sent.append(producer.send(topic_name, b"value").result(timeout=30).offset)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=90)
            new = [certificates.services.issue(part.name, until=end) for part in tls_cluster.parts]
            until(lambda: set(metric(broker, expiry).values()) == {end.timestamp()}, "the new ones in the metrics")
            kept = serial_in(new[1])
            assert serial_at(broker.address) == kept
            assert metric(broker, expiry) == dict.fromkeys(("clients", "internal", "etcd"), end.timestamp())
            new[1].cert_file.write_text("nothing")
            until(lambda: metric(broker, refused)["clients"] == 1, "the refusal in the metrics")
            assert serial_at(broker.address) == kept
            seen = len(sent)
            until(lambda: len(sent) > seen, "a send")
        finally:
            stop.set()
            sender.join()
    assert sent == list(range(len(sent)))
    assert "certificates_refused" in broker.log_file.read_text()
    certificates.services.issue(broker.name)
    until(lambda: metric(broker, refused)["clients"] == 0, "the file put right")


def test_a_restarted_broker_follows_again_with_tls(tls_cluster, topic_name):
    """A broker that comes back copies what it missed over its mutual connection."""
    with headrace.Admin(**settings_of(tls_cluster)) as admin:
        admin.create_topic(topic_name, partitions=1, replication_factor=2, config={"min_insync_replicas": 1})
        leader = admin.describe_topic(topic_name).partitions[0].leader_id
        follower = tls_cluster.broker(3 - leader)
        follower.kill()
        with headrace.Producer(**settings_of(tls_cluster, acks=1)) as producer:
            producer.send(topic_name, b"value").result(timeout=30)
        tls_cluster.restart(follower)
        until(lambda: len(admin.describe_topic(topic_name).partitions[0].in_sync_replicas) == 2, "the follower in sync")


def test_a_service_with_an_expired_certificate_does_not_start(tls_cluster, tmp_path):
    """One sentence on stderr that names file and date, and exit code 2."""
    paths = tls_cluster.certificates.services.issue("late", until=datetime.now(UTC) - timedelta(hours=2))
    command = [sys.executable, "-m", "headrace_coordinator"]
    given = {"coordinator_id": "late", "listen": "127.0.0.1:0", **tls_cluster.certificates.settings("late-too")}
    given |= {"tls_cert_file": paths.cert_file, "tls_key_file": paths.key_file}
    for name, value in given.items():
        command += ["--set", f"{name}={value}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert f"error: the certificate in {paths.cert_file} has expired, on" in ended.stderr


def test_the_internal_listeners_may_be_for_named_certificates(tls_cluster):
    """With internal_tls_allowed_names, a certificate of the right authority and another name gets NOT_AUTHORIZED."""
    certificates = tls_cluster.certificates
    third = tls_cluster.add_broker(internal_tls_allowed_names="broker-1,broker-2,coordinator-a")
    authority = certificates.services.ca_file
    peer, named = certificates.services.issue("peer"), certificates.services.issue("broker-2", file_name="as-broker-2")
    for listener, error_of in LISTENERS:
        refused = error_of(getattr(third, listener), authority, peer)
        assert isinstance(refused, NotAuthorizedError)
        assert "internal_tls_allowed_names" in str(refused)
        assert error_of(getattr(third, listener), authority, named) is None
