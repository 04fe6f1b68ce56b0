"""Logging of a service: structured lines on standard error, with a level that can be changed at run time.

The format `console` is for people, `json` for collectors. A line written during a call has the caller's `request_id`
(`calls.request_id`), which identifies the operation in the logs of clients, brokers and coordinators.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Literal, TextIO, get_args

import structlog

from headrace_server.calls import calls_are_traced, request_id, trace_calls

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
LOG_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)

_level: LogLevel = "info"


def configure_logging(
    level: LogLevel,
    log_format: LogFormat,
    *,
    bound: Mapping[str, object] | None = None,
    stream: TextIO | None = None,
    count: Callable[[str], None] | None = None,
) -> None:
    """Send structured logs of `level` and above to `stream` (default: standard error).

    Every line of every thread and task has the keys of `bound`. `count` is called with the level of each warning and
    error.
    """
    target = stream or sys.stderr
    keys = dict(bound or {})

    def add_keys(_logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        if count is not None and event["level"] in ("warning", "error"):
            count(event["level"])
        identifier = request_id()
        if identifier:
            event.setdefault("request_id", identifier)
        for key, value in keys.items():
            event.setdefault(key, value)
        return event

    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        add_keys,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if log_format == "json":
        processors += [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
    else:
        processors.append(structlog.dev.ConsoleRenderer(colors=target.isatty()))
    structlog.configure(
        processors=processors,
        logger_factory=structlog.PrintLoggerFactory(target),
        cache_logger_on_first_use=False,
    )
    set_log_level(level)


def log_level() -> LogLevel:
    """Return the current log level."""
    return _level


def set_log_level(level: LogLevel) -> None:
    """Set the log level; at `debug` every call is logged, too."""
    global _level  # noqa: PLW0603
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())))
    _level = level
    if calls_are_traced() != (level == "debug"):
        trace_calls(level == "debug")


class LogInterval:
    """Back-off of repeated log lines about a lasting condition: at once, then after 1, 2, 4, ... up to 60 seconds.

    A process that waits for hours writes one line per minute. Owned by one task.
    """

    MAX_MS = 60_000

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._since_ms: int | None = None
        self._next_ms = 0
        self._interval_ms = 0

    @property
    def for_seconds(self) -> int:
        """Seconds since the first line."""
        return 0 if self._since_ms is None else (self._monotonic_ms() - self._since_ms) // 1_000

    def is_due(self) -> bool:
        """Return whether to log now; if so, double the interval."""
        now_ms = self._monotonic_ms()
        if self._since_ms is None:
            self._since_ms, self._next_ms, self._interval_ms = now_ms, now_ms, 1_000
        if now_ms < self._next_ms:
            return False
        self._next_ms = now_ms + self._interval_ms
        self._interval_ms = min(2 * self._interval_ms, self.MAX_MS)
        return True

    def end(self) -> None:
        """Reset the interval after the condition has ended."""
        self._since_ms = None
