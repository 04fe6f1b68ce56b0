"""Certificates of a service: what is refused at the start, what is put in force while it runs."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import grpc
import pytest
from headrace_broker.settings import BrokerSettings
from headrace_devcluster.certificates import Authority
from headrace_server import certificate_files, tls
from headrace_server.certificate_files import TlsFilesError, read_certificates
from headrace_server.settings import SettingsError, load_settings
from headrace_server.tls import TlsIdentity, read_tls
from headrace_server.tls_settings import TlsFiles, TlsSettings
from structlog.testing import capture_logs

DAY = timedelta(days=1)


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "services", "services")


def files_of(paths, ca_file=None):
    return TlsFiles(str(paths.cert_file), str(paths.key_file), str(ca_file or paths.ca_file))


def test_a_good_certificate_is_taken_with_its_end(authority):
    until = datetime.now(UTC).replace(microsecond=0) + DAY
    found = read_certificates(files_of(authority.issue("broker", until=until)), mutual=True)
    assert found.expires_at == until
    assert found.chain == (authority.directory / "broker.pem").read_bytes()


async def test_an_authority_without_its_root_is_enough(tmp_path):
    """Over the native protocol as over gRPC, for the certificates of both sides."""
    root = Authority(tmp_path / "root", "root")
    identity = TlsIdentity(
        "internal", files_of(Authority(tmp_path / "ours", "ours", root).issue("broker")), mutual=True
    )
    server = await asyncio.start_server(
        lambda _, sending: sending.close(), "127.0.0.1", 0, ssl=identity.server_context("required")
    )
    port = server.sockets[0].getsockname()[1]
    receiving, sending = await asyncio.open_connection("127.0.0.1", port, ssl=identity.client_context())
    assert await receiving.read() == b""
    sending.close()
    server.close()
    over_grpc = grpc.aio.server()
    port = over_grpc.add_secure_port("127.0.0.1:0", identity.server_credentials("required"))
    await over_grpc.start()
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", identity.channel_credentials()) as channel:
        await asyncio.wait_for(channel.channel_ready(), 20)
    await over_grpc.stop(None)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_comments_of_a_file_of_authorities_may_be_in_any_language(authority, encoding):
    """Contexts are made from memory, where `ssl` takes only ASCII; gRPC and files have no such limit."""
    paths = authority.issue("broker")
    paths.ca_file.write_bytes("# Müller\n".encode(encoding) + paths.ca_file.read_bytes())
    identity = TlsIdentity("internal", files_of(paths), mutual=True)
    for context in (identity.server_context("required"), identity.client_context()):
        assert len(context.get_ca_certs()) == 1


def refusals(authority, tmp_path):
    good = authority.issue("good")
    stranger = Authority(tmp_path / "others", "others").issue("stranger")
    yield files_of(authority.issue("old", until=datetime.now(UTC) - DAY)), "has expired, on"
    yield TlsFiles(str(good.cert_file), str(stranger.key_file), str(good.ca_file)), "is not that of the certificate"
    yield TlsFiles(str(tmp_path / "none"), str(good.key_file), str(good.ca_file)), "cannot read"
    yield TlsFiles(str(good.key_file), str(good.key_file), str(good.ca_file)), "is no certificate in PEM"
    yield files_of(good, stranger.ca_file), "would refuse the certificate"


def test_what_handshakes_would_fail_at_is_refused_with_a_reason(authority, tmp_path):
    """Expired, another's key, not there, no certificate, signed by another authority: a sentence names the file."""
    for files, sentence in refusals(authority, tmp_path):
        with pytest.raises(TlsFilesError, match=sentence):
            read_certificates(files, mutual=True)


def check_that_the_next_is_taken(authority, identity, first):
    """A refused certificate leaves the first one in force; a good one replaces it."""
    assert identity.refused
    assert identity.current is first
    authority.issue("broker")
    identity.look()
    assert not identity.refused
    assert identity.current != first


def test_new_files_are_put_in_force_and_broken_ones_are_not(authority):
    """A broken certificate leaves the old one in force and says so; the next good one is taken."""
    identity = TlsIdentity("internal", files_of(authority.issue("broker")), mutual=True)
    first = identity.current
    (authority.directory / "broker.pem").write_text("-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n")
    identity.look()
    check_that_the_next_is_taken(authority, identity, first)


@pytest.mark.parametrize("failure", [ssl.SSLError(1, "no shared cipher"), FileNotFoundError(2, "no such file")])
def test_files_with_which_no_handshake_is_possible_are_refused(authority, monkeypatch, failure):
    """Another reason than verification, or a file that is gone since it was read: told, and looked at again."""
    identity = TlsIdentity("internal", files_of(authority.issue("broker")), mutual=True)
    first = identity.current

    def fail(files):
        raise failure

    with monkeypatch.context() as patched:
        patched.setattr(certificate_files, "_shake_hands", fail)
        authority.issue("broker")
        identity.look()
    check_that_the_next_is_taken(authority, identity, first)


async def test_the_watch_of_files_outlives_an_error_that_nothing_expects(authority, monkeypatch):
    monkeypatch.setattr(tls, "LOOK_SECONDS", 0)
    identity = TlsIdentity("internal", files_of(authority.issue("broker")), mutual=True)
    looks, seen = [], asyncio.Event()

    def look():
        looks.append(1)
        if len(looks) > 1:
            seen.set()
        raise RuntimeError

    monkeypatch.setattr(identity, "look", look)
    watch = asyncio.create_task(tls._watch(SimpleNamespace(identities=[identity])))
    async with asyncio.timeout(10):
        await seen.wait()
    watch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch


def test_the_same_certificate_written_again_changes_nothing(authority):
    """What is in force stays the same object, by which channels know that they need not be made anew."""
    paths = authority.issue("broker")
    identity = TlsIdentity("clients", files_of(paths))
    first = identity.current
    paths.cert_file.write_bytes(paths.cert_file.read_bytes())
    identity.look()
    assert identity.current is first
    assert not identity.refused


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["tls_cert_file=a"], "tls_cert_file is set without tls_key_file"),
        (["tls_ca_file=a"], "tls_ca_file is set without tls_cert_file"),
        (["tls_cert_file=a", "tls_key_file=b"], "set internal_tls_ca_file"),
        (["tls_client_auth=required"], "needs tls_ca_file"),
        (["etcd_tls_cert_file=a", "etcd_tls_key_file=b"], "without etcd_tls_ca_file"),
    ],
)
def test_settings_that_belong_together_are_required(given, sentence):
    with pytest.raises(SettingsError, match=sentence):
        load_settings(CheckedSettings, overrides=given)


class CheckedSettings(TlsSettings):
    """As a service's settings call it."""

    def __post_init__(self):
        self.check_tls()


def separate(authority, clients_authority, **names):
    """The settings of a broker whose clients and internal listener have these authorities."""
    own = authority.issue("broker-1")
    return BrokerSettings(
        broker_id=1,
        data_dir="unused",
        tls_cert_file=str(own.cert_file),
        tls_key_file=str(own.key_file),
        tls_client_auth="required",
        tls_ca_file=str(clients_authority),
        internal_tls_ca_file=str(own.ca_file),
        **names,
    )


def test_one_authority_for_clients_and_brokers_is_refused_without_names(authority, tmp_path):
    """Else a client's certificate is served as a broker's: also where the file is a copy, or one of several in it."""
    customers = Authority(tmp_path / "customers", "customers").issue("c").ca_file
    read_tls(separate(authority, customers))
    own = authority.issue("b").ca_file
    copy = tmp_path / "copy.pem"
    copy.write_bytes(customers.read_bytes() + own.read_bytes())
    for path in (own, copy):
        with pytest.raises(TlsFilesError, match="taken for a broker's"):
            read_tls(separate(authority, path))
        read_tls(separate(authority, path, internal_tls_allowed_names=("broker-1",)))


def test_an_authority_that_becomes_common_is_not_put_in_force(authority, tmp_path):
    """While a broker runs neither file may come to trust the other's authority."""
    clients_file = tmp_path / "clients.pem"
    clients_file.write_bytes(Authority(tmp_path / "customers", "customers").issue("c").ca_file.read_bytes())
    tls = read_tls(separate(authority, clients_file))
    before = tls.clients.current
    clients_file.write_bytes(clients_file.read_bytes() + authority.issue("b").ca_file.read_bytes())
    tls.clients.look()
    assert tls.clients.refused
    assert tls.clients.current is before


def test_a_private_key_that_all_can_read_is_warned_of(authority):
    """It is used all the same: volumes of some platforms have no other modes."""
    paths = authority.issue("broker")
    with capture_logs() as lines:
        read_certificates(files_of(paths))
        paths.key_file.chmod(0o644)
        read_certificates(files_of(paths))
    assert [(line["event"], line["mode"]) for line in lines] == [("private_key_readable_by_all", "0644")]
