"""Names in a client's certificate, in one order for all transports: who it identifies depends on the order. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any

_KINDS = ("DNS", "email", "URI", "IP Address")
"""Kinds of alternative names that gRPC reports, as `ssl` calls them."""


def in_order(common: Sequence[str], alternatives: Sequence[str]) -> list[str]:
    """Return the common name, empty if the certificate has none, and its other names; nothing if it has no name."""
    names = [*(common or [""]), *alternatives]
    return names if any(names) else []


def names_of(certificate: Mapping[str, Any] | None) -> tuple[list[str], list[str]]:
    """Return the common and alternative names in what `ssl.SSLSocket.getpeercert` returns."""
    if not certificate:
        return [], []
    common = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    found = [(kind, value) for kind, value in certificate.get("subjectAltName", ()) if kind in _KINDS]
    return common, [_address(value) if kind == "IP Address" else value for kind, value in found]


def _address(text: str) -> str:
    """Return an address as gRPC writes it."""
    try:
        return str(ip_address(text.strip()))
    except ValueError:
        return text
