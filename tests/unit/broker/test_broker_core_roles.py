"""The replica's table whole: every role with every event, and every role with every kind of key."""

from __future__ import annotations

import pytest
from headrace.wire.ids import LeaderEpoch, Offset
from headrace_broker.core.messages import (
    AcknowledgementAwaited,
    AcknowledgementDropped,
    Appended,
    BatchesReplicated,
    DurabilityChanged,
    EpochPersisted,
    Event,
    Flushed,
    Follow,
    FollowerFetched,
    HighWatermarkAdvanced,
    LeaderReported,
    LeadershipEnded,
    LeaveInSync,
    LogRestarted,
    LogStartAwaited,
    LogStartRaised,
    LogStartWanted,
    LogTruncated,
    PauseOver,
    PersistEpoch,
    ProposalFailed,
    ProposalSucceeded,
    ProposalUnanswered,
    SessionLost,
    SessionStarted,
    StateGone,
    StateSeen,
    StorageFailed,
    Ticked,
    Unfollow,
)
from headrace_broker.core.roles import Role
from headrace_server.partition_state import PartitionState, Replica

from tests.unit.broker.test_broker_replica import EPOCH, ME, OTHER, Driver

LEADS_NOW = 4  # the leader epoch of the key that a replica has seen
LOG_END = 5
ELSEWHERE = Replica(OTHER, 7)
MYSELF = Replica(ME, EPOCH)


def driver_in(role: Role) -> Driver:
    """A replica of five records, three of them committed, in this role."""
    driver = Driver(log_end=LOG_END, high_watermark=3)
    if role is Role.FENCED:
        driver.see(ELSEWHERE, LEADS_NOW)
        return driver
    driver(SessionStarted(EPOCH))
    leader = {Role.IDLE: None, Role.FOLLOWING: ELSEWHERE}.get(role, MYSELF)
    driver.see(leader, LEADS_NOW, in_sync=(MYSELF, ELSEWHERE))
    match role:
        case Role.LEADING:
            driver(EpochPersisted(LeaderEpoch(LEADS_NOW), Offset(LOG_END)))
        case Role.OFFLINE:
            driver(StorageFailed("disk gone"))
        case Role.DELETED:
            driver(StateGone(10**6))
        case _:
            pass
    assert driver.replica.role is role
    return driver


EVENTS: list[Event] = [
    SessionStarted(EPOCH + 1),
    SessionLost(),
    StateSeen(PartitionState((ME, OTHER), ELSEWHERE, LEADS_NOW + 1, (ELSEWHERE,)), 10**6),
    StateGone(10**6),
    EpochPersisted(LeaderEpoch(LEADS_NOW), Offset(LOG_END)),
    Appended(Offset(LOG_END), Offset(LOG_END + 1), 7, 0, 0),
    Flushed(Offset(LOG_END)),
    AcknowledgementAwaited(1, Offset(LOG_END), LeaderEpoch(LEADS_NOW)),
    AcknowledgementDropped(1),
    LogStartWanted(Offset(2)),
    LogStartAwaited(2, Offset(2), LeaderEpoch(LEADS_NOW)),
    LogStartRaised(Offset(2)),
    FollowerFetched(ELSEWHERE, Offset(LOG_END), Offset(LOG_END), 0, True),
    Ticked(0, {}, ()),
    PauseOver(1, 0),
    ProposalSucceeded(9, 10**6),
    ProposalFailed(9, None, 10**6),
    ProposalUnanswered(9),
    BatchesReplicated(()),
    LogTruncated(Offset(4)),
    LogRestarted(Offset(9)),
    LeaderReported(4),
    DurabilityChanged(False),
    StorageFailed("again"),
]
ALL = set(Role)
ENDED = {Role.OFFLINE, Role.DELETED}
NEVER: dict[type, set[Role]] = {
    SessionStarted: ALL - ENDED - {Role.FENCED},
    StateSeen: {Role.DELETED},
    StateGone: {Role.DELETED},
    EpochPersisted: {Role.LEADING},
    BatchesReplicated: {Role.LEADING},
    LogTruncated: {Role.LEADING},
    LogRestarted: {Role.LEADING},
}
BECOMES: dict[type, dict[Role, Role]] = {
    SessionStarted: {Role.FENCED: Role.FOLLOWING},
    SessionLost: dict.fromkeys(ALL - ENDED, Role.FENCED),
    StateSeen: dict.fromkeys([Role.IDLE, Role.FOLLOWING, Role.STARTING, Role.LEADING], Role.FOLLOWING),
    StateGone: dict.fromkeys(ALL, Role.DELETED),
    EpochPersisted: {Role.STARTING: Role.LEADING},
    StorageFailed: dict.fromkeys(ALL - ENDED, Role.OFFLINE),
}


def test_the_table_of_this_test_knows_every_event() -> None:
    assert {type(event) for event in EVENTS} == set(Event.__args__)


@pytest.mark.parametrize("role", Role, ids=lambda role: role.name)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_in_every_role(role: Role, event: Event) -> None:
    """What cannot be is a bug and said so; all else gives the role that it should, and keeps the invariants."""
    driver = driver_in(role)
    if role in NEVER.get(type(event), ()):
        with pytest.raises(AssertionError, match=f"{type(event).__name__} while {role.name}"):
            driver(event)
        assert driver.replica.role is role
        return
    driver(event)
    assert driver.replica.role is BECOMES.get(type(event), {}).get(role, role)


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.LEADING], ids=lambda role: role.name)
def test_a_replica_that_does_not_lead_answers_no_follower_and_has_no_waiters(role: Role) -> None:
    """Fetches, ticks and waits that arrive late change nothing and start nothing."""
    driver = driver_in(role)
    before = driver.replica.high_watermark
    assert driver(FollowerFetched(ELSEWHERE, Offset(LOG_END), Offset(LOG_END), 0, True)) == []
    assert driver(Ticked(10**9, {}, ())) == []
    assert [type(action).__name__ for action in driver(AcknowledgementAwaited(1, Offset(9), LeaderEpoch(4)))] == [
        "Abandon"
    ]
    assert driver.replica.high_watermark == before


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.FOLLOWING], ids=lambda role: role.name)
def test_who_does_not_follow_believes_no_leader(role: Role) -> None:
    """H6: an answer whose batches were being written when the role changed says nothing of the high watermark."""
    driver = driver_in(role)
    assert driver(LeaderReported(LOG_END)) == []
    assert driver.replica.high_watermark == 3


def test_a_follower_believes_its_leader_as_far_as_its_log_goes() -> None:
    """I8, H29: never beyond the log end, and never back."""
    driver = driver_in(Role.FOLLOWING)
    assert driver(LeaderReported(4)) == [HighWatermarkAdvanced(Offset(4))]
    assert driver(LeaderReported(2)) == []
    assert driver(LeaderReported(99)) == [HighWatermarkAdvanced(Offset(LOG_END))]
    driver(LogTruncated(Offset(4)))
    assert driver.replica.high_watermark == 4


KEYS: dict[str, PartitionState] = {
    "me, new epoch": PartitionState((ME, OTHER), MYSELF, LEADS_NOW + 1, (MYSELF, ELSEWHERE)),
    "me, same epoch": PartitionState((ME, OTHER), MYSELF, LEADS_NOW, (MYSELF,)),
    "me, old session": PartitionState((ME, OTHER), Replica(ME, EPOCH - 1), LEADS_NOW + 1, (Replica(ME, EPOCH - 1),)),
    "other, new epoch": PartitionState((ME, OTHER), ELSEWHERE, LEADS_NOW + 1, (MYSELF, ELSEWHERE)),
    "other, same epoch": PartitionState((ME, OTHER), ELSEWHERE, LEADS_NOW, (ELSEWHERE,)),
    "no leader": PartitionState((ME, OTHER), None, LEADS_NOW + 1, (MYSELF,)),
    "moved away": PartitionState((OTHER,), ELSEWHERE, LEADS_NOW + 1, (ELSEWHERE,)),
}
END = LeadershipEnded(LeaderEpoch(LEADS_NOW))
PERSIST = PersistEpoch(LeaderEpoch(LEADS_NOW + 1))
FOLLOW = Follow(ELSEWHERE, LeaderEpoch(LEADS_NOW + 1))
ROLES: list[tuple[Role, str, Role, list[object]]] = [
    (Role.IDLE, "me, new epoch", Role.STARTING, [PERSIST]),
    (Role.IDLE, "me, old session", Role.IDLE, []),
    (Role.IDLE, "other, new epoch", Role.FOLLOWING, [FOLLOW]),
    (Role.IDLE, "no leader", Role.IDLE, []),
    (Role.IDLE, "moved away", Role.IDLE, []),
    (Role.FOLLOWING, "me, new epoch", Role.STARTING, [Unfollow(), PERSIST]),
    (Role.FOLLOWING, "me, old session", Role.IDLE, [Unfollow()]),
    (Role.FOLLOWING, "other, new epoch", Role.FOLLOWING, [FOLLOW]),
    (Role.FOLLOWING, "other, same epoch", Role.FOLLOWING, []),
    (Role.FOLLOWING, "no leader", Role.IDLE, [Unfollow()]),
    (Role.FOLLOWING, "moved away", Role.IDLE, [Unfollow()]),
    (Role.STARTING, "me, new epoch", Role.STARTING, [PERSIST]),
    (Role.STARTING, "me, same epoch", Role.STARTING, []),
    (Role.STARTING, "me, old session", Role.IDLE, []),
    (Role.STARTING, "other, new epoch", Role.FOLLOWING, [FOLLOW]),
    (Role.STARTING, "no leader", Role.IDLE, []),
    (Role.STARTING, "moved away", Role.IDLE, []),
    (Role.LEADING, "me, new epoch", Role.STARTING, [END, PERSIST]),
    (Role.LEADING, "me, same epoch", Role.LEADING, [HighWatermarkAdvanced(Offset(LOG_END))]),
    (Role.LEADING, "me, old session", Role.IDLE, [END]),
    (Role.LEADING, "other, new epoch", Role.FOLLOWING, [END, FOLLOW]),
    (Role.LEADING, "no leader", Role.IDLE, [END]),
    (Role.LEADING, "moved away", Role.IDLE, [END]),
    (Role.FENCED, "me, new epoch", Role.FENCED, []),
    (Role.FENCED, "other, new epoch", Role.FENCED, []),
    (Role.OFFLINE, "me, new epoch", Role.OFFLINE, [LeaveInSync(False)]),
    (Role.OFFLINE, "moved away", Role.OFFLINE, []),
]


@pytest.mark.parametrize(("role", "key", "then", "actions"), ROLES, ids=lambda value: str(value)[:24])
def test_the_role_is_what_the_key_says(role: Role, key: str, then: Role, actions: list[object]) -> None:
    """I12, H16: level-triggered, for this session only; the previous leader also restarts for a new epoch."""
    driver = driver_in(role)
    assert driver(StateSeen(KEYS[key], 10**6)) == actions
    assert driver.replica.role is then


def test_an_epoch_that_is_over_before_it_was_durable_begins_nothing() -> None:
    """PROTOCOL "Leading": the report of an earlier epoch comes while a later one starts."""
    driver = driver_in(Role.STARTING)
    driver(StateSeen(KEYS["me, new epoch"], 10**6))
    assert driver(EpochPersisted(LeaderEpoch(LEADS_NOW), Offset(LOG_END))) == []
    assert driver.replica.role is Role.STARTING


def test_a_new_session_takes_the_role_of_the_key_that_was_seen() -> None:
    """I13: sessions rise; the key was seen while there was none."""
    driver = driver_in(Role.LEADING)
    driver(SessionLost())
    assert driver(SessionStarted(EPOCH + 1)) == []
    assert driver.replica.role is Role.IDLE, "the key names the session before"
    driver(SessionLost())
    with pytest.raises(AssertionError, match="I13"):
        driver(SessionStarted(EPOCH + 1))
