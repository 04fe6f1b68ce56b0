"""When an X.509 certificate ends: all that headrace reads of one itself. Pure; services and SDK use it.

Handshakes are gRPC's business. That a certificate is about to expire must be known before a handshake fails, and the
standard library does not tell it of a file. RFC 5280, 4.1: a certificate is `SEQUENCE { tbsCertificate SEQUENCE {
[0] version, serialNumber, signature, issuer, validity SEQUENCE { notBefore, notAfter }, ... }, ... }`, in DER.
"""

from __future__ import annotations

import binascii
import re
from datetime import UTC, datetime

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


class CertificateFormatError(ValueError):
    """Not a certificate in PEM. Give a file that begins with `-----BEGIN CERTIFICATE-----`."""


def expiry_times(pem: bytes) -> list[datetime]:
    """The end of each certificate in a PEM file, in their order; text around them is passed over.

    Raises:
        CertificateFormatError: there is none, or one cannot be read.
    """
    found = _PEM.findall(pem)
    if not found:
        raise CertificateFormatError("there is no certificate in it")
    try:
        return [_not_after(binascii.a2b_base64(body)) for body in found]
    except (ValueError, IndexError) as error:
        raise CertificateFormatError("a certificate in it is damaged") from error


def _not_after(certificate: bytes) -> datetime:
    fields, _ = _enter(certificate, 0, _SEQUENCE)
    position, _ = _enter(certificate, fields, _SEQUENCE)
    if certificate[position] == _VERSION:
        position = _skip(certificate, position)
    for _field in ("serialNumber", "signature", "issuer"):
        position = _skip(certificate, position)
    not_before, _ = _enter(certificate, position, _SEQUENCE)
    return _time(certificate, _skip(certificate, not_before))


def _time(der: bytes, position: int) -> datetime:
    """RFC 5280, 4.1.2.5: always in UTC, to the second; two digits of a year below 50 are of this century."""
    tag = der[position]
    start, end = _enter(der, position, tag)
    text = der[start:end].decode("ascii")
    if tag == _UTC_TIME:
        text = ("20" if int(text[:2]) < 50 else "19") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"a time of tag {tag}")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _enter(der: bytes, position: int, tag: int) -> tuple[int, int]:
    """Where the content of the element at `position` starts and ends."""
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
