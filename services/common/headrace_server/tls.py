"""Certificates of a service: read, checked, watched, and put in force again when their files change.

A service has up to three identities, each a certificate and key, the authorities that sign its peers' certificates, or
both: `clients` (its client listener), `internal` (brokers and coordinators among each other, always mutual), `etcd`
(towards etcd). What is read is checked whole before it is used: at the start a fault ends the process, later the old
certificates stay in force, `certificate_refused` says so, and a line of the log says why. Established connections are
left alone; every new one uses what is in force then. gRPC takes TLS 1.2 and later, and there is no way back to plain
text.

Belongs to the event loop, but for what gRPC calls at a new connection from threads of its own: that reads `current`.
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
from headrace.wire.certificates import load_chain

from headrace_server.certificate_files import Certificates, TlsFilesError, read_certificates, stamps_of
from headrace_server.instruments import CommonMetrics
from headrace_server.tls_settings import ClientAuth, TlsFiles, TlsSettings

log = structlog.get_logger(__name__)

LOOK_SECONDS = 2.0
"""Interval between two `stat` of the files. A file watch misses how Kubernetes replaces a secret: it renames a link."""

ChannelOptions = Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class CertificateInForce:
    """One certificate that a process uses now."""

    setting: str
    """The setting that names it, or would if it had a file of its own."""
    path: str
    subject: str
    not_after: datetime


class TlsIdentity:
    """The certificates of one use, as they are in force. Made and looked after by the event loop; see the module."""

    def __init__(self, use: str, files: TlsFiles, *, mutual: bool = False) -> None:
        """Read the files. `mutual`: both sides of its connections are of this identity's authorities.

        Raises:
            TlsFilesError: they cannot be used.
        """
        self.use = use
        self._files = files
        self._mutual = mutual
        self._apart_from: TlsIdentity | None = None
        self._stamps = stamps_of(files.paths)
        self.current = read_certificates(files, mutual=mutual)
        self._context: tuple[Certificates, ssl.SSLContext] | None = None
        self.refused = False
        """Whether the files have changed since into something that cannot be used."""

    def keep_apart(self, other: TlsIdentity) -> None:
        """Refuse authorities that `other` trusts, too, now and when files change.

        Raises:
            TlsFilesError: both trust one authority now.
        """
        _check_apart(self.current, other.current, self._files.ca_file)
        self._apart_from, other._apart_from = other, self

    def look(self) -> None:
        """Put changed files in force, if they are good."""
        stamps = stamps_of(self._files.paths)
        if stamps == self._stamps:
            return
        try:
            found = read_certificates(self._files, mutual=self._mutual)
            if self._apart_from is not None:
                _check_apart(found, self._apart_from.current, self._files.ca_file)
        except TlsFilesError as error:
            if stamps_of(self._files.paths) != stamps:
                return  # They were just being replaced.
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
        """For a listener; every new connection gets what is in force then."""
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
        """For one new connection of the native protocol: TLS 1.2 and later, with what is in force now."""
        if self._context is None or self._context[0] is not self.current:
            self._context = self.current, _server_context(self.current, client_auth)
        return self._context[1]

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For one new channel."""
        now = self.current
        return grpc.ssl_channel_credentials(now.authorities, now.key, now.chain)

    def describe(self) -> Iterator[CertificateInForce]:
        """What is in force: the own certificate, as it ends with the first of its chain, and the authorities."""
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
    """The identities of one service; None: no TLS there."""

    clients: TlsIdentity | None = None
    internal: TlsIdentity | None = None
    etcd: TlsIdentity | None = None

    @property
    def identities(self) -> list[TlsIdentity]:
        """Those that are there."""
        return [identity for identity in (self.clients, self.internal, self.etcd) if identity is not None]

    def describe(self) -> list[CertificateInForce]:
        """Every certificate in force, each once where two uses share it."""
        found: dict[tuple[str, str], CertificateInForce] = {}
        for identity in self.identities:
            for certificate in identity.describe():
                found.setdefault((certificate.path, certificate.subject), certificate)
        return list(found.values())


def read_tls(settings: TlsSettings) -> ServiceTls:
    """Read what the settings name.

    Raises:
        TlsFilesError: something of it cannot be used.
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
    """Read the identities, show them in the metrics, and look at their files until the block ends.

    Raises:
        TlsFilesError: see `read_tls`.
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
            identity.look()


def open_channel(address: str, options: ChannelOptions, identity: TlsIdentity | None) -> grpc.aio.Channel:
    """A new asyncio channel: of the identity, or plain where there is none."""
    if identity is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, identity.channel_credentials(), options=options)


def open_blocking_channel(address: str, options: ChannelOptions, identity: TlsIdentity | None) -> grpc.Channel:
    """A new blocking channel: of the identity, or plain where there is none."""
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
        context.load_verify_locations(cadata=certificates.authorities.decode())
        context.verify_mode = ssl.CERT_REQUIRED if client_auth == "required" else ssl.CERT_OPTIONAL
    return context
