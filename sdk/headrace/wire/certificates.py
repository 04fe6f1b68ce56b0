"""Subject, public key and expiry of X.509 certificates in PEM. Pure; used by services and SDK.

gRPC makes the handshakes. The expiry must be known before a handshake fails, and the standard library does not read it
from a file. RFC 5280, 4.1: a certificate is `SEQUENCE { tbsCertificate SEQUENCE { [0] version, serialNumber, signature,
issuer, validity SEQUENCE { notBefore, notAfter }, subject, ... }, ... }`, in DER.
"""

from __future__ import annotations

import binascii
import os
import re
import ssl
import tempfile
from datetime import UTC, datetime
from typing import NamedTuple

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _SET, _OBJECT_ID, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0x31, 0x06, 0xA0, 0x17, 0x18
_BMP_STRING = 0x1E
_ATTRIBUTES = {3: "CN", 6: "C", 7: "L", 8: "ST", 10: "O", 11: "OU"}
"""Last numbers of the object ids 2.5.4.n in names of certificates (RFC 4514, 3)."""


class CertificateFormatError(ValueError):
    """The file is not a certificate in PEM. Use one that begins with `-----BEGIN CERTIFICATE-----`."""


class CertificateFacts(NamedTuple):
    """Subject, expiry and public key of one certificate."""

    subject: str
    """Name such as `CN=broker-1,O=Example`, in the order of the certificate; rare attributes are omitted."""
    not_after: datetime
    public_key: bytes
    """SubjectPublicKeyInfo in DER: two certificates of one authority have the same."""


def read_facts(pem: bytes) -> list[CertificateFacts]:
    """Return the facts of each certificate of a PEM file, in order; text around them is ignored.

    Raises:
        CertificateFormatError: If there is none, or one cannot be read.
    """
    found = _PEM.findall(pem)
    if not found:
        raise CertificateFormatError("there is no certificate in it")
    try:
        return [_facts(binascii.a2b_base64(body)) for body in found]
    except (ValueError, IndexError) as error:
        raise CertificateFormatError("a certificate in it is corrupt") from error


def _facts(certificate: bytes) -> CertificateFacts:
    fields, _ = _enter(certificate, 0, _SEQUENCE)
    position, _ = _enter(certificate, fields, _SEQUENCE)
    if certificate[position] == _VERSION:
        position = _skip(certificate, position)
    for _field in ("serialNumber", "signature", "issuer"):
        position = _skip(certificate, position)
    not_before, _ = _enter(certificate, position, _SEQUENCE)
    not_after = _time(certificate, _skip(certificate, not_before))
    subject = _skip(certificate, position)
    public_key = _skip(certificate, subject)
    return CertificateFacts(
        _name(certificate, subject), not_after, certificate[public_key : _skip(certificate, public_key)]
    )


def _name(der: bytes, position: int) -> str:
    """Return a name. RFC 5280, 4.1.2.4: a SEQUENCE of SETs of `SEQUENCE { type OBJECT IDENTIFIER, value }`."""
    parts = []
    position, end = _enter(der, position, _SEQUENCE)
    while position < end:
        one, end_of_set = _enter(der, position, _SET)
        while one < end_of_set:
            kind, end_of_one = _enter(der, one, _SEQUENCE)
            object_id = der[slice(*_enter(der, kind, _OBJECT_ID))]
            value = _skip(der, kind)
            start, stop = _enter(der, value, der[value])
            if object_id[:2] == b"\x55\x04" and object_id[-1] in _ATTRIBUTES:
                encoding = "utf-16-be" if der[value] == _BMP_STRING else "utf-8"
                parts.append(f"{_ATTRIBUTES[object_id[-1]]}={der[start:stop].decode(encoding, 'replace')}")
            one = end_of_one
        position = end_of_set
    return ",".join(parts)


def _time(der: bytes, position: int) -> datetime:
    """Return a time. RFC 5280, 4.1.2.5: in UTC, to the second; two digits of a year below 50 are of this century."""
    tag = der[position]
    start, end = _enter(der, position, tag)
    text = der[start:end].decode("ascii")
    if tag == _UTC_TIME:
        text = ("20" if int(text[:2]) < 50 else "19") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"a time of tag {tag}")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _enter(der: bytes, position: int, tag: int) -> tuple[int, int]:
    """Return the start and end of the content of the element at `position`."""
    if der[position] != tag:
        raise ValueError(f"tag {der[position]} in place of {tag}")
    length, start = der[position + 1], position + 2
    if length & 0x80:
        count = length & 0x7F
        length, start = int.from_bytes(der[start : start + count], "big"), start + count
    if start + length > len(der):
        raise ValueError("cut off")
    return start, start + length


def _skip(der: bytes, position: int) -> int:
    return _enter(der, position, der[position])[1]


def client_context(authorities: bytes | None, chain: bytes | None, key: bytes | None) -> ssl.SSLContext:
    """Return a context of connections to servers, from PEM: TLS 1.2 or later; no authorities mean the public ones."""
    context = ssl.create_default_context(cadata=None if authorities is None else authorities_text(authorities))
    trust_each(context)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # As gRPC: Python 3.13 requires extensions that many CAs lack.
    if chain is not None and key is not None:
        load_chain(context, chain, key)
    return context


def authorities_text(pem: bytes) -> str:
    """Return a file of authorities as `ssl` takes it from memory: ASCII, without other characters of its comments."""
    return pem.decode("ascii", "ignore")


def trust_each(context: ssl.SSLContext) -> None:
    """Trust every authority of a file, as gRPC does: one that is signed by another needs no root there."""
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def load_chain(context: ssl.SSLContext, chain: bytes, key: bytes) -> None:
    """Load a certificate chain and its key, PEM, from memory; `ssl` takes only files, which may have changed."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("headrace-certificate"), "wb") as file:
            file.write(b"\n".join((chain, key)))
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        return
    with tempfile.NamedTemporaryFile() as file:  # only its owner may read it
        file.write(b"\n".join((chain, key)))
        file.flush()
        context.load_cert_chain(file.name)
