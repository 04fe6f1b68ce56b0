"""Logs, metrics and the beat of the event loop, set up the same way in every service.

Logs go to standard error by structlog: `console` for people, `json` for collectors. Metrics are served by
prometheus-client from a thread of its own, so that a scrape costs the event loop nothing but the interpreter's lock.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import HTTPServer
from threading import Thread
from typing import Literal, TextIO

import prometheus_client
import structlog
from prometheus_client import CollectorRegistry, Gauge

from headrace_server.rpc import AddressInUseError, split_address

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


def configure_logging(
    level: LogLevel, log_format: LogFormat, *, bound: dict[str, object] | None = None, stream: TextIO | None = None
) -> None:
    """Send structured logs of `level` and above to `stream` (standard error); every line has the keys of `bound`."""
    target = stream or sys.stderr
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if log_format == "json":
        processors += [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
    else:
        processors.append(structlog.dev.ConsoleRenderer(colors=target.isatty()))
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(target),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**(bound or {}))


@dataclass(frozen=True, slots=True)
class MetricsServer:
    """The HTTP endpoint that answers `/metrics`."""

    address: str
    """host:port as bound."""
    _server: HTTPServer
    _thread: Thread

    def stop(self) -> None:
        """Close the port and end the thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_metrics(listen: str, registry: CollectorRegistry) -> MetricsServer:
    """Answer scrapes of `registry` on `host:port` (port 0: the kernel chooses).

    Raises:
        AddressInUseError: the address is taken, not ours, or malformed.
    """
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    host, port = split_address(listen)
    try:
        server, thread = prometheus_client.start_http_server(port, host.strip("[]"), registry)
    except OSError as error:
        raise AddressInUseError(
            f"cannot serve metrics on {listen}: {error.strerror or error}",
            action="Choose another metrics_listen, or stop what holds this one.",
        ) from error
    return MetricsServer(f"{host}:{server.server_port}", server, thread)


class LoopBeat:
    """Measures how late the event loop is, and shows others that it lives.

    `run` is a task of the loop; `count` may be read from any thread: a keep-alive thread stops where it stands still
    (PROTOCOL H89).
    """

    INTERVAL_SECONDS = 0.25

    def __init__(self, lag_seconds: Gauge, on_beat: Callable[[], None] | None = None) -> None:
        self._lag_seconds = lag_seconds
        self._on_beat = on_beat
        self.count = 0

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            due = time.monotonic() + self.INTERVAL_SECONDS
            await asyncio.sleep(self.INTERVAL_SECONDS)
            self._lag_seconds.set(max(0.0, time.monotonic() - due))
            self.count += 1
            if self._on_beat is not None:
                self._on_beat()
