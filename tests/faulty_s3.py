"""Proxy in front of a server of S3 that refuses, loses or delays answers: `python faulty_s3.py PORT`.

A process of its own, because some libraries hold the interpreter during a request. It prints its port. A `PUT` of
`/_faults` sets a `Fault` as JSON and returns the number of requests since the one before, and of those that failed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.children import running

LOST = 0
"""Status of a request that the server takes, and whose connection ends without an answer."""
_CONTROL = "/_faults"
_PER_CONNECTION = {"connection", "content-length", "expect", "transfer-encoding"}


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to some requests."""

    status: int = LOST
    code: str = ""
    """S3's code of the error."""
    methods: tuple[str, ...] = ("PUT", "POST")
    part: str = ""
    """Part of their paths."""
    after: int = 0
    """Number of such requests that pass before."""
    times: int = -1
    """Number of requests that fail; -1 means all."""
    each_path_once: bool = False
    late_seconds: float = 0.0
    """Time after which they are answered as they should be, in place of failing; sooner when another fault is set."""


NONE = Fault(times=0)
ALL = ("GET", "HEAD", "PUT", "POST", "DELETE")


class FaultyS3:
    """Client of the proxy's process."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def set(self, fault: Fault) -> tuple[int, int]:
        """Set what fails from now on; return the numbers of requests and of failures until now."""
        request = urllib.request.Request(self.url + _CONTROL, json.dumps(asdict(fault)).encode(), method="PUT")
        with urllib.request.urlopen(request) as answer:
            requests, failures = json.load(answer)
            return requests, failures


@contextlib.contextmanager
def faulty_s3(port: int) -> Iterator[FaultyS3]:
    """Run the proxy in front of a port."""
    command = [sys.executable, "-m", __name__, str(port)]
    with running(command, stdout=subprocess.PIPE, text=True) as process:
        yield FaultyS3(int(process.stdout.readline()))


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = port
        self._lock = threading.Lock()
        self.changed = threading.Event()
        self.set(NONE)

    def set(self, fault: Fault) -> None:
        self.changed.set()
        self.changed = threading.Event()
        self.fault, self.requests, self.matching, self.failures, self.failed = fault, 0, 0, 0, set[str]()

    def fails(self, method: str, path: str) -> bool:
        """Return whether a request fails, and count it."""
        fault = self.fault
        with self._lock:
            self.requests += 1
            if method not in fault.methods or fault.part not in path:
                return False
            self.matching += 1
            if self.matching <= fault.after or self.failures == fault.times:
                return False
            if fault.each_path_once and path in self.failed:
                return False
            self.failures += 1
            self.failed.add(path)
            return True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Proxy

    def _pass(self) -> None:
        body = self._body()
        if self.path == _CONTROL:
            counts = json.dumps([self.server.requests, self.server.failures]).encode()
            self.server.set(Fault(**json.loads(body)))
            self._answer(200, [], counts)
            return
        changed, fault = self.server.changed, self.server.fault
        fails = self.server.fails(self.command, self.path)
        if fails and fault.late_seconds:
            changed.wait(fault.late_seconds)
            fails = False
        if fails and fault.status != LOST:
            error = f"<Error><Code>{fault.code}</Code><Message>as the test wants</Message></Error>".encode()
            self._answer(fault.status, [("Content-Type", "application/xml")], error)
            return
        behind = http.client.HTTPConnection("127.0.0.1", self.server.behind)
        try:
            passed = {name: value for name, value in self.headers.items() if name.lower() not in _PER_CONNECTION}
            behind.request(self.command, self.path, body, {**passed, "Content-Length": str(len(body))})
            answer = behind.getresponse()
            data, headers = answer.read(), answer.getheaders()
        finally:
            behind.close()
        if fails:
            self.close_connection = True
        elif self.command == "HEAD":
            headers = [(name, value) for name, value in headers if name.lower() != "transfer-encoding"]
            self._answer(answer.status, headers, None)
        else:
            kept = [(name, value) for name, value in headers if name.lower() not in _PER_CONNECTION]
            self._answer(answer.status, kept, data)

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # A trailer.
        return b"".join(chunks)

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes | None) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if data is not None:
            self.send_header("Content-Length", str(len(data)))
        with contextlib.suppress(OSError):  # The client does not wait any more.
            self.end_headers()
            if data is not None and self.command != "HEAD":
                self.wfile.write(data)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _pass

    def log_message(self, *_: object) -> None:
        """Write no line for a request."""


if __name__ == "__main__":
    proxy = _Proxy(int(sys.argv[1]))
    print(proxy.server_address[1], flush=True)
    proxy.serve_forever()
