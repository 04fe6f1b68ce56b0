"""TLS certificates of a service, which are reloaded when their files change.

A service has up to three identities, each with a certificate and key, the authorities that sign its peers'
certificates, or both: `clients` (its client listener), `internal` (between brokers and coordinators, always mutual),
`etcd` (client of etcd). Files are fully validated before use. An invalid file ends the process at the start; later
the old certificates stay active, the metric `certificate_refused` is set, and the reason is logged. Established
connections are not affected; every new one uses the active certificates. gRPC accepts TLS 1.2 and later, without a
fallback to plain text.

Belongs to the event loop, except what other threads call for new connections, gRPC's and that of HTTP: it reads
`current`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import grpc
import structlog
from headrace.wire.certificates import authorities_text, client_context, load_chain, trust_each

from headrace_server.certificate_files import Certificates, TlsFilesError, read_certificates, stamps_of
from headrace_server.instruments import CommonMetrics
from headrace_server.tls_settings import ClientAuth, TlsFiles, TlsSettings

log = structlog.get_logger(__name__)

LOOK_SECONDS = 2.0
"""Interval of `stat` calls. A file watch misses updates of Kubernetes secrets, which rename a symbolic link."""

ChannelOptions = Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class CertificateInForce:
    """Certificate that a process currently uses."""

    setting: str
    """Setting that names its file, or that would if it had a separate file."""
    path: str
    subject: str
    not_after: datetime


class TlsIdentity:
    """Active certificates of one use. Belongs to the event loop; see the module."""

    def __init__(self, use: str, files: TlsFiles, *, mutual: bool = False) -> None:
        """Read the files. `mutual` means that these authorities sign the certificates of both sides.

        Raises:
            TlsFilesError: If they are invalid.
        """
        self.use = use
        self._files = files
        self._mutual = mutual
        self._apart_from: TlsIdentity | None = None
        self._stamps = stamps_of(files.paths)
        self.current = read_certificates(files, mutual=mutual)
        self._contexts: dict[ClientAuth, tuple[Certificates, ssl.SSLContext]] = {}
        self._client_context: tuple[Certificates, ssl.SSLContext] | None = None
        self.refused = False
        """Whether the files have since changed and are now invalid."""

    def keep_apart(self, other: TlsIdentity) -> None:
        """Require that this identity and `other` have no authority in common, now and after changes of files.

        Raises:
            TlsFilesError: If they have one in common now.
        """
        _check_apart(self.current, other.current, self._files.ca_file)
        self._apart_from, other._apart_from = other, self

    def look(self) -> None:
        """Activate changed files if they are valid."""
        stamps = stamps_of(self._files.paths)
        if stamps == self._stamps:
            return
        try:
            found = read_certificates(self._files, mutual=self._mutual)
            if self._apart_from is not None:
                _check_apart(found, self._apart_from.current, self._files.ca_file)
        except TlsFilesError as error:
            if stamps_of(self._files.paths) != stamps:
                return  # The files are being replaced.
            log.error("certificates_refused", use=self.use, reason=error.message, in_force_until=self._end())
            self.refused = True
        else:
            if stamps_of(self._files.paths) != stamps:
                return
            if found != self.current:
                self.current = found
                log.info("certificates_reloaded", use=self.use, expires_at=self._end())
            self.refused = False
        self._stamps = stamps

    def server_credentials(self, client_auth: ClientAuth) -> grpc.ServerCredentials:
        """Return credentials for a listener, whose new connections use the certificates active at the time."""
        given = self.current

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal given
            if given is self.current:
                return None
            given = self.current
            return _server_configuration(given)

        required = client_auth == "required"
        return grpc.dynamic_ssl_server_credentials(_server_configuration(given), fetch, required)  # type: ignore[arg-type]

    def server_context(self, client_auth: ClientAuth) -> ssl.SSLContext:
        """Return the context of a new connection that gRPC does not serve: TLS 1.2 and later, active certificates.

        Any thread may call it.
        """
        given, context = self._contexts.get(client_auth, (None, None))
        if context is None or given is not self.current:
            given = self.current
            context = _server_context(given, client_auth)
            self._contexts[client_auth] = given, context
        return context

    def client_context(self) -> ssl.SSLContext:
        """Return the context of one new connection to a peer: TLS 1.2 and later, with what is in force now."""
        if self._client_context is None or self._client_context[0] is not self.current:
            now = self.current
            self._client_context = now, client_context(now.authorities, now.chain, now.key)
        return self._client_context[1]

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return credentials for one new channel."""
        now = self.current
        return grpc.ssl_channel_credentials(now.authorities, now.key, now.chain)

    def describe(self) -> Iterator[CertificateInForce]:
        """Yield the own certificate, with the earliest expiry of its chain, and the authorities."""
        now, files = self.current, self._files
        if now.own:
            yield CertificateInForce(
                f"{self._prefix}tls_cert_file", files.cert_file, now.own[0].subject, now.expires_at
            )
        for found in now.trusted:
            yield CertificateInForce(f"{self._prefix}tls_ca_file", files.ca_file, found.subject, found.not_after)

    @property
    def _prefix(self) -> str:
        return "" if self.use == "clients" else f"{self.use}_"

    def _end(self) -> str:
        return self.current.expires_at.isoformat()


@dataclass(frozen=True, slots=True)
class ServiceTls:
    """Identities of one service; `None` means no TLS for that use."""

    clients: TlsIdentity | None = None
    internal: TlsIdentity | None = None
    etcd: TlsIdentity | None = None

    @property
    def identities(self) -> list[TlsIdentity]:
        """Configured identities."""
        return [identity for identity in (self.clients, self.internal, self.etcd) if identity is not None]

    def describe(self) -> list[CertificateInForce]:
        """Return every active certificate once, even if two uses share it."""
        found: dict[tuple[str, str], CertificateInForce] = {}
        for identity in self.identities:
            for certificate in identity.describe():
                found.setdefault((certificate.path, certificate.subject), certificate)
        return list(found.values())


def read_tls(settings: TlsSettings) -> ServiceTls:
    """Read the identities in the settings.

    Raises:
        TlsFilesError: If a file is invalid.
    """
    clients, internal, etcd = settings.clients_files, settings.internal_files, settings.etcd_files
    tls = ServiceTls(
        None if clients is None else TlsIdentity("clients", clients),
        None if internal is None else TlsIdentity("internal", internal, mutual=True),
        None if etcd is None else TlsIdentity("etcd", etcd),
    )
    if settings.trusts_internal_authority and tls.internal is not None and tls.clients is not None:
        tls.internal.keep_apart(tls.clients)
    return tls


def _check_apart(found: Certificates, other: Certificates, path: str) -> None:
    shared = {each.public_key for each in found.trusted} & {each.public_key for each in other.trusted}
    if shared:
        names = ", ".join(each.subject for each in found.trusted if each.public_key in shared)
        raise TlsFilesError(
            f"{path} trusts {names}, which signs for clients and for brokers alike: a client's certificate would be "
            "taken for a broker's",
            action="Set internal_tls_allowed_names, or give brokers and coordinators an authority of their own.",
        )


@contextlib.asynccontextmanager
async def watched_tls(settings: TlsSettings, metrics: CommonMetrics) -> AsyncIterator[ServiceTls]:
    """Read the identities, export them as metrics, and reload changed files until the block ends.

    Raises:
        TlsFilesError: See `read_tls`.
    """
    tls = read_tls(settings)
    for identity in tls.identities:
        metrics.certificate_expiry.labels(identity.use).set_function(partial(_expiry, identity))
        metrics.certificate_refused.labels(identity.use).set_function(partial(_refusal, identity))
    watching = asyncio.create_task(_watch(tls))
    try:
        yield tls
    finally:
        watching.cancel()


def _expiry(identity: TlsIdentity) -> float:
    return identity.current.expires_at.timestamp()


def _refusal(identity: TlsIdentity) -> float:
    return float(identity.refused)


async def _watch(tls: ServiceTls) -> None:
    while tls.identities:
        await asyncio.sleep(LOOK_SECONDS)
        for identity in tls.identities:
            try:
                identity.look()
            except Exception:  # The next look may find good files.
                log.exception("certificates_not_read", use=identity.use)


def open_channel(address: str, options: ChannelOptions, identity: TlsIdentity | None) -> grpc.aio.Channel:
    """Return a new asyncio channel with TLS, or in plain text if `identity` is `None`."""
    if identity is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, identity.channel_credentials(), options=options)


def open_blocking_channel(address: str, options: ChannelOptions, identity: TlsIdentity | None) -> grpc.Channel:
    """Return a new blocking channel with TLS, or in plain text if `identity` is `None`."""
    if identity is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, identity.channel_credentials(), options=options)


def _server_configuration(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    assert certificates.key is not None, "a listener has a key"
    assert certificates.chain is not None, "a listener has a certificate"
    return grpc.ssl_server_certificate_configuration([(certificates.key, certificates.chain)], certificates.authorities)


def _server_context(certificates: Certificates, client_auth: ClientAuth) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    assert certificates.key is not None, "a listener has a key"
    assert certificates.chain is not None, "a listener has a certificate"
    load_chain(context, certificates.chain, certificates.key)
    if certificates.authorities is not None:
        context.load_verify_locations(cadata=authorities_text(certificates.authorities))
        trust_each(context)
        context.verify_mode = ssl.CERT_REQUIRED if client_auth == "required" else ssl.CERT_OPTIONAL
    return context
