"""An issuer of tokens for tests: keys, tokens good and bad, and an https server that answers as told."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
import time
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from headrace_devcluster.certificates import Authority
from joserfc import jwt
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, OKPKey, RSAKey

AUDIENCE = "headrace"
ISSUER = "https://login.example"
NOW = 1_700_000_000
"""Of `ManualClock`, in seconds."""


def make_key(algorithm, key_id):
    match algorithm:
        case "RS256":
            return RSAKey.generate_key(2_048, {"kid": key_id}, private=True)
        case "ES256":
            return ECKey.generate_key("P-256", {"kid": key_id}, private=True)
        case "EdDSA":
            return OKPKey.generate_key("Ed25519", {"kid": key_id}, private=True)


KEYS = {algorithm: make_key(algorithm, f"k-{algorithm}") for algorithm in ("RS256", "ES256", "EdDSA")}


def key_set(*keys, **more):
    """The public part of keys as a JSON Web Key Set."""
    return json.dumps({"keys": [key.as_dict(private=False, **more) for key in keys]}).encode()


def claims(**changes):
    """Claims of a good token; `None` removes one."""
    found = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": NOW + 600, "iat": NOW, "nbf": NOW} | changes
    return {name: value for name, value in found.items() if value is not None}


def token(key=KEYS["ES256"], algorithm="ES256", header=None, **changes):
    """A signed token."""
    whole = {"alg": algorithm, "kid": key.kid} | (header or {})
    whole = {name: value for name, value in whole.items() if value is not None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)  # Issuers still write EdDSA.
        return jwt.encode(whole, claims(**changes), key, algorithms=[algorithm])


def encode(part):
    content = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


KUBERNETES_KEYS = "/openid/v1/jwks"
"""Where an API server has its keys, of a media type that it sends only if it is accepted."""


class IssuerServer:
    """An https server on loopback; `answers` has what it sends by path."""

    def __init__(self, directory):
        authority = Authority(directory, "issuers")
        paths = authority.issue("issuer")
        self.ca_pem = paths.ca_file.read_text()
        self.answers = {}
        self.asked = []
        self.released = threading.Event()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(paths.cert_file, paths.key_file)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def url(self, path="/keys", scheme="https"):
        return f"{scheme}://127.0.0.1:{self._server.server_port}{path}"

    def close(self):
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self):
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server.asked.append(self.path)
                answer = server.answers.get(self.path, 404)
                if self.path == KUBERNETES_KEYS and "application/jwk-set+json" not in self.headers["Accept"]:
                    answer = 406
                if answer == "slow":
                    self._drip()
                elif isinstance(answer, int):
                    self._send(answer, b"")
                elif isinstance(answer, str):
                    self._send(302, b"", answer)
                else:
                    self._send(200, answer)

            def _send(self, status, body, location=None):
                self.send_response(status)
                if location is not None:
                    self.send_header("Location", location)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(body)

            def _drip(self):
                """Send a byte at a time, as who wants to hold the reader's thread."""
                self.send_response(200)
                self.end_headers()
                until = time.monotonic() + 60
                while not server.released.wait(0.02) and time.monotonic() < until:
                    try:
                        self.wfile.write(b" ")
                    except OSError:
                        return

            def log_message(self, *args):
                """Say nothing."""

        return Handler
