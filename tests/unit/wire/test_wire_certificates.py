"""Whose a certificate is and when it ends, read from PEM; and what gRPC's words about handshakes mean."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from headrace.wire.certificates import CertificateFacts, CertificateFormatError, read_facts
from headrace.wire.handshakes import explain_handshake
from headrace_devcluster.certificates import Authority

FAR = datetime(2080, 6, 1, 12, 0, tzinfo=UTC)
SOON = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)


def test_every_certificate_in_a_file_is_read(tmp_path):
    """Both forms of time: two digits of the year until 2049, four from then on; several certificates in their order."""
    authority = Authority(tmp_path, "authority")
    soon, far = (authority.issue(name, until=until) for name, until in (("soon", SOON), ("far", FAR)))
    pem = b"a chain:\n" + soon.cert_file.read_bytes() + far.cert_file.read_bytes()
    found = read_facts(pem)
    assert [(each.subject, each.not_after) for each in found] == [("CN=soon", SOON), ("CN=far", FAR)]
    assert found[0].public_key != found[1].public_key


def test_a_subject_of_several_parts_is_read_in_order():
    """Each usual part by its short name, whatever its letters; an unusual one is left out."""
    key = ec.generate_private_key(ec.SECP256R1())
    given = ((NameOID.ORGANIZATION_NAME, "Fünf & Söhne"), (NameOID.USER_ID, "7"), (NameOID.COMMON_NAME, "broker-1"))
    subject = x509.Name([x509.NameAttribute(kind, value) for kind, value in given])
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), 1 << 130, SOON - timedelta(days=2), FAR)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    public_key = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    assert read_facts(certificate) == [CertificateFacts("O=Fünf & Söhne,CN=broker-1", FAR, public_key)]


def test_what_is_no_certificate_is_refused(tmp_path):
    """No certificate, a key, and one that was cut off: an error each, never a wrong time."""
    paths = Authority(tmp_path, "authority").issue("server")
    lines = paths.cert_file.read_text().splitlines()
    cut = "\n".join([*lines[:3], lines[-1]]).encode()
    for pem in (b"", paths.key_file.read_bytes(), cut):
        with pytest.raises(CertificateFormatError):
            read_facts(pem)


@pytest.mark.parametrize(
    ("details", "message"),
    [
        ("Socket closed", "closed the connection at once"),
        ("CERTIFICATE_VERIFY_FAILED: certificate has expired: OK", "has expired"),
        ("CERTIFICATE_VERIFY_FAILED: self signed certificate", "none of this client's authorities"),
        ("Connection refused", None),
    ],
)
def test_only_what_tls_has_to_do_with_is_explained(details, message):
    """A refused connection stays what it is; a failed handshake is told in a sentence."""
    found = explain_handshake(f"failed to connect to all addresses; last error: {details}", speaks_tls=False)
    assert (found and message in found.message) if message else found is None


def test_a_connection_that_broke_later_is_not_explained():
    """`Socket closed` of a call that was under way has nothing to do with a handshake."""
    assert explain_handshake("Socket closed") is None
