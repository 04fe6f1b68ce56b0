"""An OTLP/HTTP endpoint in the process of a test: real requests, real protobuf, spans as the sender wrote them."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """Span with the name of the process that sent it."""

    process: str
    """`service.instance.id`, or else `service.name`."""
    service: str
    """`service.name`."""
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: dict[str, str | int]
    links: list[str]
    """Ids of the linked spans."""


class OtlpReceiver:
    """Receiver on a port of its own; a context manager. With `is_silent` it takes connections and never answers."""

    def __init__(self, *, is_silent: bool = False) -> None:
        self.is_silent = is_silent
        self.bodies: list[bytes] = []
        """Requests as they came, decompressed."""
        self._closing = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            """Handler of one connection."""

            def do_POST(self) -> None:
                """Take a request."""
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.bodies.append(body)
                if receiver.is_silent:
                    receiver._closing.wait()
                    return
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Write no line a request."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> OtlpReceiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def spans(self) -> list[ReceivedSpan]:
        """Return the spans received so far."""
        return [span for body in list(self.bodies) for span in spans_of(ExportTraceServiceRequest.FromString(body))]

    def wait_for(self, is_enough: Callable[[list[ReceivedSpan]], object], seconds: float = 60.0) -> list[ReceivedSpan]:
        """Return the spans once they are enough."""
        deadline = time.monotonic() + seconds
        while not is_enough(found := self.spans()):
            assert time.monotonic() < deadline, f"only {sorted((span.process, span.name) for span in found)}"
            threading.Event().wait(0.05)
        return found


def spans_of(request: Any) -> list[ReceivedSpan]:
    """Return the spans of a request, or of the `TracesData` of a collector's file."""
    found = []
    for of_resource in request.resource_spans:
        resource = _values(of_resource.resource.attributes)
        service = str(resource["service.name"])
        process = str(resource.get("service.instance.id") or service)
        for scope in of_resource.scope_spans:
            for span in scope.spans:
                found.append(
                    ReceivedSpan(
                        process,
                        service,
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.kind,
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                        _values(span.attributes),
                        [link.span_id.hex() for link in span.links],
                    )
                )
    return found


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
