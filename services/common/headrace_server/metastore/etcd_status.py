"""Status of single etcd members, for metrics and `headrace doctor` only.

The messages of the `etcd3` package are those of an old etcd. Fields of later releases are read as unknown fields, by
their numbers in etcd's rpc.proto.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
from google.protobuf.unknown_fields import UnknownFieldSet

from headrace_server.metastore.api import MemberStatus
from headrace_server.metastore.etcd_login import EtcdRefusedError, NotAuthenticatedError

_ERRORS, _IN_USE, _IS_LEARNER, _QUOTA = 8, 9, 10, 12  # of StatusResponse: since etcd 3.4, 3.4, 3.4 and 3.6
DEFAULT_QUOTA_BYTES = 2 << 30
"""etcd's default limit of stored bytes (its --quota-backend-bytes)."""
_ALARM = re.compile(rb"alarm:\s*(\w+)")
"""An alarm among the errors of a status, which every user may read; some releases reserve the RPC Alarm for root."""


async def describe_member(
    endpoint: str, ask_status: Callable[[], Awaitable[Any]], ask_nothing: Callable[[], Awaitable[Any]]
) -> MemberStatus:
    """Return the status of one endpoint from the response of `ask_status`; errors of etcd are in the result.

    Newer releases answer Status to root only. A member that answers `ask_nothing` then has a leader; its version, size
    and alarms are unknown.
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
            return MemberStatus(endpoint, answered_seconds=time.perf_counter() - started, has_leader=True)
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


def effective_quota_bytes(members: Iterable[MemberStatus]) -> int:
    """Return the effective quota: the smallest one of all members, because the first full member stops all writes.

    If no member reports one, as before etcd 3.6, it is etcd's default, so that an alert on it can fire.
    """
    said = [member.quota_bytes for member in members if member.quota_bytes]
    return min(said, default=DEFAULT_QUOTA_BYTES)
