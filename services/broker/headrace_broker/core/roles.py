"""What a replica may do, and the error of a request to one that does not lead."""

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
    """What the replica may do."""

    FENCED = auto()  # the broker has no session
    IDLE = auto()  # it has a session; the key names no leader, was not seen yet, or has no replica here any more
    FOLLOWING = auto()  # the key names another broker as leader: it is copied
    STARTING = auto()  # the key names this session; the epoch's start is being made durable
    LEADING = auto()  # serves
    OFFLINE = auto()  # its log failed; stays so for the life of the process
    DELETED = auto()  # its topic is gone; stays so


def leader_hint(state: PartitionState | None) -> LeaderHint:
    """Return the leader in the key, without its address, which the shell adds."""
    return LeaderHint(-1, -1) if state is None else LeaderHint(state.leader_id, state.leader_epoch)


def not_leading(role: Role, leader: LeaderHint, offline_reason: str) -> HeadraceError:
    """Return the definite error of a request that only a leader serves."""
    match role:
        case Role.OFFLINE:
            return StorageOfflineError(offline_reason, outcome=Outcome.NOT_APPLIED)
        case Role.DELETED:
            return UnknownTopicIdError("the topic was deleted", outcome=Outcome.NOT_APPLIED)
        case Role.FENCED:
            return FencedBrokerError("this broker has no registration now", outcome=Outcome.NOT_APPLIED)
        case Role.STARTING:
            return LeaderNotAvailableError("this broker is about to lead", outcome=Outcome.NOT_APPLIED)
        case Role.IDLE | Role.FOLLOWING:
            return NotLeaderError("this broker does not lead the partition", outcome=Outcome.NOT_APPLIED, leader=leader)
        case Role.LEADING:
            raise AssertionError("this replica leads")
        case _:
            assert_never(role)
