"""Status of single etcd members, for metrics and `headrace doctor` only.

The messages of the `etcd3` package are those of an old etcd. Fields of later releases are read as unknown fields, by
their numbers in etcd's rpc.proto.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any

import grpc
from google.protobuf.unknown_fields import UnknownFieldSet

from headrace_server.metastore.api import MemberStatus
from headrace_server.metastore.etcd_login import EtcdRefusedError, NotAuthenticatedError

_ERRORS, _IN_USE, _IS_LEARNER, _QUOTA = 8, 9, 10, 12  # of StatusResponse: since etcd 3.4, 3.4, 3.4 and 3.6
DEFAULT_QUOTA_BYTES = 2 << 30
"""etcd's default limit of stored bytes (its --quota-backend-bytes)."""
MAX_PAGE_BYTES = 4 << 20
_ALARM = re.compile(rb"(?:alarm:|ALARM)\s*(\w+)")
"""An alarm among the errors of a status or the reasons of `/health`; some releases reserve the RPC Alarm for root."""


async def describe_member(
    endpoint: str,
    ask_status: Callable[[], Awaitable[Any]],
    ask_nothing: Callable[[], Awaitable[Any]],
    read_published: Callable[[], Awaitable[MemberStatus]],
) -> MemberStatus:
    """Return the status of one endpoint from the response of `ask_status`; errors of etcd are in the result.

    Newer releases answer Status to root only. A member that answers `ask_nothing` then has a leader, and
    `read_published` returns the rest.
    """
    started = time.perf_counter()
    try:
        try:
            status = await ask_status()
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.PERMISSION_DENIED:
                raise
            started = time.perf_counter()
            await ask_nothing()
            answered_seconds = time.perf_counter() - started
            return replace(await read_published(), answered_seconds=answered_seconds, has_leader=True)
        answered_seconds = time.perf_counter() - started
    except grpc.aio.AioRpcError as error:
        return MemberStatus(endpoint, f"{error.code().name}: {error.details() or 'no details'}")
    except (EtcdRefusedError, NotAuthenticatedError) as error:
        return MemberStatus(endpoint, str(error))
    fields = UnknownFieldSet(status)
    pairs = [(fields[index].field_number, fields[index].data) for index in range(len(fields))]
    later = dict(pairs)
    alarms = {found.decode() for number, text in pairs if number == _ERRORS for found in _ALARM.findall(text)}
    return MemberStatus(
        endpoint,
        version=status.version,
        answered_seconds=answered_seconds,
        database_bytes=status.dbSize,
        used_bytes=int(later.get(_IN_USE, 0)),
        quota_bytes=int(later.get(_QUOTA, 0)),
        has_leader=bool(status.leader),
        is_learner=bool(later.get(_IS_LEARNER, 0)),
        alarms=tuple(sorted(alarms)),
    )


async def read_published(endpoint: str, context: ssl.SSLContext | None, timeout_s: float) -> MemberStatus:
    """Return what a member publishes to clients without a user, in its pages `/metrics` and `/health`.

    It serves them at the port of its clients, unless `--listen-client-http-urls` names another one: then its version,
    size and alarms are unknown. `context` is that of TLS.
    """
    try:
        async with asyncio.timeout(timeout_s):
            metrics = await _get_page(endpoint, "/metrics", context)
            health = await _get_page(endpoint, "/health", context)
    except (OSError, TimeoutError):
        return MemberStatus(endpoint)
    version = re.search(rb'^etcd_server_version{server_version="([^"]*)"} 1$', metrics, re.MULTILINE)
    return MemberStatus(
        endpoint,
        version=version[1].decode() if version else "",
        database_bytes=_gauge(metrics, b"etcd_mvcc_db_total_size_in_bytes"),
        used_bytes=_gauge(metrics, b"etcd_mvcc_db_total_size_in_use_in_bytes"),
        quota_bytes=_gauge(metrics, b"etcd_server_quota_backend_bytes"),
        is_learner=bool(_gauge(metrics, b"etcd_server_is_learner")),
        alarms=tuple(sorted({found.decode() for found in _ALARM.findall(health)})),
    )


async def _get_page(endpoint: str, path: str, context: ssl.SSLContext | None) -> bytes:
    host, _, port = endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {endpoint}\r\n\r\n".encode())
        return await reader.readexactly(MAX_PAGE_BYTES)
    except asyncio.IncompleteReadError as whole:  # The member closes the connection after the page.
        return whole.partial
    finally:
        writer.close()


def _gauge(page: bytes, name: bytes) -> int:
    found = re.search(rb"^%b (\S+)$" % name, page, re.MULTILINE)
    return int(float(found[1])) if found else 0


def effective_quota_bytes(members: Iterable[MemberStatus]) -> int:
    """Return the effective quota: the smallest one of all members, because the first full member stops all writes.

    If no member reports one, as before etcd 3.6, it is etcd's default, so that an alert on it can fire.
    """
    said = [member.quota_bytes for member in members if member.quota_bytes]
    return min(said, default=DEFAULT_QUOTA_BYTES)
