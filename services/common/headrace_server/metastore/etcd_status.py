"""How single members of etcd are: for metrics and for `headrace doctor`. Nothing is decided on it.

The messages of the `etcd3` package are of an old etcd; what later releases have added to the answer is read from the
fields that it does not know, by the numbers of etcd's rpc.proto.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.unknown_fields import UnknownFieldSet

from headrace_server.metastore import etcd3_stubs as stubs

_IN_USE, _IS_LEARNER, _QUOTA = 9, 10, 12  # of StatusResponse: since etcd 3.4, 3.4 and 3.6
DEFAULT_QUOTA_BYTES = 2 << 30
"""etcd's default limit of stored bytes (its --quota-backend-bytes)."""
_ALARMS = {1: "NOSPACE", 2: "CORRUPT"}


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One endpoint, as it answered."""

    endpoint: str
    error: str = ""
    """Why there was no answer; then the rest says nothing."""
    version: str = ""
    answered_seconds: float = 0.0
    database_bytes: int = 0
    used_bytes: int = 0
    """Of those, what is not free for writes: 0 before 3.4."""
    quota_bytes: int = 0
    """0: it does not say, which etcd does from 3.6 on."""
    has_leader: bool = False
    is_learner: bool = False
    alarms: tuple[str, ...] = ()


async def describe_member(endpoint: str, maintenance: Any, timeout_seconds: float) -> MemberStatus:
    """Ask one endpoint, by its stub of etcd's Maintenance service; never raises for what etcd does."""
    started = time.perf_counter()
    try:
        status = await maintenance.Status(stubs.rpc_pb2.StatusRequest(), timeout=timeout_seconds)
        answered_seconds = time.perf_counter() - started
        raised = await maintenance.Alarm(stubs.rpc_pb2.AlarmRequest(), timeout=timeout_seconds)
    except grpc.aio.AioRpcError as error:
        return MemberStatus(endpoint, f"{error.code().name}: {error.details() or 'no details'}")
    fields = UnknownFieldSet(status)
    later = {fields[index].field_number: fields[index].data for index in range(len(fields))}
    alarms = {_ALARMS.get(alarm.alarm, str(alarm.alarm)) for alarm in raised.alarms if alarm.alarm}
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
    """Return the space that etcd has: the first full member stops all, so it is the least that one says.

    Where none says, which is so before 3.6, it is etcd's default: an alert that waits for a word would wait for ever.
    """
    said = [member.quota_bytes for member in members if member.quota_bytes]
    return min(said, default=DEFAULT_QUOTA_BYTES)
