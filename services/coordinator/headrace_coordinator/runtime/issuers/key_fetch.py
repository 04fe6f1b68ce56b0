"""Reads the key set of an issuer from a file or by https, in a thread, with limits on time and size.

The standard library is enough for one GET a few times an hour. A response must arrive within `TIMEOUT_SECONDS`,
redirects, discovery (OpenID Connect Discovery 1.0, 4) and a slow sender included: at that time the connection is shut
down, which ends its thread. Redirects and the address that discovery names must be https, too. Proxies of the
environment are not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from headrace.v1 import auth_pb2
from headrace.wire.certificates import authorities_text

TIMEOUT_SECONDS = 5.0
MAX_BYTES = 1 << 20
MAX_REDIRECTS = 3
DISCOVERY = "/.well-known/openid-configuration"
ACCEPTED = "application/json, application/jwk-set+json"
"""Media types of a configuration and of a key set; the API server of Kubernetes sends no others than are accepted."""
_THREADS = 8
_CHUNK_BYTES = 64 << 10
_REDIRECTS = (301, 302, 303, 307, 308)


class IssuerKeysError(Exception):
    """The keys were not read, or are none; the message says why."""


class KeyFetcher:
    """Reads key sets. Belongs to the event loop; its threads end with `close`."""

    def __init__(self, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._timeout_seconds = timeout_seconds
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="issuer-keys")
        self._running: set[_Fetch] = set()

    async def read(self, issuer: auth_pb2.Issuer) -> bytes:
        """Return the key set of an issuer.

        Raises:
            IssuerKeysError: If it cannot be read in time.
        """
        loop = asyncio.get_running_loop()
        if not issuer.keys_url.startswith("https://"):
            return await loop.run_in_executor(self._threads, read_file, issuer.keys_url)
        fetch = _Fetch(issuer, self._timeout_seconds)
        self._running.add(fetch)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await loop.run_in_executor(self._threads, fetch.run)
        except TimeoutError:
            raise IssuerKeysError(f"{issuer.keys_url} did not answer within {self._timeout_seconds:g} s") from None
        finally:
            fetch.end()
            self._running.discard(fetch)

    def close(self) -> None:
        """End all reads."""
        for fetch in tuple(self._running):
            fetch.end()
        self._threads.shutdown(wait=False, cancel_futures=True)


def read_file(path: str) -> bytes:
    """Return the content of a file, at most `MAX_BYTES`; blocking.

    Raises:
        IssuerKeysError: If it cannot be read, or is larger.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise IssuerKeysError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise IssuerKeysError(f"{path} has more than {MAX_BYTES} bytes")
    return content


def context_of(authorities_pem: str) -> ssl.SSLContext:
    """Return a context that trusts the authorities in a text, which may have comments; `""` means the public ones.

    Raises:
        ValueError: If it has no certificate.
    """
    text = authorities_text(authorities_pem.encode())
    if authorities_pem and not text:  # `ssl` would trust the public ones.
        raise ValueError("there is no certificate in it")
    try:
        return ssl.create_default_context(cadata=text or None)
    except ssl.SSLError as error:
        raise ValueError(str(error)) from error


class _Fetch:
    """One read by https. `run` belongs to a thread, `end` to any."""

    def __init__(self, issuer: auth_pb2.Issuer, timeout_seconds: float) -> None:
        self._issuer = issuer
        self._timeout_seconds = timeout_seconds
        self._deadline = 0.0
        self._lock = threading.Lock()
        self._connection: http.client.HTTPSConnection | None = None
        self._ended = False

    def run(self) -> bytes:
        """Return the key set. Raises as `KeyFetcher.read`."""
        self._deadline = time.monotonic() + self._timeout_seconds
        url = self._issuer.keys_url
        context = self._context()
        content = self._get(url, context)
        if not urlsplit(url).path.endswith(DISCOVERY):
            return content
        return self._get(self._discovered(content), context)

    def end(self) -> None:
        """Shut down the connection, so that the thread ends."""
        with self._lock:
            self._ended = True
            if self._connection is not None and self._connection.sock is not None:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(self._connection.sock, socket.SHUT_RDWR)

    def _context(self) -> ssl.SSLContext:
        try:
            return context_of(self._issuer.keys_ca_pem)
        except ValueError as error:
            raise IssuerKeysError(f"keys_ca_pem of issuer {self._issuer.name} is no certificate in PEM") from error

    def _discovered(self, content: bytes) -> str:
        """Return the address of the key set in an OpenID provider's configuration, which must be of this issuer."""
        try:
            found: Any = json.loads(content)
            issuer, keys_url = found["issuer"], found["jwks_uri"]
        except (ValueError, RecursionError, KeyError, TypeError):
            raise IssuerKeysError(f"{self._issuer.keys_url} is no configuration of an OpenID provider") from None
        if issuer != self._issuer.issuer:
            raise IssuerKeysError(
                f"{self._issuer.keys_url} is of issuer {str(issuer)[:256]!r}, not {self._issuer.issuer!r}"
            )
        return str(keys_url)

    def _get(self, url: str, context: ssl.SSLContext) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            content, target = self._get_once(url, context)
            if content is not None:
                return content
            url = _join(url, target)
        raise IssuerKeysError(f"{self._issuer.keys_url} redirects more than {MAX_REDIRECTS} times")

    def _get_once(self, url: str, context: ssl.SSLContext) -> tuple[bytes | None, str]:
        """Return the content at a URL, or `None` and where it redirects to."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise IssuerKeysError(f"{url[:256]!r} is no URL") from None
        if parts.scheme != "https" or not host:
            raise IssuerKeysError(f"{self._issuer.keys_url} refers to {url[:256]!r}, which is no https URL")
        connection = http.client.HTTPSConnection(host, port, timeout=self._left(), context=context)
        try:
            self._use(connection)
            connection.connect()
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", target, headers={"Accept": ACCEPTED, "Connection": "close"})
            response = connection.getresponse()
            if response.status in _REDIRECTS:
                return None, response.headers.get("Location", "")
            if response.status != 200:
                raise IssuerKeysError(f"{url} answers with status {response.status}")
            return self._read_body(url, response), ""
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise IssuerKeysError(f"{url} cannot be read: {_reason(error)}") from error
        finally:
            with self._lock:
                self._connection = None
            connection.close()

    def _read_body(self, url: str, response: http.client.HTTPResponse) -> bytes:
        content = bytearray()
        while chunk := response.read1(_CHUNK_BYTES):
            content += chunk
            if len(content) > MAX_BYTES:
                raise IssuerKeysError(f"{url} has more than {MAX_BYTES} bytes")
            self._left()
        return bytes(content)

    def _use(self, connection: http.client.HTTPSConnection) -> None:
        with self._lock:
            self._connection = connection
            if self._ended:
                raise TimeoutError("the time is over")

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time is over")
        return left


def _join(url: str, target: str) -> str:
    try:
        return urljoin(url, target)
    except ValueError:
        raise IssuerKeysError(f"{url} redirects to {target[:256]!r}, which is no URL") from None


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
