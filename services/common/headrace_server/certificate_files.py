"""Reads and validates certificate files; `tls` activates them.

Validation detects what would make a later handshake fail: a key of another certificate, a passphrase, a certificate
that has expired, is not signed by its own authorities, or does not allow use as server and as client.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog
from headrace.wire.certificates import CertificateFacts, CertificateFormatError, read_facts, trust_each

from headrace_server.settings import SettingsError
from headrace_server.tls_settings import TlsFiles

log = structlog.get_logger(__name__)

Stamp = tuple[int, int, int]


class TlsFilesError(SettingsError):
    """The certificates are invalid; the message names the file and the reason. Replace the file."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """Contents of the files in PEM; `None` means that the part is not configured."""

    chain: bytes | None
    key: bytes | None
    authorities: bytes | None
    expires_at: datetime
    """Earliest expiry in the own chain; without one, the latest expiry of the authorities."""
    own: tuple[CertificateFacts, ...] = ()
    """Certificates of the chain, the own one first."""
    trusted: tuple[CertificateFacts, ...] = ()
    """Certificates of the authorities."""


def stamps_of(paths: Sequence[str]) -> tuple[Stamp | None, ...]:
    """Return for each file a value that changes with the file, or `None` if it is not accessible."""
    return tuple(map(_stamp, paths))


def _stamp(path: str) -> Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_certificates(files: TlsFiles, *, mutual: bool = False) -> Certificates:
    """Read and validate the files. `mutual` means that these authorities sign both sides of a connection.

    Raises:
        TlsFilesError: If they are invalid.
    """
    chain, key, authorities = (_read(path) for path in (files.cert_file, files.key_file, files.ca_file))
    own, trusted = _facts(files.cert_file, chain), _facts(files.ca_file, authorities)
    expires_at = min(found.not_after for found in own) if own else max(found.not_after for found in trusted)
    if expires_at <= datetime.now(UTC):
        raise TlsFilesError(
            f"the certificate in {files.cert_file or files.ca_file} has expired, on {expires_at:%Y-%m-%d at %H:%M} UTC",
            action="Put a new one there, with its key.",
        )
    try:
        if key:
            _warn_of_readers(files.key_file)
        if authorities:
            _load(files.ca_file, lambda context: context.load_verify_locations(files.ca_file))
        if chain:
            _load(files.cert_file, lambda context: _load_chain(context, files))
        if mutual:
            _shake_hands(files)
    except OSError as error:  # A file has gone meanwhile, or no handshake is possible: `ssl.SSLError` is an OSError.
        raise TlsFilesError(
            f"the certificate in {files.cert_file or files.ca_file} cannot be used: {error}",
            action="Write certificate, key and authorities again, with keys of RSA, P-256, P-384 or Ed25519.",
        ) from error
    return Certificates(chain, key, authorities, expires_at, own, trusted)


def _warn_of_readers(path: str) -> None:
    """Log a warning if every account of the machine can read a private key."""
    mode = os.stat(path).st_mode
    if mode & stat.S_IROTH:
        log.warning(
            "private_key_readable_by_all", path=path, mode=f"{stat.S_IMODE(mode):04o}", action=f"chmod 600 {path}"
        )


def _read(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes() if path else None
    except OSError as error:
        raise TlsFilesError(
            f"cannot read {path}: {error.strerror}", action="Put the file there, readable for this process."
        ) from error


def _facts(path: str, pem: bytes | None) -> tuple[CertificateFacts, ...]:
    if pem is None:
        return ()
    try:
        return tuple(read_facts(pem))
    except CertificateFormatError as error:
        raise TlsFilesError(
            f"{path} is no certificate in PEM: {error}",
            action="Give a file with -----BEGIN CERTIFICATE-----.",
        ) from error


def _load(path: str, load: Callable[[ssl.SSLContext], None]) -> None:
    try:
        load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    except ssl.SSLError as error:
        raise TlsFilesError(
            f"{path} cannot be used: {error.reason or error}", action="Put a certificate in PEM there."
        ) from error


def _load_chain(context: ssl.SSLContext, files: TlsFiles) -> None:
    try:
        context.load_cert_chain(files.cert_file, files.key_file, password=lambda: _refuse_passphrase(files.key_file))
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsFilesError(
                f"the key in {files.key_file} is not that of the certificate in {files.cert_file}",
                action="Put certificate and key there that were made together.",
            ) from error
        raise TlsFilesError(
            f"{files.cert_file} and {files.key_file} are no certificate and key in PEM",
            action="Give a certificate, with its chain below it, and an unencrypted private key.",
        ) from error


def _refuse_passphrase(path: str) -> str:
    raise TlsFilesError(
        f"the key in {path} has a passphrase", action="Give one without: `openssl pkey -in KEY -out NEW_KEY`."
    )


def _shake_hands(files: TlsFiles) -> None:
    """Do an in-memory handshake of the identity with itself, which fails as that of its peers would."""
    sides = []
    inbound, outbound = ssl.MemoryBIO(), ssl.MemoryBIO()
    for protocol, come, go in (
        (ssl.PROTOCOL_TLS_CLIENT, inbound, outbound),
        (ssl.PROTOCOL_TLS_SERVER, outbound, inbound),
    ):
        context = ssl.SSLContext(protocol)
        context.check_hostname, context.verify_mode = False, ssl.CERT_REQUIRED
        context.load_verify_locations(files.ca_file)
        trust_each(context)
        _load_chain(context, files)
        sides.append(context.wrap_bio(come, go, server_side=protocol == ssl.PROTOCOL_TLS_SERVER))
    client, server = sides
    try:
        for side in (client, server, client, server):
            _go_on(side)
    except ssl.SSLCertVerificationError as error:
        raise TlsFilesError(
            f"brokers and coordinators would refuse the certificate in {files.cert_file}, by the authorities in "
            f"{files.ca_file}: {error.verify_message}",
            action="It must be signed by them, for the usages server and client authentication.",
        ) from error


def _go_on(side: ssl.SSLObject) -> None:
    with contextlib.suppress(ssl.SSLWantReadError):  # The other side continues.
        side.do_handshake()
