"""Roles of a replica, and the error for a request to a replica that does not lead."""

from __future__ import annotations

from enum import Enum, auto
from typing import assert_never

from headrace.wire.errors import (
    FencedBrokerError,
    HeadraceError,
    LeaderHint,
    LeaderNotAvailableError,
    NotLeaderError,
    Outcome,
    StorageOfflineError,
    UnknownTopicIdError,
)
from headrace_server.partition_state import PartitionState


class Role(Enum):
    """Role of a replica in its partition."""

    FENCED = auto()  # the broker has no session
    IDLE = auto()  # has a session; the key names no leader or no replica here, or was not seen yet
    FOLLOWING = auto()  # the key names another broker as leader; this replica fetches from it
    STARTING = auto()  # the key names this session; the epoch's start is being persisted
    LEADING = auto()  # serves requests
    OFFLINE = auto()  # its log failed; final until the process restarts
    DELETED = auto()  # its topic was deleted; final


def leader_hint(state: PartitionState | None) -> LeaderHint:
    """Return the leader in the key, without its address, which the driver adds."""
    return LeaderHint(-1, -1) if state is None else LeaderHint(state.leader_id, state.leader_epoch)


def not_leading(role: Role, leader: LeaderHint, offline_reason: str) -> HeadraceError:
    """Return the definite error for a request that only a leader serves."""
    match role:
        case Role.OFFLINE:
            return StorageOfflineError(offline_reason, outcome=Outcome.NOT_APPLIED)
        case Role.DELETED:
            return UnknownTopicIdError("the topic was deleted", outcome=Outcome.NOT_APPLIED)
        case Role.FENCED:
            return FencedBrokerError("this broker is not registered", outcome=Outcome.NOT_APPLIED)
        case Role.STARTING:
            return LeaderNotAvailableError("this broker is about to lead", outcome=Outcome.NOT_APPLIED)
        case Role.IDLE | Role.FOLLOWING:
            return NotLeaderError("this broker does not lead the partition", outcome=Outcome.NOT_APPLIED, leader=leader)
        case Role.LEADING:
            raise AssertionError("this replica leads")
        case _:
            assert_never(role)
