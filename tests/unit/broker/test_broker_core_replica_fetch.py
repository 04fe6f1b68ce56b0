"""Replica fetch, branch by branch: what a leader makes of a request, and a follower of an answer. Real logs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from headrace.log.errors import CorruptLogError
from headrace.wire.errors import (
    CorruptBatchError,
    FencedBrokerError,
    FencedLeaderEpochError,
    HeadraceError,
    InvalidRequestError,
    LeaderNotAvailableError,
    NotLeaderError,
    OffsetNotAvailableError,
    StorageOfflineError,
    UnknownLeaderEpochError,
)
from headrace.wire.ids import LeaderEpoch, Offset
from headrace_broker.core.messages import BatchesReplicated, FollowerFetched, LogTruncated, SessionLost
from headrace_broker.core.replica_fetch import (
    AppendBatches,
    Diverged,
    FetchAnswer,
    FetchRequest,
    Refetch,
    ResetLog,
    Restart,
    TruncateTo,
    check_fetch,
    check_reader,
    compare_logs,
    next_step,
)
from headrace_broker.core.roles import Role
from headrace_server.partition_state import Replica, change, note_committed

from tests.unit.broker.three_replicas import Node, ThreeReplicas

LEADER, FOLLOWER, THIRD = 1, 2, 3


def started(**settings: object) -> ThreeReplicas:
    return ThreeReplicas(**settings).start(LEADER)  # type: ignore[arg-type]


def asked(partition: ThreeReplicas, **fields: object) -> FetchRequest:
    """A fetch of the follower, with other fields where a test gives them."""
    node = partition[FOLLOWER]
    node.replica.fetches.end()
    request = node.request()
    assert request is not None
    return replace(request, **fields)  # type: ignore[arg-type]


def leader_with_epochs() -> ThreeReplicas:
    """Epoch 1 at 0 and 2, epoch 2 (the same leader anew) at 4 and 6; only the leader has them. Log end 8."""
    partition = started(min_insync_replicas=1)
    node = partition[LEADER]
    node.produce(2)
    node.produce(2)
    state = partition.state
    partition.write(change(state, leader=None, in_sync=state.in_sync))
    partition.write(change(partition.state, leader=node.session, in_sync=state.in_sync))
    partition.see_all()
    assert node.replica.leader_epoch == 3
    node.produce(2)
    node.produce(2)
    return partition


# --- may the leader answer at all ---


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"leader_epoch": 0}, FencedLeaderEpochError),
        ({"leader_epoch": 2}, UnknownLeaderEpochError),
        ({"leader_epoch": -1}, InvalidRequestError),
        ({"follower": Replica(4, 10**6)}, InvalidRequestError),
        ({"follower": Replica(LEADER, 10**6)}, InvalidRequestError),
        ({"follower": Replica(FOLLOWER, 1)}, FencedBrokerError),
        ({"durable_offset": 1}, InvalidRequestError),
        ({"durable_offset": -1}, InvalidRequestError),
        ({"offset": -1}, InvalidRequestError),
    ],
)
def test_what_the_leader_refuses(fields: dict[str, object], error: type[HeadraceError]) -> None:
    """H4, H16, H17: other epochs both ways, strangers, itself, an earlier session, offsets that cannot be."""
    partition = started()
    partition.fetch(FOLLOWER, LEADER)
    request = asked(partition, **fields)
    with pytest.raises(error):
        check_fetch(partition[LEADER].replica, request)


@pytest.mark.parametrize(
    ("read_offset", "may"), [(0, True), (1, False), (2, True), (3, False), (4, False), (-1, False)]
)
def test_an_answer_ahead_begins_behind_what_the_follower_has(read_offset: int, may: bool) -> None:
    """At the leader's log end such a fetch would wait, with an acknowledgement that is old."""
    partition = started(min_insync_replicas=1)
    node = partition[LEADER]
    for _ in range(3):
        node.produce()
    assert partition[FOLLOWER].take(node.answer(asked(partition), max_bytes=1))
    request = asked(partition, read_offset=read_offset)
    assert request.offset == 1
    if may:
        check_fetch(node.replica, request)
    else:
        with pytest.raises(InvalidRequestError):
            check_fetch(node.replica, request)


def test_who_does_not_lead_refuses() -> None:
    """H4: followers, and a leader whose epoch is not durable yet or whose session is over."""
    partition = started()
    request = asked(partition)
    check_fetch(partition[LEADER].replica, request)
    with pytest.raises(NotLeaderError):
        check_fetch(partition[THIRD].replica, request)
    partition[LEADER].replica.role, partition[LEADER].replica.leadership = Role.STARTING, None
    with pytest.raises(LeaderNotAvailableError):
        check_fetch(partition[LEADER].replica, request)
    partition[LEADER].handle(SessionLost())
    with pytest.raises(FencedBrokerError):
        check_fetch(partition[LEADER].replica, request)


# --- what the leader says of the follower's log ---


def crc_before(node: Node, offset: int) -> int:
    return next(batch.crc for batch in node.batches() if batch.end_offset == offset)


@pytest.mark.parametrize("offset", [2, 4, 6, 8])
def test_a_copy_is_a_copy_wherever_it_ends(offset: int) -> None:
    """At each batch's end, the log end included: same epoch, same chain."""
    partition = leader_with_epochs()
    node = partition[LEADER]
    epoch = 1 if offset <= 4 else 3
    request = asked(partition, offset=offset, last_epoch=epoch, last_crc=crc_before(node, offset))
    assert compare_logs(node.log, request) is None


def test_an_empty_log_is_a_copy_of_nothing() -> None:
    partition = leader_with_epochs()
    request = asked(partition)
    assert (request.offset, request.last_epoch, request.last_crc) == (0, -1, 0)
    assert compare_logs(partition[LEADER].log, request) is None
    assert compare_logs(partition[THIRD].log, request) is None


@pytest.mark.parametrize(
    ("offset", "last_epoch", "decision"),
    [
        (6, 1, Diverged(1, 4)),  # KIP-101: its epoch went on where this leader's had ended
        (6, 2, Diverged(1, 4)),  # KIP-279: an epoch that is not known here; the largest below it is
        (8, 9, Diverged(3, 8)),  # a later one
        (10, 3, Diverged(3, 8)),  # beyond the log end
        (4, 0, Restart(0, 0)),  # older than all that is left
        (9, -1, Diverged(-1, 8)),  # nothing left at an offset that this log does not have
    ],
)
def test_epochs_decide_where_logs_part(offset: int, last_epoch: int, decision: object) -> None:
    """H1, H2: (the largest epoch that is known, its end)."""
    partition = leader_with_epochs()
    request = asked(partition, offset=offset, last_epoch=last_epoch, last_crc=1)
    assert compare_logs(partition[LEADER].log, request) == decision


@pytest.mark.parametrize(
    ("offset", "last_epoch", "decision"),
    [
        (4, 1, Diverged(1, 2)),  # in the middle
        (8, 3, Diverged(3, 6)),  # at the log end
        (3, 1, Diverged(1, 2)),  # inside a batch
        (2, 1, Diverged(1, 0)),
        (0, -1, Restart(0, 0)),
        (4, -1, Restart(0, 0)),
    ],
)
def test_the_same_epoch_and_another_chain_goes_one_batch_back(offset: int, last_epoch: int, decision: object) -> None:
    """H32: should never be; then the follower tries from the batch before, and where it has none it starts over."""
    partition = leader_with_epochs()
    request = asked(partition, offset=offset, last_epoch=last_epoch, last_crc=12345)
    assert compare_logs(partition[LEADER].log, request) == decision


class CountingReader:
    """The reader of a log, which counts the reads of the first batch."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader
        self.first_batches = 0

    def first_batch(self) -> Any:
        self.first_batches += 1
        return self.reader.first_batch()

    def batch_with(self, offset: int) -> Any:
        return self.reader.batch_with(offset)

    def verify_from(self, offset: int, max_bytes: int) -> Any:
        return self.reader.verify_from(offset, max_bytes)


@pytest.mark.parametrize(("offset", "last_crc", "reads"), [(0, 0, 1), (0, 12345, 1), (4, 12345, 0)])
def test_a_comparison_reads_the_first_batch_once_and_only_where_it_decides(
    offset: int, last_crc: int, reads: int
) -> None:
    """Each read may wait for the disk, in a thread."""
    partition = leader_with_epochs()
    request = asked(partition, offset=offset, last_epoch=1 if offset else -1, last_crc=last_crc)
    reader = CountingReader(partition[LEADER].log.reader)
    compare_logs(partition[LEADER].log, request, reader)
    assert reader.first_batches == reads


def test_a_leader_with_corruption_sends_no_good_follower_back() -> None:
    """I17: whichever byte before the fetch has rotted, the copy is called a copy, or the leader its own log corrupt."""
    partition = leader_with_epochs()
    node = partition[LEADER]
    request = asked(partition, offset=4, last_epoch=1, last_crc=crc_before(node, 4))
    before, batch = (
        next(each for each in node.log.reader.headers(offset) if each.base_offset == offset) for offset in (0, 2)
    )
    path = f"{node.log.directory}/{0:020d}.log"
    noticed = 0
    for position in range(before.batch_bytes, before.batch_bytes + batch.batch_bytes):
        node.disk.corrupt(path, position, 0x10)
        try:
            assert compare_logs(node.log, request) is None
        except CorruptLogError:
            noticed += 1
        node.disk.corrupt(path, position, 0x10)
    assert noticed
    assert compare_logs(node.log, request) is None


def test_below_the_log_start_the_follower_starts_over() -> None:
    """H8: where the batch that holds the log start begins, with its chain."""
    partition = leader_with_epochs()
    node = partition[LEADER]
    node.flush()
    for broker in (FOLLOWER, THIRD):
        partition.catch_up(broker, LEADER)
    node.delete_records(5)
    request = asked(partition, offset=2, last_epoch=1, last_crc=crc_before(partition[FOLLOWER], 2))
    assert compare_logs(node.log, request) == Restart(4, crc_before(partition[FOLLOWER], 4))
    assert compare_logs(node.log, replace(request, offset=0, last_epoch=-1, last_crc=0)) == Restart(
        4, crc_before(partition[FOLLOWER], 4)
    )


@pytest.mark.parametrize("log_start", [4, 5])
def test_at_the_log_start_the_chain_is_judged_too(log_start: int) -> None:
    """H32: a log that ends at this log's start must have its start chain; no log ends inside the first batch."""
    partition = leader_with_epochs()
    node = partition[LEADER]
    node.flush()
    for broker in (FOLLOWER, THIRD):
        partition.catch_up(broker, LEADER)
    crc = crc_before(partition[FOLLOWER], 4)
    node.delete_records(log_start)
    fresh = asked(partition, offset=4, last_epoch=-1, last_crc=crc)
    assert compare_logs(node.log, fresh) is None
    assert compare_logs(node.log, replace(fresh, last_crc=crc ^ 1)) == Restart(4, crc)
    if log_start == 5:
        assert compare_logs(node.log, replace(fresh, offset=5)) == Restart(4, crc)


def test_a_copy_of_an_emptied_log_stays_one_in_a_new_epoch() -> None:
    """A follower at the leader's log start with its chain keeps its log and its producers (H49)."""
    partition = leader_with_epochs()
    node = partition[LEADER]
    node.flush()
    for broker in (FOLLOWER, THIRD):
        partition.catch_up(broker, LEADER)
    crc = node.log.last_crc
    node.delete_records(8)
    assert compare_logs(node.log, asked(partition, offset=8, last_epoch=3, last_crc=crc)) is None
    node.log.start_epoch(4)
    request = asked(partition, offset=8, last_epoch=3, last_crc=crc)
    assert compare_logs(node.log, request) is None
    assert compare_logs(node.log, replace(request, last_crc=crc ^ 1)) == Restart(8, crc)


def test_an_append_during_the_comparison_makes_no_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    """H46: a slow append ends in its thread between two looks at the log's end; a good copy stays one."""
    partition = leader_with_epochs()
    node = partition[LEADER]
    request = asked(partition, offset=8, last_epoch=3, last_crc=node.log.last_crc)

    class Moving:
        """The log, with a batch more from the second look on."""

        def __getattr__(self, name: str) -> object:
            found = getattr(node.log, name)
            if name == "log_end_offset" and node.log.log_end_offset == 8:
                node.produce(2)
            return found

    assert compare_logs(Moving(), request) is None  # type: ignore[arg-type]
    assert node.log.log_end_offset == 10


# --- what the follower does ---


def answer_to(request: FetchRequest, **fields: object) -> FetchAnswer:
    return replace(FetchAnswer(request.token, request.leader_epoch), **fields)  # type: ignore[arg-type]


def follower_with(records: int, **settings: object) -> ThreeReplicas:
    """A follower that has copied `records` single-record batches, all committed."""
    partition = started(**settings)
    for _ in range(records):
        partition[LEADER].produce()
    partition[LEADER].flush()
    for broker in (FOLLOWER, THIRD):
        partition.catch_up(broker, LEADER)
    partition.catch_up(FOLLOWER, LEADER)
    return partition


def test_data_is_appended() -> None:
    partition = follower_with(2)
    node = partition[FOLLOWER]
    request = asked(partition)
    step = next_step(
        node.replica, node.log, answer_to(request, batches=b"x", high_watermark=7, log_start_offset=1, more=True)
    )
    assert step == AppendBatches(b"x", 7, 1, True)


def fetching_ahead() -> tuple[ThreeReplicas, FetchAnswer, FetchAnswer]:
    """The leader has 2 and 3, too; its answers: with 2, and with 3 to a fetch that was sent before 2 was written."""
    partition = follower_with(2)
    node, leader = partition[FOLLOWER], partition[LEADER]
    leader.produce()
    leader.produce()
    request = asked(partition)
    first = leader.answer(request, max_bytes=1)
    assert first.more
    assert isinstance(next_step(node.replica, node.log, first), AppendBatches)
    token = node.replica.fetches.begin(ahead_offset=3)
    assert token is not None
    with leader.log.reader.read(3, 1, 4) as found:
        return partition, first, FetchAnswer(token, request.leader_epoch, batches=found.read())


def test_an_answer_ahead_is_appended_where_the_log_ends() -> None:
    """It was asked for before the log reached there; when it comes the log has."""
    partition, first, ahead = fetching_ahead()
    node = partition[FOLLOWER]
    node.handle(BatchesReplicated(node.log.append_replicated(first.batches)))
    assert isinstance(node.take(ahead), AppendBatches)
    assert node.log.log_end_offset == node.replica.log_end_offset == 4


def test_an_answer_ahead_does_not_fit_where_the_one_before_was_not_written() -> None:
    """Its bytes are good: they are no corruption, and are asked for again."""
    partition, _, ahead = fetching_ahead()
    node = partition[FOLLOWER]
    assert next_step(node.replica, node.log, ahead) == Refetch()
    assert node.log.log_end_offset == 2
    assert node.replica.fetches.begin() is not None


@pytest.mark.parametrize("decision", [Diverged(1, 2), Restart(9, 0)])
def test_a_decision_on_a_fetch_ahead_is_not_used(decision: Diverged | Restart) -> None:
    """H6: it is about the log as it was before the batches that have been written since."""
    partition, first, ahead = fetching_ahead()
    node = partition[FOLLOWER]
    node.handle(BatchesReplicated(node.log.append_replicated(first.batches)))
    answer = FetchAnswer(ahead.token, ahead.leader_epoch, decision)
    assert next_step(node.replica, node.log, answer) == Refetch()
    assert next_step(node.replica, node.log, ahead) is None


def test_nothing_takes_the_place_of_a_fetch_ahead() -> None:
    """It waits for nothing, and what it brings would be sent twice."""
    partition, _, ahead = fetching_ahead()
    replica = partition[FOLLOWER].replica
    assert replica.fetches.begin(replace=True) is None
    replica.fetches.end()
    assert replica.fetches.begin(replace=True) == ahead.token + 1
    assert replica.fetches.begin(replace=True) == ahead.token + 2


@pytest.mark.parametrize(
    "how", ["used twice", "wrong token", "wrong epoch", "replaced", "connection lost", "new epoch"]
)
def test_a_late_answer_is_not_used(how: str) -> None:
    """H6: above all a `diverged` to an old fetch, which would cut good records."""
    partition = follower_with(2)
    node = partition[FOLLOWER]
    request = asked(partition)
    answer = answer_to(request, decision=Diverged(1, 0))
    match how:
        case "used twice":
            assert next_step(node.replica, node.log, answer_to(request)) is not None
        case "wrong token":
            answer = replace(answer, token=request.token + 1)
        case "wrong epoch":
            answer = replace(answer, leader_epoch=request.leader_epoch + 1)
        case "replaced":
            assert node.replica.fetches.begin() is None
            assert node.replica.fetches.begin(replace=True) == request.token + 1
        case "connection lost":
            node.replica.fetches.end()
        case _:
            partition.lead(THIRD)
            partition.see_all()
            assert node.replica.role is Role.FOLLOWING
    assert next_step(node.replica, node.log, answer) is None
    assert node.log.log_end_offset == 2


@pytest.mark.parametrize("role", ["leads", "fenced", "idle"])
def test_an_answer_to_one_who_follows_no_more_is_not_used(role: str) -> None:
    """H6: the role has changed between the request and the answer."""
    partition = follower_with(2)
    node = partition[FOLLOWER]
    request = asked(partition)
    match role:
        case "leads":
            partition.lead(FOLLOWER)
            partition.see_all()
        case "fenced":
            node.handle(SessionLost())
        case _:
            partition.write(change(partition.state, leader=None, in_sync=partition.state.in_sync))
            partition.see_all()
    assert node.replica.role is not Role.FOLLOWING
    assert node.replica.fetches.begin() is None
    assert next_step(node.replica, node.log, answer_to(request, decision=Diverged(1, 0))) is None


def with_uncommitted_tail() -> ThreeReplicas:
    """The follower led epoch 2 and alone has its records at 2 and 3; the leader of epoch 3 has only epoch 1."""
    partition = follower_with(2)
    partition.lead(FOLLOWER)
    partition[FOLLOWER].see()
    partition[FOLLOWER].produce()
    partition[FOLLOWER].produce()
    partition.lead(THIRD)
    partition.see_all()
    return partition


@pytest.mark.parametrize(
    ("decision", "target"),
    [
        (Diverged(2, 3), 3),  # the leader has a part of it
        (Diverged(1, 2), 2),
        (Diverged(1, 4), 2),  # H2: no further than where that epoch ends here
        (Diverged(2, 9), 4),
    ],
)
def test_a_log_is_cut_where_both_agree(decision: Diverged, target: int) -> None:
    """H1, H2, KIP-279: the lesser of both ends of the epoch that the leader names."""
    partition = with_uncommitted_tail()
    node = partition[FOLLOWER]
    assert next_step(node.replica, node.log, answer_to(asked(partition), decision=decision)) == TruncateTo(target)


def test_a_start_from_nothing_is_taken_whole() -> None:
    """H8: one step sets log start, log end, high watermark and the chain that the next batch continues."""
    partition = follower_with(2)
    node = partition[FOLLOWER]
    step = node.take(answer_to(asked(partition), decision=Restart(9, 77)))
    assert step == ResetLog(9, 77)
    replica = node.replica
    assert (replica.log_start_offset, replica.log_end_offset, replica.high_watermark) == (9, 9, 9)
    assert (node.log.log_start_offset, node.log.log_end_offset, node.log.last_crc) == (9, 9, 77)
    assert len(replica.producers) == 0


@pytest.mark.parametrize("decision", [Diverged(1, 1), Diverged(0, 0), Restart(1, 0)])
def test_committed_records_are_not_cut(decision: object) -> None:
    """I18: below the high watermark nothing goes without an unclean election: one of the two lost records."""
    partition = follower_with(2)
    node = partition[FOLLOWER]
    assert node.replica.high_watermark == 2
    with pytest.raises(StorageOfflineError, match="unclean"):
        node.take(answer_to(asked(partition), decision=decision))
    assert node.log.log_end_offset == 2


def restarted_member(committed: int) -> ThreeReplicas:
    """The follower of `follower_with(2)` lost power and its checkpoint; the key has it in sync again."""
    partition = follower_with(2)
    partition.write(note_committed(partition.state, committed))
    partition.restart(FOLLOWER)
    assert partition[FOLLOWER].replica.high_watermark == 0
    assert partition.sweep()
    partition.see_all()
    return partition


@pytest.mark.parametrize("decision", [Diverged(1, 1), Diverged(0, 0), Restart(1, 0)])
def test_a_restarted_member_cuts_nothing_that_the_key_calls_committed(decision: object) -> None:
    """I18: its own high watermark went with the power; what the leader wrote into the key holds for members."""
    partition = restarted_member(2)
    node = partition[FOLLOWER]
    with pytest.raises(StorageOfflineError, match="unclean"):
        node.take(answer_to(asked(partition), decision=decision))
    assert (node.log.log_end_offset, node.replica.lacks_committed) == (2, False)


def test_a_member_that_ends_below_what_the_key_calls_committed_lacks_it() -> None:
    """I3: the cause of the shorter log does not matter; an unclean election resets the committed offset."""
    partition = restarted_member(3)
    node = partition[FOLLOWER]
    assert (node.replica.high_watermark, node.replica.lacks_committed) == (2, True)
    leader = partition.session_of(FOLLOWER)
    partition.write(change(partition.state, leader=leader, in_sync=[leader], unclean=True))
    node.see()
    assert (partition.state.high_watermark, node.replica.lacks_committed) == (0, False)


def test_the_keys_high_watermark_is_not_for_those_who_are_no_members() -> None:
    """A log that left may part from the leader's anywhere above what it knows itself."""
    partition = follower_with(2)
    leader = partition.session_of(LEADER)
    partition.write(note_committed(change(partition.state, leader=leader, in_sync=[leader]), 2))
    partition.restart(FOLLOWER)
    partition.see_all()
    assert (partition[FOLLOWER].replica.high_watermark, partition[FOLLOWER].replica.lacks_committed) == (0, False)


def after_an_unclean_election(log_start: int) -> ThreeReplicas:
    """Broker 3 leads uncleanly with two records; 1 and 2 had committed six, and deleted those before `log_retention`.

    The last four are one batch.
    """
    partition = started(min_insync_replicas=1)
    partition[LEADER].produce(2)
    partition[LEADER].flush()
    for broker in (FOLLOWER, THIRD):
        partition.catch_up(broker, LEADER)
    partition.kill(THIRD)
    partition.sweep()
    partition.see_all()
    partition[LEADER].produce(4)
    partition[LEADER].flush()
    partition.catch_up(FOLLOWER, LEADER)
    partition[LEADER].delete_records(log_start)
    partition.fetch(FOLLOWER, LEADER)
    assert partition[FOLLOWER].replica.log_start_offset == log_start
    partition[FOLLOWER].log.durability.checkpoint(0, partition[FOLLOWER].replica.high_watermark, force=True)
    partition.kill(LEADER)
    partition.kill(FOLLOWER)
    partition.elect()
    partition.register(THIRD)
    assert partition.elect(unclean=THIRD)
    assert partition.state.unclean
    partition.see_all()
    partition.register(FOLLOWER)
    partition.see_all()
    assert partition[FOLLOWER].replica.high_watermark > 2
    return partition


def test_after_an_unclean_election_committed_records_are_cut() -> None:
    """H21: the one reason for it; the high watermark goes back with the log."""
    partition = after_an_unclean_election(log_start=0)
    assert partition.fetch(FOLLOWER, THIRD) == TruncateTo(2)
    replica = partition[FOLLOWER].replica
    assert (replica.log_end_offset, replica.high_watermark, replica.flushed_offset) == (2, 2, 2)
    partition.catch_up(FOLLOWER, THIRD)
    assert partition[FOLLOWER].batches() == partition[THIRD].batches()


@pytest.mark.parametrize(("epoch", "end_offset", "offset"), [(0, 4, 4), (0, 9, 4), (1, 5, 5)])
def test_a_cut_inside_the_batch_that_holds_the_log_start_is_a_start_from_nothing(
    epoch: int, end_offset: int, offset: int
) -> None:
    """Seed 407585: a cut takes whole batches, and the log would end at 2, before the start at 4."""
    partition = after_an_unclean_election(log_start=4)
    node = partition[FOLLOWER]
    assert node.log.reader.first_batch()[0] == 2
    step = node.take(answer_to(asked(partition), decision=Diverged(epoch, end_offset)))
    assert step == ResetLog(offset, 0)
    node.replica.validate_state()


def test_a_cut_below_the_own_log_start_is_a_start_from_nothing() -> None:
    """H8, H21: a log cannot end before it begins; what is left of it is nothing, and the rest is copied."""
    partition = after_an_unclean_election(log_start=4)
    assert partition.fetch(FOLLOWER, THIRD) == ResetLog(2, 0)
    replica = partition[FOLLOWER].replica
    assert (replica.log_start_offset, replica.log_end_offset, replica.high_watermark) == (2, 2, 2)
    partition.catch_up(FOLLOWER, THIRD)
    assert partition[FOLLOWER].batches() == partition[THIRD].batches()
    partition.check()


def test_an_old_unclean_election_excuses_nothing_newer() -> None:
    """I18: only logs that end before that epoch may have lost what was committed."""
    partition = after_an_unclean_election(log_start=0)
    partition.catch_up(FOLLOWER, THIRD)
    partition[THIRD].produce(2)
    partition[THIRD].flush()
    partition.catch_up(FOLLOWER, THIRD)
    node = partition[FOLLOWER]
    with pytest.raises(StorageOfflineError):
        node.take(answer_to(asked(partition), decision=Diverged(1, 0)))


def test_corrupt_answers_append_nothing() -> None:
    """I17: what fails its checks is not accepted, and the fetch may be sent again."""
    partition = follower_with(1)
    node = partition[FOLLOWER]
    partition[LEADER].produce()
    request = node.request()
    assert request is not None
    answer = partition[LEADER].answer(request)
    corrupt = bytearray(answer.batches)
    corrupt[-1] ^= 1
    with pytest.raises(CorruptBatchError):
        node.take(replace(answer, batches=bytes(corrupt)))
    assert node.log.log_end_offset == node.replica.log_end_offset == 1
    partition.catch_up(FOLLOWER, LEADER)
    assert node.log.log_end_offset == 2


def test_a_cut_takes_the_flushed_offset_and_never_the_log_end_back_up() -> None:
    """I16: what was flushed and is cut does not count as flushed when other records come to its place."""
    partition = with_uncommitted_tail()
    node = partition[FOLLOWER]
    node.flush()
    assert node.replica.flushed_offset == 4
    node.log.truncate_to(2)
    node.handle(LogTruncated(Offset(2)))
    assert (node.replica.flushed_offset, node.replica.log_end_offset, node.replica.high_watermark) == (2, 2, 2)


def test_a_decision_counts_for_nothing() -> None:
    """H7: a diverging fetch is no acknowledgement; the shell reports only what `compare_logs` lets pass."""
    partition = with_uncommitted_tail()
    before = partition[THIRD].replica.check_leading(-1).followers.get(partition[FOLLOWER].session)
    answer = partition[THIRD].answer(asked(partition))
    assert answer == FetchAnswer(answer.token, 3, Diverged(1, 2))
    assert partition[THIRD].replica.check_leading(-1).followers.get(partition[FOLLOWER].session) is before is None
    with pytest.raises(AssertionError, match="verified"):
        partition[THIRD].handle(FollowerFetched(partition[FOLLOWER].session, Offset(9), Offset(0), 0, may_join=True))


# --- readers ---


@pytest.mark.parametrize(
    ("offset", "last_epoch", "found"),
    [
        (4, 1, None),
        (3, 1, None),
        (5, 1, Diverged(1, 4)),
        (6, 2, Diverged(1, 4)),
        (8, 3, None),
        (9, 3, Diverged(3, 8)),
        (2, 0, None),  # retention has taken that epoch: its records are gone for everybody
    ],
)
def test_readers_learn_where_the_log_was_replaced(offset: int, last_epoch: int, found: object) -> None:
    """KIP-320: by the epoch of the last batch read."""
    partition = leader_with_epochs()
    node = partition[LEADER]
    assert check_reader(node.replica, node.log, offset, last_epoch) == found


def test_readers_ahead_of_the_replica_ask_again() -> None:
    """KIP-320, KIP-392: a later epoch than is known here, or what a follower does not know to be committed."""
    partition = leader_with_epochs()
    node = partition[LEADER]
    with pytest.raises(UnknownLeaderEpochError):
        check_reader(node.replica, node.log, 0, 4)
    follower = partition[FOLLOWER]
    assert follower.replica.leader_epoch == LeaderEpoch(3)
    with pytest.raises(OffsetNotAvailableError):
        check_reader(follower.replica, follower.log, 1, 1)
    assert check_reader(follower.replica, follower.log, 0, 1) is None
