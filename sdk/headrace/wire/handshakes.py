"""Explanations of failed TLS handshakes: gRPC's texts, each with our message and the next step.

gRPC fails every call on such a connection with UNAVAILABLE, and only the text has the reason. The texts are those of
gRPC 1.62 to 1.85 and BoringSSL; an unknown text stays as it is. Pure.
"""

from __future__ import annotations

from typing import NamedTuple


class Explanation(NamedTuple):
    """Fault and next step, one sentence each."""

    message: str
    action: str
    is_certain: bool = True
    """`False` if a server that is stopping, or a proxy without one, causes the same text."""


_KNOWN = (
    (
        "certificate has expired",
        Explanation("the server's certificate has expired", "Let an administrator put a new one on the server."),
    ),
    (
        "certificate is not yet valid",
        Explanation("the server's certificate is not valid yet", "Set this machine's clock, or the server's."),
    ),
    (
        "Hostname Verification Check failed",
        Explanation(
            "the server's certificate is not for this address",
            "Use a name that the certificate has, set ssl_server_name to one, or issue it for this address.",
        ),
    ),
    (
        "is not in peer certificate",
        Explanation(
            "the server's certificate is not for this address",
            "Use a name that the certificate has, set ssl_server_name to one, or issue it for this address.",
        ),
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        Explanation(
            "the server's certificate is signed by none of this client's authorities",
            "Set ssl_cafile to the certificate of the authority that signed it.",
        ),
    ),
    (
        "WRONG_VERSION_NUMBER",
        Explanation(
            "the server uses plain text and this client uses TLS",
            "Use the address of a listener with TLS, or set security_protocol='PLAINTEXT'.",
        ),
    ),
    (
        "CERTIFICATE_REQUIRED",
        Explanation("the server requires a certificate of this client", "Set ssl_certfile and ssl_keyfile."),
    ),
)
_PLAIN = Explanation(
    "the server closed the connection at once, as one that requires TLS does",
    "Set security_protocol='SSL'.",
    is_certain=False,
)
_ANONYMOUS = Explanation(
    "the server broke off the TLS handshake: it requires a certificate of this client",
    "Set ssl_certfile and ssl_keyfile.",
    is_certain=False,
)
_REFUSED = Explanation(
    "the server broke off the TLS handshake: it does not accept this client's certificate",
    "Set ssl_certfile to one that has not expired and that the server's tls_ca_file has signed.",
    is_certain=False,
)
_EITHER = Explanation(
    "the server closed the connection before it was made: it requires TLS, or another certificate of this client",
    "Check security_protocol, ssl_certfile and ssl_keyfile.",
    is_certain=False,
)


def explain_handshake(
    details: str, *, speaks_tls: bool | None = None, shows_certificate: bool = False
) -> Explanation | None:
    """Return the explanation of the text of a call that was never sent, or `None` if TLS is not the reason.

    A server that closes the connection sends no reason. The explanation then depends on the client: `speaks_tls`
    (`None` means unknown) and `shows_certificate`.
    """
    if "failed to connect to all addresses" not in details:
        return None
    for words, explanation in _KNOWN:
        if words in details:
            return explanation
    if not details.rstrip().endswith(("Socket closed", "Connection reset by peer", "handshaker shutdown")):
        return None
    if speaks_tls is None:
        return _EITHER
    if not speaks_tls:
        return _PLAIN
    return _REFUSED if shows_certificate else _ANONYMOUS
