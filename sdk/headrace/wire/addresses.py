"""Addresses as `host:port`, by their text alone. Pure; for clients, which keep credentials from networks in plain text,
and servers, which keep strangers out.
"""

import ipaddress

_LOOPBACK_NAMES = frozenset({"localhost", "localhost."})


def is_loopback(address: str) -> bool:
    """Return whether the host of `host:port` is this machine."""
    host = address.rpartition(":")[0].strip("[]").lower()
    if host in _LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
