"""Security of a client's channels: plain text, or TLS with the files that its settings name.

The files are read when the client is created, and again when they change: channels opened from then on use the new
files, open ones are unchanged. New files that cannot be used are ignored, and the previous ones stay in force.
"""

import os
import ssl
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc

from headrace.client.base.config import ClientConfig
from headrace.client.base.errors import ConfigError
from headrace.wire.certificates import CertificateFormatError, client_context, read_facts

LOOK_S = 5.0
"""Maximum delay until a changed file is detected."""

Stamp = tuple[int, int, int]
Options = tuple[tuple[str, int | str], ...]


@dataclass(frozen=True, slots=True)
class ClientCertificates:
    """Content of the files in PEM; `None` for a part that is not configured."""

    authorities: bytes | None
    key: bytes | None
    chain: bytes | None


class ChannelSecurity:
    """Channel security of one client. Owned by its connections; any thread."""

    def __init__(self, config: ClientConfig) -> None:
        """Read the files.

        Raises:
            ConfigError: If one cannot be used; the message names it, and the reason.
        """
        self._config = config
        self._lock = threading.Lock()
        self._on = config.security_protocol == "SSL"
        self._stamps = self._look()
        self._certificates = _read(config) if self._on else None
        self._looked_at = time.monotonic()
        self._context: tuple[ClientCertificates, ssl.SSLContext] | None = None

    def certificates(self) -> ClientCertificates | None:
        """Return the certificates for new channels, the same object until they change; `None` means plain text."""
        if not self._on or time.monotonic() - self._looked_at < LOOK_S:
            return self._certificates
        with self._lock:
            self._looked_at = time.monotonic()
            stamps = self._look()
            if stamps != self._stamps:
                try:
                    found = _read(self._config)
                except ConfigError:
                    return self._certificates
                if self._look() == stamps:
                    self._stamps, self._certificates = stamps, found
            return self._certificates

    @property
    def server_name(self) -> str:
        """Name expected in the servers' certificates; empty means the host of each address."""
        return self._config.ssl_server_name

    def context(self) -> ssl.SSLContext | None:
        """Return the context of new native protocol connections; `None` means plain text."""
        certificates = self.certificates()
        if certificates is None:
            return None
        if self._context is None or self._context[0] is not certificates:
            made = client_context(certificates.authorities, certificates.chain, certificates.key)
            self._context = certificates, made
        return self._context[1]

    def options(self, options: Options) -> Options:
        """Return the options of a channel."""
        name = self._config.ssl_server_name
        return (*options, ("grpc.ssl_target_name_override", name)) if name else options

    def _look(self) -> list[Stamp | None]:
        return [_stamp(path) for path in _paths(self._config)]


def credentials_of(certificates: ClientCertificates) -> grpc.ChannelCredentials:
    """Return credentials for one new channel. Without configured authorities, gRPC uses the public ones."""
    return grpc.ssl_channel_credentials(certificates.authorities, certificates.key, certificates.chain)


def _paths(config: ClientConfig) -> tuple[str, str, str]:
    return config.ssl_cafile, config.ssl_keyfile, config.ssl_certfile


def _stamp(path: str) -> Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(config: ClientConfig) -> ClientCertificates:
    authorities, key, chain = (
        _read_file(name, getattr(config, name)) for name in ("ssl_cafile", "ssl_keyfile", "ssl_certfile")
    )
    if authorities is not None:
        _expiry("ssl_cafile", config.ssl_cafile, authorities)
    if chain is not None:
        end = _expiry("ssl_certfile", config.ssl_certfile, chain)
        if end <= datetime.now(UTC):
            raise ConfigError(
                f"the certificate in ssl_certfile={config.ssl_certfile} has expired, on {end:%Y-%m-%d at %H:%M} UTC",
                action="Put a new one there, with its key.",
            )
        _check_key(config)
    return ClientCertificates(authorities, key, chain)


def _read_file(name: str, path: str) -> bytes | None:
    try:
        return Path(path).read_bytes() if path else None
    except OSError as error:
        raise ConfigError(
            f"{name}={path} cannot be read: {error.strerror}", action="Name a file that this process may read."
        ) from error


def _expiry(name: str, path: str, pem: bytes) -> datetime:
    try:
        return min(found.not_after for found in read_facts(pem))
    except CertificateFormatError as error:
        raise ConfigError(
            f"{name}={path} is no certificate in PEM: {error}",
            action="Name a file with -----BEGIN CERTIFICATE-----.",
        ) from error


def _check_key(config: ClientConfig) -> None:
    def refuse_passphrase() -> str:
        raise ConfigError(
            f"the key in ssl_keyfile={config.ssl_keyfile} has a passphrase",
            action="Name one without: `openssl pkey -in KEY -out NEW_KEY`.",
        )

    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password=refuse_passphrase)
    except ssl.SSLError as error:
        raise ConfigError(
            f"ssl_certfile={config.ssl_certfile} and ssl_keyfile={config.ssl_keyfile} are no certificate and its key",
            action="Name a certificate and the private key, in PEM, that were made together.",
        ) from error
