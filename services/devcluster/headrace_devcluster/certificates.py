"""Certificates for a cluster on this machine: an authority for the services, one for clients, and their certificates.

Only for tests and for trying TLS: keys are stored unencrypted next to the certificates. Needs `cryptography`
(`pip install 'headrace-devcluster[tls]'`), which is imported when a certificate is made.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import util
from pathlib import Path
from typing import Any

from headrace.wire.errors import InvalidConfigError

HOSTS = ("127.0.0.1", "localhost")
VALID = timedelta(days=30)
CLOCK_SKEW = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class TlsPaths:
    """Paths of a certificate, its key, and the authority that signs the certificates of its peers."""

    cert_file: Path
    key_file: Path
    ca_file: Path


class Authority:
    """Certificate authority with its own directory, where `ca.pem` is its certificate. Not thread-safe."""

    def __init__(self, directory: Path, name: str, parent: Authority | None = None) -> None:
        """Create the authority and its directory; `parent` signs its certificate, by default it does itself.

        Raises:
            InvalidConfigError: If `cryptography` is not installed.
        """
        if util.find_spec("cryptography") is None:
            raise InvalidConfigError(
                "a cluster with TLS needs cryptography", action="pip install 'headrace-devcluster[tls]'."
            )
        from cryptography.hazmat.primitives.asymmetric import ec

        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.name = name
        self.ca_file = directory / "ca.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        until = datetime.now(UTC) + VALID
        signer = parent or self
        certificate = _sign(name, self._key.public_key(), signer._key, signer.name, until, hosts=(), is_authority=True)
        self.ca_file.write_bytes(certificate)

    def issue(
        self,
        name: str,
        *,
        hosts: Sequence[str] = HOSTS,
        until: datetime | None = None,
        file_name: str = "",
    ) -> TlsPaths:
        """Issue a certificate for server and client use, with its key.

        Args:
            name: common name.
            hosts: names and addresses of its server.
            until: time of expiry; by default in thirty days.
            file_name: name of its files without the ending; by default `name`. Existing files are replaced, each
                atomically.
        """
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        end = until or datetime.now(UTC) + VALID
        certificate = _sign(name, key.public_key(), self._key, self.name, end, hosts=hosts, is_authority=False)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        stem = file_name or name
        paths = TlsPaths(self.directory / f"{stem}.pem", self.directory / f"{stem}.key", self.ca_file)
        for path, content in ((paths.key_file, pem), (paths.cert_file, certificate)):
            partial = path.with_suffix(".partial")
            partial.write_bytes(content)
            partial.chmod(0o600)
            partial.replace(path)
        return paths


def _sign(
    name: str,
    public_key: Any,
    signing_key: Any,
    issuer: str,
    until: datetime,
    *,
    hosts: Sequence[str],
    is_authority: bool,
) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def distinguished(common_name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])

    builder = (
        x509.CertificateBuilder()
        .subject_name(distinguished(name))
        .issuer_name(distinguished(issuer))
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(datetime.now(UTC), until - VALID) - CLOCK_SKEW)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        # Python 3.13 and later verify by RFC 5280, which requires these, and of an authority the usage of its key.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
    )
    if is_authority:
        unused = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
             "decipher_only"), False,
        )  # fmt: skip
        usage = x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **unused)
        builder = builder.add_extension(usage, critical=True)
    else:
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    if hosts:
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(signing_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _general_name(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


class ClusterCertificates:
    """Certificates of a cluster with TLS and its clients, below one directory. Made once per cluster."""

    def __init__(self, directory: Path) -> None:
        """Create new certificates."""
        self.services = Authority(directory / "services", "headrace services")
        """Authority of brokers, coordinators and etcd only."""
        self.users = Authority(directory / "users", "headrace users")
        """Authority of clients."""
        self.etcd = self.services.issue("etcd")
        self.client = self.users.issue("client", hosts=())

    def settings(self, name: str) -> dict[str, object]:
        """Issue the certificate of a broker or coordinator, and return its TLS settings."""
        own = self.services.issue(name)
        return {
            "tls_cert_file": own.cert_file,
            "tls_key_file": own.key_file,
            "tls_ca_file": self.users.ca_file,
            "tls_client_auth": "required",
            "internal_tls_ca_file": self.services.ca_file,
            "etcd_tls_ca_file": self.services.ca_file,
            "etcd_tls_cert_file": own.cert_file,
            "etcd_tls_key_file": own.key_file,
        }

    def single_settings(self, name: str) -> dict[str, object]:
        """Issue the certificate of a cluster in one process, and return its TLS settings.

        The process calls its broker at the listener of clients, which therefore accepts its own certificate too.
        """
        own = self.services.issue(name)
        authorities = self.services.directory / "all.pem"
        authorities.write_bytes(self.services.ca_file.read_bytes() + self.users.ca_file.read_bytes())
        return {
            "tls_cert_file": own.cert_file,
            "tls_key_file": own.key_file,
            "tls_ca_file": authorities,
            "tls_client_auth": "required",
            "internal_tls_allowed_names": name,
        }

    def client_settings(self) -> dict[str, str]:
        """Return the TLS settings of clients."""
        return {
            "security_protocol": "SSL",
            "ssl_cafile": str(self.services.ca_file),
            "ssl_certfile": str(self.client.cert_file),
            "ssl_keyfile": str(self.client.key_file),
        }
