"""The replica's state machine, one test a rule; invariants are checked after every event."""

from __future__ import annotations

import itertools

import pytest
from headrace.partition.producers import ProducerWindows
from headrace.wire.errors import (
    FencedBrokerError,
    FencedLeaderEpochError,
    LeaderNotAvailableError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    Outcome,
    StorageOfflineError,
    UnknownLeaderEpochError,
    UnknownTopicIdError,
)
from headrace.wire.ids import BrokerId, LeaderEpoch, Offset
from headrace_broker.core.messages import (
    Abandon,
    Acknowledge,
    AcknowledgementAwaited,
    AcknowledgementDropped,
    Action,
    AnnounceLogStart,
    Appended,
    DurabilityChanged,
    EpochPersisted,
    Event,
    Flushed,
    FollowerFetched,
    HighWatermarkAdvanced,
    LeadershipEnded,
    LeadershipStarted,
    LogStartAwaited,
    LogStartRaised,
    LogStartWanted,
    PersistEpoch,
    RaiseLogStart,
    SessionLost,
    SessionStarted,
    StateGone,
    StateSeen,
    StorageFailed,
)
from headrace_broker.core.replica import PartitionReplica
from headrace_broker.core.roles import Role
from headrace_server.partition_state import PartitionState, Replica

ME, OTHER = 1, 2
EPOCH = 100


class Driver:
    """Feeds a replica and validates it after every event."""

    def __init__(self, *, log_end: int = 0, high_watermark: int = 0, flushed_only: bool = True) -> None:
        self.replica = PartitionReplica(
            BrokerId(ME),
            log_start_offset=Offset(0),
            log_end_offset=Offset(log_end),
            flushed_offset=Offset(log_end),
            high_watermark=Offset(high_watermark),
            last_epoch=LeaderEpoch(-1),
            flushed_only=flushed_only,
            producers=ProducerWindows(max_producers=10, expiry_ms=1000),
        )
        self.revisions = itertools.count(1000)

    def __call__(self, event: Event) -> list[Action]:
        actions = self.replica.handle(event)
        self.replica.validate_state()
        return actions

    def see(self, leader: Replica | None, leader_epoch: int, **fields: object) -> list[Action]:
        members = () if leader is None else (leader,)
        values = {"replicas": (ME, OTHER), "in_sync": members, **fields}
        return self(StateSeen(PartitionState(leader=leader, leader_epoch=leader_epoch, **values), next(self.revisions)))

    def lead(self, leader_epoch: int = 0, **fields: object) -> list[Action]:
        if self.replica.role is Role.FENCED:
            self(SessionStarted(EPOCH))
        actions = self.see(Replica(ME, EPOCH), leader_epoch, **fields)
        return actions + self(EpochPersisted(LeaderEpoch(leader_epoch), self.replica.log_end_offset))

    def append(self, count: int = 1) -> list[Action]:
        base = self.replica.log_end_offset
        return self(Appended(base, Offset(base + count)))


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_epoch_is_persisted_before_anything_is_served() -> None:
    """PROTOCOL "Leading": (leader epoch, log end) is durable first; until then appends and reads are refused."""
    driver = Driver(log_end=5, high_watermark=3)
    driver(SessionStarted(EPOCH))
    assert driver.see(Replica(ME, EPOCH), 7) == [PersistEpoch(LeaderEpoch(7))]
    with pytest.raises(LeaderNotAvailableError) as caught:
        driver.replica.check_leading(-1)
    assert caught.value.outcome is Outcome.NOT_APPLIED
    actions = driver(EpochPersisted(LeaderEpoch(7), Offset(5)))
    assert actions == [LeadershipStarted(LeaderEpoch(7), Offset(5)), HighWatermarkAdvanced(Offset(5))]
    driver.replica.check_leading(7)


def test_leads_only_in_the_session_that_the_key_names(driver: Driver) -> None:
    """I12, H16: a key that names this broker in an earlier session does not make it leader."""
    driver(SessionStarted(EPOCH))
    assert driver.see(Replica(ME, EPOCH - 1), 0) == []
    with pytest.raises(NotLeaderError):
        driver.replica.check_leading(-1)


def test_key_seen_before_the_session_counts_after_it(driver: Driver) -> None:
    """The order of watch and registration does not matter: roles are level-triggered."""
    assert driver.see(Replica(ME, EPOCH), 0) == []
    assert driver(SessionStarted(EPOCH)) == [PersistEpoch(LeaderEpoch(0))]


def test_older_revisions_are_ignored(driver: Driver) -> None:
    """I19: a state of an earlier revision never replaces a later one."""
    driver.lead(3)
    assert driver(StateSeen(PartitionState((ME,), None, 2, ()), 1)) == []
    assert driver.replica.role is Role.LEADING


def test_leader_epochs_of_callers_are_fenced_both_ways(driver: Driver) -> None:
    """H4: lower is FENCED_LEADER_EPOCH, higher UNKNOWN_LEADER_EPOCH, equal or absent is served."""
    driver.lead(5)
    driver.replica.check_leading(5)
    driver.replica.check_leading(-1)
    with pytest.raises(FencedLeaderEpochError) as caught:
        driver.replica.check_leading(4)
    assert caught.value.leader is not None
    assert caught.value.leader.leader_epoch == 5
    with pytest.raises(UnknownLeaderEpochError):
        driver.replica.check_leading(6)


def test_not_leader_names_the_leader(driver: Driver) -> None:
    """NOT_LEADER carries the leader and its epoch, and is definite (H52)."""
    driver(SessionStarted(EPOCH))
    driver.see(Replica(OTHER, 55), 9)
    with pytest.raises(NotLeaderError) as caught:
        driver.replica.check_leading(-1)
    assert caught.value.outcome is Outcome.NOT_APPLIED
    assert (caught.value.leader.leader_id, caught.value.leader.leader_epoch) == (OTHER, 9)


def test_durable_records_are_visible_and_acknowledged_once_flushed(driver: Driver) -> None:
    """I9, H22: the leader counts its own fsynced offset, not its log end."""
    driver.lead()
    assert driver.append(3) == []
    assert driver(AcknowledgementAwaited(1, Offset(3), LeaderEpoch(0))) == []
    assert driver(Flushed(Offset(2))) == [HighWatermarkAdvanced(Offset(2))]
    assert driver(Flushed(Offset(3))) == [HighWatermarkAdvanced(Offset(3)), Acknowledge(1)]


def test_async_records_count_at_append_unless_a_flush_policy_is_set() -> None:
    """Paper 3.1: with a flush policy only flushed records are visible; without one the page cache counts."""
    driver = Driver(flushed_only=False)
    driver.lead()
    assert driver.append(2) == [HighWatermarkAdvanced(Offset(2))]
    driver(DurabilityChanged(True))
    assert driver.append(1) == []
    assert driver(DurabilityChanged(False)) == [HighWatermarkAdvanced(Offset(3))]


def test_high_watermark_waits_for_every_in_sync_member(driver: Driver) -> None:
    """I4, I8: a member that has acknowledged nothing in this epoch holds the high watermark back."""
    driver.lead(0, in_sync=(Replica(ME, EPOCH), Replica(OTHER, 7)))
    driver.append(2)
    assert driver(Flushed(Offset(2))) == []
    assert driver.see(Replica(ME, EPOCH), 0) == [HighWatermarkAdvanced(Offset(2))]


def test_high_watermark_stays_while_too_few_are_in_sync(driver: Driver) -> None:
    """I8, H13: it rises only while the in-sync set has min_insync_replicas members; appends are refused before."""
    driver.lead(0, min_insync_replicas=2)
    with pytest.raises(NotEnoughReplicasError) as caught:
        driver.replica.check_leading(-1).check_in_sync()
    assert caught.value.outcome is Outcome.NOT_APPLIED
    driver.append()
    assert driver(Flushed(Offset(1))) == []
    assert driver.see(Replica(ME, EPOCH), 0, min_insync_replicas=1) == [HighWatermarkAdvanced(Offset(1))]


def test_too_few_in_sync_after_the_append_is_indeterminate(driver: Driver) -> None:
    """H13, I22: NOT_ENOUGH_REPLICAS_AFTER_APPEND has an unknown outcome."""
    driver.lead()
    driver.append()
    driver(AcknowledgementAwaited(4, Offset(1), LeaderEpoch(0)))
    (action,) = driver.see(Replica(ME, EPOCH), 0, min_insync_replicas=2)
    assert isinstance(action, Abandon)
    assert isinstance(action.error, NotEnoughReplicasAfterAppendError)
    assert action.error.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("how", ["session", "moved", "deleted", "storage", "new_epoch"])
def test_losing_leadership_leaves_waiting_produces_unknown(how: str, driver: Driver) -> None:
    """H52: leadership lost while waiting is UNKNOWN, whatever the reason, and in the order of offsets."""
    driver.lead()
    driver.append(2)
    driver(AcknowledgementAwaited(2, Offset(2), LeaderEpoch(0)))
    driver(AcknowledgementAwaited(1, Offset(1), LeaderEpoch(0)))
    match how:
        case "session":
            actions = driver(SessionLost())
        case "moved":
            actions = driver.see(Replica(OTHER, 7), 1)
        case "deleted":
            actions = driver(StateGone(5000))
        case "storage":
            actions = driver(StorageFailed("disk gone"))
        case _:
            actions = driver.see(Replica(ME, EPOCH), 1)
    assert actions[0] == LeadershipEnded(LeaderEpoch(0))
    abandoned = [action for action in actions if isinstance(action, Abandon)]
    assert [action.token for action in abandoned] == [1, 2]
    assert all(action.error.outcome is Outcome.UNKNOWN for action in abandoned)
    with pytest.raises(
        (FencedBrokerError, NotLeaderError, UnknownTopicIdError, StorageOfflineError, LeaderNotAvailableError)
    ) as caught:
        driver.replica.check_leading(-1)
    assert caught.value.outcome is Outcome.NOT_APPLIED


def test_a_wait_of_an_earlier_epoch_is_refused(driver: Driver) -> None:
    """I9: an acknowledgement is of the epoch of its append; a later one cannot vouch for it."""
    driver.lead(0)
    driver.append()
    driver.lead(1)
    (action,) = driver(AcknowledgementAwaited(1, Offset(1), LeaderEpoch(0)))
    assert isinstance(action, Abandon)


def test_a_dropped_wait_is_not_answered(driver: Driver) -> None:
    """A produce that timed out is answered once."""
    driver.lead()
    driver.append()
    driver(AcknowledgementAwaited(1, Offset(1), LeaderEpoch(0)))
    driver(AcknowledgementDropped(1))
    assert driver(Flushed(Offset(1))) == [HighWatermarkAdvanced(Offset(1))]


def test_an_append_under_way_when_leadership_ends_is_noted_and_stays_invisible() -> None:
    """A slow append finishes in its thread: the log end moves, the high watermark does not (I8)."""
    driver = Driver(flushed_only=False)
    driver.lead()
    driver(SessionLost())
    assert driver(Appended(Offset(0), Offset(1))) == []
    assert (driver.replica.log_end_offset, driver.replica.high_watermark) == (1, 0)


def test_reads_are_bounded_by_the_log_and_not_by_the_high_watermark(driver: Driver) -> None:
    """H10: up to the log end there is nothing yet, beyond is out of range, or not to be judged in a fresh epoch."""
    driver.lead(0, in_sync=(Replica(ME, EPOCH), Replica(OTHER, 7)))
    driver.append(2)
    driver.replica.check_read(2)
    with pytest.raises(OffsetOutOfRangeError):
        driver.replica.check_read(3)
    fresh = Driver(log_end=5, high_watermark=2)
    fresh.lead(0, in_sync=(Replica(ME, EPOCH), Replica(OTHER, 7)))
    with pytest.raises(OffsetNotAvailableError):
        fresh.replica.check_read(6)
    with pytest.raises(OffsetNotAvailableError):
        fresh.replica.check_leading(-1).check_latest()


def test_the_log_start_bounds_reads() -> None:
    """I18: below the log start is out of range."""
    driver = Driver(log_end=5, high_watermark=5)
    driver(LogStartRaised(Offset(3)))
    driver.replica.check_read(3)
    with pytest.raises(OffsetOutOfRangeError):
        driver.replica.check_read(2)


def test_records_are_deleted_once_every_in_sync_replica_has_done_so() -> None:
    """I18: followers first, then the leader, then the answer; a log start that only the leader has is not sent."""
    driver, follower = Driver(log_end=5, high_watermark=5), Replica(OTHER, 7)
    driver.lead(in_sync=(Replica(ME, EPOCH), follower))
    assert driver(LogStartWanted(Offset(3))) == [AnnounceLogStart()]
    assert driver(LogStartAwaited(1, Offset(3), LeaderEpoch(0))) == []
    assert driver(FollowerFetched(follower, Offset(5), Offset(5), 0, True, 0)) == []
    assert driver(FollowerFetched(follower, Offset(5), Offset(5), 0, True, 3)) == [RaiseLogStart(Offset(3))]
    assert driver(FollowerFetched(follower, Offset(5), Offset(5), 0, True, 3)) == []
    assert driver.replica.known_log_start == 0
    assert driver(LogStartRaised(Offset(3))) == [Acknowledge(1)]
    assert driver.replica.known_log_start == 3
    assert driver(LogStartAwaited(2, Offset(2), LeaderEpoch(0))) == [Acknowledge(2)]


def test_a_deletion_ends_unknown_where_leadership_does() -> None:
    """H52: the next leader may begin there or not; and who asks at an old leader, or in an old epoch, is told so."""
    driver, follower = Driver(log_end=5, high_watermark=5), Replica(OTHER, 7)
    driver.lead(in_sync=(Replica(ME, EPOCH), follower))
    driver(LogStartWanted(Offset(3)))
    driver(LogStartAwaited(1, Offset(3), LeaderEpoch(0)))
    (abandoned,) = [each for each in driver.see(follower, 1) if isinstance(each, Abandon)]
    assert (abandoned.token, abandoned.error.outcome) == (1, Outcome.UNKNOWN)
    for epoch in (0, 1):
        (refused,) = driver(LogStartAwaited(2, Offset(3), LeaderEpoch(epoch)))
        assert isinstance(refused, Abandon)
    assert driver(LogStartWanted(Offset(4))) == []


def test_an_offline_replica_stays_offline(driver: Driver) -> None:
    """H34: nothing brings a failed log back but a restart."""
    driver.lead()
    driver(StorageFailed("00000.log is corrupt at byte 12"))
    driver(SessionLost())
    driver(SessionStarted(EPOCH + 1))
    driver.see(Replica(ME, EPOCH + 1), 1)
    with pytest.raises(StorageOfflineError, match="byte 12"):
        driver.replica.check_leading(-1)


def test_an_event_that_cannot_be_is_a_bug(driver: Driver) -> None:
    """STYLE: a pair that the table does not have is an error."""
    driver(SessionStarted(EPOCH))
    with pytest.raises(AssertionError, match="SessionStarted while IDLE"):
        driver(SessionStarted(EPOCH + 1))


def test_offsets_are_contiguous(driver: Driver) -> None:
    """I6: an append behind a gap is a bug, caught at once."""
    driver.lead()
    with pytest.raises(AssertionError, match="I6"):
        driver(Appended(Offset(1), Offset(2)))
